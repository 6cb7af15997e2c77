"""How a worker starts and ends in ``async with``, and what is refused before a message is touched."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient import ConsumerConfig, ConsumerDeletedError, HandlerFailed, HandlerSlow
from jsclient._runtime import loop_watch


def no_argument() -> None: ...


def two_arguments(_: object, __: object) -> None: ...


async def keyword_only(*, msg: object) -> None: ...


def generator(msg: object) -> Any:
    yield msg


async def async_generator(msg: object) -> Any:
    yield msg


class Callable:
    async def __call__(self) -> None: ...


WRONG = [no_argument, two_arguments, keyword_only, generator, async_generator, Callable(), "print", None]


@pytest.mark.parametrize("handler", WRONG, ids=range(len(WRONG)))
async def test_wrong_handler_refused_before_a_message(js: Any, stream: OwnStream, handler: Any) -> None:
    """With ``max_deliver=1`` each message was terminated unhandled."""
    await stream.publish(10)
    pull = await js.pull_subscribe(stream.all, durable="pull")
    with pytest.raises(jsclient.ConfigError, match="handler"):
        pull.run(handler, max_deliver=1)
    push = await js.subscribe(stream.all, durable="push")
    with pytest.raises(jsclient.ConfigError, match="handler"):
        push.run(handler, max_deliver=1)
    if handler is not None:
        with pytest.raises(jsclient.ConfigError, match="callback"):
            await js.subscribe(stream.all, durable="callback", callback=handler)
    with pytest.raises(jsclient.ConfigError, match="key"):
        pull.run(print, key=handler or two_arguments)
    assert sorted(await stream.consumer_names()) == ["pull", "push"]
    info = await stream.consumer_info("pull")
    assert (info["delivered"]["consumer_seq"], info["ack_floor"]["consumer_seq"]) == (0, 0)


async def test_entering_raises_why_it_cannot_start(js: Any, stream: OwnStream) -> None:
    sub = await js.pull_subscribe(stream.all, durable="d")
    entered = False
    with pytest.raises(jsclient.NoMatchingStreamError):
        async with sub.run(print, dead_letter="no.stream.has.this"):
            entered = True
    assert not entered
    await sub.unsubscribe()
    missing = await js.pull_subscribe(stream.all, durable="gone")
    await stream.oracle.delete_consumer(stream.name, "gone")
    with pytest.raises(jsclient.ConsumerNotFoundError):
        async with missing.run(print):
            entered = True
    assert not entered


@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_block_cancelled_when_it_dies(js: Any, stream: OwnStream, kind: str) -> None:
    """A worker that died was noticed at the end of the block only, which may never come."""
    open_ = js.pull_subscribe if kind == "pull" else js.subscribe
    config = ConsumerConfig() if kind == "pull" else ConsumerConfig(idle_heartbeat=0.2)
    sub = await open_(stream.all, durable="d", config=config)
    reached = asyncio.Event()

    async def serve() -> None:
        async with sub.run(print) as worker:
            assert worker.exception() is None
            reached.set()  # first: the worker may hear of the deletion before the judge has its answer
            await stream.oracle.delete_consumer(stream.name, "d")
            await asyncio.Event().wait()

    with pytest.raises(ConsumerDeletedError):
        await within(20, serve(), "the end of the block")
    assert reached.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)  # no cancellation is left over


async def test_exception_after_the_end(js: Any, stream: OwnStream) -> None:
    sub = await js.pull_subscribe(stream.all, durable="d")
    worker = sub.run(print)
    await stream.until_asked("d")
    assert worker.exception() is None
    await stream.oracle.delete_consumer(stream.name, "d")
    with pytest.raises(ConsumerDeletedError) as caught:
        await worker
    assert worker.exception() is caught.value
    other = await js.pull_subscribe(stream.all, durable="other")
    async with other.run(print) as ended:
        pass
    assert ended.exception() is None


async def test_cancelled_from_outside_stays_cancelled(js: Any, stream: OwnStream) -> None:
    sub = await js.pull_subscribe(stream.all, durable="d")

    async def serve() -> None:
        async with sub.run(print):
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await stream.until_asked("d")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await serve()


async def test_drain_after_stop_waits_for_the_worker(js: Any, stream: OwnStream) -> None:
    """The stopped worker drains its subscription itself. It ends with the deletion of the consumer."""
    sub = await js.subscribe(stream.all, durable="d")
    await stream.publish(3)
    gate = asyncio.Event()

    async def wait(msg: jsclient.Message) -> None:
        await gate.wait()

    worker = sub.run(wait, concurrency=3)
    await eventually(lambda: worker.counts.running == 3, what="handling them")
    worker.stop()
    draining = asyncio.create_task(sub.drain())
    assert not (await asyncio.wait({draining}, timeout=0.2))[0]
    gate.set()
    await within(5, draining, "the drain")
    assert await stream.consumer_names() == []
    assert (worker.is_running, worker.counts.handled, sub.is_closed) == (False, 3, True)


@pytest.mark.parametrize("key", [None, lambda msg: msg.subject], ids=["plain", "key"])
@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_attempt_counts(js: Any, stream: OwnStream, events: list[Any], key: Any, kind: str) -> None:
    """With ``key`` a message is retried here, so the server counts one delivery."""
    open_ = js.pull_subscribe if kind == "pull" else js.subscribe
    sub = await open_(stream.all, durable="d")
    await stream.publish(1)
    seen: list[int] = []

    async def fail(msg: jsclient.Message) -> None:
        seen.append(msg.attempt)
        if msg.attempt < 4:
            raise ValueError

    async with sub.run(fail, key=key, retry_delay=0.01):
        await eventually(lambda: len(seen) == 4, what="four attempts")
    assert seen == [1, 2, 3, 4]
    assert [event.attempt for event in of(HandlerFailed, events)] == [1, 2, 3]


async def test_attempt_of_a_callback(js: Any, stream: OwnStream, events: list[Any]) -> None:
    seen: list[int] = []

    def fail(msg: jsclient.Message) -> None:
        seen.append(msg.attempt)
        if msg.attempt < 3:
            raise ValueError

    await js.subscribe(stream.all, callback=fail, config=ConsumerConfig(ack_wait=2.0))
    await stream.publish(1)
    await eventually(lambda: len(seen) == 3, what="three attempts")
    assert seen == [1, 2, 3]
    assert [event.attempt for event in of(HandlerFailed, events)] == [1, 2]


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("kind", ["worker", "several at once", "callback"])
async def test_blocking_handler_reported(js: Any, stream: OwnStream, events: list[Any], kind: str) -> None:
    """Each block longer than a second is reported, with its time and its message, although others do not block."""
    took: dict[int, float] = {}

    async def block(msg: jsclient.Message) -> None:
        began = time.monotonic()
        time.sleep(1.2 if msg.metadata.stream_seq in {1, 5} else 0)
        took[msg.metadata.stream_seq] = time.monotonic() - began

    await stream.publish(6)
    if kind == "callback":
        sub = await js.subscribe(stream.all, callback=block)
        await eventually(lambda: len(of(HandlerSlow, events)) == 2, what="the events")
    else:
        sub = await js.pull_subscribe(stream.all, durable="d", delete_on_close=True)
        async with sub.run(block, concurrency=1 if kind == "worker" else 4):
            await eventually(lambda: len(of(HandlerSlow, events)) == 2, what="the events")
    reports = of(HandlerSlow, events)
    assert [(event.stream, event.consumer, event.count) for event in reports] == [
        (stream.name, sub.consumer, 1),
        (stream.name, sub.consumer, 2),
    ]
    assert [(event.stream_seq, event.subject) for event in reports] == [
        (seq, stream.subject()) for seq in (1, 5)
    ]
    for event in reports:
        assert took[event.stream_seq] - 0.3 <= event.blocked < took[event.stream_seq] + 5.0
        assert "blocked the event loop" in str(event)


async def test_handler_that_waits_is_not_slow(
    js: Any, stream: OwnStream, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED", 3.0)  # a busy machine may give the loop no time for a second
    await stream.publish(2)
    sub = await js.pull_subscribe(stream.all, durable="d")

    async def wait(msg: jsclient.Message) -> None:
        await asyncio.sleep(3.5)

    async with sub.run(wait, concurrency=2) as worker:
        await eventually(lambda: worker.counts.handled == 2, what="handling both")
    plain = await js.pull_subscribe(stream.all, durable="plain")
    async with plain.run(lambda msg: time.sleep(3.5), concurrency=2) as worker:
        await eventually(lambda: worker.counts.handled == 2, what="handling both in threads")
    assert of(HandlerSlow, events) == []


@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_unawaited_end_is_logged(
    server: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It was a warning of the connection, with a traceback, that did not say that a worker ended."""
    async with jsclient.connect(server.url) as js:
        open_ = js.pull_subscribe if kind == "pull" else js.subscribe
        config = ConsumerConfig() if kind == "pull" else ConsumerConfig(idle_heartbeat=0.2)
        sub = await open_(stream.all, durable="w", config=config)
        worker = sub.run(print)
        await stream.publish(1)
        await eventually(lambda: worker.counts.handled == 1, 20, "the start")
        await stream.delete_consumer("w")
        await eventually(lambda: not worker.is_running, 20, "the end")
        assert isinstance(worker.exception(), ConsumerDeletedError)
    (record,) = [one for one in caplog.records if one.name == "jsclient.worker"]
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    where = f"consumer 'w' of stream '{stream.name}'"
    assert record.getMessage() == (
        f"the worker ended: {where} was deleted: to go on, create it again and open a new reader ({where})"
    )
    assert [one for one in caplog.records if one.name == "jsclient.connection"] == []


