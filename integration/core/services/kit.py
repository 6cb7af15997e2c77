"""A process with instances of a service, to be killed: run as ``python -m integration.core.services.kit URL COUNT``."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import jsclient


async def main(url: str, count: int) -> None:
    async with jsclient.connect(url) as js, AsyncExitStack() as stack:
        for _ in range(count):
            service = await stack.enter_async_context(js.core.add_service("echo", "1.0.0"))

            async def echo(request: jsclient.CoreMessage, service: jsclient.Service = service) -> None:
                await asyncio.sleep(0.002)
                await request.respond(request.data, headers={"Instance": service.id})

            await service.add_endpoint("echo", echo)
        await js.core.flush()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
