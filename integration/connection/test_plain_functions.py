"""A plain function as handler runs in a thread, so that it may block. Where its answer is used at once it is needed."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import secrets
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient.peers import Engine, Policy


class Blocking:
    """A handler that blocks until the event loop has run on: on the loop it would wait in vain."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.threads: list[threading.Thread] = []

    def __call__(self, *_: Any, **__: Any) -> str:
        self.threads.append(threading.current_thread())
        turned = threading.Event()
        self.loop.call_soon_threadsafe(turned.set)
        assert turned.wait(30), "the event loop is blocked"
        return "done"

    async def called(self, times: int = 1) -> None:
        await eventually(lambda: len(self.threads) >= times, what=f"{times} calls")
        assert threading.main_thread() not in self.threads


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"queue": "q"}], ids=repr)
async def test_callback_in_a_thread(js: Any, stream: OwnStream, options: dict[str, Any]) -> None:
    handler = Blocking()
    async with js.subscribe(stream.all, callback=handler, **options) as sub:
        await stream.publish(3)
        await handler.called(3)
        await within(30, sub.drain(), "the drain")
    assert len(handler.threads) == 3


@pytest.mark.parametrize("kind", ["push", "pull", "topic"])
async def test_worker_in_a_thread(js: Any, stream: OwnStream, kind: str) -> None:
    handler = Blocking()
    opened = {
        "push": lambda: js.subscribe(stream.all),
        "pull": lambda: js.pull_subscribe(stream.all),
        "topic": lambda: js.topic(stream.subject("a")).work("crew"),
    }[kind]
    async with opened() as sub, sub.run(handler):
        await stream.publish(3, "a")
        await handler.called(3)


@pytest.mark.parametrize("push", ["consumer", "republish", None])
async def test_events_in_a_thread(js: Any, oracle: Any, make_stream: Any, push: str | None) -> None:
    stream: OwnStream = await make_stream(allow_direct=True, **({"republish": REPUBLISH} if push else {}))
    source = js.events(stream.subject("a"))
    handler = Blocking()
    async with source.subscribe("first", push=push, quiet=0.2, callback=handler):
        await source.publish(b"1")
        await handler.called()


REPUBLISH = {"src": ">", "dest": "again.>"}


async def test_peers_in_a_thread(js: Any) -> None:
    raised, requests = Blocking(), Blocking()
    async with Engine(js) as engine:
        peer = await engine.peer("lamp", handlers={"door:*": raised})
        peer.answers("door", "state")(requests)
        channel = await peer.new_channel(policy=Policy(events=("door:*",), queries=("door:*",)))
        await within(30, peer.event_send(channel.eci, "door", "opened"), "the event")
        await raised.called()
        assert await peer.query(channel.eci, "door", "state") == "done"
        await requests.called()


async def test_what_a_thread_returns_is_awaited(js: Any, stream: OwnStream) -> None:
    """A wrapper of a coroutine function looks like a plain one."""
    seen: list[threading.Thread] = []

    async def handle(_: Any) -> None:
        seen.append(threading.current_thread())

    async with js.subscribe(stream.all, callback=lambda message: handle(message.data)):
        await stream.publish(1)
        await eventually(lambda: seen == [threading.main_thread()], what="the call")


CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("CALLER", default="")


async def test_context_of_the_caller(js: Any, stream: OwnStream) -> None:
    CALLER.set("this test")
    seen: list[str] = []

    def handle(_: Any) -> None:
        seen.append(CALLER.get())

    async with (
        js.subscribe(stream.all, callback=handle),
        js.pull_subscribe(stream.all) as sub,
        sub.run(handle),
    ):
        await stream.publish(1)
        await eventually(lambda: len(seen) == 2, what="two calls")
    assert seen == ["this test"] * 2


async def test_coroutine_functions_stay_on_the_loop(js: Any, stream: OwnStream) -> None:
    seen: list[threading.Thread] = []

    class Handler:
        async def __call__(self, _: Any) -> None:
            seen.append(threading.current_thread())

        async def named(self, _: int, message: Any) -> None:
            await self(message)

    handler = Handler()
    async with (
        js.subscribe(stream.all, callback=handler),
        js.subscribe(stream.all, callback=functools.partial(handler.named, 1)),
    ):
        await stream.publish(1)
        await eventually(lambda: len(seen) == 2, what="two calls")
    assert set(seen) == {threading.main_thread()}


