"""A pull worker: it asks for what it can do, batch by batch (`fetch`) or on and on (`messages`).

python examples/03_pull_worker.py [url]
"""

import asyncio
import contextlib
import sys

import jsclient
from jsclient.server import NatsServer


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url))
        await js.create_stream("PULL_MAIL", subjects=["pull.mail"], storage="memory")
        stack.push_async_callback(js.delete_stream, "PULL_MAIL")
        for number in range(25):
            await js.publish("pull.mail", b"mail %d" % number)

        sub = await stack.enter_async_context(await js.pull_subscribe("pull.mail", durable="mailer"))

        batch = await sub.fetch(10, expires=2.0)
        print(f"fetch(10): {len(batch)} messages, ending {batch.ending.value}")
        await jsclient.ack_all(batch)

        batch = await sub.fetch(10, no_wait=True)
        await batch[0].nak()  # give one back; it comes again
        await jsclient.ack_all(batch)  # a nak is terminal: for that message this does nothing
        print(f"no_wait: {len(batch)} messages, the first one given back")

        again: list[bool] = []
        async with sub.messages(max_messages=4) as reader:  # never more than 4 asked for or waiting
            async for msg in reader:
                again.append(msg.metadata.num_delivered > 1)
                await msg.ack_sync()  # returns when the server has counted it
                if len(again) == 6:
                    break
        print(f"messages(): {len(again)} more, {sum(again)} of them for the second time")

        batch = await sub.fetch(10, expires=0.3)
        print(f"nothing left: {len(batch)} messages, ending {batch.ending.value}")
        info = await sub.consumer_info()
        print(f"acked up to {info.ack_floor.stream_seq}, {info.num_ack_pending} not acked")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
