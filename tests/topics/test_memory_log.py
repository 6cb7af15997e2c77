"""The log in this process: what is appended, read, pushed and forgotten."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import jsclient
from jsclient.errors import (
    ClosedError,
    ConfigError,
    HistoryTruncatedError,
    WrongLastSequenceError,
)
from jsclient.protocol.topics.record import Kind, Record
from jsclient.topics.log_reader import start_position
from jsclient.topics.memory_log import MemoryLog
from tests.support.virtual import virtual

LARGE = 1 << 30


async def filled(count: int, **options) -> MemoryLog:
    log = MemoryLog("a", **options)
    for number in range(count):
        await log.append(b"%d" % number)
    return log


async def seqs(log: MemoryLog, since: int = 0, limit: int = 1000, max_bytes: int = LARGE) -> list[int]:
    return [record.seq for record in (await log.history(since, limit, max_bytes)).records]


@pytest.mark.covers("T5", "T7", "T8", "T9")
@virtual
async def test_append_has_time_and_link():
    log = await filled(3)
    page = await log.history(0, 10, LARGE)
    assert [(record.seq, record.previous, record.data) for record in page.records] == [
        (1, 0, b"0"),
        (2, 1, b"1"),
        (3, 2, b"2"),
    ]
    assert (page.more, page.up_to) == (False, 3)
    stamps = [record.time_ns for record in page.records]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0


@pytest.mark.covers("T11", "T12", "T13")
@virtual
async def test_history_pages_in_order():
    log = await filled(10)
    page = await log.history(4, 3, LARGE)
    assert ([record.seq for record in page.records], page.more, page.up_to) == ([5, 6, 7], True, 0)
    page = await log.history(7, 3, LARGE)
    assert ([record.seq for record in page.records], page.more, page.up_to) == ([8, 9, 10], False, 10)
    assert await log.history(10, 3, LARGE) == ([], False, 10)


@virtual
async def test_page_bytes_limit():
    log = await filled(3)
    await log.append(b"x" * 1000)
    assert await seqs(log, max_bytes=5) == [1, 2]
    assert await seqs(log, 2, max_bytes=5) == [3]
    assert await seqs(log, 3, max_bytes=5) == [4]


@pytest.mark.covers("T10")
@virtual
async def test_a_window_keeps_the_newest():
    log = await filled(10, max_records=3)
    assert await seqs(log) == [8, 9, 10]
    extent = await log.extent()
    assert (extent.first_seq, extent.last_seq) == (8, 10)
    assert (await log.extent()).start.seq == 7


@pytest.mark.covers("T10", "T12")
@virtual
async def test_time_outside_window_refused():
    log = await filled(10, max_records=3)
    records = (await log.history(0, 10, LARGE)).records
    at = await log.after_time(records[1].time_ns)
    assert at.seq == max(record.seq for record in records if record.time_ns <= records[1].time_ns)
    with pytest.raises(HistoryTruncatedError) as caught:
        await log.after_time(records[0].time_ns - 1)
    assert caught.value.first_available == 8
    assert (await log.after_time(1, allow_truncated=True)).seq == 7
    now = datetime.now(UTC) + timedelta(hours=1)
    assert await start_position(log, now) == (await log.extent()).end


@virtual
async def test_expected_sequence_of_own_subject():
    log = MemoryLog("a.*")
    await log.append(b"", subject="a.x")
    await log.append(b"", subject="a.y", expected=0)
    await log.append(b"", subject="a.x", expected=1)
    for wrong in (0, 1, 2, 4):
        with pytest.raises(WrongLastSequenceError):
            await log.append(b"", subject="a.x", expected=wrong)
    assert await seqs(log) == [1, 2, 3]
    assert (await log.last("a.y")).seq == 2
    assert (await log.last()).seq == 3
    assert await log.last("a.z") is None


@virtual
async def test_passed_subject_unexpected():
    log = MemoryLog("a.*", max_records=2)
    await log.append(b"", subject="a.x", expected=0)
    for _ in range(2):
        await log.append(b"", subject="a.y")
    with pytest.raises(WrongLastSequenceError):
        await log.append(b"", subject="a.x", expected=1)
    await log.append(b"", subject="a.x", expected=0)


@virtual
async def test_message_id_appended_once():
    log = MemoryLog("a", max_records=2)
    first = await log.append(b"1", msg_id="one")
    assert await log.append(b"1", msg_id="one") == first
    await log.append(b"2")
    await log.append(b"3")
    assert (await log.append(b"1", msg_id="one")).seq == 4, "what is forgotten may come again"


@virtual
async def test_kind_record_and_headers_kept():
    log = MemoryLog("a")
    await log.append(b"", kind=Kind.FINISH, headers={"Trace": "7"})
    record = await log.last()
    assert (record.kind, record.headers["Trace"]) == (Kind.FINISH, "7")


@virtual
async def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="max_records"):
        MemoryLog("a", max_records=0)
    with pytest.raises(ConfigError):
        MemoryLog("a b")
    with pytest.raises(ConfigError, match="push"):
        MemoryLog("a").feed("consumr")


@virtual
async def test_feeds_push_until_closed():
    log = MemoryLog("a")
    got: list[tuple[str, Record]] = []
    feed = log.feed("republish")
    for name in ("one", "two"):
        await feed.open(name, lambda records, name=name: got.extend((name, r) for r in records), lambda: None)
    await log.append(b"1")
    await feed.close("one")
    await feed.close("one")
    await log.append(b"2")
    assert [(name, record.seq) for name, record in got] == [("one", 1), ("two", 1), ("two", 2)]


@virtual
async def test_closed_takes_and_gives_nothing():
    log = await filled(1)
    await log.close()
    for call in (log.append(b""), log.history(0, 1, LARGE), log.last(), log.after_time(0), log.wait_ready()):
        with pytest.raises(ClosedError):
            await call


@virtual
async def test_error_without_caller_reported():
    events: list[jsclient.Event] = []
    log = MemoryLog("a", on_event=events.append)
    log.report(ClosedError("gone"))
    await asyncio.sleep(0)
    assert [type(event) for event in events] == [jsclient.ErrorRaised]
    with pytest.raises(ZeroDivisionError):
        log.report(ZeroDivisionError())
