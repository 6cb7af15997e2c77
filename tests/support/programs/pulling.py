"""Fetch mails in batches until none is left, and ack each batch."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import jsclient
from jsclient import Batch, ConsumerConfig, Ending, Message, PullSubscription


async def send(msg: Message) -> bool:
    return msg.metadata.num_delivered > 1 or not msg.data.endswith(b"3")


async def deliver(mails: PullSubscription) -> int:
    sent = 0
    while True:
        batch: Batch = await mails.fetch(10, no_wait=True)
        for msg in batch:
            if await send(msg):
                sent += 1
            else:
                await msg.nak(delay=0.05)
        await jsclient.ack_all(batch)
        if batch.ending is Ending.NO_MESSAGES and not batch:
            return sent


async def main(url: str) -> None:
    async with jsclient.connect(url) as js:
        await js.create_stream("MAILS", ["mails.>"])
        await js.publish_many("mails.out", (b"mail %d" % number for number in range(25)))
        config = ConsumerConfig(ack_wait=timedelta(seconds=10), max_ack_pending=100, max_deliver=5)
        async with js.pull_subscribe(
            "mails.>", durable="mailer", config=config, delete_on_close=True
        ) as mails:
            sent = await deliver(mails)
            async with mails.messages(max_messages=4) as remainder:
                while sent < 25:
                    msg = await remainder.next(timeout=5)
                    await msg.ack_sync(timeout=2.0)
                    sent += 1
            info = await mails.consumer_info()
            pending: int = info.num_pending
            print(sent, pending, info.config.ack_wait)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
