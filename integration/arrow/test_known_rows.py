"""Counts and sequences of a stream without gaps come from its info. With gaps, its messages are read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from integration.kit.network.wire import TO_SERVER
from jsclient.arrow import read_jetstream, scan_jetstream
from jsclient.errors import HistoryTruncatedError, PositionInvalidError

KNOWN = ("sequence", "stream", "stream_created")
COUNT = 300


async def rows_of(tap, stream, options=(), columns=KNOWN, **arguments):
    """The rows of a read, and whether it has asked for messages."""
    start, settings = len(tap.frames), {"servers": tap.url, **dict(options)}
    rows = await asyncio.to_thread(
        lambda: read_jetstream(settings, stream.name, columns=columns, **arguments).read_all().to_pylist()
    )
    requested = [frame.raw for frame in tap.frames[start:] if frame.direction is TO_SERVER]
    return rows, any(b"CONSUMER.MSG.NEXT" in raw or b"DIRECT.GET" in raw for raw in requested)


async def sequences(stream):
    return [message.seq for message in await stream.messages()]


async def whole(stream):
    """No message is removed."""


async def deleted(stream):
    await stream.oracle.delete_message(stream.name, 7)


async def last_deleted(stream):
    await stream.oracle.delete_message(stream.name, COUNT)


async def superseded(stream):
    await stream.publish(1, "b")


async def head_purged(stream):
    await stream.oracle.purge(stream.name, keep=100)


async def head_dropped(stream):
    await stream.publish(20, "b")


CASES = {
    "whole": (whole, {}, False),
    "deleted": (deleted, {}, True),
    "last deleted": (last_deleted, {}, True),
    "superseded": (superseded, {"max_msgs_per_subject": 1}, True),
    "head purged": (head_purged, {}, False),
    "head dropped": (head_dropped, {"max_msgs": COUNT}, False),
}


@pytest.mark.parametrize("case", CASES)
async def test_rows_of_a_stream(proxy, oracle, make_stream, case):
    tap = await proxy()
    change, config, needs_messages = CASES[case]
    stream = await make_stream(allow_direct=True, **config)
    await stream.publish(1, "a")
    await stream.publish(COUNT - 1, "b", first=2)
    await change(stream)
    rows, requested = await rows_of(tap, stream)
    assert [row["sequence"] for row in rows] == await sequences(stream)
    assert {row["stream"] for row in rows} == {stream.name}
    assert len({row["stream_created"] for row in rows}) == 1
    assert requested is needs_messages
    whole_rows, _ = await rows_of(tap, stream, columns=(*KNOWN, "data"))
    assert [{name: row[name] for name in KNOWN} for row in whole_rows] == rows


async def test_filters_need_messages(proxy, stream):
    tap = await proxy()
    await stream.publish(5, "a")
    await stream.publish(5, "b")
    rows, requested = await rows_of(tap, stream, subjects=stream.subject("b"))
    assert ([row["sequence"] for row in rows], requested) == ([6, 7, 8, 9, 10], True)


@pytest.mark.parametrize("columns", [("sequence", "subject"), ("sequence", "timestamp")], ids=str)
async def test_other_columns_need_messages(proxy, stream, columns):
    tap = await proxy()
    await stream.publish(20)
    rows, requested = await rows_of(tap, stream, columns=columns)
    assert ([row["sequence"] for row in rows], requested) == ([*range(1, 21)], True)


async def test_read_mode_is_obeyed(proxy, stream):
    tap = await proxy()
    await stream.publish(20)
    rows, requested = await rows_of(tap, stream, {"readMode": "consumer"})
    assert ([row["sequence"] for row in rows], requested) == ([*range(1, 21)], True)


async def test_parts_of_a_stream(proxy, stream):
    """By sequence and by time, in batches that the option limits."""
    tap = await proxy()
    await stream.publish(10)
    await asyncio.sleep(0.01)
    later = datetime.now(UTC)
    await asyncio.sleep(0.01)
    await stream.publish(10)
    for arguments, expected in (
        ({"start": 5, "end": 12}, range(5, 13)),
        ({"start": later}, range(11, 21)),
        ({"end": later}, range(1, 11)),
    ):
        rows, requested = await rows_of(tap, stream, {"batchRows": "3"}, **arguments)
        assert ([row["sequence"] for row in rows], requested) == ([*expected], False)


async def test_several_streams(proxy, oracle, make_stream):
    tap = await proxy()
    streams = [await make_stream(), await make_stream()]
    for stream in streams:
        await stream.publish(10)
    await deleted(streams[1])
    names = ",".join(stream.name for stream in streams)
    reader = await asyncio.to_thread(read_jetstream, tap.url, names, columns=("stream", "sequence"))
    rows = (await asyncio.to_thread(reader.read_all)).to_pylist()
    expected = {(streams[0].name, seq) for seq in range(1, 11)} | {
        (streams[1].name, seq) for seq in range(1, 11) if seq != 7
    }
    assert {(row["stream"], row["sequence"]) for row in rows} == expected
    assert len(rows) == 19


async def test_messages_that_are_lost_are_reported(proxy, stream):
    """Removed after the positions were resolved, before the first batch."""
    tap = await proxy()
    await stream.publish(20)
    reader = await asyncio.to_thread(read_jetstream, tap.url, stream.name, columns=KNOWN)
    await stream.oracle.purge(stream.name, keep=5)
    with pytest.raises(HistoryTruncatedError):
        await asyncio.to_thread(reader.read_all)


async def test_another_stream_is_reported(proxy, stream):
    tap = await proxy()
    await stream.publish(20)
    reader = await asyncio.to_thread(read_jetstream, tap.url, stream.name, columns=KNOWN)
    await stream.delete()
    await stream.oracle.create_stream(stream.name, storage="memory", subjects=[stream.all])
    await stream.publish(20)
    with pytest.raises(PositionInvalidError):
        await asyncio.to_thread(reader.read_all)


async def test_count_of_polars(proxy, stream):
    tap = await proxy()
    await stream.publish(COUNT, size=16 * 1024)
    start = len(tap.frames)
    frame = await asyncio.to_thread(scan_jetstream(tap.url, stream.name).select("sequence").count().collect)
    assert frame["sequence"].to_list() == [COUNT]
    assert sum(len(frame.raw) for frame in tap.frames[start:]) < 20_000
