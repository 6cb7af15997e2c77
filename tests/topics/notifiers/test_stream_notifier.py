"""A notifier on a server, in virtual time: replicas that lag, counts that never were, pushes that are lost or odd."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from jsclient import (
    ClosedError,
    ConfigError,
    Notifier,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jsclient._runtime.connection.connection import Lifecycle
from jsclient._runtime.tasks import Tasks
from jsclient.events import StreamReset
from jsclient.protocol.topics.position import Extent, Position
from jsclient.protocol.topics.record import Kind, Record, RecordHeaders
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.protocol.wire.api import Api
from jsclient.topics.notifiers.descriptors import NotifierDescriptor
from jsclient.topics.notifiers.newest import NewestLog, newest_log
from jsclient.topics.notifiers.stream_notifier import StreamNotifier
from tests.support.virtual import settle, virtual


class Connection:
    def __init__(self):
        self.listeners = []
        self.closed = False

    def now(self):
        return asyncio.get_running_loop().time()

    async def wait_connected(self, deadline):
        self.check_open()

    def check_open(self):
        if self.closed:
            raise ClosedError("closed")

    def add_listener(self, listener):
        self.listeners.append(listener)

    def remove_listener(self, listener):
        self.listeners.remove(listener)


class Context:
    def __init__(self):
        self.connection = Connection()
        self.errors = []
        self.tasks = Tasks(self.errors.append)
        self.open = set()


class Pushes(NewestLog):
    def __init__(self):
        self._origin = None
        self.arrived = None
        self.opened = 0
        self.waits = []

    async def open_pushes(self, arrived):
        assert self.arrived is None, "one at a time"
        self.arrived, self.opened = arrived, self.opened + 1

    def wait_for_newer(self, seq):
        self.waits.append(seq)

    async def close(self):
        await asyncio.sleep(0)
        self.arrived = None


class NotifierLog(Pushes):
    """What the replica that is asked has, and what the leader has. An error in its place is raised."""

    def __init__(self, replica=None, leader="as the replica"):
        self.context = Context()
        super().__init__()
        self.replica = replica
        self.leader = leader
        self.requests = []
        self.stream = "S"
        self.state = Extent("S", "I", 1, 100)
        self.events = []
        self.emit = self.events.append

    async def extent(self):
        return await self._answer("extent", self.state)

    async def read_newest(self):
        return await self._answer("replica", self.replica)

    async def read_leader(self):
        return await self._answer("leader", self.replica if self.leader == "as the replica" else self.leader)

    async def _answer(self, who, what):
        self.requests.append(who)
        for _ in range(5):
            await asyncio.sleep(0)
        if isinstance(what, Exception):
            raise what
        return what


WRITTEN = RecordHeaders({"Nats-Msg-Id": "jsc-a:1"})


def record(seq, value=None, kind=Kind.VALUE):
    data = JsonCodec().encode(seq if value is None else value)
    return Record(seq=seq, data=data, kind=kind, headers=WRITTEN)


def notifier(log, **options):
    return Notifier(StreamNotifier(log, JsonCodec(), **options))


def denied():
    return PermissionDeniedError("publish", "$JS.API.STREAM.MSG.GET.S")


async def start(coroutine):
    task = asyncio.create_task(coroutine)
    await settle()
    return task


async def ended(log):
    """No consumer waits, and no value is kept."""
    await settle()
    assert log.arrived is None
    assert not log.context.open
    assert not log.context.connection.listeners
    assert not log.context.errors


@virtual
@pytest.mark.covers("A41")
async def test_replica_lags_not_current():
    log = NotifierLog(replica=record(4), leader=record(5))
    task = await start(notifier(log, quiet=10).get_update_since(5))
    assert not task.done()
    assert log.requests == ["replica", "leader"]
    log.replica = record(6)
    assert (await task).value == 6, "asked for again when it was quiet"
    await ended(log)


@virtual
@pytest.mark.covers("A18", "A39")
async def test_lagging_replica_ignored():
    log = NotifierLog(replica=record(7))
    shared = notifier(log)
    assert (await shared.get_update_since()).value == 7
    log.replica, log.leader = record(6), record(7)
    assert (await shared.get_update_since()).value == 7
    log.leader = denied()
    task = await start(shared.get_update_since())
    assert not task.done(), "nobody says that there is nothing newer: the replica is asked again"
    log.replica = record(8)
    assert (await task).value == 8
    await ended(log)


@virtual
@pytest.mark.covers("A40")
@pytest.mark.parametrize("leader", ["as the replica", "denied"])
async def test_count_never_gives_current_state(leader):
    log = NotifierLog(replica=record(3), leader=denied() if leader == "denied" else leader)
    assert (await notifier(log).get_update_since(10**9)) == (3, 3)
    await ended(log)


@virtual
async def test_later_count_not_lowered():
    log = NotifierLog(replica=record(8), leader=record(9))
    one = notifier(log)
    first = asyncio.create_task(one.get_update_since(10**9))
    while log.requests != ["replica", "leader"]:
        await asyncio.sleep(0)
    second = asyncio.create_task(one.get_update_since(10))
    log.replica = log.leader = record(10)
    assert (await first).value in (9, 10)
    await settle()
    assert not second.done(), "what it has had is the newest"
    log.arrived(record(11))
    assert (await second).value == 11
    await ended(log)


@virtual
@pytest.mark.covers("A18")
async def test_stream_recreated_begins_again():
    log = NotifierLog(replica=record(50))
    shared = notifier(log, quiet=1)
    iterator = aiter(shared)
    assert await anext(iterator) == 50
    log.replica = record(1, "new")
    assert await anext(iterator) == "new"
    waiting = await start(anext(iterator))
    assert not waiting.done()
    log.arrived(record(2, "next"))
    assert await waiting == "next"
    await ended(log)


@virtual
@pytest.mark.covers("A21", "A22")
async def test_lost_push_is_requested_when_quiet():
    log = NotifierLog(replica=record(1))
    task = await start(notifier(log, quiet=30).get_update_since(1))
    before = asyncio.get_running_loop().time()
    assert log.requests == ["replica"]
    await asyncio.sleep(95)
    assert log.requests == ["replica"] * 4
    log.replica = record(2)
    assert (await task).value == 2
    assert asyncio.get_running_loop().time() - before == 120
    await ended(log)


@virtual
async def test_push_older_than_had_not_taken():
    log = NotifierLog(replica=record(5))
    task = await start(notifier(log).get_update_since(5))
    log.arrived(record(4))
    await settle()
    assert not task.done()
    assert log.opened == 2, "and there is a new push to wait for"
    log.arrived(record(6))
    assert (await task).value == 6
    await ended(log)


@virtual
async def test_push_says_nothing_reason_to_ask():
    log = NotifierLog(replica=record(5))
    task = await start(notifier(log).get_update_since(5))
    log.replica = record(6)
    log.arrived(None)
    assert (await task).value == 6
    await ended(log)


@virtual
async def test_push_refused_error_to_all_who_wait():
    log = NotifierLog(replica=record(5))
    shared = notifier(log)
    tasks = [await start(shared.get_update_since(5)) for _ in range(3)]
    log.arrived(PermissionDeniedError("subscribe", "jsc.push.x"))
    for task in tasks:
        with pytest.raises(PermissionDeniedError):
            await task
    await ended(log)
    again = await start(shared.get_update_since(5))
    log.arrived(record(6))
    assert (await again).value == 6
    await ended(log)


@virtual
async def test_while_no_server_answers_one_waits():
    log = NotifierLog(replica=RequestTimeoutError("an answer", 5.0))
    shared = notifier(log)
    current, following = await start(shared.get_update_since()), await start(shared.get_update_since(1))
    await asyncio.sleep(100)
    assert not current.done()
    assert not following.done()
    log.replica = record(2)
    assert [(await current).value, (await following).value] == [2, 2]
    await ended(log)


@virtual
async def test_stream_deleted_error_soon():
    log = NotifierLog(replica=StreamNotFoundError(404, 10059, "stream not found"))
    shared = notifier(log)
    for count in (None, 5):
        with pytest.raises(StreamNotFoundError):
            await shared.get_update_since(count)
    await ended(log)


@virtual
async def test_reconnect_asks_close_ends():
    log = NotifierLog(replica=record(1))
    shared = notifier(log)
    task = await start(shared.get_update_since(1))
    log.replica = record(2)
    (listener,) = log.context.connection.listeners
    listener(Lifecycle.CONNECTED)
    assert (await task).value == 2
    for end in ("abandon", "closed"):
        task = await start(shared.get_update_since(2))
        if end == "abandon":
            (handle,) = log.context.open
            await handle.abandon()
        else:
            (listener,) = log.context.connection.listeners
            listener(Lifecycle.CLOSED)
        with pytest.raises(ClosedError):
            await task
        await ended(log)


@virtual
@pytest.mark.covers("A45", "A46", "A67")
async def test_end_is_requested_once():
    log = NotifierLog(replica=record(3, "done", Kind.FINISH))
    shared = notifier(log)
    for count in (None, 2, 3, 10**9):
        assert await shared.get_update_since(count) == ("done", None)
    assert log.requests == ["replica"]


@virtual
@pytest.mark.covers("A66", "A67")
async def test_mixed_waiters_served():
    """Those who are cancelled take nothing from the others, and the push goes from one to the next."""
    log = NotifierLog(replica=record(1))
    shared = notifier(log)
    for turn in range(2, 40):
        tasks = [asyncio.create_task(shared.get_update_since(turn - 1)) for _ in range(6)]
        for pause in range(turn % 7):
            await asyncio.sleep(0)
            tasks[pause % 6].cancel()
        late = asyncio.create_task(shared.get_update_since(turn - 1))
        await settle(turn % 11)
        log.replica = record(turn)
        # every other record is pushed, the others are noticed after a reconnect
        if log.arrived is not None and turn % 2:
            log.arrived(record(turn))
        else:
            for listener in list(log.context.connection.listeners):
                listener(Lifecycle.CONNECTED)
        results = await asyncio.gather(*tasks, late, return_exceptions=True)
        assert {one.value for one in results if not isinstance(one, asyncio.CancelledError)} == {turn}
    await ended(log)
    assert len([task for task in asyncio.all_tasks() if not task.done()]) == 1


def replicated(last_seq, incarnation="I"):
    return Extent("S", incarnation, 1, last_seq, replicas=3)


def clock():
    return asyncio.get_running_loop().time()


@virtual
@pytest.mark.parametrize("waits", [False, True])
async def test_former_leader_not_believed(waits):
    """It is asked again until its successor answers: a reader that has had 7 is never given 5."""
    log = NotifierLog(replica=record(7))
    log.state = replicated(7)
    shared = notifier(log)
    assert (await shared.get_update_since()).value == 7
    log.replica = log.leader = record(5)
    task = await start(shared.get_update_since(7 if waits else None))
    await asyncio.sleep(2)
    assert not task.done()
    assert 3 <= log.requests.count("leader") <= 20
    log.replica = log.leader = record(8 if waits else 7)
    assert (await task).value == (8 if waits else 7)
    await ended(log)


@virtual
@pytest.mark.parametrize(("last_seq", "delay"), [(7, 3), (5, 10)])
async def test_removed_record_accepted_in_the_end(last_seq, delay):
    """After 3 s if the stream has had the later record. After 10 s, with a report, if it has lost it."""
    log = NotifierLog(replica=record(7))
    log.state = replicated(last_seq)
    shared = notifier(log)
    await shared.get_update_since()
    log.replica = record(5)
    started = clock()
    assert (await shared.get_update_since()).value == 5
    assert delay <= clock() - started < delay + 3
    assert (await shared.get_update_since()).value == 5
    reports = [StreamReset(stream="S", last_stream_seq=7, stream_seq=5)] if delay == 10 else []
    assert log.events == reports
    await ended(log)


@virtual
async def test_replicated_stream_recreated():
    """Its identity says so at once."""
    log = NotifierLog(replica=record(50))
    log._origin = Position("S", "I", 0)
    log.state = replicated(50)
    shared = notifier(log)
    assert (await shared.get_update_since()).value == 50
    log.replica, log.state = record(1), replicated(1, "later")

    async def placed_again(newest):
        log._origin = Position("S", "later", 0)
        return newest

    log.placed_again = placed_again
    started = clock()
    assert (await shared.get_update_since()).value == 1
    assert (clock(), log.events) == (started, [])
    await ended(log)


@virtual
async def test_invented_count_delays_nobody_else():
    log = NotifierLog(replica=record(8))
    log.state = replicated(8)
    shared = notifier(log)
    invented = await start(shared.get_update_since(10**9))
    started = clock()
    assert (await shared.get_update_since(7)).value == 8
    assert clock() == started
    assert not invented.done()
    assert (await invented).value == 8
    assert 10 <= clock() - started < 12
    await ended(log)


@virtual
async def test_check_starts_over_after_failed_request():
    log = NotifierLog(replica=record(7))
    log.state = replicated(7)
    shared = notifier(log)
    await shared.get_update_since()
    log.replica = record(5)
    started = clock()
    task = await start(shared.get_update_since())
    await asyncio.sleep(2)
    log.state = RequestTimeoutError("stream info", 1.0)
    await asyncio.sleep(2)
    log.state = replicated(7)
    assert (await task).value == 5
    assert clock() - started >= 7
    await ended(log)


def test_a_quiet_period_is_over_0():
    with pytest.raises(ConfigError):
        StreamNotifier(NotifierLog.__new__(NotifierLog), JsonCodec(), quiet=0)


class NotifierServer:
    """A connection whose stream is created again while a push is on its way."""

    def __init__(self):
        self.connection = self
        self.api = Api()
        self.emit = None
        self.receive = None

    async def subscribe(self, subject, receive, *, limit):
        self.receive = receive
        return SimpleNamespace(denied=None)

    async def call(self, subject, what):
        return {"created": "later"}


PUSHED = (
    b"again.a",
    b"",
    b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: a\r\nNats-Sequence: 4\r\nNats-Last-Sequence: 3\r\n"
    b"Nats-Time-Stamp: 2026-11-23T00:00:00Z\r\n\r\n",
    b"4",
)


@virtual
async def test_push_before_change_of_stream_is_requested():
    """Its position would name the deleted stream."""
    server, arrived = NotifierServer(), []
    at = NotifierDescriptor(
        stream="S", subject="a", codec="json", api_prefix="$JS.API", republished="again.a"
    )
    log = newest_log(server, at, quiet=10, origin=Position("S", "before", 0))
    await log.open_pushes(arrived.append)
    server.receive([PUSHED])
    newest = await log.placed_again(Record(seq=3, origin=Position("S", "before", 0)))
    log.wait_for_newer(newest.seq)
    assert (newest.position.incarnation, arrived) == ("later", [None])
    await log.open_pushes(arrived.append)
    server.receive([PUSHED])
    log.wait_for_newer(3)
    assert [arrived[1].position.incarnation, arrived[1].seq] == ["later", 4]