@pytest.mark.parametrize("error", [StopIteration("x"), KeyError("x")], ids=repr)
async def test_what_a_thread_raises(
    connect: Any, server: Any, stream: OwnStream, error: BaseException
) -> None:
    """A handler may also raise an exception that a future cannot store. The next message is handled."""
    events: list[Any] = []
    js = await connect(server, on_event=events.append)
    seen: list[Any] = []

    def handle(message: Any) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            raise error

    async with js.subscribe(stream.all, callback=handle, config=jsclient.ConsumerConfig(ack_wait=30)):
        await stream.publish(2)
        await eventually(lambda: len(seen) == 2, what="both messages")
        await eventually(lambda: bool(events), what="the event")
    (failed,) = [event for event in events if isinstance(event, jsclient.events.HandlerFailed)]
    assert error in (failed.error, failed.error.__cause__)  # a coroutine cannot raise StopIteration


async def test_unsubscribe_does_not_wait_for_a_thread(js: Any, stream: OwnStream) -> None:
    started, free = threading.Event(), threading.Event()

    def handle(_: Any) -> None:
        started.set()
        free.wait(100)

    sub = await js.subscribe(stream.all, callback=handle)
    try:
        await stream.publish(1)
        await eventually(started.is_set, what="the call")
        await within(30, sub.unsubscribe(), "unsubscribing")
    finally:
        free.set()


# --- the end --------------------------------------------------------------------------------------------------


class Held:
    """A plain handler that waits until it is free."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.free = threading.Event()

    def __call__(self, given: Any) -> None:
        self.calls.append(given)
        assert self.free.wait(100), "the handler was never freed"

    async def begun(self, times: int) -> None:
        await eventually(lambda: len(self.calls) == times, what=f"{times} calls")

    async def let_go(self) -> None:
        """Free it, and wait until its threads have ended."""
        self.free.set()
        await eventually(lambda: not of_handlers(threading.enumerate()), what="the end of the threads")


def of_handlers(threads: list[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threads if thread.name.startswith("jsclient-handler")]


ENDED = {
    "push": lambda js, stream, held: js.subscribe(stream.all, callback=held),
    "queue": lambda js, stream, held: js.subscribe(stream.all, queue="q", callback=held),
    "ordered": lambda js, stream, held: js.subscribe(stream.all, ordered=True, callback=held),
    "events": lambda js, stream, held: js.events(stream.subject("a")).subscribe("first", callback=held),
}


@pytest.mark.parametrize("kind", ENDED)
async def test_no_call_begins_after_close(js: Any, stream: OwnStream, kind: str) -> None:
    held = Held()
    sub = await ENDED[kind](js, stream, held)
    await stream.publish(5, "a")
    await held.begun(1)
    await within(30, sub.close(), "the close")
    await held.let_go()
    assert len(held.calls) == 1


async def test_no_call_begins_after_the_end_of_a_worker(js: Any, stream: OwnStream) -> None:
    held = Held()
    async with js.pull_subscribe(stream.all) as sub:
        worker = sub.run(held, concurrency=2, grace=0.1)
        await stream.publish(10)
        await held.begun(2)
        worker.stop()
        await within(30, worker, "the end of the worker")
        await held.let_go()
    assert len(held.calls) == 2


OPEN = Policy(events=("door:*",), queries=("door:*",))


async def workers_ended() -> None:
    """Wait until no worker runs: the peer has returned its events."""
    name = "jsclient:worker of"
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith(name)])


async def test_waiting_calls_of_a_closed_peer_are_dropped(js: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They began when a thread was free, after their events were returned to the server."""
    monkeypatch.setattr("jsclient.peers.peer._GRACE", 0.3)
    held, noted, requests = Held(), list[Any](), asyncio.Event()

    async def note(event: Any) -> None:
        noted.append(event)

    async with Engine(js, concurrency=10) as engine:
        peer = await engine.peer(f"crowd-{secrets.token_hex(4)}", handlers={"door:*": note})
        peer.on("door:*", held)

        @peer.answers("door", "state")
        async def answer() -> None:  # `close` waits for it
            requests.set()
            await asyncio.Event().wait()

        channels = [await peer.new_channel(policy=OPEN) for _ in range(10)]
        for channel in channels:
            await peer.event_send(channel.eci, "door", "opened")
        await eventually(lambda: len(noted) == 10, what="all events")
        await held.begun(8)
        asking = asyncio.create_task(peer.query(channels[0].eci, "door", "state"))
        await within(30, requests.wait(), "the query")
        closing = asyncio.create_task(peer.close())
        await workers_ended()
        held.free.set()
        await within(30, closing, "the close")
        await held.let_go()
        assert len(held.calls) == 8
        asking.cancel()
        await asyncio.wait({asking})