# --- what is reported at the start ---------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture, name: str = "jsclient.worker") -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == name and one.levelname == "WARNING"]


async def test_limits_that_contradict(
    js: Any, stream: OwnStream, make_stream: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dead = await make_stream()
    sub = await js.pull_subscribe(stream.all, config=ConsumerConfig(max_deliver=3))
    async with sub.run(print, max_deliver=5):
        pass
    assert ["max_deliver of run() is 5" in text and stream.name in text for text in warnings(caplog)] == [
        True
    ]
    caplog.clear()
    other = await js.pull_subscribe(stream.all)
    async with other.run(print, dead_letter=dead.subject("x")):
        pass
    assert ["deliveries have no limit" in text for text in warnings(caplog)] == [True]


@pytest.mark.parametrize("second", ["run", "fetch", "messages"])
async def test_second_reader_of_a_subscription(
    js: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture, second: str
) -> None:
    sub = await js.pull_subscribe(stream.all)
    async with sub.run(print):
        for _ in range(2):
            match second:
                case "run":
                    async with sub.run(print):
                        pass
                case "fetch":
                    await sub.fetch(1, no_wait=True)
                case _:
                    async with sub.messages():
                        pass
    await sub.fetch(1, no_wait=True)
    assert [f"or to this {second}()" in text for text in warnings(caplog)] == [True]


async def test_one_reader_is_not_reported(
    js: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture
) -> None:
    sub = await js.pull_subscribe(stream.all)
    for _ in range(2):  # one after the other
        async with sub.run(print):
            pass
    await sub.fetch(1, no_wait=True)
    assert warnings(caplog) == []


# --- in a task group -------------------------------------------------------------------------------------------


async def test_task_group_takes_a_worker(js: Any, stream: OwnStream) -> None:
    await stream.publish(3)
    sub = await js.pull_subscribe(stream.all)
    handled, stop = [], asyncio.Event()

    async def handle(msg: Any) -> None:
        handled.append(msg.metadata.stream_seq)
        if len(handled) == 3:
            stop.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(sub.run(handle, stop=stop))
    assert (task.result().handled, handled) == (3, [1, 2, 3])


async def test_task_group_cancels_a_worker(js: Any, stream: OwnStream) -> None:
    sub = await js.pull_subscribe(stream.all)
    worker = sub.run(print)
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  one block in the other
        async with asyncio.TaskGroup() as group:
            group.create_task(worker)
            async with worker:
                raise ValueError("another task failed")
    assert [str(error) for error in caught.value.exceptions] == ["another task failed"]
    assert not worker.is_running


async def test_lookup_of_dead_letters_that_is_denied(own_server: Any, connect: Any) -> None:
    rights = {"publish": {"deny": ["$JS.API.STREAM.NAMES"]}}
    users = [{"user": "limited", "password": "l", "permissions": rights}]
    server = await own_server(config={"authorization": {"users": users}})
    events: list[Any] = []
    js = await connect(server, user="limited", password="l", on_event=events.append)
    await js.create_stream("S", ["s", "dead"])
    sub = await js.pull_subscribe("s", stream="S")
    async with sub.run(print, dead_letter="dead", max_deliver=2):
        pass
    assert events == []
