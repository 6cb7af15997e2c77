"""Publish readings with message ids: one by one, through a publisher, and many at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import jsclient
from jsclient import PubAck, PublishedMany


def readings(first: int, count: int) -> Iterator[bytes]:
    return (b"%d" % number for number in range(first, first + count))


async def publish_each(js: jsclient.JetStream) -> list[PubAck]:
    acks: list[PubAck] = []
    async with js.publisher(max_in_flight=100) as pub:
        futures = [await pub.publish("readings.a", data, msg_id=f"a-{data!r}") for data in readings(0, 10)]
        futures.append(pub.send("readings.a", b"10", headers={"Unit": "K"}))
        acks.extend([await future for future in futures])
    return acks


async def main(url: str) -> None:
    async with jsclient.connect(url, name="sensor", timeout=2.0) as js:
        await js.create_stream("READINGS", ["readings.>"], duplicate_window=60)
        ack = await js.publish("readings.b", b"1", msg_id="b-1", headers={"Unit": "K", "Tag": ["x", "y"]})
        again = await js.publish("readings.b", b"1", msg_id="b-1")
        if ack.seq != again.seq or not again.duplicate:
            raise SystemExit("stored twice")
        acks = await publish_each(js)
        ids = [f"c-{number}" for number in range(50)]
        many: PublishedMany = await js.publish_many("readings.c", readings(0, 50), msg_ids=ids)
        try:
            await js.publish("readings.b", b"2", expected_last_subject_seq=7)
        except jsclient.WrongLastSequenceError as error:
            print(error.err_code, end=" ")
        print([ack.seq for ack in acks][-1], many.stored, many.last_seq)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
