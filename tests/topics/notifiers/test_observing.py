"""Observers: methods that are missing, that raise, that return an awaitable, and the objects that can be observed."""

from __future__ import annotations

import asyncio

import pytest

from jsclient import (
    ConfigError,
    IterationFailed,
    make_notifier,
    make_notifier_kit,
    make_subscription,
    make_subscription_kit,
    observe_iteration,
    observe_iterator,
)
from tests.support.virtual import settle, virtual
from tests.topics.notifiers.test_iteration import Bob, alice


def published(*values, end="done"):
    publication, subscription = make_subscription_kit()
    for value in values:
        publication.update_state(value)
    publication.finish(end)
    return subscription


async def soon(value):
    await asyncio.sleep(1)
    return value


@virtual
@pytest.mark.covers("A62")
@pytest.mark.parametrize("methods", [(), ("update_state",), ("finish",), ("update_state", "finish")])
async def test_methods_missing_not_called(methods):
    bob = Bob()
    observer = type("Observer", (), {name: staticmethod(getattr(bob, name)) for name in methods})()
    assert await observe_iteration(published("a"), observer) == "done"
    calls = {"update_state": ("value", "a"), "finish": ("finished", "done")}
    assert bob.log == [calls[name] for name in methods]


@virtual
async def test_failure_nobody_observes_reported():
    publication, subscription = make_subscription_kit()
    publication.fail("why")
    events = []
    assert await observe_iteration(subscription, object(), on_error=events.append) is None
    assert [one.reason for one in events] == ["why"]
    loop = asyncio.get_running_loop()
    assert await observe_iteration(subscription, object()) is None
    (problem,) = loop.problems
    assert isinstance(problem["exception"], IterationFailed)
    loop.problems.clear()


@virtual
@pytest.mark.covers("A63")
@pytest.mark.parametrize("method", ["update_state", "finish", "fail"])
async def test_method_raises_ends_observation(method):
    """D18."""
    publication, subscription = make_subscription_kit()
    publication.update_state("a")
    publication.update_state("b")
    (publication.fail if method == "fail" else publication.finish)("end")

    class Observer(Bob):
        pass

    def raises(self, value):
        self.log.append(("raised", value))
        raise ZeroDivisionError

    setattr(Observer, method, raises)
    bob, iterator = Observer(), aiter(subscription)
    with pytest.raises(ZeroDivisionError):
        await observe_iterator(iterator, bob)
    assert bob.log[-1][0] == "raised"
    if method == "update_state":
        assert bob.log == [("raised", "a")]
        assert await anext(iterator) == "b", "the iterator stands behind what was told"


@virtual
@pytest.mark.covers("A63")
async def test_raised_when_result_awaited_does_not():
    """D18."""
    events = []

    class Observer:
        def __init__(self):
            self.log = []

        async def update_state(self, value):
            await asyncio.sleep(1)
            self.log.append(value)
            raise ZeroDivisionError(value)

        async def finish(self, completion):
            self.log.append(completion)
            raise ZeroDivisionError(completion)

    observer = Observer()
    assert await observe_iteration(published("a", "b"), observer, on_error=events.append) == "done"
    assert observer.log == ["a", "b", "done"]
    assert [str(one) for one in events] == ["a", "b", "done"]
    await observe_iteration(published(), observer)
    loop = asyncio.get_running_loop()
    assert [str(one["exception"]) for one in loop.problems] == ["done"]
    loop.problems.clear()


@virtual
async def test_awaitables_awaited():
    class Observer:
        running = most = 0

        async def update_state(self, _):
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(1)
            self.running -= 1

    observer = Observer()
    await observe_iteration(published(*range(5)), observer)
    assert (observer.running, observer.most) == (0, 1)


@virtual
@pytest.mark.covers("A64")
async def test_iterator_observed_from_here():
    iterator = aiter(published("a", "b"))
    assert await anext(iterator) == "a"
    bob = Bob()
    assert await observe_iterator(iterator, bob) == "done"
    assert bob.log == [("value", "b"), ("finished", "done")]


@virtual
@pytest.mark.covers("A29", "A30", "A64")
async def test_carol_subscribes_midway():
    iterator = aiter(published("a", "b"))
    remainder = asyncio.get_running_loop().create_future()

    class Carol(Bob):
        def update_state(self, value):
            super().update_state(value)
            if value == "a":
                remainder.set_result(iterator.subscribe())

    carol, second = Carol(), Bob()
    await asyncio.gather(observe_iterator(iterator, carol), observe_iteration(remainder, second))
    assert carol.log == [("value", "a"), ("value", "b"), ("finished", "done")]
    assert second.log == [("value", "b"), ("finished", "done")]


