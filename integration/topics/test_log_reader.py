"""The one reader has no hole: whatever becomes of the pushes, on any log, by any feed.

Pushes are thrown away, repeated, reordered and late, while producers append and the reader is slow, cancelled, or
changes between being pushed and asking. In virtual time and without a server: tests/topics/test_log_reader.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.kit.clients.lossy_log import LossyLog
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.waiting import within
from jsclient import HistoryTruncatedError, Position
from jsclient.protocol.topics.quiet_timer import QuietTimer
from jsclient.topics.log_reader import LogReader, open_reader
from jsclient.topics.memory_log import MemoryLog
from jsclient.topics.stream_log import find_log

REPUBLISH = {"src": ">", "dest": "pushed.>"}
FEEDS = ["consumer", "republish", None]
TOTAL = 240


class World:
    """A log together with the records that were appended to it."""

    def __init__(self, log: Any, subjects: list[str], seed: int, **harm: float) -> None:
        self.log = LossyLog(log, seed, **harm)
        self.chance = random.Random(seed)
        self.subjects = subjects
        self.stored: dict[int, str] = {}  # sequence: subject

    async def append(self) -> None:
        subject = self.chance.choice(self.subjects)
        at = await self.log.append(b"%d" % len(self.stored), subject=subject)
        self.stored[at.seq] = subject

    async def produce(self, total: int = TOTAL, producers: int = 3) -> None:
        """Append this many, several at a time."""

        async def one() -> None:
            while self._remaining > 0:
                self._remaining -= 1
                await self.append()
                if self.chance.random() < 0.05:
                    await asyncio.sleep(0.01)

        self._remaining = total
        await asyncio.gather(*(one() for _ in range(producers)))

    def check(
        self, got: list[tuple[int, str]], *, below: int | None = None, by_subject: bool = False
    ) -> None:
        """All of what was stored, each once, in order, or only all before a sequence."""
        truth = [(seq, self.stored[seq]) for seq in sorted(self.stored) if below is None or seq < below]
        if not by_subject:
            assert got == truth
            return
        # Pushes go by subject: one may be ahead of the others.
        assert len(got) == len(set(got))
        assert set(got) >= set(truth)
        for subject in self.subjects:
            mine = [seq for seq, of in got if of == subject]
            assert mine == sorted(mine)


MakeWorld = Callable[..., Awaitable[World]]


@pytest.fixture(params=["memory", "stream"])
async def make_world(request: Any, js: Any, oracle: Any, make_stream: Any) -> MakeWorld:
    async def make(tails: str = "a", seed: int = 0, *, window: int = 0, **harm: float) -> World:
        if request.param == "memory":
            prefix = "m"
            log: Any = MemoryLog("m.*" if len(tails) > 1 else f"m.{tails}", max_records=window or None)
        else:
            config = {"max_msgs": window} if window else {}
            stream = await make_stream(allow_direct=True, republish=REPUBLISH, **config)
            prefix = stream.prefix
            log = await find_log(js._context, stream.subject("*" if len(tails) > 1 else tails))
        return World(log, [f"{prefix}.{tail}" for tail in tails], seed, **harm)

    return make


async def taken(reader: LogReader, count: int) -> list[tuple[int, str]]:
    return [(record.seq, record.subject) for record in [await reader.next(20.0) for _ in range(count)]]


# --- whatever becomes of the pushes -----------------------------------------------------------------------------


@pytest.mark.core_cases(12)
@pytest.mark.covers("T1", "T13", "T15", "T28", "T30", "T31", "T39", "T42")
@pytest.mark.parametrize("tails", ["a", "abc"], ids=["one subject", "several"])
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("push", FEEDS)
async def test_reads_all_in_order_and_once(make_world: MakeWorld, push: Any, loss: float, tails: str) -> None:
    world = await make_world(tails, seed=int(loss * 100), loss=loss, repeat=0.2, reorder=0.2)
    chance = world.chance
    quiet = QuietTimer(0.05, 0.2)
    async with await open_reader(
        world.log, push=push, quiet=quiet, catch_up=chance.choice(["at once", "timer"])
    ) as reader:
        producing = asyncio.create_task(world.produce())
        got = await taken(reader, TOTAL)
        await producing
        by_subject = reader.tracker.missing.by_subject
        world.check(got, by_subject=by_subject)
    if push is None:
        assert not world.log.opened
    elif loss in (0.05, 0.3):
        assert world.log.dropped, "harm was done"


@pytest.mark.covers("T41")
@pytest.mark.parametrize("seed", range(4))
async def test_random_switches_and_cancels(make_world: MakeWorld, seed: int) -> None:
    world = await make_world("a", seed=seed, loss=0.3, repeat=0.2, reorder=0.3)
    chance, got = random.Random(seed), []
    async with await open_reader(
        world.log, push=None, quiet=0.05, max_pending=chance.choice([3, 1000])
    ) as reader:
        producing = asyncio.create_task(world.produce())
        while len(got) < TOTAL:
            if chance.random() < 0.1:
                reader.set_push(chance.choice(["auto", *FEEDS]))
            task = asyncio.create_task(reader.next(20.0))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.002]))
                task.cancel()
            try:
                record = await task
                got.append((record.seq, record.subject))
            except asyncio.CancelledError:
                pass
        await producing
        world.check(got)


@pytest.mark.covers("T24", "T40")
@pytest.mark.parametrize("tails", ["a", "abc"], ids=["one subject", "several"])
@pytest.mark.parametrize("push", FEEDS)
async def test_readers_die_leave_one_token_to_next(make_world: MakeWorld, push: Any, tails: str) -> None:
    world = await make_world(tails, loss=0.2, repeat=0.2, reorder=0.2)
    got: dict[tuple[int, str], int] = {}
    again = 0
    token = (await world.log.extent()).start.to_json()
    producing = asyncio.create_task(world.produce())
    while len(got) < TOTAL:
        reader = await open_reader(world.log, Position.from_json(token), push=push, quiet=0.05)
        for record in await taken(reader, min(world.chance.randint(1, 60), TOTAL - len(got))):
            again += record in got
            got[record] = 1
        token = reader.position.to_json()
        by_subject = reader.tracker.missing.by_subject
        await reader.close()
    await producing
    assert set(got) == set(world.stored.items())
    if not by_subject:
        assert not again
        world.check([*got])


@pytest.mark.parametrize("push", FEEDS)
async def test_slow_reader_holds_little(make_world: MakeWorld, push: Any) -> None:
    world = await make_world("a", loss=0.1)
    got: list[tuple[int, str]] = []
    async with await open_reader(world.log, push=push, quiet=0.05, max_pending=10) as reader:
        producing = asyncio.create_task(world.produce(producers=20))
        while len(got) < TOTAL:
            got += await taken(reader, 1)
            assert reader.pending <= 10
            # the message keeps the head of the stream in its place
            if world.chance.random() < 0.05:
                await asyncio.sleep(0.005)
        await producing
        world.check(got)


# --- where records are removed ----------------------------------------------------------------------------------


@pytest.mark.core_cases(9)
@pytest.mark.covers("T2", "T10")
@pytest.mark.parametrize("tails", ["a", "abc"], ids=["one subject", "several"])
@pytest.mark.parametrize("loss", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("push", FEEDS)
async def test_with_window_reads_all_or_says_there(
    make_world: MakeWorld, push: Any, loss: float, tails: str
) -> None:
    for seed in range(3):
        world = await make_world(tails, seed, window=40, loss=loss, repeat=0.1, reorder=0.1)
        got: list[tuple[int, str]] = []
        truncated = None
        async with await open_reader(world.log, push=push, quiet=0.05, max_pending=20) as reader:
            producing = asyncio.create_task(world.produce())
            while len(got) < TOTAL and truncated is None:
                try:
                    got += await taken(reader, 1)
                except HistoryTruncatedError as error:
                    truncated = error
                # A pause lets the stream's limit of 40 records overtake the reader.
                if world.chance.random() < 0.02:
                    await asyncio.sleep(0.05 * seed)
            by_subject = reader.tracker.missing.by_subject
        await producing
        below = None
        if truncated is not None:
            assert truncated.wanted is not None
            below = truncated.wanted
            assert below < truncated.first_available <= (await world.log.extent()).first_seq
        world.check(got, below=below, by_subject=by_subject)


@pytest.mark.covers("T2", "T10")
@pytest.mark.parametrize("limit", [5, 100])
@pytest.mark.parametrize("push", FEEDS)
async def test_subject_limit_reported(js: Any, oracle: Any, make_stream: Any, push: Any, limit: int) -> None:
    """The stream's first sequence stays, because another subject has the first message."""
    stream = await make_stream(allow_direct=True, republish=REPUBLISH, max_msgs_per_subject=limit)
    await stream.publish(1, "other")
    for seed in range(2):
        subject = stream.subject(f"a{seed}")
        world = World(await find_log(js._context, subject), [subject], seed, loss=0.3, reorder=0.1)
        got: list[tuple[int, str]] = []
        truncated = None
        async with await open_reader(world.log, "now", push=push, quiet=0.05, max_pending=20) as reader:
            producing = asyncio.create_task(world.produce(100))
            while len(got) < 100 and truncated is None:
                try:
                    got += await taken(reader, 1)
                except HistoryTruncatedError as error:
                    truncated = error
                # the message fixes the head of the stream
                if world.chance.random() < 0.05:
                    await stream.publish(1, "other")
        await producing
        world.check(got, below=None if truncated is None else truncated.wanted)
        assert truncated is None or limit == 5, "there was nothing to be removed"


