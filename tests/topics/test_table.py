"""Which messages a table compares and when, and what it needs of the reader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jsclient._runtime.tasks import Tasks
from jsclient.errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    PermissionDeniedError,
    PositionInvalidError,
    StreamNotFoundError,
)
from jsclient.protocol.topics.links import MissingRule
from jsclient.protocol.topics.position import Extent, Position
from jsclient.protocol.topics.record import Record
from jsclient.protocol.wire.headers import Headers
from jsclient.topics import snapshot
from jsclient.topics import table as module
from jsclient.topics.table import TopicTable
from tests.support.virtual import settle, virtual

MARKED = Headers({"KV-Operation": "DEL"})


class Stored:
    """A stream, as a table asks for it: `records` are the newest of each subject."""

    def __init__(self, *records: Record, last_seq: int = 100) -> None:
        self.records = {record.subject: record for record in records}
        self.last_seq, self.removed = last_seq, 0
        self.subject = "s.*"
        self.reports: list[BaseException] = []
        self.report = self.reports.append
        self.tasks = Tasks(self.report)
        self.context = SimpleNamespace(connection=SimpleNamespace(connects=0))
        self.handle = self
        self.ready = asyncio.Event()
        self.ready.set()
        self.failures: list[BaseException] = []
        self.looks: list[float] = []
        self.compared: list[float] = []
        self.leader_requests: list[str] = []
        self.replicas = 1
        self.meanwhile: Any = None

    async def wait_ready(self) -> None:
        await self.ready.wait()

    async def info(self) -> Any:
        assert self.ready.is_set(), "not connected"
        self.looks.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.pop(0)
        state = SimpleNamespace(last_seq=self.last_seq, messages=self.last_seq - self.removed)
        return SimpleNamespace(state=state)

    async def last(self, subject: str | None = None) -> Record | None:
        if subject is None:
            return max(self.records.values(), key=lambda record: record.seq, default=None)
        self.leader_requests.append(subject)
        if self.meanwhile is not None:
            self.meanwhile()
        return self.records.get(subject)

    async def extent(self) -> Extent:
        return Extent("S", "I", 1, self.last_seq, replicas=self.replicas)

    async def newest_of_each(self, log: Any, end: int, *, headers_only: bool) -> Any:
        self.compared.append(asyncio.get_running_loop().time())
        if self.records:
            yield [*self.records.values()]


class Followed:
    """The reader of a table."""

    is_closed = False

    def __init__(self, seq: int) -> None:
        self.position = Position("S", "I", seq)
        self.error: JetStreamError | None = None
        self.ended = asyncio.Event()

    async def batches(self) -> Any:
        await self.ended.wait()
        if self.error is not None:
            raise self.error
        for _ in ():
            yield []

    async def close(self) -> None:
        self.is_closed = True
        self.ended.set()


class Tabled:
    """A table that is compared each second."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, stored: Stored, *records: Record, read: int = 100
    ) -> None:
        monkeypatch.setattr(module, "newest_of_each", stored.newest_of_each)
        self.reader: Any = Followed(read)
        log: Any = stored
        self.table = TopicTable(log, {record.subject: record for record in records}, self.reader, 1.0)

    async def __aenter__(self) -> TopicTable:
        return self.table

    async def __aexit__(self, *_: object) -> None:
        await self.table.close()
        await settle()
        assert all(task.done() for task in self.table._tasks)


def record(subject: str, seq: int, *, marked: bool = False) -> Record:
    return Record(seq=seq, subject=subject, headers=MARKED if marked else Headers())


A, B = record("s.a", 3), record("s.b", 5)


@virtual
async def test_compared_twice_after_each_removal(monkeypatch):
    """The second time because the servers asked may have lagged, then not before messages are removed again."""
    stored = Stored(A, B)
    async with Tabled(monkeypatch, stored, A, B):
        await asyncio.sleep(10.5)
        assert (len(stored.looks), len(stored.compared)) == (10, 2)
        stored.removed = 1
        await asyncio.sleep(10)
        assert (len(stored.looks), len(stored.compared)) == (20, 4)
    assert stored.leader_requests == []