@virtual
@pytest.mark.covers("A70")
async def test_observed_here_or_remote():
    """A local iterable, one made of what was shared, and awaitables of both."""
    subscription = published("a")
    internals = subscription.get_sharable_subscription_internals
    for source in (
        subscription,
        make_subscription(await internals()),
        soon(subscription),
        soon(make_subscription(soon(await internals()))),
        asyncio.ensure_future(soon(subscription)),
    ):
        bob = Bob()
        await observe_iteration(source, bob)
        assert bob.log == [("value", "a"), ("finished", "done")]
    bob = Bob()
    await observe_iterator(soon(aiter(subscription)), bob)
    assert bob.log[-1] == ("finished", "done")


@virtual
@pytest.mark.covers("A74")
async def test_loop_needs_iterable_here():
    promise = soon(published("a"))
    with pytest.raises(TypeError):
        async for _ in promise:
            pass
    assert await alice(await promise) == [("value", "a"), ("finished",)]


@virtual
@pytest.mark.covers("A75", "A76")
async def test_any_iterable_mirrored():
    async def numbers():
        yield 1
        yield 2
        raise KeyError("broken")

    publication, mirror = make_subscription_kit()
    updater, newest = make_notifier_kit()
    await observe_iteration(numbers(), publication)
    await observe_iteration(numbers(), updater)
    iterator = aiter(mirror)
    assert [await anext(iterator), await anext(iterator)] == [1, 2]
    for failed in (iterator, aiter(newest)):
        with pytest.raises(KeyError):
            await anext(failed)


@virtual
async def test_early_end_closes():
    closed = []

    async def numbers():
        try:
            while True:
                yield 1
                await asyncio.sleep(1)
        finally:
            closed.append(True)

    task = asyncio.create_task(observe_iteration(numbers(), Bob()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [True]


@virtual
async def test_observer_error_closes():
    closed = []

    async def numbers():
        try:
            yield 1
        finally:
            closed.append(True)

    def update_state(_):
        raise ZeroDivisionError

    bob = Bob()
    bob.update_state = update_state
    iterable = numbers()
    with pytest.raises(ZeroDivisionError):
        await observe_iteration(iterable, bob)
    assert closed == [True]


# --- shared ----------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("A69", "A73")
async def test_promised_internals_once():
    _, subscription = make_subscription_kit()
    updater, notifier = make_notifier_kit("a")
    requests = []

    async def internals(of):
        requests.append(of)
        return await soon(await of())

    shared = make_notifier(internals(notifier.get_sharable_notifier_internals))
    first, second = (asyncio.create_task(shared.get_update_since()) for _ in range(2))
    await settle()
    first.cancel()
    assert (await second).value == "a"
    assert len(requests) == 1, "who is cancelled does not take it from the others"
    updater.finish("done")
    assert await shared.completion() == "done"

    other = make_subscription(internals(subscription.get_sharable_subscription_internals))
    iterator = aiter(other)
    reads = [asyncio.create_task(anext(iterator)) for _ in range(2)]
    await settle()
    for one in reads:
        one.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    await iterator.aclose()
    await asyncio.sleep(1)


@virtual
async def test_promised_reads_differ():
    subscription = published(1, 2, 3)
    iterator = aiter(make_subscription(soon(await subscription.get_sharable_subscription_internals())))
    assert sorted(await asyncio.gather(*(anext(iterator) for _ in range(3)))) == [1, 2, 3]


@virtual
async def test_not_shared_refused():
    _, subscription = make_subscription_kit()
    _, notifier = make_notifier_kit("a")
    with pytest.raises(ConfigError, match="NotifierInternals is needed"):
        make_notifier(subscription)
    with pytest.raises(ConfigError, match="SubscriptionInternals is needed"):
        make_subscription(await notifier.get_sharable_notifier_internals())
    with pytest.raises(ConfigError, match="SubscriptionInternals is needed"):
        await anext(aiter(make_subscription(soon(7))))
    closed = aiter(make_subscription(await subscription.get_sharable_subscription_internals()))
    await closed.aclose()
