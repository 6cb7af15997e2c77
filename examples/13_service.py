"""A service: two instances share requests, and a client finds them and asks.

python examples/13_service.py [url]
"""

import asyncio
import contextlib
import sys

import jsclient
from jsclient.server import NatsServer

PRICES = {"pear": 120, "plum": 40}


async def price(request: jsclient.CoreMessage) -> None:
    cents = PRICES.get(request.data.decode())
    if cents is None:
        raise jsclient.ServiceError(404, "no such fruit")
    await request.respond(b"%d" % cents)


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        for _ in range(2):
            js = await stack.enter_async_context(jsclient.connect(url))
            service = await stack.enter_async_context(js.core.add_service("prices", "1.0.0"))
            await service.add_endpoint("price", price, subject="prices.get")
            await js.core.flush()

        client = await stack.enter_async_context(jsclient.connect(url))
        for fruit in ("pear", "plum", "lime"):
            reply = await client.core.request("prices.get", fruit.encode(), timeout=2)
            print(fruit, reply.error or f"{reply.data.decode()} cents")
        await asyncio.gather(*(client.core.request("prices.get", b"pear") for _ in range(997)))

        instances = await client.core.service_stats("prices")
        counts = [endpoint.num_requests for one in instances for endpoint in one.endpoints or ()]
        print(f"{len(instances)} instances answered {sum(counts)} requests, each some: {min(counts) > 0}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