async def test_late_subject_is_no_loss(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True, max_msgs_per_subject=10)
    log = await find_log(js._context, stream.subject("a"))
    async with await open_reader(log, "now", push=None, quiet=0.05) as reader:
        await stream.publish(5, "other")
        await stream.publish(3, "a")
        assert [seq for seq, _ in await taken(reader, 3)] == [6, 7, 8]
        await stream.publish(5, "other")
        await stream.publish(9, "a")
        assert [seq for seq, _ in await taken(reader, 9)] == [*range(14, 23)]


# --- what it costs ----------------------------------------------------------------------------------------------


@pytest.mark.server(">=2.11")  # before it, a history is read by a consumer
@pytest.mark.covers("T38")
async def test_500_republish_readers(js: Any, server: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True, republish=REPUBLISH)
    log = await find_log(js._context, stream.subject("a"))
    await js.ping()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        await stream.publish(5, "a")
        readers = await asyncio.gather(*(open_reader(log) for _ in range(500)))
        await stream.publish(15, "a", first=6)
        for reader in readers:
            assert [seq for seq, _ in await taken(reader, 20)] == [*range(1, 21)]
            assert reader.id is not None
        assert await stream.consumer_names() == []
        assert (await stream.state())["consumer_count"] == 0
        await within(10.0, asyncio.gather(*(reader.close() for reader in readers)), "closing")


@pytest.mark.parametrize("direct", [pytest.param(True, marks=pytest.mark.server(">=2.11")), False])
@pytest.mark.parametrize("push", FEEDS)
async def test_leaves_nothing_behind(
    js: Any, server: Any, oracle: Any, make_stream: Any, push: Any, direct: bool
) -> None:
    stream = await make_stream(allow_direct=direct, republish=REPUBLISH)
    log = await find_log(js._context, stream.subject("a"))
    await js.ping()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        for turns in range(12):
            reader = await open_reader(log, push=push, quiet=0.05)
            for _ in range(turns % 4):
                await asyncio.sleep(0.001)
            reader.set_push(FEEDS[turns % 3])
            if turns % 2:
                await asyncio.sleep(0.003 * turns)
            await stream.publish(1, "a")
            await reader.close()
