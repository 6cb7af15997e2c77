"""Kits on a server that restarts, answers that get lost, consumers that misbehave, values that may not pass."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.clients.kits import Kits
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.match import is_publish_ack, match
from integration.kit.network.wire import TO_CLIENT
from jsclient import (
    ClosedError,
    ConfigError,
    HistoryTruncatedError,
    IterationFailed,
    ProtocolError,
    PublishFailed,
    RequestTimeoutError,
    observe_iteration,
)
from tests.topics.notifiers.test_iteration import Bob

pytestmark = pytest.mark.usefixtures("oracle")

KINDS = pytest.mark.parametrize("kind", ["notifier_kit", "subscription_kit"])
SOON = 25.0  # seconds: before the timer of a consumer looks into the history


@pytest.fixture
async def kits(server: Any, connect: Any) -> Any:
    kits = Kits(await connect(server), await connect(server))
    yield kits
    await kits.clear()


def stored(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]


@pytest.mark.core_cases(2)
@KINDS
@pytest.mark.covers("A10", "A19", "A21", "A23", "A66")
@pytest.mark.parametrize("restart", ["restart", "kill"])
async def test_server_restarts_in_middle(own_server: Any, connect: Any, kind: str, restart: str) -> None:
    server = await own_server()
    kits = Kits(await connect(server), await connect(server), storage="file")
    producer, iterable = await getattr(kits, kind)()
    bob, late = Bob(), Bob()
    observing = asyncio.create_task(observe_iteration(iterable, bob))
    for number in range(20):
        await producer.update_state(number)
    await eventually(lambda: ("value", 19) in bob.log, SOON, "the values before")
    if restart == "kill":
        await server.kill()
    else:
        await server.stop()
    waiting = [producer.update_state(number) for number in range(20, 40)]
    await server.start()
    numbers = [await one for one in waiting]
    assert numbers == list(range(21, 41)), "each once, in the order of the calls"
    await eventually(lambda: ("value", 39) in bob.log, SOON, "the values after")
    await producer.finish("done")
    assert await within(SOON, observing, "the end") == "done"
    await observe_iteration(iterable, late)
    seen = [value for what, value in bob.log if what == "value"]
    if kind == "subscription_kit":
        assert seen == list(range(40))
        assert late.log == bob.log
    else:
        assert seen == sorted(set(seen))
        assert late.log == [("finished", "done")]


@KINDS
@pytest.mark.covers("A10", "A18")
async def test_lost_answers_store_once(
    proxy: Any, server: Any, connect: Any, oracle: Oracle, make_stream: Any, kind: str
) -> None:
    """The compare-and-set of a second attempt fails because of the first, which is recognized by its message id."""
    tap, stream = await proxy(), await make_stream()
    js = await connect(tap)
    kit = await getattr(js, kind)(stream.subject("x"), stream=stream.name)
    seen = 0

    def the_third(frame: Any) -> bool:
        nonlocal seen
        if is_publish_ack(frame):
            seen += 1
            return seen == 3
        return False

    lost = tap.drop_frames(the_third)
    results = [kit[0].update_state(number) for number in range(10)] + [kit[0].finish("done")]
    assert [await one for one in results] == list(range(1, 12))
    assert lost.count == 1
    assert stored(await stream.messages()) == [b"%d" % number for number in range(10)] + [b'"done"']


@KINDS
async def test_cut_with_value_in_flight(proxy: Any, connect: Any, make_stream: Any, kind: str) -> None:
    tap, stream = await proxy(), await make_stream()
    js = await connect(tap)
    kit = await getattr(js, kind)(stream.subject("x"), stream=stream.name)
    cut = tap.cut_inside_frame(TO_CLIENT, predicate=is_publish_ack)
    results = [kit[0].update_state(number) for number in range(10)]
    assert [await one for one in results] == list(range(1, 11))
    assert cut.count == 1
    assert stored(await stream.messages()) == [b"%d" % number for number in range(10)]


async def test_abandoned_value_known_later(proxy: Any, connect: Any, make_stream: Any) -> None:
    """Its outcome is unknown, and is reported so. The next value follows it and is not refused."""
    tap, stream = await proxy(), await make_stream()
    js = await connect(tap)
    updater, _ = await js.notifier_kit(stream.subject("x"), stream=stream.name, timeout=3.0)
    # The producer asks the stream about a publish without an answer, so no reply may pass.
    lost = tap.drop_frames(match(op="MSG", direction=TO_CLIENT))
    with pytest.raises(RequestTimeoutError):
        await updater.update_state("unknown")
    lost.remove()
    assert await updater.update_state("next") == 2
    assert stored(await stream.messages()) == [b'"unknown"', b'"next"']


@KINDS
@pytest.mark.covers("A68")
@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {1: 2}, b"bytes", 2**70, "\ud800"])
async def test_lossy_value_refused(kits: Kits, kind: str, value: Any) -> None:
    producer, iterable = await getattr(kits, kind)()
    for method in ("update_state", "finish", "fail"):
        with pytest.raises(ConfigError):
            getattr(producer, method)(value)
    assert await producer.update_state("good") == 1
    await producer.finish({"deep": [None, 1.5, True]})
    assert await iterable.completion() == {"deep": [None, 1.5, True]}


@KINDS
@pytest.mark.covers("A6", "A60", "A68")
async def test_exception_passes_as_class_and_text(kits: Kits, kind: str) -> None:
    """D14."""
    producer, iterable = await getattr(kits, kind)()
    await producer.fail(ValueError("no such column"))
    with pytest.raises(IterationFailed) as caught:
        await iterable.completion()
    assert caught.value.reason == "ValueError: no such column"


@KINDS
@pytest.mark.covers("A66", "A67")
async def test_blocked_consumer_harmless(proxy: Any, server: Any, connect: Any, kind: str) -> None:
    tap = await proxy(frames=False)
    kits = Kits(await connect(server), await connect(server))
    producer, iterable = await getattr(kits, kind)()
    beyond = await connect(tap)
    if kind == "notifier_kit":
        stuck = beyond.make_notifier(await iterable.get_sharable_notifier_internals())
    else:
        stuck = beyond.make_subscription(await iterable.get_sharable_subscription_internals())
    good, late = Bob(), Bob()
    observing = asyncio.create_task(observe_iteration(iterable, good))
    await producer.update_state("first")
    hanging = asyncio.create_task(observe_iteration(stuck, late))
    await eventually(lambda: late.log == [("value", "first")], SOON, "the first value")
    tap.stall(TO_CLIENT)
    for number in range(300):
        await producer.update_state([number, "x" * 10_000])
    await producer.finish("done")
    assert await within(SOON, observing, "the good consumer") == "done"
    if kind == "subscription_kit":
        assert len(good.log) == 302
    assert late.log == [("value", "first")]
    tap.unstall()
    assert await within(SOON, hanging, "the stuck consumer") == "done"
    assert late.log[-1] == ("finished", "done")
    if kind == "subscription_kit":
        assert late.log == good.log
    await kits.clear()


async def test_dropped_iterators_freed(kits: Kits, oracle: Oracle, server: Any, make_stream: Any) -> None:
    """A stream that does not republish: each iterator that reads has a consumer."""
    stream = await make_stream()
    publication, subscription = await kits.here.subscription_kit(stream.subject("x"), stream=stream.name)
    await publication.update_state("a")
    iterators = [aiter(subscription) for _ in range(5)]
    for iterator in iterators:
        assert await anext(iterator) == "a"
    await eventually(lambda: oracle.consumer_names(stream.name), what="consumers")
    await iterators.pop().aclose()
    closed = aiter(subscription)
    await closed.aclose()
    with pytest.raises(ClosedError):
        await anext(closed)
    del iterators, iterator

    async def none() -> bool:
        return not await oracle.consumer_names(stream.name)

    await eventually(none, what="no consumers")


@pytest.mark.covers("A10")
async def test_history_cut_error_and_never_hole(kits: Kits, oracle: Oracle, make_stream: Any) -> None:
    stream = await make_stream(max_msgs=5)
    subject = stream.subject("x")
    publication, subscription = await kits.here.subscription_kit(subject, stream=stream.name)
    iterator = aiter(subscription)
    for number in range(3):
        await publication.update_state(number)
    assert await anext(iterator) == 0
    remainder = iterator.subscribe()
    for number in range(3, 20):
        await publication.update_state(number)
    for lagging in (aiter(subscription), aiter(remainder)):
        with pytest.raises(HistoryTruncatedError) as caught:
            await anext(lagging)
        assert caught.value.first_available == 16
    again = await kits.here.subscription_kit(subject, stream=stream.name)
    with pytest.raises(HistoryTruncatedError):
        await anext(aiter(again.subscription))


async def test_non_json_skipped(kits: Kits, oracle: Oracle) -> None:
    subject = kits.subject()
    _, subscription = await kits.subscription_kit(subject=subject)
    await oracle.publish(subject, b"{", headers={"Nats-Msg-Id": "jsc-1:1"})
    await oracle.publish(subject, b'"a"')
    await oracle.publish(subject, b'"b"', headers={"Nats-Msg-Id": "jsc-1:2"})
    await oracle.publish(subject, b"{", headers={"Jsc-Kind": "finish"})
    iterator = aiter(subscription)
    assert await anext(iterator) == "b"
    for _ in range(2):
        with pytest.raises(ProtocolError):
            await anext(iterator)
    await iterator.aclose()


async def test_close_stores_in_flight(
    server: Any, proxy: Any, connect: Any, make_stream: Any, events: list[Any]
) -> None:
    stream = await make_stream()
    js = await connect(server)
    updater, _ = await js.notifier_kit(stream.subject("x"), stream=stream.name)
    for number in range(100):
        updater.update_state(number)
    await js.close()
    assert len(await stream.messages()) == 100
    assert events == []
    with pytest.raises(ClosedError):
        updater.update_state("late")
    tap = await proxy()
    js = await connect(tap)
    updater, _ = await js.notifier_kit(stream.subject("y"), stream=stream.name)
    tap.stall()
    updater.update_state("never")
    await js.close()
    tap.unstall()
    (event,) = [one for one in events if isinstance(one, PublishFailed)]
    assert isinstance(event.error, ClosedError)