@virtual
async def test_comparisons_of_many_subjects_apart(monkeypatch):
    """A millisecond for each: 5 s for 5,000. If no record is left, they are removed at the next look."""
    many = [record(f"s.{number}", number + 1) for number in range(5000)]
    stored = Stored(*many, last_seq=5000)
    async with Tabled(monkeypatch, stored, *many, record("s.new", 5001), read=5000) as table:
        await asyncio.sleep(1.5)
        assert len(stored.compared) == 1
        await asyncio.sleep(5)
        assert len(stored.compared) == 1
        await asyncio.sleep(1)
        assert len(stored.compared) == 2
        stored.records.clear()
        stored.removed = 5000
        await asyncio.sleep(1.1)
        assert set(table) == {"s.new"}, "it was stored after the look"
        assert len(stored.compared) == 2


@virtual
async def test_requests_to_the_leader(monkeypatch):
    """Not about what the reader still brings, nor about records stored after the look."""
    stored = Stored(record("s.a", 90), record("s.b", 120), record("s.marked", 80, marked=True))
    stored.records |= {"s.late": record("s.late", 98), "s.dead": record("s.dead", 60, marked=True)}
    missing, after = record("s.gone", 6), record("s.after", 130)
    mine = A, B, missing, after, record("s.marked", 7)
    async with Tabled(monkeypatch, stored, *mine, read=95) as table:
        await asyncio.sleep(1.5)
        assert sorted(stored.leader_requests) == ["s.a", "s.gone", "s.marked"]
        assert {subject: one.seq for subject, one in table.items()} == {"s.a": 90, "s.b": 5, "s.after": 130}


@virtual
async def test_the_reader_is_newer_than_the_leader(monkeypatch):
    stored = Stored()
    stored.records = {"s.b": B}
    async with Tabled(monkeypatch, stored, A, B) as table:

        def read() -> None:
            table._set("s.a", record("s.a", 101))

        stored.meanwhile = read
        await asyncio.sleep(1.5)
        assert stored.leader_requests == ["s.a"]
        assert table["s.a"].seq == 101
        stored.meanwhile = None


@virtual
async def test_what_the_leader_has_is_still_to_be_read(monkeypatch):
    """The reader brings it in order."""
    stored = Stored(B)
    async with Tabled(monkeypatch, stored, A, B) as table:
        changed = table.changes()
        stored.meanwhile = lambda: stored.records.update({"s.a": record("s.a", 101)})
        await asyncio.sleep(1.5)
        assert (stored.leader_requests, table["s.a"]) == (["s.a"], A)
        assert not changed._pending


@virtual
@pytest.mark.parametrize("remaining", [0, 1])
async def test_former_leader_takes_nothing_back(monkeypatch, remaining):
    """A leader that was cut off lacks newer records until it hears of its successor, who is asked again."""
    newer = record("s.a", 90), record("s.b", 95)
    stored = Stored(*[A, B][:remaining])
    stored.replicas = 3
    async with Tabled(monkeypatch, stored, *newer) as table:
        changed = table.changes()
        await asyncio.sleep(2.5)
        assert stored.leader_requests or not remaining
        stored.records = {one.subject: one for one in newer}
        await asyncio.sleep(20)
        assert (dict(table), changed._pending) == ({one.subject: one for one in newer}, {})


@virtual
async def test_removed_records_of_a_replicated_stream(monkeypatch):
    stored = Stored(B)
    stored.replicas = 3
    async with Tabled(monkeypatch, stored, A, B) as table:
        await asyncio.sleep(3)
        assert set(table) == {"s.a", "s.b"}
        await asyncio.sleep(4)
        assert (set(table), stored.leader_requests) == ({"s.b"}, ["s.a", "s.a"])
        stored.records.clear()
        stored.removed = 2
        await asyncio.sleep(8)
        assert not table


