"""Further promises of the kits of this process: no loop to produce, the very objects, no list of consumers."""

from __future__ import annotations

import asyncio
import gc
import traceback
import weakref

import pytest

from jsclient import (
    ClosedError,
    ConfigError,
    IterationFailed,
    make_notifier_kit,
    make_subscription_kit,
    observe_iteration,
)
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.topics.notifiers.memory import _Cell
from tests.support.virtual import settle, virtual


class Thing:
    """Something that no codec knows."""


def test_to_produce_needs_no_event_loop():
    for producer, _ in (make_notifier_kit(), make_subscription_kit()):
        producer.update_state("a")
        producer.finish("done")


@virtual
async def test_produced_before_loop_there():
    publication, subscription = make_subscription_kit()
    publication.update_state("a")
    publication.update_state("b")
    publication.finish("done")
    assert [value async for value in subscription] == ["a", "b"]


@virtual
@pytest.mark.covers("A5", "A6")
async def test_the_very_objects_pass():
    thing, end = Thing(), Thing()
    for producer, iterable in (make_notifier_kit(), make_subscription_kit()):
        iterator = aiter(iterable)
        producer.update_state(thing)
        assert await anext(iterator) is thing
        producer.finish(end)
        assert await iterable.completion() is end


@virtual
@pytest.mark.covers("A33", "A48")
async def test_all_waiters_get_next():
    updater, notifier = make_notifier_kit("first")
    count = (await notifier.get_update_since()).update_count
    tasks = [asyncio.create_task(notifier.get_update_since(count)) for _ in range(3)]
    await settle()
    state = Thing()
    updater.update_state(state)
    updater.update_state("third")
    assert [record.value is state for record in await asyncio.gather(*tasks)] == [True] * 3
    assert (await notifier.get_update_since((await tasks[0]).update_count)).value == "third"


@virtual
@pytest.mark.covers("A46", "A57")
async def test_exception_raised_as_each_time():
    """D14."""
    try:
        raise ValueError("broken")
    except ValueError as error:
        reason = error
    for producer, iterable in (make_notifier_kit(), make_subscription_kit()):
        producer.fail(reason)
        lengths = set()
        for _ in range(3):
            with pytest.raises(ValueError, match="broken") as caught:
                await iterable.completion()
            assert caught.value is reason
            lengths.add(len(traceback.extract_tb(reason.__traceback__)))
        assert len(lengths) == 1, "the traceback does not grow"
        assert any(
            "raise ValueError" in (line.line or "") for line in traceback.extract_tb(reason.__traceback__)
        )


@virtual
@pytest.mark.covers("A6")
@pytest.mark.parametrize(
    "reason", [StopAsyncIteration(), asyncio.CancelledError(), KeyboardInterrupt(), ValueError, "text", None]
)
async def test_ambiguous_values_raise(reason):
    """D14."""
    for producer, iterable in (make_notifier_kit(), make_subscription_kit()):
        producer.fail(reason)
        with pytest.raises(IterationFailed) as caught:
            await anext(aiter(iterable))
        assert caught.value.reason is reason
        events = []
        observer = type("Observer", (), {"fail": lambda _, what, reported=events: reported.append(what)})()
        await observe_iteration(iterable, observer)
        assert events == [reason]


@virtual
@pytest.mark.covers("A40")
async def test_equal_count_gets_current():
    _, notifier = make_notifier_kit("first")
    assert (await notifier.get_update_since()).update_count == 1
    for odd in (True, 1.0):
        assert (await notifier.get_update_since(odd)).value == "first"


# --- what is passed on ---------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("A68")
@pytest.mark.parametrize("value", [Thing(), float("nan"), {1: 2}, b"bytes", {"a": [Thing()]}])
@pytest.mark.parametrize("method", ["update_state", "finish", "fail"])
async def test_lossy_value_refused(method, value):
    for producer, iterable in (
        make_notifier_kit("a", codec=JsonCodec()),
        make_subscription_kit(codec=JsonCodec()),
    ):
        iterator = aiter(iterable)
        producer.update_state("a")
        assert await anext(iterator) == "a"
        with pytest.raises(ConfigError, match="cannot be encoded as JSON"):
            getattr(producer, method)(value)
        producer.update_state("b")
        assert await anext(iterator) == "b"
        producer.finish("done")
        assert await iterable.completion() == "done"


@pytest.mark.covers("A68")
def test_lossy_initial_refused():
    with pytest.raises(ConfigError):
        make_notifier_kit(Thing(), codec=JsonCodec())


@virtual
async def test_codec_copies_values():
    publication, subscription = make_subscription_kit(codec=JsonCodec())
    value = {"rows": [1]}
    publication.update_state(value)
    value["rows"].append(2)
    publication.fail(ValueError("broken"))
    iterator = aiter(subscription)
    assert await anext(iterator) == {"rows": [1]}
    with pytest.raises(IterationFailed) as caught:
        await anext(iterator)
    assert caught.value.reason == "ValueError: broken"


@pytest.mark.parametrize("make", [make_notifier_kit, make_subscription_kit])
def test_refused_after_end_says_so(make):
    producer, _ = make()
    producer.finish()
    with pytest.raises(ClosedError, match="has ended"):
        producer.update_state("more")


# --- nobody is listed ------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("A1")
async def test_kit_holds_no_finished_consumer():
    for producer, iterable in (make_notifier_kit("a"), make_subscription_kit()):
        references = []
        for _ in range(50):
            iterator = aiter(iterable)
            if hasattr(iterable, "get_update_since"):
                await anext(iterator)
            task = asyncio.create_task(iterator.__anext__())
            await settle(3)
            task.cancel()
            references += [weakref.ref(task), weakref.ref(task.get_coro())]
            del iterator, task
            await settle(3)
        gc.collect()
        assert [one() for one in references if one() is not None] == []
        producer.update_state("b")


def cells() -> int:
    gc.collect()
    return sum(type(one) is _Cell for one in gc.get_objects())


def test_nobody_can_read_any_more_garbage():
    before = cells()
    updater, notifier = make_notifier_kit("a")
    for number in range(100):
        updater.update_state(number)
    assert cells() - before <= 2
    publication, subscription = make_subscription_kit()
    for number in range(100):
        publication.update_state(number)
    assert cells() - before >= 100, "the subscription sees all from the start"
    del subscription
    assert cells() - before <= 3
    del notifier, updater, publication
    assert cells() == before


def test_garbage_needs_no_collector():
    """Cells do not refer to themselves: 10,000 updates leave nothing for it to find."""
    gc.collect()
    gc.disable()
    try:
        updater, _ = make_notifier_kit()
        for number in range(10_000):
            updater.update_state(number)
        assert sum(type(one) is _Cell for one in gc.get_objects()) < 100
    finally:
        gc.enable()


def test_long_history_can_be_dropped():
    publication, subscription = make_subscription_kit()
    for number in range(200_000):
        publication.update_state(number)
    del subscription, publication
    gc.collect()


@virtual
@pytest.mark.covers("A9", "A11")
async def test_unread_values_are_released():
    updater, notifier = make_notifier_kit(0)
    iterator = aiter(notifier)
    assert await anext(iterator) == 0
    references = []
    for _ in range(1000):
        value = Thing()
        references.append(weakref.ref(value))
        updater.update_state(value)
    del value
    assert sum(one() is not None for one in references) == 1
    assert await anext(iterator) is references[-1]()
