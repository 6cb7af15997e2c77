"""The reader on a log in this process, in virtual time: its requests, opens and closes, and that it has no hole.

On a server: integration/topics/test_log_reader*.py.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

import jsclient
from integration.kit.clients.lossy_log import LossyLog
from jsclient.errors import (
    ApiError,
    ClosedError,
    ConfigError,
    DisconnectedError,
    HistoryTruncatedError,
    PermissionDeniedError,
    PositionInvalidError,
    ProtocolError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jsclient.protocol.topics.quiet_timer import QuietTimer
from jsclient.protocol.topics.record import Kind
from jsclient.topics.log_reader import LogReader, open_reader
from jsclient.topics.memory_log import MemoryLog
from tests.support.virtual import settle, virtual

SEEDS = range(25)


async def append(log: Any, count: int = 1) -> None:
    for _ in range(count):
        await log.append(b"x")


def seqs(records: list[Any]) -> list[int]:
    return [record.seq for record in records]


async def read(reader: LogReader, count: int) -> list[int]:
    return [(await reader.next(1000.0)).seq for _ in range(count)]


# --- history and pushes -------------------------------------------------------------------------------------------


@pytest.mark.covers("T4", "T18", "T19")
@pytest.mark.parametrize("push", ["auto", "consumer", "republish", None])
@virtual
async def test_there_comes_first_and_then_appended(push):
    log = MemoryLog("a")
    await append(log, 3)
    async with await open_reader(log, push=push, quiet=1.0) as reader:
        assert await read(reader, 3) == [1, 2, 3]
        await append(log, 2)
        assert await read(reader, 2) == [4, 5]
        assert reader.position == (await log.extent()).end
    assert not log.open


@virtual
async def test_pushes_before_timer():
    log = MemoryLog("a")
    async with await open_reader(log) as reader:
        await settle()
        before = asyncio.get_running_loop().time()
        await append(log)
        assert await read(reader, 1) == [1]
        assert asyncio.get_running_loop().time() == before


@pytest.mark.covers("T39", "T42")
@virtual
async def test_polls_by_timer():
    log = MemoryLog("a")
    async with await open_reader(log, push=None, quiet=20.0) as reader:
        await settle()
        before = asyncio.get_running_loop().time()
        await append(log)
        assert await read(reader, 1) == [1]
        assert asyncio.get_running_loop().time() == pytest.approx(before + 20.0)
        assert reader.id is None


@pytest.mark.covers("T41")
@virtual
async def test_push_and_poll_switch():
    log = LossyLog(MemoryLog("a"))
    async with await open_reader(log, quiet=5.0) as reader:
        for push in (None, "consumer", None, None, "auto", "republish", "republish", None, "auto"):
            await append(log)
            reader.set_push(push)
            await append(log)
            await settle()
            assert len(log.open_ids) == (push is not None)
            assert log.open_ids == {reader.id} - {None}
        assert await read(reader, 18) == [*range(1, 19)]
    await settle()
    assert not log.open_ids


@pytest.mark.covers("T25", "T27")
@virtual
async def test_late_push_under_old_id_refused():
    log = LossyLog(MemoryLog("a"), reorder=1.0)
    async with await open_reader(log, catch_up="timer", quiet=10.0) as reader:
        await settle()
        old = reader.id
        await append(log, 3)  # on the way
        log.reorder = 0.0
        assert await read(reader, 3) == [1, 2, 3], "the timer asked, and the subscription has failed"
        await settle()
        assert reader.id not in (None, old)
        assert (log.opened, log.closed) == ([old, reader.id], [old])
        log.release()
        assert reader.tracker.rejected == 3
        await append(log)
        assert await read(reader, 1) == [4]


@pytest.mark.covers("T32")
@virtual
async def test_adaptive_timer_slows():
    requests: list[float] = []

    class Counted(MemoryLog):
        async def history(self, since, limit, max_bytes):
            requests.append(asyncio.get_running_loop().time())
            return await super().history(since, limit, max_bytes)

    reader = await open_reader(Counted("a"), push=None, quiet=QuietTimer(1.0, 8.0))
    await asyncio.sleep(40.5)
    pauses = [round(after - before, 6) for before, after in itertools.pairwise(requests)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    await reader.close()


# --- ways to read -------------------------------------------------------------------------------------------------


@virtual
async def test_next_waits_so_long_and_not_longer():
    async with await open_reader(MemoryLog("a")) as reader:
        with pytest.raises(RequestTimeoutError):
            await reader.next(2.5)


@virtual
async def test_batches_give_waits_together():
    log = MemoryLog("a")
    await append(log, 7)
    reader = await open_reader(log)
    await settle()
    got = []
    async for batch in reader.batches(3):
        got.append(seqs(batch))
        if len(got) == 3:
            await reader.close()
    assert got == [[1, 2, 3], [4, 5, 6], [7]]


@virtual
async def test_up_to_sequence_reads_and_then_stops():
    log = MemoryLog("a")
    await append(log, 7)
    async with await open_reader(log, push=None, max_pending=2) as reader:
        got: list[int] = []
        while batch := await reader.next_batch(5, up_to=7):
            got += seqs(batch)
        assert got == [*range(1, 8)]
        await log.append(b"", kind=Kind.FINISH)
        assert seqs(await reader.next_batch(up_to=100)) == [8]
        assert await reader.next_batch(up_to=100) == []


@pytest.mark.parametrize("kind", [Kind.FINISH, Kind.FAIL])
@virtual
async def test_ends_after_last_record(kind):
    log = LossyLog(MemoryLog("a"))
    async with await open_reader(log) as reader:
        await settle()
        await log.append(b"1")
        await log.append(b"2", kind=kind)
        assert [record.kind async for record in reader] == [Kind.VALUE, kind]
        with pytest.raises(ClosedError):
            await reader.next(1.0)
        await settle()
        assert not log.open_ids


@virtual
async def test_close_wakes_and_keeps():
    log = MemoryLog("a")
    await append(log, 3)
    reader = await open_reader(log)
    await settle()
    await reader.close()
    await reader.close()
    assert await read(reader, 3) == [1, 2, 3]
    with pytest.raises(ClosedError):
        await reader.next()
    waiting = await open_reader(log, "now")
    task = asyncio.create_task(waiting.next())
    await settle()
    await waiting.close()
    with pytest.raises(ClosedError):
        await task


@virtual
async def test_end_of_log_ends_readers():
    log = MemoryLog("a")
    reader = await open_reader(log)
    task = asyncio.create_task(reader.next())
    await settle()
    await log.close()
    with pytest.raises(ClosedError):
        await task
    assert not log.open


@virtual
async def test_cancelled_read_loses_nothing():
    log, chance, got = MemoryLog("a"), random.Random(5), []
    async with await open_reader(log) as reader:
        for _ in range(200):
            task = asyncio.create_task(reader.next())
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            await append(log, chance.randint(0, 2))
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            task.cancel()
            try:
                got.append((await task).seq)
            except asyncio.CancelledError:
                pass
        last = (await log.extent()).last_seq
        got += await read(reader, last - len(got))
    assert got == [*range(1, last + 1)]


@pytest.mark.parametrize("max_pending", [1, 2, 10])
@virtual
async def test_slow_reader_holds_no_more_than_may(max_pending):
    log, got = MemoryLog("a"), []
    async with await open_reader(log, max_pending=max_pending) as reader:
        for _ in range(30):
            await append(log, 7)
            await settle()
            assert reader.pending <= max_pending
            got += await read(reader, 3)
        got += await read(reader, 120)
    assert got == [*range(1, 211)]


# --- what goes wrong ----------------------------------------------------------------------------------------------


@virtual
async def test_what_cannot_be_is_refused():
    log = MemoryLog("a")
    for options in ({"max_pending": 0}, {"catch_up": "never"}, {"push": "sometimes"}, {"quiet": 0.0}):
        with pytest.raises(ConfigError):
            await open_reader(log, **options)
    reader = await open_reader(log)
    with pytest.raises(ConfigError):
        reader.set_push("sometimes")
    await reader.close()
    assert not log.open


@pytest.mark.covers("T10")
@virtual
async def test_window_loss_raised_in_order():
    log = MemoryLog("a", max_records=5)
    await append(log, 4)
    async with await open_reader(log, max_pending=2) as reader:
        await settle()
        await append(log, 10)
        assert await read(reader, 2) == [1, 2]
        with pytest.raises(HistoryTruncatedError) as caught:
            await reader.next(10.0)
        assert (caught.value.first_available, caught.value.wanted) == (10, 3)


@virtual
async def test_where_allowed_reads_on_and_tells():
    events: list[jsclient.Event] = []
    log = MemoryLog("a", max_records=5, on_event=events.append)
    await append(log, 4)
    async with await open_reader(log, max_pending=2, allow_truncated=True) as reader:
        await settle()
        await append(log, 10)
        assert await read(reader, 7) == [1, 2, 10, 11, 12, 13, 14]
    [event] = events
    assert isinstance(event, jsclient.events.HistoryTruncated)
    assert (event.stream, event.after, event.before) == ("memory", 2, 10)


class Troubled(MemoryLog):
    """A log that raises the given errors, once each."""

    def __init__(self, **options: Any) -> None:
        super().__init__("a", **options)
        self.history_errors: list[Exception] = []
        self.feed_errors: list[Exception] = []
        self.lost: list[Any] = []
        self.open_feeds: set[str] = set()
        self.slow = 0.0
        self.lost_early = False

    async def history(self, since, limit, max_bytes):
        if self.history_errors:
            raise self.history_errors.pop(0)
        return await super().history(since, limit, max_bytes)

    def feed(self, kind):
        feed, log = super().feed(kind), self
        inner_open, inner_close = feed.open, feed.close

        async def opened(id, receive, lost):
            await asyncio.sleep(log.slow)
            if log.feed_errors:
                lost()  # as a lost connection notifies every reader
                raise log.feed_errors.pop(0)
            if log.lost_early:
                log.lost_early = False
                lost()
            await inner_open(id, receive, lost)
            log.open_feeds.add(id)
            log.lost.append(lost)

        async def closed(id):
            await inner_close(id)
            log.open_feeds.discard(id)

        feed.open, feed.close = opened, closed
        return feed


PASSING = [
    RequestTimeoutError("history", 1.0),
    DisconnectedError("gone"),
    ApiError(503, 10008, "no leader"),
    StreamNotFoundError(404, 10059, "not there yet"),
]


@virtual
async def test_what_passes_is_tried_again():
    log = Troubled()
    log.history_errors, log.feed_errors = [*PASSING], [*PASSING]
    await append(log, 3)
    async with await open_reader(log, quiet=1000.0) as reader:
        assert await read(reader, 3) == [1, 2, 3]
        await append(log)
        assert await read(reader, 1) == [4]
        assert len(log.open_feeds) == 1


@pytest.mark.parametrize(
    "error", [ApiError(500, 10001, "no"), PermissionDeniedError("no", "a"), PositionInvalidError("another")]
)
@virtual
async def test_invalid_record_ends(error):
    log = Troubled()
    async with await open_reader(log) as reader:
        await settle()
        log.history_errors = [error]
        log.lost[-1]()
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                await reader.next(10.0)
            assert caught.value is error
    assert not log.open_feeds


@virtual
async def test_defect_raised_and_not_waited_for():
    log = Troubled()
    log.history_errors = [KeyError("seq")]
    async with await open_reader(log) as reader:
        with pytest.raises(ProtocolError, match="KeyError: 'seq'") as caught:
            await reader.next(10.0)
        assert isinstance(caught.value.__cause__, KeyError)


@virtual
async def test_close_keeps_request():
    class SlowLog(MemoryLog):
        ended = 0

        async def history(self, since, limit, max_bytes):
            await asyncio.sleep(1.0)
            self.ended += 1
            if self.ended > 1:
                raise DisconnectedError("gone")
            return await super().history(since, limit, max_bytes)

    log = SlowLog("a")
    for ended in (1, 2):
        reader = await open_reader(log, push=None)
        await settle()
        await reader.close()
        await asyncio.sleep(1.5)
        assert log.ended == ended
        assert not log.tasks._tasks


@virtual
async def test_stream_stays_away_error():
    log = Troubled()
    log.history_errors = [StreamNotFoundError(404, 10059, "gone") for _ in range(100)]
    async with await open_reader(log, push=None) as reader:
        with pytest.raises(StreamNotFoundError):
            await reader.next(60.0)


@pytest.mark.covers("T39", "T43")
@virtual
async def test_refused_push_polls():
    log = Troubled()
    log.feed_errors = [PermissionDeniedError("no", "a")]
    await append(log, 2)
    async with await open_reader(log, quiet=1.0) as reader:
        assert await read(reader, 2) == [1, 2]
        await append(log)
        assert await read(reader, 1) == [3]
        assert reader.id is None
        reader.set_push("auto")
        await settle()
        assert log.open_feeds == {reader.id}
    log.feed_errors = [PermissionDeniedError("no", "a")]
    async with await open_reader(log, push="consumer") as reader:
        with pytest.raises(PermissionDeniedError):
            await reader.next(10.0)


@virtual
async def test_doubtful_feed_replaced():
    log = Troubled()
    async with await open_reader(log, quiet=1000.0) as reader:
        await settle()
        first = reader.id
        log._pushes.clear()  # no more pushes arrive
        await append(log, 2)
        log.lost[-1]()
        assert await read(reader, 2) == [1, 2]
        await settle()
        assert log.open_feeds == {reader.id} != {first}
        await append(log)
        assert await read(reader, 1) == [3]


@virtual
async def test_opening_feed_not_awaited():
    log = Troubled()
    log.lost_early = True
    async with await open_reader(log, quiet=1000.0) as reader:
        await settle(40)
        assert len(log.open_feeds) == 1
        assert reader.id.endswith("-2")
        assert log.open_feeds == {reader.id}
        await append(log)
        assert await read(reader, 1) == [1]


@virtual
async def test_feed_always_closed():
    for turns in range(60):
        log = Troubled()
        log.slow = 0.01
        reader = await open_reader(log, quiet=1.0)
        await settle(turns % 6)
        if turns % 2:
            reader.set_push(None)
        await asyncio.sleep(0.01 * (turns % 3))
        if turns % 5:
            reader.set_push("auto")
        await settle(turns // 6)
        await reader.close()
        await asyncio.sleep(0.1)
        assert not log.open_feeds, turns
        assert not log._pushes, turns


@virtual
async def test_offline_close_leaves_no_task():
    class Away(MemoryLog):
        away = False

        async def wait_ready(self):
            while self.away:
                await asyncio.sleep(3600.0)

    log = Away("a")
    for push in ("auto", None):
        reader = LogReader(log, (await log.extent()).start, push=push)
        log.away = True
        reader.begin()
        await settle()
        await reader.close()
        log.away = False
        await settle()
        assert not log.tasks._tasks


# --- whatever becomes of the pushes ---------------------------------------------------------------------------------


@pytest.mark.covers("T1", "T13", "T15", "T28", "T39", "T41", "T42")
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.3, 1.0])
@virtual
async def test_all_in_order_and_once(loss):
    for seed in SEEDS:
        await check_whole(seed, loss)


async def check_whole(seed: int, loss: float) -> None:
    chance = random.Random(seed)
    log = LossyLog(MemoryLog("a.*"), seed, loss=loss, repeat=0.2, reorder=chance.choice([0.0, 0.3]))
    total = chance.randint(50, 150)

    async def produce() -> None:
        for _ in range(total):
            await log.append(b"", subject=f"a.{chance.randint(1, 3)}")
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.001, 0.3]))

    got: list[int] = []
    producer = asyncio.create_task(produce())
    start = (await log.extent()).start
    while len(got) < total:
        options = {
            "push": chance.choice(["auto", None]),
            "catch_up": chance.choice(["at once", "timer"]),
            "max_pending": chance.choice([1, 10, 10_000]),
            "quiet": QuietTimer(0.5, chance.choice([0.5, 4.0])),
        }
        async with LogReader(log, start, **options) as reader:
            reader.begin()
            for _ in range(chance.randint(1, 100)):
                if len(got) == total:
                    break
                got.append((await reader.next(1000.0)).seq)
                # records must not be lost while the reader changes between pushes and polling
                if chance.random() < 0.05:
                    reader.set_push(chance.choice(["auto", "consumer", None]))
            start = type(start).from_json(reader.position.to_json())
    await producer
    assert got == [*range(1, total + 1)], f"seed {seed}"
    await settle()
    assert not log.open_ids
    assert not log.tasks._tasks


@pytest.mark.covers("T2", "T10")
@pytest.mark.parametrize("loss", [0.0, 0.3, 1.0])
@virtual
async def test_window_reads_or_reports(loss):
    outcomes = set()
    for seed in SEEDS:
        chance = random.Random(seed)
        log = LossyLog(
            MemoryLog("a", max_records=chance.choice([5, 50])), seed, loss=loss, repeat=0.1, reorder=0.1
        )

        async def produce(log=log, chance=chance) -> None:
            for _ in range(150):
                await log.append(b"")
                await asyncio.sleep(chance.choice([0.0, 0.01, 0.5]))

        producer = asyncio.create_task(produce())
        got: list[int] = []
        truncated = None
        async with await open_reader(log, quiet=chance.choice([0.5, 3.0]), max_pending=4) as reader:
            while len(got) < 150 and truncated is None:
                try:
                    got.append((await reader.next(1000.0)).seq)
                except HistoryTruncatedError as error:
                    truncated = error
                if chance.random() < 0.02:
                    await asyncio.sleep(20.0)
        await producer
        assert got == [*range(1, len(got) + 1)], f"seed {seed}"
        # The window has passed the reader: the error names the first missing and the first stored record.
        if truncated is not None:
            assert truncated.wanted == len(got) + 1
            assert truncated.wanted < truncated.first_available <= (await log.extent()).first_seq
        outcomes.add(truncated is None)
    assert outcomes == ({True, False} if loss else {False, True})
