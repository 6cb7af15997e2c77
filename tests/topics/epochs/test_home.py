"""The storage for the records of a topic of epochs, here in this process."""

from __future__ import annotations

import pytest

from jsclient.epochs import Int
from jsclient.errors import ConfigError, TopicNotFoundError, WrongLastSequenceError
from jsclient.protocol.epochs.records import make_schema
from jsclient.protocol.topics.record import Kind
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.topics.epochs.home import MemoryHome, OutgoingRecord, Outlet
from jsclient.topics.memory_log import MemoryLog
from tests.support.virtual import virtual

LARGE = 10**8


def outlet() -> tuple[MemoryLog, Outlet]:
    log = MemoryLog("t.>")
    return log, MemoryHome("t", log).outlet(0, max_in_flight=10, timeout=None)


def message(data: bytes, msg_id: str, *, named: bool = False) -> OutgoingRecord:
    return OutgoingRecord(data, {"Jsc-Epoch": "1"}, msg_id, named)


async def stored(log: MemoryLog) -> list[tuple[str, bytes, Kind]]:
    return [
        (record.subject, record.data, record.kind) for record in (await log.history(0, 100, LARGE)).records
    ]


@virtual
async def test_data_and_frontiers_have_their_subjects():
    log, out = outlet()
    await out.send(message(b"a", "1"))
    assert await out.record(b"f", {}, 0, None) == 2
    assert await stored(log) == [("t.0.data", b"a", Kind.VALUE), ("t.0.frontier", b"f", Kind.FRONTIER)]


@virtual
async def test_message_stored_before_is_reported():
    """Only if the user has chosen its id: ids of our own are new ones."""
    log, out = outlet()
    await out.send(message(b"a", "1", named=True))
    assert out.repeated == []
    again = message(b"again", "1", named=True)
    await out.send(again)
    assert out.repeated == [(again, 1)]
    assert [data for _, data, _ in await stored(log)] == [b"a"]


@virtual
async def test_frontier_must_follow_the_last_one():
    log, out = outlet()
    await out.record(b"f", {}, 0, None)
    with pytest.raises(WrongLastSequenceError):
        await out.record(b"g", {}, 0, None)
    assert await out.record(b"g", {}, 1, None) == 2
    assert len(await stored(log)) == 2


@virtual
async def test_committed_all_or_nothing():
    log, out = outlet()
    assert out.is_atomic
    assert await out.commit([message(b"a", "1"), message(b"b", "2")], b"f", {}, 0) == 3
    with pytest.raises(WrongLastSequenceError):
        await out.commit([message(b"c", "3")], b"g", {}, 0)
    assert [data for _, data, _ in await stored(log)] == [b"a", b"b", b"f"]


@virtual
async def test_schema_is_created_once():
    home = MemoryHome("t", MemoryLog("t.>"))
    with pytest.raises(TopicNotFoundError):
        await home.schema()
    schema = make_schema(Int(), JsonCodec(), 2)
    assert await home.make(schema, {}) == schema
    assert await home.make(make_schema(Int(), JsonCodec(), 3), {}) == schema, "as it was made"
    assert await home.schema() == schema
    with pytest.raises(ConfigError, match="max_age"):
        await home.make(schema, {"max_age": 5})


@virtual
async def test_publisher_is_there_while_alive():
    home, alive = MemoryHome("t", MemoryLog("t.>")), [True]
    assert not await home.has_publisher(0)
    await home.announce(0, lambda: alive[0])
    assert await home.has_publisher(0)
    assert not await home.has_publisher(1)
    alive[0] = False
    assert not await home.has_publisher(0)