async def test_no_handler_begins_after_the_peer_closed_itself(js: Any) -> None:
    called: list[Any] = []
    closed = asyncio.Event()
    async with Engine(js) as engine:
        peer = await engine.peer(f"leaver-{secrets.token_hex(4)}")

        async def close(_: Any) -> None:
            await peer.close()
            closed.set()

        peer.on("door:opened", close)
        peer.on("door:opened", called.append)
        channel = await peer.new_channel(policy=OPEN)
        await peer.event_send(channel.eci, "door", "opened")
        await within(30, closed.wait(), "the close")
        await workers_ended()
    assert called == []
    await eventually(lambda: not of_handlers(threading.enumerate()), what="no thread")


# --- what is refused -------------------------------------------------------------------------------------------


def generator(*_: Any) -> Any:
    yield


async def async_generator(*_: Any) -> Any:
    yield


@pytest.mark.parametrize("function", [generator, async_generator])
async def test_generator_behind_a_wrapper_fails(
    js: Any, stream: OwnStream, events: list[Any], function: Callable[..., Any]
) -> None:
    """It did not run, and its message was acked."""

    def wrapper(message: Any) -> Any:
        return function(message)

    async with js.subscribe(stream.all, callback=wrapper) as sub:
        await stream.publish(1)
        (failed,) = await eventually(lambda: [e for e in events if isinstance(e, jsclient.HandlerFailed)])
        assert "generator" in str(failed.error)
        assert (await sub.consumer_info()).num_ack_pending == 1


async def answer_late(*_: Any) -> bool:
    return False


class AnswersLate:
    """Its instances are coroutine functions, and do not look like it."""

    async def __call__(self, _: Any) -> bool:
        return False


def one(*_: Any) -> None: ...


def two(_: Any, __: Any) -> None: ...


REFUSED: dict[str, Callable[[Any, Any, OwnStream], Awaitable[Any] | Any]] = {
    "key": lambda js, sub, stream: sub.run(one, key=answer_late),
    "key is": lambda js, sub, stream: sub.run(one, key=AnswersLate()),
    "retry_delay": lambda js, sub, stream: sub.run(one, retry_delay=answer_late),
    "auto_accept": lambda js, sub, stream: sub.peer.auto_accept(answer_late),
    "callback is called": lambda js, sub, stream: js.events(stream.subject("a")).subscribe(callback=two),
    "door:opened": lambda js, sub, stream: sub.peer.on("door:opened", two),
    "handler of 'a:b' is a gen": lambda js, sub, stream: sub.peer.on("a:b", async_generator),
    "answer to a:b is a gen": lambda js, sub, stream: sub.peer.answers("a", "b")(generator),
    "answer to a:c is a gen": lambda js, sub, stream: sub.peer.answers("a", "c")(async_generator),
    "callback is a gen": lambda js, sub, stream: js.events(stream.subject("a")).subscribe(callback=generator),
    "on_event is a gen": lambda js, sub, stream: jsclient.connect("127.0.0.1:1", on_event=generator),
    "on_event is a generator": lambda js, sub, stream: Engine.local(on_event=async_generator),
    "on_event is called": lambda js, sub, stream: jsclient.connect("127.0.0.1:1", on_event=two),
    "retry_delay is a gen": lambda js, sub, stream: sub.run(one, retry_delay=generator),
    "condition is a cor": lambda js, sub, stream: condition(js, stream, answer_late),
    "condition is a gen": lambda js, sub, stream: condition(js, stream, generator),
}


async def condition(js: Any, stream: OwnStream, function: Callable[..., Any]) -> None:
    async with js.topic(stream.all).table() as table:
        await table.wait_for(function)


@pytest.mark.core_cases(6)
@pytest.mark.parametrize("name", REFUSED)
async def test_refused_before_a_message(js: Any, stream: OwnStream, name: str) -> None:
    """A coroutine is true, and a unique key, so a plain function is required."""
    await stream.publish(1)
    async with js.pull_subscribe(stream.all) as sub, Engine(js) as engine:
        sub.peer = await engine.peer("lamp")
        with pytest.raises(jsclient.ConfigError, match=name):
            await within(30, REFUSED[name](js, sub, stream), "the refusal")
        assert (await sub.consumer_info()).num_ack_pending == 0
