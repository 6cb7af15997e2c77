"""Workers against a real server: every good message handled, every poison one in its place, none twice, none lost."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.clients.foreign import flushed
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.match import published
from jsclient import ConsumerConfig, ConsumerDeletedError, DeadLettered, Reject
from jsclient.protocol.wire.headers import parse_headers

COUNT = 10_000
POISON_EACH = 20  # one message in 20 kills its worker
HANGS_EACH = 1000
KEYS = 37  # no divisor of what makes poison
GRACE = 5.0
PATIENCE = 0.5  # seconds for a handler. On a busy machine 64 of them at once have taken 0.2
ACKS = "$JS.ACK.>"


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.fixture
async def dead(
    oracle: Oracle, stream: OwnStream, make_stream: Callable[..., Awaitable[OwnStream]]
) -> OwnStream:
    """A stream for the dead letters of `stream`."""
    return await make_stream(subjects=[f"dead.{stream.prefix}.>"])


def is_poison(number: int) -> bool:
    return number % POISON_EACH == 0


class Troubled:
    """A handler with all the trouble there is, by the number in the message.

    Poison raises each time, rejects, or hangs each time. Some good ones fail, hang or are killed the first time.
    """

    def __init__(self) -> None:
        self.attempts: Counter[int] = Counter()
        self.handled: Counter[int] = Counter()
        self.order: dict[str, list[int]] = defaultdict(list)  # by subject, with every attempt
        self.running = self.most = 0
        self.busy: Counter[str] = Counter()
        self.most_of_a_key = 0

    async def __call__(self, message: Any) -> None:
        number = number_of(message.data)
        self.order[message.subject].append(number)
        self.attempts[number] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.busy[message.subject] += 1
        self.most_of_a_key = max(self.most_of_a_key, self.busy[message.subject])
        try:
            await self._work(number, first=self.attempts[number] == 1)
            self.handled[number] += 1
        finally:
            self.running -= 1
            self.busy[message.subject] -= 1

    async def _work(self, number: int, *, first: bool) -> None:
        # A poison message fails in every attempt: it hangs, is rejected, or raises.
        if is_poison(number):
            kind = number // POISON_EACH % 10
            if kind == 0 and number % HANGS_EACH == 0:
                await asyncio.sleep(3600)
            if kind < 4:
                raise Reject(f"unfit {number}")
            raise ValueError(f"poison {number}")
        kind = number % 100
        if kind == 1:
            await asyncio.sleep(0.01)
        # The other failures happen only in the first attempt, so a retry must succeed.
        elif kind == 2 and first:
            raise ConnectionError("busy")
        elif kind == 3 and first and number % HANGS_EACH == 3:
            await asyncio.sleep(3600)
        elif kind == 4 and first:
            raise asyncio.CancelledError
        elif kind % 10 == 5:
            await asyncio.sleep(0)

    @staticmethod
    def reason(number: int) -> tuple[str, str]:
        kind = number // POISON_EACH % 10
        if kind == 0 and number % HANGS_EACH == 0:
            return "TimeoutError", f"the handler ran longer than {PATIENCE} s"
        return ("Reject", f"unfit {number}") if kind < 4 else ("ValueError", f"poison {number}")


async def publish_all(stream: OwnStream, count: int = COUNT) -> None:
    """Numbered messages, over this many subjects in turn."""
    for first in range(1, count + 1, KEYS):
        for number in range(first, min(first + KEYS, count + 1)):
            await stream.oracle.nc.publish(stream.subject(number % KEYS), b"%d" % number)
    await flushed(stream.oracle.nc)
    await eventually(lambda: _stored(stream, count), what="all are stored")


async def _stored(stream: OwnStream, count: int) -> bool:
    return int((await stream.state())["messages"]) == count


@pytest.mark.core_cases(1)
@pytest.mark.limit(300)
@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "order by key"])
async def test_good_handled_poison_stored(
    ordered: bool, stream: OwnStream, dead: OwnStream, js: Any, events: list[Any]
) -> None:
    await publish_all(stream)
    config = ConsumerConfig(ack_wait=30.0, max_ack_pending=20_000)
    sub = await js.pull_subscribe(stream.all, durable="crew", config=config)
    handler, stop = Troubled(), asyncio.Event()
    worker = sub.run(
        handler,
        concurrency=64,
        prefetch=512,
        key=(lambda message: message.subject) if ordered else None,
        handler_timeout=PATIENCE,
        retry_delay=0.02,
        max_deliver=3,
        dead_letter="dead.>",
        stop=stop,
        grace=GRACE,
    )
    poison = {number for number in range(1, COUNT + 1) if is_poison(number)}
    good = set(range(1, COUNT + 1)) - poison

    def all_settled() -> bool:
        return worker.counts.handled + worker.counts.dead_lettered == COUNT

    await eventually(all_settled, 240, "everything is settled")
    stop.set()
    counts = await within(GRACE + 20, worker, "the end of the worker")

    assert handler.handled == dict.fromkeys(good, 1)
    assert handler.most <= 64
    letters = await dead.messages()
    assert sorted(number_of(letter.payload) for letter in letters) == sorted(poison)
    for letter in letters:
        number, headers = number_of(letter.payload), parse_headers(letter.headers)[1]
        assert letter.subject == f"dead.{stream.subject(number % KEYS)}"
        assert (headers["Dead-Letter-Error"], headers["Dead-Letter-Reason"]) == Troubled.reason(number)
        assert headers["Dead-Letter-Stream"] == stream.name
        assert handler.attempts[number] == (1 if headers["Dead-Letter-Error"] == "Reject" else 3)
    assert (counts.handled, counts.dead_lettered, counts.terminated) == (len(good), len(poison), 0)
    assert (counts.running, counts.waiting, counts.unsettled) == (0, 0, 0)
    assert counts.failed == sum(handler.attempts.values()) - len(good)
    info = await stream.consumer_info("crew")
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
    assert info["ack_floor"]["stream_seq"] == COUNT
    if ordered:
        assert handler.most_of_a_key == 1
        for numbers in handler.order.values():
            # The attempts of one message are together, and never return to an earlier message.
            assert numbers == sorted(numbers)


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("kind", ["push", "pull", "consumer"])
async def test_long_work_not_delivered_twice(kind: str, stream: OwnStream, near: Any, tap: Any) -> None:
    """The messages that wait after it are not lost either."""
    await stream.publish(8)
    config = ConsumerConfig(ack_wait=3.0)
    if kind == "push":
        sub = await near.subscribe(stream.all, durable="long", config=config)
    elif kind == "pull":
        sub = await near.pull_subscribe(stream.all, durable="long", config=config)
    else:
        sub = await (await near.stream(stream.name)).create_consumer(config.replace(durable_name="long"))
    seen: Counter[int] = Counter()

    async def handler(message: Any) -> None:
        number = number_of(message.data)
        seen[number] += 1
        assert message.metadata.num_delivered == 1
        if number <= 4:
            await asyncio.sleep(3.5)  # the others wait as long

    worker = sub.run(handler, concurrency=4, prefetch=2 if kind == "pull" else 8)
    await eventually(lambda: worker.counts.handled == 8, 120, "all are handled")
    info = await eventually(lambda: _all_acked(stream, "long"))
    worker.stop()
    await worker
    assert seen == dict.fromkeys(range(1, 9), 1)
    assert info["num_redelivered"] == 0
    assert [frame for frame in tap.sent(ACKS) if frame.payload == b"+WPI"]
    assert worker.counts.duplicates == 0


async def _all_acked(stream: OwnStream, name: str) -> Any:
    info = await stream.consumer_info(name)
    return info if info["num_ack_pending"] == 0 and info["num_pending"] == 0 else None


async def test_without_keep_alive_it_is(stream: OwnStream, js: Any) -> None:
    """The counter-check to the test before: the server would deliver it again."""
    await stream.publish(1)
    sub = await js.pull_subscribe(stream.all, config=ConsumerConfig(ack_wait=0.3))
    again = asyncio.Event()
    worker = sub.run(lambda _: again.wait(), keep_alive=False)
    await eventually(lambda: worker.counts.duplicates > 0, what="a second delivery")
    again.set()
    await eventually(lambda: worker.counts.handled == 1, what="the first one ends")
    worker.stop()
    await worker


@pytest.mark.row(113)
@pytest.mark.parametrize("retry_delay", [None, 0.3], ids=["of the consumer", "given"])
async def test_pauses_follow_backoff(retry_delay: float | None, stream: OwnStream, near: Any) -> None:
    await stream.publish(1)
    backoff = [1.0, 1.3, 1.6]  # long enough that the server does not deliver it again before it has failed
    config = ConsumerConfig(backoff=backoff, max_deliver=6)
    sub = await near.pull_subscribe(stream.all, config=config)
    loop = asyncio.get_running_loop()
    began: list[float] = []
    ended: list[float] = []

    async def handler(message: Any) -> None:
        began.append(loop.time())
        if len(began) < 4:
            ended.append(loop.time())
            raise ValueError("busy")

    async with sub.run(handler, retry_delay=retry_delay) as worker:
        await eventually(lambda: worker.counts.handled == 1, what="it is handled")
    pauses = [later - sooner for sooner, later in zip(ended, began[1:], strict=True)]
    # The server counts in its own time and may be a little early by ours.
    for pause, least in zip(pauses, [retry_delay] * 3 if retry_delay else backoff, strict=True):
        assert pause > least - 0.05


async def test_stopped_worker_returns(
    stream: OwnStream, connect: Callable[..., Awaitable[Any]], server: Any
) -> None:
    config = ConsumerConfig(ack_wait=60.0, max_ack_pending=100)
    one, two = await connect(server), await connect(server)
    gate = asyncio.Event()
    by: defaultdict[str, list[int]] = defaultdict(list)

    def handler(who: str, *, waits: bool) -> Callable[[Any], Awaitable[None]]:
        async def handle(message: Any) -> None:
            if waits:
                await gate.wait()
            by[who].append(number_of(message.data))

        return handle

    leaving = await one.subscribe(stream.all, queue="crew", config=config, delete_on_close=False)
    worker = leaving.run(handler("one", waits=True), concurrency=3, grace=30.0)
    await stream.publish(40)
    await eventually(lambda: worker.counts.running == 3, what="it works")
    staying = await two.subscribe(stream.all, queue="crew", delete_on_close=False)
    other = staying.run(handler("two", waits=False), concurrency=3)
    worker.stop()
    # Long before ack_wait is over, and while the first worker's handlers still run.
    await eventually(lambda: len(by["two"]) == 37, 30, "the other has the rest")
    gate.set()
    assert (await worker).handled == 3
    assert sorted(by["one"] + by["two"]) == list(range(1, 41))
    other.stop()
    await other


# A push consumer of 2.10 forgets such messages, with any client: its ack floor passes them.
@pytest.mark.full
@pytest.mark.parametrize("kind", [pytest.param("push", marks=pytest.mark.server(">=2.12")), "pull"])
async def test_stop_any_time_returns(kind: str, stream: OwnStream, js: Any) -> None:
    """200 times. A message that got lost on the way from a pull consumer would be missing for a minute.

    What a push consumer has handed to the server's own queues when the subscription goes is not sent to anyone, and
    comes after ``ack_wait``. It has never been on the wire.
    """
    rounds, count = 200, 3000
    chance = random.Random(7)
    ack_wait = 60.0 if kind == "pull" else 1.0
    config = ConsumerConfig(ack_wait=ack_wait, max_ack_pending=50, durable_name="crew")
    await stream.publish(count)
    handled: Counter[int] = Counter()

    async def handler(message: Any) -> None:
        await asyncio.sleep(0)
        handled[number_of(message.data)] += 1

    async def work(seconds: float) -> None:
        if kind == "push":
            sub = await js.subscribe(stream.all, queue="crew", config=config, delete_on_close=False)
        else:
            sub = await js.pull_subscribe(stream.all, config=config, delete_on_close=False)
        async with sub, sub.run(handler, concurrency=4, prefetch=8) as worker:
            await asyncio.sleep(seconds)
        assert worker.counts.unsettled == 0

    for _ in range(rounds):
        await work(chance.random() / 100)
        if len(handled) > count * 0.9:
            await stream.publish(300, first=count + 1)
            count += 300
    last = asyncio.ensure_future(work(30.0))
    await eventually(lambda: len(handled) == count, 20, "all are handled")
    assert handled == dict.fromkeys(range(1, count + 1), 1)
    last.cancel()
    await asyncio.wait({last})


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_leaves_nothing_behind(
    kind: str, stream: OwnStream, oracle: Oracle, js: Any, server: Any
) -> None:
    await js.account_info()
    handled = 0

    async def handler(message: Any) -> None:
        nonlocal handled
        handled += 1

    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        for _ in range(20):
            subscribe = js.subscribe if kind == "push" else js.pull_subscribe
            sub = await subscribe(stream.all, config=ConsumerConfig(ack_wait=0.05))
            worker = sub.run(handler, concurrency=5, key=lambda m: m.subject)
            await stream.publish(3)
            await eventually(lambda worker=worker: worker.counts.handled >= 3)
            worker.stop()
            await worker
            await sub.unsubscribe()


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_consumer_deleted_ends(kind: str, stream: OwnStream, js: Any) -> None:
    subscribe = js.subscribe if kind == "push" else js.pull_subscribe
    config = ConsumerConfig(idle_heartbeat=0.2) if kind == "push" else None
    sub = await subscribe(stream.all, durable="gone", config=config)
    worker = sub.run(lambda _: None)
    await stream.publish(1)
    await eventually(lambda: worker.counts.handled == 1)
    await stream.delete_consumer("gone")
    with pytest.raises(ConsumerDeletedError):
        await within(15, worker, "the worker")


async def test_dead_letters_of_work_queue_leave(
    oracle: Oracle, make_stream: Callable[..., Awaitable[OwnStream]], js: Any
) -> None:
    queue = await make_stream(retention="workqueue")
    dead = await make_stream(subjects=[f"dead.{queue.prefix}.>"])
    await queue.publish(10)
    sub = await js.pull_subscribe(queue.all, durable="crew")

    def handler(message: Any) -> None:
        if number_of(message.data) % 2:
            raise Reject("odd")

    async with sub.run(handler, concurrency=3, dead_letter="dead.>") as worker:
        await eventually(lambda: worker.counts.handled == worker.counts.dead_lettered == 5)
    await eventually(lambda: _stored(queue, 0), what="the queue is empty")
    assert sorted(number_of(letter.payload) for letter in await dead.messages()) == [1, 3, 5, 7, 9]


@pytest.mark.smoke
async def test_dead_letter_stored_once(
    stream: OwnStream, dead: OwnStream, tap: Any, near: Any, js: Any, events: list[Any]
) -> None:
    await stream.publish(1)
    config = ConsumerConfig(ack_wait=3.0)  # the first worker is gone before it ends
    sub = await near.pull_subscribe(stream.all, durable="crew", config=config)
    dying = sub.run(_raising, max_deliver=1, dead_letter="dead.>")
    terms = tap.drop_frames(lambda frame: published(ACKS)(frame) and frame.payload.startswith(b"+TERM"))
    await terms.wait()
    await near._connection.close()  # no term, no nak: as when the process dies
    await dying

    again = await js.pull_subscribe(stream=stream.name, consumer="crew")
    async with again.run(_raising, max_deliver=1, dead_letter="dead.>") as worker:
        await eventually(lambda: worker.counts.dead_lettered == 1, what="the second worker is done with it")
    assert len(await dead.messages()) == 1
    assert len(of(DeadLettered, events)) == 2


async def _raising(message: Any) -> None:
    raise ValueError("poison")


async def test_dead_last_delivery_found(
    stream: OwnStream, dead: OwnStream, connect: Any, server: Any, js: Any, events: list[Any]
) -> None:
    """The server counts its deliveries and stops. It says so when the next worker reads on."""
    await stream.publish(3)
    config = ConsumerConfig(ack_wait=0.5, max_deliver=1)
    lost = await connect(server)
    sub = await lost.pull_subscribe(stream.all, durable="crew", config=config)
    worker = sub.run(lambda _: asyncio.sleep(60), concurrency=3, dead_letter="dead.>")
    await eventually(lambda: worker.counts.running == 3, what="all are being handled")
    await lost._connection.close()
    worker.stop(0)
    await worker

    again = await js.pull_subscribe(stream=stream.name, consumer="crew")
    async with again.run(_raising, dead_letter="dead.>"):
        for number in (1, 2, 3):
            await wait_for_event(
                DeadLettered, events, lambda event, number=number: event.stream_seq == number
            )
    letters = await dead.messages()
    assert sorted(number_of(letter.payload) for letter in letters) == [1, 2, 3]
    for letter in letters:
        error = parse_headers(letter.headers)[1]["Dead-Letter-Error"]
        assert error == "jsclient.DeliveriesExhaustedError"


async def test_streamless_subject_refused(stream: OwnStream, js: Any) -> None:
    sub = await js.pull_subscribe(stream.all)
    with pytest.raises(jsclient.NoMatchingStreamError):
        await sub.run(_raising, dead_letter=f"nowhere.{stream.prefix}")
    with pytest.raises(jsclient.ConfigError, match="its own dead letters"):
        await sub.run(_raising, dead_letter=stream.subject("dead"))
    assert sub.is_closed is False


async def test_works_on_connection_of_nats_py(stream: OwnStream, natspy_js: Any) -> None:
    await stream.publish(200)
    sub = await natspy_js.pull_subscribe(stream.all, durable="crew", config=ConsumerConfig(ack_wait=3.0))
    slow = {3, 50}

    async def handler(message: Any) -> None:
        if number_of(message.data) in slow:
            await asyncio.sleep(3.5)  # longer than ack_wait

    async with sub.run(handler, concurrency=10) as worker:
        await eventually(lambda: worker.counts.handled == 200, what="all are handled")
    info = await stream.consumer_info("crew")
    assert info["num_redelivered"] == 0


async def test_limits_of_consumer_kept(stream: OwnStream, near: Any, tap: Any) -> None:
    await stream.publish(30)
    config = ConsumerConfig(max_batch=2, max_expires=3.0, max_bytes=10_000)
    sub = await near.pull_subscribe(stream.all, config=config)
    async with sub.run(lambda _: asyncio.sleep(0), concurrency=20) as worker:
        await eventually(lambda: worker.counts.handled == 30, 10, "all are handled")
    request = [json.loads(frame.payload) for frame in tap.sent("$JS.API.CONSUMER.MSG.NEXT.>")]
    assert max(body["batch"] for body in request) <= 2
    assert max(body["expires"] for body in request) <= 3_000_000_000


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_fast_handlers_request_many(stream: OwnStream, near: Any, tap: Any, concurrency: int) -> None:
    """With a fixed prefetch of two, a handler that returns at once cost a pull request for each message."""
    await stream.publish(3000)
    sub = await near.pull_subscribe(stream.all, config=ConsumerConfig(ack_wait=30.0))

    async def handler(message: Any) -> None:
        pass

    async with sub.run(handler, concurrency=concurrency) as worker:
        await eventually(lambda: worker.counts.handled == 3000, 30, "all are handled")
    assert len(tap.sent("$JS.API.CONSUMER.MSG.NEXT.>")) < 150


async def test_waiting_workers_have_few_tasks(stream: OwnStream, js: Any) -> None:
    """Tasks for handlers start with messages."""
    before = len(asyncio.all_tasks())
    sub = await js.pull_subscribe(stream.all, durable="crew", delete_on_close=True)
    async with sub.run(lambda _: None, concurrency=50) as worker:
        await stream.until_asked("crew", 1)
        assert len(asyncio.all_tasks()) - before <= 4
        await stream.publish(30)
        await eventually(lambda: worker.counts.handled == 30, 10, "all are handled")


@pytest.mark.server(">=2.12")
async def test_workers_of_a_priority_group(stream: OwnStream, js: Any) -> None:
    """Those of the higher priority get the messages while they have room. Without a group it is refused."""
    config = ConsumerConfig(
        durable_name="crew", priority_groups=["g"], priority_policy="prioritized", ack_wait=30.0
    )
    consumer = await (await js.stream(stream.name)).create_consumer(config)
    with pytest.raises(jsclient.ConfigError, match="group"):
        consumer.run(lambda _: None)
    with pytest.raises(jsclient.ConfigError, match="group"):
        (await js.subscribe(stream.all)).run(lambda _: None, group="g")

    async def handler(message: Any) -> None:
        await asyncio.sleep(0)

    first = consumer.run(handler, group="g", priority=0, concurrency=4)
    second = consumer.run(handler, group="g", priority=5, concurrency=4)
    await stream.until_asked("crew", 2)
    for number in range(1, 31):
        await stream.publish(1, first=number)
        await eventually(lambda number=number: first.counts.handled + second.counts.handled == number)
    for worker in (first, second):
        worker.stop()
        await worker
    assert (first.counts.handled, second.counts.handled) == (30, 0)


async def test_a_plain_function_may_block(stream: OwnStream, js: Any) -> None:
    """It runs in a thread: the loop continues, and messages are kept alive."""
    await stream.publish(6)
    sub = await js.pull_subscribe(stream.all, durable="crew", config=ConsumerConfig(ack_wait=3.0))
    async with sub.run(lambda _: time.sleep(3.2), concurrency=3) as worker:
        await eventually(lambda: worker.counts.handled == 6, what="all are handled")
    assert worker.counts.kept_alive > 0
    assert (await stream.consumer_info("crew"))["num_redelivered"] == 0
