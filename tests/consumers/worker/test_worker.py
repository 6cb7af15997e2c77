"""A worker on a fake connection, in virtual time: what it answers, what it keeps alive, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import threading

import pytest

import jsclient
from jsclient import (
    ClosedError,
    ConfigError,
    ConsumerConfig,
    ConsumerDeletedError,
    NoMatchingStreamError,
    Reject,
)
from jsclient.consumers.worker import worker as worker_module
from jsclient.protocol.events import (
    AcksUnsent,
    DeadLettered,
    DeadLetterFailed,
    ErrorRaised,
    HandlerFailed,
    WorkerFailed,
)
from jsclient.protocol.wire.headers import parse_headers
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.strategies import STREAM, data, status
from tests.support.virtual import settle, virtual

ACK, NAK, ALIVE, TERM = b"+ACK", b"-NAK", b"+WPI", b"+TERM"


def now() -> float:
    return asyncio.get_running_loop().time()


def nak(delay: float) -> bytes:
    return b'-NAK {"delay": %d}' % round(delay * 1e9)


def seqs(connection, kind: bytes) -> list[int]:
    """The stream sequences of the messages that were answered so, in order."""
    return [
        int(sent.subject.split(".")[5]) for sent in connection.to("$JS.ACK.") if sent.payload.startswith(kind)
    ]


class Handler:
    """Remembers what it got; ends when it is let, as it is told."""

    def __init__(self, *, waits: bool = True) -> None:
        self.seen: list[int] = []
        self.running: dict[int, asyncio.Future[None]] = {}
        self.most = 0
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.waits = waits

    async def __call__(self, message) -> None:
        seq = message.metadata.stream_seq
        self.seen.append(seq)
        future = self.running[seq] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.running))
        try:
            if self.waits:
                await future
            self.ended.append(seq)
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self.cancelled.append(seq)
            raise
        finally:
            del self.running[seq]

    def end(self, *numbers: int, error: BaseException | None = None) -> None:
        for number in numbers:
            future = self.running[number]
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class working:  # noqa: N801  reads as: async with working(handler) as work
    """A worker on a push subscription, unless ``pull``; stopped at the end."""

    def __init__(
        self, handler, *, config: ConsumerConfig | None = None, pull: bool = False, **options
    ) -> None:
        self.handler, self.config, self.pull, self.options = handler, config, pull, options

    async def __aenter__(self):
        self._fake = connected()
        self.js, self.connection = await self._fake.__aenter__()
        subscribe = self.js.pull_subscribe if self.pull else self.js.subscribe
        config = self.config or ConsumerConfig(ack_wait=30.0)
        self.sub = await subscribe("orders.new", config=config.replace(name="worker"))
        self.worker = self.sub.run(self.handler, **self.options)
        await settle()
        return self

    async def __aexit__(self, *_):
        self.worker.stop(0)
        await asyncio.wait({self.worker.task})
        await self._fake.__aexit__(None, None, None)

    async def deliver(self, *frames) -> None:
        where = self.connection.pulls()[-1].reply if self.pull else self.sub.subject
        self.connection.deliver(where, list(frames))
        await settle()

    @property
    def acked(self) -> list[int]:
        return seqs(self.connection, ACK)


# --- what is answered ----------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_what_is_handled_is_acked(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=2, prefetch=10) as work:
        await work.deliver(data(1), data(2), data(3))
        assert handler.seen == [1, 2]
        handler.end(2)
        await settle()
        assert work.acked == [2]
        assert handler.seen == [1, 2, 3]
        handler.end(1, 3)
        await settle()
        assert sorted(work.acked) == [1, 2, 3]
        assert (work.worker.counts.handled, work.worker.counts.running) == (3, 0)
        assert work.worker.is_running
        work.worker.stop()
        counts = await work.worker
        assert counts == jsclient.WorkCounts(handled=3)
        assert not work.worker.is_running


@virtual
async def test_fails_tried_again_after_pause_grows():
    handler = Handler()
    async with working(handler) as work:
        for deliveries in (1, 2, 3):
            await work.deliver(data(1, delivered=deliveries))
            handler.end(1, error=ValueError("busy"))
            await settle()
        assert work.connection.acks() == [nak(0.5), nak(1.0), nak(2.0)]
        told = work.connection.told(HandlerFailed)
        assert [(event.attempt, event.retry_in) for event in told] == [(1, 0.5), (2, 1.0), (3, 2.0)]
        assert {(event.stream, event.consumer, event.subject) for event in told} == {
            (STREAM, "worker", "orders.new")
        }
        assert (work.worker.counts.failed, work.worker.counts.retried) == (3, 3)


@virtual
@pytest.mark.row(113)
async def test_backoff_of_consumer_left_to_server():
    """A nak would be at once, and a nak with a delay is off by what the server adds."""
    handler = Handler()
    async with working(handler, config=ConsumerConfig(backoff=[3.0, 9.0], max_deliver=5)) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [ALIVE]
        assert work.connection.told(HandlerFailed)[0].retry_in == 3.0
        await asyncio.sleep(20)
        assert work.connection.acks() == [ALIVE]  # it is not kept alive any more


@virtual
async def test_a_delay_of_ones_own():
    handler = Handler()
    async with working(handler, retry_delay=lambda attempt: 10.0 * attempt) as work:
        await work.deliver(data(1, delivered=4))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [nak(40.0)]


@virtual
async def test_delay_function_may_raise():
    handler = Handler()
    async with working(handler, retry_delay=lambda attempt: 1 / 0) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [nak(0.5)]
        (told,) = work.connection.told(ErrorRaised)
        assert "ZeroDivisionError" in str(told.error)


@virtual
@pytest.mark.parametrize("raises", [False, True])
async def test_handler_settles_itself_left_at(raises):
    async def handler(message):
        await message.nak(delay=5)
        if raises:
            raise ValueError

    async with working(handler, max_deliver=1) as work:
        await work.deliver(data(1))
        assert work.connection.acks() == [nak(5.0)]
        counts = work.worker.counts
        assert (counts.handled, counts.failed, counts.terminated) == ((0, 1, 0) if raises else (1, 0, 0))
        assert len(work.connection.told(HandlerFailed)) == raises


@virtual
async def test_inner_cancel_fails_message():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2))
        handler.running[1].cancel()
        await settle()
        assert work.connection.acks() == [nak(0.5)]
        handler.end(2)
        await settle()
        assert work.acked == [2]
        await work.deliver(data(3))
        assert handler.seen == [1, 2, 3]


@virtual
async def test_base_exception_ends_worker():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(*[data(seq) for seq in range(1, 7)])
        handler.end(1, error=SystemExit(3))
        with pytest.raises(SystemExit):
            await work.worker
        assert sorted(seqs(work.connection, NAK)) == [1, 2, 3, 4, 5, 6]
        assert handler.cancelled == [2]
        assert work.worker.counts.returned == 6


@virtual
async def test_ack_may_be_one_server_confirms():
    handler = Handler(waits=False)
    async with working(handler, ack_sync=True) as work:
        await work.deliver(data(1))
        (ack,) = work.connection.to("$JS.ACK.")
        assert ack.reply
        assert work.worker.counts.handled == 0
        work.connection.deliver(ack.reply, [(ack.reply.encode(), b"", b"", b"")])
        await settle()
        assert work.worker.counts.handled == 1


@virtual
async def test_ack_never_confirmed_told():
    handler = Handler(waits=False)
    async with working(handler, ack_sync=True) as work:
        await work.deliver(data(1))
        await asyncio.sleep(20)
        assert len(work.connection.told(ErrorRaised)) == 3
        assert (work.worker.counts.handled, work.worker.counts.unsettled) == (0, 1)


# --- how many, in which order --------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_never_more_than_so_many_at_once(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=3, prefetch=100) as work:
        await work.deliver(*[data(seq) for seq in range(1, 41)])
        while handler.running:
            handler.end(*list(handler.running)[:2])
            await settle()
        assert handler.most == 3
        assert handler.seen == list(range(1, 41))


@virtual
async def test_idle_tasks_end():
    """Each handler has a task while there are messages; ten seconds later the tasks are gone, and come again."""
    handler = Handler()
    async with working(handler, pull=True, concurrency=10, prefetch=20) as work:
        waiting = len(asyncio.all_tasks())
        for first in (1, 11):
            await work.deliver(*(data(seq) for seq in range(first, first + 10)))
            assert len(asyncio.all_tasks()) == waiting + 10
            handler.end(*range(first, first + 10))
            await asyncio.sleep(9)
            assert len(asyncio.all_tasks()) == waiting + 10
            await asyncio.sleep(2)
            assert len(asyncio.all_tasks()) == waiting
        assert work.acked == [*range(1, 21)]


@virtual
async def test_message_that_comes_when_tasks_end():
    """A task that had decided to end counted as one that could take the message."""
    seen = []

    async def handler(message) -> None:
        seen.append(message.metadata.stream_seq)

    async with working(handler, pull=True, keep_alive=False, handler_timeout=None) as work:
        await work.deliver(data(1))
        where = work.connection.pulls()[-1].reply
        loop = asyncio.get_running_loop()
        loop.call_at(now() + 10 - 1e-10, work.connection.deliver, where, [data(2)])
        await asyncio.sleep(11)
        assert seen == [1, 2]


@virtual
@pytest.mark.parametrize("concurrency", [1, 10])
async def test_idle_task_cancelled(concurrency):
    """As when a handler is cancelled by what it did not start itself: the worker ends."""

    async def handler(message) -> None:
        asyncio.get_running_loop().call_later(5, asyncio.current_task().cancel)

    async with working(handler, pull=True, concurrency=concurrency) as work:
        await work.deliver(data(1))
        await asyncio.sleep(6)
        assert not work.worker.is_running
        assert work.acked == [1]


@virtual
async def test_more_wait_than_are_taken_over(monkeypatch):
    """A push subscription with a long backlog: the event loop stood still."""
    monkeypatch.setattr(worker_module, "_MOST_KEPT", 3)
    handler = Handler()
    async with working(handler, config=ConsumerConfig(ack_wait=30.0, max_ack_pending=100)) as work:
        await work.deliver(*(data(seq) for seq in range(1, 21)))
        for _ in range(10):
            await asyncio.sleep(10)
        assert handler.seen == [1]
        assert work.worker.is_running


@virtual
async def test_requests_follow_the_speed():
    """While handlers return at once, requests grow; after a rest they are small again."""

    async def handler(message) -> None:
        pass

    async with working(handler, pull=True) as work:
        sizes = [work.connection.pulls()[-1].json["batch"]]
        delivered = 0
        while delivered < 2000:
            request = work.connection.pulls()[-1]
            sizes.append(request.json["batch"])
            await work.deliver(*(data(delivered + number) for number in range(1, sizes[-1] + 1)))
            delivered += sizes[-1]
        assert sizes[0] == 1
        assert max(sizes) > 100
        await asyncio.sleep(12)
        pending = work.connection.pulls()[-1].json["batch"]
        await work.deliver(status(408, "Request Timeout", Nats_Pending_Messages=pending))
        assert work.connection.pulls()[-1].json["batch"] <= 2


@virtual
async def test_loop_has_its_turn_between_fast_handlers():
    """A handler that never waits does not keep other tasks from running."""
    turns = []

    async def handler(message) -> None:
        turns.append(message.metadata.stream_seq)
        asyncio.get_running_loop().advance(0.002)

    async with working(handler, pull=True, prefetch=100) as work:
        where = work.connection.pulls()[-1].reply
        work.connection.deliver(where, [data(seq) for seq in range(1, 51)])
        seen = []
        while len(turns) < 50:
            await asyncio.sleep(0)
            seen.append(len(turns))
        assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) <= 4


@virtual
async def test_pull_worker_limits_requests():
    """Asked for, waiting and handled together stay within ``concurrency + prefetch``."""
    handler = Handler()
    async with working(handler, pull=True, concurrency=4, prefetch=4) as work:
        asked = delivered = 0
        for _ in range(50):
            asked = sum(pull.json["batch"] for pull in work.connection.pulls())
            assert asked - len(handler.ended) <= 8
            while delivered < asked:
                delivered += 1
                await work.deliver(data(delivered))
            handler.end(*list(handler.running)[:3])
            await settle()
        assert delivered >= 100


@virtual
async def test_one_after_other_for_each_key():
    handler = Handler()
    async with working(handler, concurrency=4, key=lambda m: m.data) as work:
        keys = {seq: bytes([65 + seq % 2]) for seq in range(1, 9)}
        await work.deliver(*[data(seq, payload=key) for seq, key in keys.items()])
        assert handler.seen == [1, 2]
        handler.end(2)
        await settle()
        assert handler.seen == [1, 2, 4]
        handler.end(4, error=ValueError())
        await settle()
        assert handler.seen == [1, 2, 4]  # 6 waits
        await asyncio.sleep(0.51)  # the retry is due after 0.5
        assert handler.seen == [1, 2, 4, 4]
        handler.end(4)
        await settle()
        assert handler.seen == [1, 2, 4, 4, 6]
        assert work.acked == [2, 4]
        assert seqs(work.connection, NAK) == []


@virtual
@pytest.mark.parametrize("key", [lambda _: 1 / 0, lambda _: []])
async def test_message_without_key_failed(key):
    handler = Handler()
    async with working(handler, key=key, max_deliver=2) as work:
        await work.deliver(data(1))
        await asyncio.sleep(1)
        assert handler.seen == []
        assert seqs(work.connection, TERM) == [1]
        assert len(work.connection.told(HandlerFailed)) == 2


# --- kept alive ----------------------------------------------------------------------------------------------


@virtual
@pytest.mark.row(112)
@pytest.mark.parametrize("pull", [True, False])
async def test_handled_and_waits_kept_alive(pull):
    handler = Handler()
    async with working(handler, pull=pull, prefetch=10) as work:
        await work.deliver(data(1), data(2))
        await asyncio.sleep(9.9)
        assert work.connection.acks() == []
        await asyncio.sleep(20)
        assert seqs(work.connection, ALIVE) == [1, 2, 1, 2]
        handler.end(1)
        await asyncio.sleep(5)
        assert seqs(work.connection, ALIVE) == [1, 2, 1, 2, 2]
        assert work.worker.counts.kept_alive == 5


@virtual
async def test_old_messages_taken_first():
    """A pull reader that is full ends meanwhile: nothing comes that could not be kept alive."""
    handler = Handler()
    async with working(handler, pull=True, concurrency=1, prefetch=6) as work:
        (pull,) = work.connection.pulls()
        assert pull.json["batch"] == 3
        await work.deliver(data(1), data(2), data(3))
        await work.deliver(data(4), data(5), data(6), data(7))
        listening = len(work.connection.inboxes)
        await asyncio.sleep(10.1)
        assert len(work.connection.inboxes) == listening - 1
        await asyncio.sleep(10)
        assert set(seqs(work.connection, ALIVE)) == {1, 2, 3, 4, 5, 6, 7}
        before = len(work.connection.pulls())
        for seq in range(1, 8):
            handler.end(seq)
            await settle()
        assert handler.ended == list(range(1, 8))
        assert len(work.connection.pulls()) == before + 1
        await work.deliver(data(8))
        assert handler.seen[-1] == 8


@virtual
async def test_push_buffer_kept_alive():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(*[data(seq) for seq in range(1, 31)])
        await asyncio.sleep(29)
        assert set(seqs(work.connection, ALIVE)) == set(range(1, 31))
        await work.deliver(*[data(seq) for seq in range(31, 41)])
        await asyncio.sleep(29)
        assert set(seqs(work.connection, ALIVE)) == set(range(1, 41))
        for seq in range(1, 41):
            handler.end(seq)
            await settle()
        assert work.acked == list(range(1, 41))


@virtual
async def test_without_keep_alive_nothing_said():
    handler = Handler()
    async with working(handler, keep_alive=False, handler_timeout=None) as work:
        await work.deliver(data(1))
        await asyncio.sleep(1000)
        assert work.connection.acks() == []


@virtual
async def test_redelivery_not_handled_twice():
    handler = Handler()
    async with working(handler, concurrency=3) as work:
        await work.deliver(data(1))
        await work.deliver(data(1, 2, delivered=2))
        assert handler.seen == [1]
        handler.end(1)
        await settle()
        (ack,) = work.connection.to("$JS.ACK.")
        assert ack.subject.split(".")[4] == "2"  # the newest one
        assert work.worker.counts.duplicates == 1


# --- too long ------------------------------------------------------------------------------------------------


@virtual
async def test_hanging_handler_cancelled():
    handler = Handler()
    async with working(handler, handler_timeout=60.0) as work:
        await work.deliver(data(1), data(2))
        await asyncio.sleep(59)
        assert handler.cancelled == []
        await asyncio.sleep(2)
        assert handler.cancelled == [1]
        assert work.connection.acks()[-1] == nak(0.5)
        (told,) = work.connection.told(HandlerFailed)
        assert isinstance(told.error, TimeoutError)
        assert "60" in str(told.error)
        handler.end(2)  # the next one began in its place
        await settle()
        assert work.acked == [2]


@virtual
async def test_stuck_handler_loses_message():
    gate = asyncio.Event()
    seen = []

    async def stubborn(message):
        seen.append(message.metadata.stream_seq)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass

    async with working(stubborn, handler_timeout=60.0, concurrency=1) as work:
        await work.deliver(data(1), data(2))
        await asyncio.sleep(62)
        assert seqs(work.connection, NAK) == [1]
        assert seen == [1]
        gate.set()
        await settle()
        assert seen == [1, 2]
        assert work.acked == [2]
        assert work.worker.counts.handled == 1


@virtual
async def test_time_ack_takes_not_handlers():
    handler = Handler()
    async with working(handler, handler_timeout=5.0, ack_sync=True) as work:
        await work.deliver(data(1))
        await asyncio.sleep(4)
        handler.end(1)
        await asyncio.sleep(4)
        (ack,) = work.connection.to("$JS.ACK.")
        work.connection.deliver(ack.reply, [(ack.reply.encode(), b"", b"", b"")])
        await settle()
        assert work.worker.counts == jsclient.WorkCounts(handled=1)


@virtual
async def test_success_despite_cancel():
    async def late(_):
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)

    async with working(late, handler_timeout=60.0) as work:
        await work.deliver(data(1))
        await asyncio.sleep(62)
        assert work.acked == [1]
        await work.deliver(data(2))  # and the cancellation is not held against the next one
        await asyncio.sleep(62)
        assert work.acked == [1, 2]


# --- dead letters --------------------------------------------------------------------------------------------


class Stored:
    """The stream that takes dead letters: stores, refuses, or does not answer."""

    def __init__(self, work_or_connection) -> None:
        self.connection = getattr(work_or_connection, "connection", work_or_connection)
        self.mode = "store"
        self._answer = self.connection.api.answer
        self.connection.api.answer = self.answer

    def answer(self, request):
        if not request.subject.startswith("dead"):
            return self._answer(request)
        if self.mode == "store":
            return {"stream": "DEAD", "seq": 1}
        if self.mode == "refuse":
            return {"error": Refusal(10077, 400, "maximum messages exceeded")._asdict()}
        return SILENCE

    @property
    def letters(self):
        return self.connection.to("dead")


@virtual
async def test_last_delivery_dead_letters():
    handler = Handler()
    async with working(handler, max_deliver=3, dead_letter="dead.>") as work:
        stored = Stored(work)
        await work.deliver(
            data(7, delivered=3, payload=b"poison", header=b"NATS/1.0\r\nNats-Msg-Id: a\r\nx: y\r\n\r\n")
        )
        handler.end(7, error=ValueError("no such\r\ncustomer"))
        await settle()
        (letter,) = stored.letters
        assert (letter.subject, letter.payload) == ("dead.orders.new", b"poison")
        headers = parse_headers(letter.header)[1]
        assert headers["x"] == "y"
        assert headers["Dead-Letter-Nats-Msg-Id"] == "a"
        assert headers["Nats-Msg-Id"].startswith("dead-letter.ORDERS.worker.7.")
        assert headers["Dead-Letter-Error"] == "ValueError"
        assert headers["Dead-Letter-Reason"] == "no such customer"
        assert headers["Dead-Letter-Deliveries"] == "3"
        assert work.connection.acks() == [b"+TERM ValueError: no such customer"]
        subjects = [subject for _, subject in work.connection.log]
        assert subjects.index("dead.orders.new") < subjects.index(work.connection.to("$JS.ACK.")[0].subject)
        (told,) = work.connection.told(DeadLettered)
        assert (told.stream_seq, told.attempt, told.dead_letter) == (7, 3, "dead.orders.new")
        assert work.connection.told(HandlerFailed)[0].retry_in is None
        assert work.worker.counts.dead_lettered == 1


@virtual
async def test_rejected_message_goes_there_at_once():
    handler = Handler()
    async with working(handler, dead_letter="dead") as work:
        stored = Stored(work)
        await work.deliver(data(1))
        handler.end(1, error=Reject("no such customer"))
        await settle()
        headers = parse_headers(stored.letters[0].header)[1]
        assert (headers["Dead-Letter-Error"], headers["Dead-Letter-Reason"]) == ("Reject", "no such customer")
        assert work.connection.acks() == [b"+TERM Reject: no such customer"]


@virtual
async def test_without_subject_terminated_and_told():
    handler = Handler()
    async with working(handler, max_deliver=1) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError("bad"))
        await settle()
        assert work.connection.acks() == [b"+TERM ValueError: bad"]
        (told,) = work.connection.told(DeadLettered)
        assert (told.dead_letter, str(told.error)) == ("", "bad")
        assert work.worker.counts.terminated == 1


@virtual
@pytest.mark.parametrize("mode", ["refuse", "silent"])
async def test_cannot_be_stored_not_terminated(mode):
    handler = Handler()
    async with working(handler, max_deliver=1, dead_letter="dead") as work:
        stored = Stored(work)
        stored.mode = mode
        await work.deliver(data(1))
        handler.end(1, error=ValueError("bad"))
        await asyncio.sleep(6)
        assert len(work.connection.told(DeadLetterFailed)) >= 1
        assert seqs(work.connection, TERM) == []
        stored.mode = "store"
        await asyncio.sleep(20)
        assert seqs(work.connection, TERM) == [1]
        assert {parse_headers(letter.header)[1]["Dead-Letter-Reason"] for letter in stored.letters} == {"bad"}
        assert len({parse_headers(letter.header)[1]["Nats-Msg-Id"] for letter in stored.letters}) == 1
        assert handler.seen == [1]  # it is not handled again meanwhile


@virtual
async def test_unstorable_returned():
    handler = Handler()
    async with working(handler, max_deliver=1, dead_letter="dead") as work:
        Stored(work).mode = "refuse"
        await work.deliver(data(1))
        handler.end(1, error=ValueError("bad"))
        await asyncio.sleep(60)
        assert seqs(work.connection, TERM) == []
        assert seqs(work.connection, NAK) == [1]
        assert work.worker.counts.waiting == 0


@virtual
async def test_in_last_delivery_held_until_stored():
    """Given back it would not come again."""
    handler = Handler()
    async with working(handler, config=ConsumerConfig(max_deliver=2), dead_letter="dead") as work:
        stored = Stored(work)
        stored.mode = "refuse"
        await work.deliver(data(1, delivered=2))
        handler.end(1, error=ValueError("bad"))
        await asyncio.sleep(300)
        assert seqs(work.connection, NAK) == []
        assert len(seqs(work.connection, ALIVE)) >= 20
        stored.mode = "store"
        await asyncio.sleep(61)
        assert seqs(work.connection, TERM) == [1]


@virtual
async def test_unsurvived_is_dead_lettered():
    handler = Handler()
    async with working(handler, max_deliver=3, dead_letter="dead") as work:
        stored = Stored(work)
        await work.deliver(data(1, delivered=4))
        assert handler.seen == []
        assert "4 times" in parse_headers(stored.letters[0].header)[1]["Dead-Letter-Reason"]
        assert seqs(work.connection, TERM) == [1]


@virtual
async def test_server_gave_up_found_by_advisory():
    handler = Handler()
    async with working(handler, config=ConsumerConfig(max_deliver=2), dead_letter="dead") as work:
        stored = Stored(work)
        subject = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.ORDERS.worker"
        (inbox,) = [inbox for inbox in work.connection.inboxes if inbox.subject == subject]
        assert inbox.queue  # one of the workers is enough
        message = {"subject": "orders.new", "seq": 9, "data": "cG9pc29u", "time": "2026-01-01T00:00:00Z"}
        work.connection.api.on("STREAM.MSG", Refusal(10008, 503, "not available"), {"message": message})
        work.connection.api.delivered = 10
        names = {"stream": "ORDERS", "consumer": "worker"}
        told = json.dumps(names | {"stream_seq": 9, "deliveries": 2}).encode()
        work.connection.deliver(subject, [(subject.encode(), b"", b"", told)])
        await settle()
        assert len(work.connection.told(DeadLetterFailed)) == 1
        await asyncio.sleep(1)
        (letter,) = stored.letters
        assert letter.payload == b"poison"
        assert parse_headers(letter.header)[1]["Dead-Letter-Sequence"] == "9"
        assert work.connection.told(DeadLettered)[0].stream_seq == 9
        # what is in hand is settled by who has it
        work.connection.api.on("STREAM.MSG", {"message": message | {"seq": 10}})
        await work.deliver(data(10, delivered=2))
        told = json.dumps(names | {"stream_seq": 10, "deliveries": 2}).encode()
        work.connection.deliver(subject, [(subject.encode(), b"", b"", told)])
        await settle()
        handler.end(10)
        await settle()
        assert len(stored.letters) == 1
    assert subject not in work.connection.listening


@virtual
@pytest.mark.parametrize(
    ("streams", "filters", "error"),
    [
        ([], ["orders.new"], NoMatchingStreamError),
        ([STREAM], ["orders.new", "dead.x"], ConfigError),
        ([STREAM], [], ConfigError),
        ([STREAM], ["orders.new"], None),
        (["DEAD"], [], None),
        (None, [], None),  # it may not ask
    ],
)
async def test_bad_dead_subject_refused(streams, filters, error):
    async with connected() as (js, connection):
        connection.api.has("worker", filter_subjects=filters)
        sub = await js.pull_subscribe(stream=STREAM, consumer="worker")
        answer = {"streams": streams} if streams is not None else Refusal(10000, 403, "no")
        connection.api.on("STREAM.NAMES", answer)
        worker = sub.run(Handler(), dead_letter="dead.>")
        if error is None:
            await settle()
            worker.stop()
            await worker
        else:
            with pytest.raises(error):
                await worker
            assert not connection.pulls()


# --- the end -------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_stop_returns_waiting(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=2, prefetch=4, grace=30.0) as work:
        await work.deliver(*[data(seq) for seq in range(1, 5)])
        await work.deliver(data(5), data(6))
        work.worker.stop()
        await settle(100)
        assert seqs(work.connection, NAK) == [3, 4, 5, 6]
        ways = [how if how == "drain" else subject[:8] for how, subject in work.connection.log]
        assert ways.index("drain") < ways.index("$JS.ACK.")  # before, they would come back
        assert not work.worker.task.done()
        await asyncio.sleep(21)
        assert sorted(seqs(work.connection, ALIVE)) == [1, 1, 2, 2]  # while they run
        handler.end(1, 2)
        counts = await work.worker
        assert (counts.handled, counts.returned) == (2, 4)
        assert sorted(work.acked) == [1, 2]
        assert work.connection.listening == []
        assert work.sub.is_closed is not pull


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_grace_cancels_handlers(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=2, prefetch=4) as work:
        await work.deliver(data(1), data(2))
        started = now()
        work.worker.stop(grace=5.0)
        counts = await work.worker
        assert now() - started == pytest.approx(5.0)
        assert handler.cancelled == [1, 2]
        assert counts.returned == 2
        assert seqs(work.connection, NAK) == [1, 2]
        assert work.connection.told(HandlerFailed) == []


@virtual
async def test_stuck_handler_ends_with_stop():
    gate = asyncio.Event()

    async def stubborn(_):
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass

    async with working(stubborn) as work:
        await work.deliver(data(1))
        started = now()
        work.worker.stop(grace=5.0)
        counts = await work.worker
        assert now() - started <= 8.0
        assert (counts.returned, counts.running) == (1, 1)
        assert seqs(work.connection, NAK) == [1]
        gate.set()
        await settle()
        assert work.acked == []
        assert (counts.running, counts.handled) == (0, 0)


@virtual
async def test_second_stop_can_only_be_sooner():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(data(1))
        started = now()
        work.worker.stop(grace=10.0)
        await asyncio.sleep(1)
        work.worker.stop(grace=2.0)
        work.worker.stop(grace=100.0)
        await work.worker
        assert now() - started == pytest.approx(3.0)


@virtual
async def test_second_cancel_stops_at_once():
    handler = Handler()
    async with working(handler, grace=50.0) as work:
        await work.deliver(data(1), data(2))
        waiting = asyncio.ensure_future(work.worker.wait())
        await settle()
        waiting.cancel()
        await settle(100)
        assert seqs(work.connection, NAK) == [2]
        assert not waiting.done()
        started = now()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert now() == started
        assert seqs(work.connection, NAK) == [2, 1]


@virtual
async def test_an_event_stops_it():
    handler, stop = Handler(), asyncio.Event()
    async with working(handler, stop=stop) as work:
        await work.deliver(data(1))
        stop.set()
        await settle()
        handler.end(1)
        assert (await work.worker).handled == 1


@virtual
@pytest.mark.parametrize("how", ["event", "stop", "cancel"])
async def test_stop_during_drain(how):
    handler, stop = Handler(), asyncio.Event()
    async with working(handler, stop=stop, grace=3.0) as work:
        await work.deliver(data(1), data(2))
        started = now()
        draining = asyncio.ensure_future(work.sub.drain())
        waiting = asyncio.ensure_future(work.worker.wait())
        await asyncio.sleep(1)
        {"event": stop.set, "stop": work.worker.stop, "cancel": waiting.cancel}[how]()
        await asyncio.wait({waiting})
        assert now() - started == pytest.approx(4.0)
        await draining
        assert seqs(work.connection, NAK) == [2, 1]


@virtual
async def test_second_signal_does_not_wait():
    handler = Handler()
    async with working(handler, stop_signals=[signal.SIGUSR1]) as work:
        await work.deliver(data(1), data(2))
        signal.raise_signal(signal.SIGUSR1)
        await asyncio.sleep(1)
        assert seqs(work.connection, NAK) == [2]
        started = now()
        signal.raise_signal(signal.SIGUSR1)
        await work.worker
        assert now() - started < 1.0
        assert handler.cancelled == [1]
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@virtual
async def test_it_runs_as_long_as_a_block():
    handler = Handler()
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        async with sub.run(handler) as worker:
            await settle()
            connection.deliver(sub.subject, [data(1)])
            await settle()
            assert worker.counts.running == 1
            handler.end(1)
        assert worker.counts.handled == 1


@virtual
@pytest.mark.parametrize("prefetch", [2, 40])
async def test_drain_handles_everything(prefetch):
    handler = Handler()
    async with working(handler, concurrency=2, prefetch=prefetch) as work:
        await work.deliver(*[data(seq) for seq in range(1, 8)])
        work.connection.under_way = [(work.sub.subject, [data(8)])]
        draining = asyncio.ensure_future(work.sub.drain())
        await asyncio.sleep(0.1)
        for _ in range(4):
            assert work.connection.deleted() == []
            handler.end(*list(handler.running))
            await settle()
        await draining
        assert work.connection.deleted() == ["worker"]
        assert sorted(work.acked) == list(range(1, 9))
        assert (await work.worker).handled == 8


@virtual
async def test_slow_drain_returns_rest():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(data(1), data(2), data(3))
        with pytest.raises(jsclient.RequestTimeoutError):
            await work.sub.drain(timeout=5.0)
        assert handler.cancelled == [1]
        assert (await work.worker).returned >= 1
        assert work.connection.deleted() == ["worker"]


@virtual
async def test_pull_subscription_drains_worker():
    handler = Handler()
    async with working(handler, pull=True, prefetch=4) as work:
        await work.deliver(data(1), data(2))
        draining = asyncio.ensure_future(work.sub.drain())
        await settle(100)
        assert work.connection.deleted() == []
        handler.end(1)
        await draining
        assert work.connection.deleted() == ["worker"]
        assert (work.acked, seqs(work.connection, NAK)) == ([1], [2])


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_unsubscribe_interrupts_nothing(pull):
    handler = Handler()
    async with working(handler, pull=pull, prefetch=4) as work:
        await work.deliver(data(1), data(2))
        await work.sub.unsubscribe()
        await settle()
        handler.end(1)
        counts = await work.worker
        assert (counts.handled, counts.returned) == (1, 1)


@virtual
async def test_a_handler_may_end_it_all():
    """From a handler, drain only begins, stop does not wait, and close does not wait for the handler."""
    for how in ("stop", "drain", "close", "unsubscribe"):
        done = []

        async def handler(_, how=how, done=done):
            await {
                "stop": asyncio.sleep,
                "drain": work.sub.drain,
                "close": work.js.close,
                "unsubscribe": work.sub.unsubscribe,
            }[how](*([0] if how == "stop" else []))
            if how == "stop":
                work.worker.stop()
            done.append(how)

        async with working(handler) as work:
            started = now()
            await work.deliver(data(1))
            await work.worker
            assert done == [how]
            assert now() - started < 5.0


@virtual
@pytest.mark.parametrize("durable", [True, False])
async def test_close_keeps_durable(durable):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", durable="worker" if durable else None)
        worker = sub.run(Handler(), grace=1.0)
        await settle()
        connection.deliver(sub.subject, [data(1), data(2)])
        await settle()
        await js.close()
        assert not worker.is_running
        assert len(connection.deleted()) == (not durable)


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_close_waits_for_handlers(pull):
    handler = Handler()
    async with working(handler, pull=pull, grace=5.0) as work:
        await work.deliver(data(1))
        closing = asyncio.ensure_future(work.js.close())
        await asyncio.sleep(3)
        handler.end(1)
        await closing
        assert work.acked == [1]
        assert (await work.worker).handled == 1


@virtual
async def test_deleted_pull_consumer_ends():
    handler = Handler()
    async with working(handler, pull=True) as work:
        await work.deliver(data(1))
        await work.deliver(status(409, "Consumer Deleted"))
        await settle()
        handler.end(1)
        with pytest.raises(ConsumerDeletedError):
            await work.worker
        assert work.worker.counts.handled == 1


@virtual
async def test_deleted_push_consumer_ends():
    handler = Handler()
    async with working(handler, config=ConsumerConfig(idle_heartbeat=5.0)) as work:
        work.connection.api.consumers.clear()
        with pytest.raises(ConsumerDeletedError):
            await work.worker


@virtual
async def test_push_status_is_event():
    handler = Handler(waits=False)
    async with working(handler) as work:
        await work.deliver(status(503, ""), data(1))
        assert work.acked == [1]
        assert len(work.connection.told(ErrorRaised)) == 1


@virtual
async def test_in_last_delivery_nothing_given_back():
    handler = Handler()
    async with working(handler, config=ConsumerConfig(max_deliver=2), dead_letter="dead") as work:
        stored = Stored(work)
        await work.deliver(data(1), data(2, delivered=2), data(3))
        work.worker.stop(grace=5.0)
        await settle(100)
        assert seqs(work.connection, NAK) == [3]
        handler.end(1)
        await settle()
        assert handler.seen == [1, 2]
        counts = await work.worker  # handler 2 does not end in time
        assert (counts.handled, counts.returned, counts.dead_lettered) == (1, 1, 1)
        assert parse_headers(stored.letters[0].header)[1]["Dead-Letter-Sequence"] == "2"


# --- trouble -------------------------------------------------------------------------------------------------


@virtual
async def test_offline_answers_wait():
    handler = Handler()
    async with working(handler, concurrency=3) as work:
        await work.deliver(data(1), data(2), data(3))
        work.connection.disconnect()
        handler.end(1)
        handler.end(2, error=ValueError())
        await asyncio.sleep(3)
        assert work.connection.acks() == []
        work.connection.reconnect()
        await settle()
        assert work.acked == [1]
        assert seqs(work.connection, NAK) == [2]
        assert 3 in seqs(work.connection, ALIVE)  # at once
        assert work.worker.counts.handled == 1


@virtual
async def test_offline_stop_ends_in_time():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2), data(3))
        work.connection.disconnect()
        handler.end(1)
        started = now()
        work.worker.stop(grace=5.0)
        await asyncio.wait({work.worker.task})
        assert now() - started <= 8.0
        assert work.worker.counts == jsclient.WorkCounts(unsettled=3)


@virtual
async def test_offline_stop_ends_with_its_handlers():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2), data(3))
        work.connection.disconnect()
        handler.end(1)
        work.worker.stop(grace=500.0)
        await asyncio.sleep(100)
        assert work.worker.is_running  # handler 2 runs
        assert work.connection.told(AcksUnsent) == []
        handler.end(2)
        ended = now()
        await asyncio.wait(
            {work.worker.task}
        )  # to await the worker is to await the deletion of its consumer, too
        assert now() - ended <= 2.0
        counts = work.worker.counts
        assert (counts.handled, counts.returned, counts.unsettled) == (0, 0, 3)
        (told,) = work.connection.told(AcksUnsent)
        assert (told.stream, told.count, told.returned) == (STREAM, 2, 1)


@virtual
async def test_offline_stop_sends_acks_on_a_quick_reconnect():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2))
        work.connection.disconnect()
        handler.end(1, 2)
        work.worker.stop(grace=500.0)
        await asyncio.sleep(0.5)
        work.connection.reconnect()
        counts = await work.worker
        assert (counts.handled, counts.unsettled) == (2, 0)
        assert sorted(work.acked) == [1, 2]
        assert work.connection.told(AcksUnsent) == []


@virtual
async def test_offline_grace_ends_what_was_handled_is_not_dead_lettered():
    """A handler that goes on holds up the end; the handled last delivery beside it is unsettled, not given up."""
    handler = Handler()
    config = ConsumerConfig(max_deliver=1)
    async with working(handler, config=config, concurrency=2, dead_letter="dead") as work:
        await work.deliver(data(1))
        await work.deliver(data(2))
        work.connection.disconnect()
        handler.end(1)
        work.worker.stop(grace=5.0)
        await work.worker
        told = [event.stream_seq for event in work.connection.told(DeadLetterFailed)]
        assert told == [2]


@virtual
async def test_closed_under_way_it_ends():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(data(1))
        await work.connection.close()
        handler.end(1)
        counts = await work.worker
        assert counts.unsettled == 1


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_worker_without_info_right(pull):
    handler = Handler(waits=False)
    async with connected() as (js, connection):
        subscribe = js.pull_subscribe if pull else js.subscribe
        sub = await subscribe("orders.new", config=ConsumerConfig(ack_wait=3.0))
        connection.api.on("CONSUMER.INFO", SILENCE)
        worker = sub.run(handler)
        await asyncio.sleep(6)
        where = connection.pulls()[-1].reply if pull else sub.subject
        connection.deliver(where, [data(1)])
        await settle()
        assert seqs(connection, ACK) == [1]
        worker.stop()
        await worker


@virtual
async def test_cannot_begin_with_consumer_gone():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        connection.api.consumers.clear()
        with pytest.raises(jsclient.ConsumerNotFoundError):
            await sub.run(Handler())
        worker = sub.run(Handler())  # and where nobody waits for it, it is told
        await settle(100)
        (told,) = connection.told(ErrorRaised)
        assert isinstance(told, WorkerFailed)
        assert isinstance(told.error, jsclient.ConsumerNotFoundError)
        assert not worker.is_running


@virtual
async def test_stopped_before_began_ends():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        connection.api.on("CONSUMER.INFO", SILENCE)
        worker = sub.run(Handler())
        worker.stop()
        assert await worker == jsclient.WorkCounts()
        worker = sub.run(Handler())
        await settle()
        worker.stop()
        assert await worker == jsclient.WorkCounts()


@virtual
async def test_bad_arguments_refused():
    async with connected() as (js, _):
        sub = await js.subscribe("orders.new", callback=Handler())
        with pytest.raises(ConfigError, match="callback"):
            sub.run(Handler())
        other = await js.subscribe("orders.new")
        with pytest.raises(ConfigError, match="concurrency"):
            other.run(Handler(), concurrency=0)
        with pytest.raises(ConfigError, match="handler"):
            other.run(None)
        worker = other.run(Handler())
        with pytest.raises(ConfigError, match="worker"):
            other.run(Handler())
        await settle()
        worker.stop()
        await worker
        with pytest.raises(ClosedError):
            other.run(Handler())
        unacked = await js.subscribe("orders.new", config=ConsumerConfig(ack_policy="none"))
        with pytest.raises(ConfigError, match="explicit"):
            await unacked.run(Handler())
        pull = await js.pull_subscribe("orders.new")
        await pull.unsubscribe()
        with pytest.raises(ClosedError):
            pull.run(Handler())


# --- plain functions -----------------------------------------------------------------------------------------


def in_real_time(scenario) -> None:
    """Threads do not wait for virtual time."""
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_plain_function_runs_in_thread():
    async def scenario():
        threads, gate = set(), threading.Event()

        def handler(message):
            threads.add(threading.current_thread())
            gate.wait(10)
            if message.metadata.stream_seq == 2:
                raise StopIteration  # which a future could not hold

        async with working(handler, concurrency=2) as work:
            await work.deliver(data(1), data(2), data(3))
            while len(threads) < 2:
                await asyncio.sleep(0.001)
            gate.set()
            while work.worker.counts.handled + work.worker.counts.failed < 3:
                await asyncio.sleep(0.001)
            assert sorted(work.acked) == [1, 3]
            assert seqs(work.connection, NAK) == [2]
            assert threading.main_thread() not in threads
            assert len(threads) == 2

    in_real_time(scenario)


def test_plain_function_may_give_coroutine():
    async def scenario():
        async def real(message):
            await message.term("unfit")

        def handler(message):
            return real(message)

        async with working(handler) as work:
            await work.deliver(data(1))
            while not work.connection.acks():
                await asyncio.sleep(0.001)
            assert work.connection.acks() == [b"+TERM unfit"]

    in_real_time(scenario)


def test_stuck_function_loses_message():
    async def scenario():
        gate, seen = threading.Event(), []

        def handler(message):
            seen.append(message.metadata.stream_seq)
            gate.wait(10)

        async with working(handler, handler_timeout=0.05) as work:
            await work.deliver(data(1), data(2))
            while not seqs(work.connection, NAK):
                await asyncio.sleep(0.01)
            assert (seen, work.worker.counts.running) == ([1], 1)
            await asyncio.sleep(0.2)  # longer than the next one would have, had it begun
            assert work.worker.counts.failed == 1
            gate.set()
            while not work.acked:
                await asyncio.sleep(0.001)
            assert (seen, work.acked) == ([1, 2], [2])

    in_real_time(scenario)


def test_stuck_function_lets_stop():
    async def scenario():
        gate = threading.Event()
        try:
            async with working(lambda _: gate.wait(10)) as work:
                await work.deliver(data(1))
                while not work.worker.counts.running:
                    await asyncio.sleep(0.001)
                work.worker.stop(grace=0.05)
                counts = await work.worker
                assert (counts.returned, seqs(work.connection, NAK)) == (1, [1])
        finally:
            gate.set()

    in_real_time(scenario)
