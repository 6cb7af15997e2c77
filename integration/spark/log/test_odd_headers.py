"""Headers of blocks that no client writes: equal in all ways of reading, by consumer, direct get, queue and Arrow."""

from __future__ import annotations

import pytest

from integration.consumers.test_poison_messages import store_raw
from integration.kit.calls.queue import QueueQuery
from integration.kit.calls.source import BatchRead
from integration.kit.judge.waiting import eventually
from jsclient.arrow import read_jetstream

# A block, and its headers in every way of reading. The server takes the last two bytes of a block for its empty line,
# and a direct get has its own headers in their place: a line that does not end before them is not read.
BLOCKS = {
    b"NATS/1.0\r\nA: 1\r\n\r\n": [("A", ["1"])],
    b"NATS/1.0\r\nA: 1\r\nA:\r\nB: 2\r\n\r\n": [("A", ["1", ""]), ("B", ["2"])],
    b"NATS/1.0\r\nA: 1\r\n": None,
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\n": [("A", ["1"])],
    b"NATS/1.0\r\nA: 1\r\nB: 22": [("A", ["1"])],
    b"NATS/1.0\r\nA: 1\r\nB: 2\r": [("A", ["1"])],
    b"NATS/1.0\r\nA: 1\r\nB": None,
    b"NATS/1.0\r\nA: 1\r\n\r": None,
    b"NATS/1.0\r\nA: 1\r\n\r\nB: 2": [("A", ["1"])],
    b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n": [("A", ["1"])],
    b"NATS/1.0\r\nNats-Stream: x\r\nNats-Subject: y\r\n\r\n": [
        ("Nats-Stream", ["x"]),
        ("Nats-Subject", ["y"]),
    ],
    b"NATS/1.0\r\nA: 1\r\nNats-Stream: x\r\nB: 2": [("A", ["1"]), ("Nats-Stream", ["x"])],
    b"NATS/1.0\r\nNats-Stream: x\r\n": None,
    b"NATS/1.0\r\n\r\n": None,
    b"NATS/1.0\r\n": None,
    b"NATS/1.0": None,
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n": None,
    b"NATS/1.0 204 EOB\r\nA: 1\r\n\r\n": [("A", ["1"])],
    b"XXXX\r\nA: 1\r\n\r\n": None,
    b"NA": None,
    b"\r\n": None,
}
COLUMNS = ("headers", "data", "sequence", "subject")


async def stored(server, stream):
    """Store a message with each of the blocks."""
    subject = stream.subject("a").encode()
    await store_raw(server.url, [(subject, block, b"%d" % at) for at, block in enumerate(BLOCKS)])

    async def all_stored():
        return (await stream.state())["last_seq"] == len(BLOCKS)

    await eventually(all_stored, 5, "all blocks")


@pytest.mark.covers("L8")
async def test_odd_headers_read_alike(server, make_stream):
    stream = await make_stream(allow_direct=True)
    await stored(server, stream)
    await stream.create_consumer("q", ack_policy="explicit")
    queue = QueueQuery(server, stream, "q", {}, COLUMNS)
    ways = {
        "queue": sorted(await queue.batch(), key=lambda row: row["sequence"]),
        **{
            mode: BatchRead(server, stream, columns=COLUMNS, readMode=mode).rows
            for mode in ("consumer", "direct")
        },
        "arrow": read_jetstream(server.url, stream.name, columns=COLUMNS).read_all().to_pylist(),
    }
    await queue.stop()
    for way, rows in ways.items():
        seen = {block: row["headers"] for block, row in zip(BLOCKS, rows, strict=True)}
        assert seen == BLOCKS, way
        assert [row["data"] for row in rows] == [b"%d" % at for at in range(len(BLOCKS))], way
        assert {row["subject"] for row in rows} == {stream.subject("a")}, way


@pytest.mark.covers("L8")
async def test_odd_headers_one_by_one(server, make_stream):
    """An isolated claim is read with a separate request."""
    stream = await make_stream(allow_direct=True)
    await stored(server, stream)
    await stream.create_consumer("q", ack_policy="explicit")
    queue = QueueQuery(server, stream, "q", {"maxMessagesPerTrigger": 1}, COLUMNS)
    rows = [row for _ in BLOCKS for row in await queue.batch()]
    await queue.stop()
    assert {block: row["headers"] for block, row in zip(BLOCKS, rows, strict=True)} == BLOCKS
