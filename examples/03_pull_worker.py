"""Consume messages by pull, in batches (`fetch`) or continuously (`messages`).

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

        # delete_on_close=False: the consumer and its position outlive this program
        mailer = js.pull_subscribe("pull.mail", durable="mailer", delete_on_close=False)
        sub = await stack.enter_async_context(mailer)

        batch = await sub.fetch(10, expires=2.0)
        print(f"fetch(10): {len(batch)} messages, ending {batch.ending.value}")
        await jsclient.ack_all(batch)

        batch = await sub.fetch(10, no_wait=True)
        await batch[0].nak()  # return one; it will be redelivered
        await jsclient.ack_all(batch)  # no effect on the first message: a nak is terminal
        print(f"no_wait: {len(batch)} messages, the first one returned")

        redelivered: list[bool] = []
        async with sub.messages(max_messages=4) as reader:  # at most 4 requested or buffered
            async for msg in reader:
                redelivered.append(msg.metadata.num_delivered > 1)
                await msg.ack_sync()  # waits until the server has counted the ack
                if len(redelivered) == 6:
                    break
        print(f"messages(): {len(redelivered)} more, {sum(redelivered)} of them redelivered")

        batch = await sub.fetch(10, expires=0.3)
        print(f"nothing left: {len(batch)} messages, ending {batch.ending.value}")
        info = await sub.consumer_info()
        print(f"acked up to {info.ack_floor.stream_seq}, {info.num_ack_pending} unacked")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