@virtual
async def test_compared_after_the_reconnect(monkeypatch):
    stored = Stored(B)
    async with Tabled(monkeypatch, stored, A, B) as table:
        stored.ready.clear()
        await asyncio.sleep(5)
        stored.failures = [DisconnectedError("lost")] * 3
        stored.ready.set()
        await asyncio.sleep(10)
        assert set(table) == {"s.b"}
    assert stored.reports == []


@virtual
async def test_a_table_that_may_not_be_compared(monkeypatch):
    """The connection reports the refusal: the question is not repeated before the next reconnect."""
    stored = Stored(B)
    async with Tabled(monkeypatch, stored, A, B) as table:
        stored.failures = [PermissionDeniedError("publish", "$JS.API.STREAM.MSG.GET.S") for _ in range(2)]
        for looks in (1, 2):
            await asyncio.sleep(20)
            assert (len(stored.looks), set(table)) == (looks, {"s.a", "s.b"})
            stored.context.connection.connects += 1
        await asyncio.sleep(2)
        assert set(table) == {"s.b"}
    assert stored.reports == []


@virtual
async def test_no_comparison_without_a_stream(monkeypatch):
    stored = Stored(B)
    async with Tabled(monkeypatch, stored, A, B) as table:
        stored.failures = [StreamNotFoundError(404, 10059, "stream not found")] * 100
        await asyncio.sleep(60)
        assert set(table) == {"s.a", "s.b"}
    assert [type(error) for error in stored.reports] == [StreamNotFoundError]


@virtual
async def test_not_compared_once_the_log_has_ended(monkeypatch):
    stored = Stored(A, B)
    tabled = Tabled(monkeypatch, stored, A, B)
    async with tabled:
        tabled.reader.ended.set()
        await asyncio.sleep(5)
        assert stored.looks == []
        with pytest.raises(ClosedError, match="no change follows"):
            await tabled.table.wait_for(lambda _: False)


@virtual
async def test_the_error_of_the_reader(monkeypatch):
    """It is reported, ends the comparisons, and every access raises it."""
    stored = Stored(A, B)
    tabled = Tabled(monkeypatch, stored, A, B)
    async with tabled as table:
        tabled.reader.error = PositionInvalidError("another stream")
        waiting = asyncio.ensure_future(table.wait_for(lambda records: len(records) == 9))
        await settle()
        tabled.reader.ended.set()
        with pytest.raises(PositionInvalidError):
            await waiting
        await asyncio.sleep(5)
        assert stored.reports == [tabled.reader.error]
        assert stored.looks == []


@virtual
async def test_opened_while_the_server_is_away(monkeypatch):
    async def nothing(*_: Any) -> Any:
        for one in ():
            yield one

    monkeypatch.setattr(snapshot, "newest_of_each", nothing)
    failures = [DisconnectedError("lost")] * 3

    async def extent() -> Extent:
        if failures:
            raise failures.pop()
        return Extent("S", "I", first_seq=1, last_seq=0)

    log: Any = SimpleNamespace(wait_ready=Stored().wait_ready, reads_directly=False, extent=extent)
    taken = await snapshot.take_snapshot(log)
    assert (taken.records, taken.position.seq, failures) == ({}, 0, [])


def test_newest_only_passes_gaps():
    extent = Extent("S", "I", first_seq=90, last_seq=100)
    late = Record(seq=95, subject="a")
    plain, newest = MissingRule(), MissingRule(newest_only=True)
    assert plain.before(late, 10, extent) == "lost"
    assert newest.before(late, 10, extent) == newest.before(late, 10, None) == "nothing"
    assert plain.at_end(100, 10, extent) == "lost"
    assert newest.at_end(100, 10, extent) == "nothing"
    assert not newest.needs_extent([late], 10, newest.run_length([late], 10, None))


def test_newest_only_notices_lost_pushes():
    newest = MissingRule(newest_only=True)
    assert newest.run_length([Record(seq=12, subject="a")], 10, None) == 0, "unknown predecessor"
    assert newest.run_length([Record(seq=12, previous=11)], 10, None) == 0
    assert newest.run_length([Record(seq=12, previous=10)], 10, None) == 1
