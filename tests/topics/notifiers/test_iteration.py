"""Notifiers and subscriptions: one suite for every kind of kit.

The suites `NotifierSuite`, `SubscriptionSuite` and `BothSuite` say what each kit must do. They get ``kits``, which
makes them, and are run here on the kits of this process, as they are and with values passed as JSON, in virtual time.
"""

from __future__ import annotations

import asyncio
import inspect

import pytest

from jsclient import (
    ClosedError,
    IterationFailed,
    make_notifier,
    make_notifier_kit,
    make_subscription,
    make_subscription_kit,
    observe_iteration,
)
from jsclient.protocol.topics.value_codec import JsonCodec
from tests.support.virtual import settle, virtual


class LocalKits:
    """Makes kits of this process."""

    def __init__(self, codec=None):
        self.codec = codec

    async def notifier_kit(self, *initial):
        return make_notifier_kit(*initial, codec=self.codec)

    async def subscription_kit(self):
        return make_subscription_kit(codec=self.codec)

    def make_notifier(self, internals):
        return make_notifier(internals)

    def make_subscription(self, internals):
        return make_subscription(internals)

    async def settle(self):
        """Let every task that can continue do so."""
        await settle()

    async def until(self, condition):
        """Let all tasks run until the condition is true."""
        await settle()
        assert condition()


@pytest.fixture(params=[None, JsonCodec()], ids=["objects", "json"])
def kits(request):
    return LocalKits(request.param)


def in_virtual_time(suite: type, wrap=lambda test: test) -> type:
    """A test class of a suite, for here."""
    tests = {
        name: virtual(wrap(test))
        for name, test in inspect.getmembers(suite, inspect.isfunction)
        if name.startswith("test") and inspect.iscoroutinefunction(test)
    }
    return type(suite.__name__.replace("Suite", ""), (suite,), tests)


async def paula(producer, *values, completion="done"):
    """The publisher: her values, then the end."""
    for value in values or ("a", "b"):
        await producer.update_state(value)
    await producer.finish(completion)


async def alice(iterable, log=None) -> list:
    """Who consumes with a loop, and cannot see the completion."""
    log = [] if log is None else log
    try:
        async for value in iterable:
            log.append(("value", value))
        log.append(("finished",))
    except IterationFailed as error:
        log.append(("failed", error.reason))
    return log


class Bob:
    """Who consumes as an observer."""

    def __init__(self):
        self.log = []

    def update_state(self, value):
        self.log.append(("value", value))

    def finish(self, completion):
        self.log.append(("finished", completion))

    def fail(self, reason):
        self.log.append(("failed", reason))


async def together(*coroutines):
    return [asyncio.create_task(one) for one in coroutines]


class NotifierSuite:
    """The duties of a kit whose newest value counts."""

    @pytest.mark.covers("A7", "A12", "A13")
    async def test_kit_updater_and_notifier(self, kits):
        kit = await kits.notifier_kit()
        updater, notifier = kit
        assert (kit.updater, kit.notifier) == (updater, notifier)
        assert hasattr(notifier, "__aiter__")

    @pytest.mark.covers("A14", "A15", "A36", "A37")
    async def test_each_facet_for_and_nothing_else(self, kits):
        updater, notifier = await kits.notifier_kit()
        assert public(updater) == {"update_state", "finish", "fail"}
        assert public(notifier) == {"get_update_since", "get_sharable_notifier_internals", "completion"}

    @pytest.mark.covers("A38", "A39")
    async def test_the_current_state_at_once(self, kits):
        updater, notifier = await kits.notifier_kit("first")
        record = await notifier.get_update_since()
        assert record.value == "first"
        assert (await notifier.get_update_since()) == record
        await updater.update_state("second")
        assert (await notifier.get_update_since()).value == "second"

    @pytest.mark.covers("A40", "A49")
    @pytest.mark.parametrize("count", ["old", 0, -7, 10**9, "text", 1.5, True, [1]])
    async def test_older_count_gets_current(self, kits, count):
        """D13."""
        updater, notifier = await kits.notifier_kit("first")
        old = (await notifier.get_update_since()).update_count
        for value in ("second", "third"):
            await updater.update_state(value)
        record = await notifier.get_update_since(old if count == "old" else count)
        assert record.value == "third"
        assert record == await notifier.get_update_since()

    @pytest.mark.covers("A33", "A41", "A48")
    async def test_newest_count_waits(self, kits):
        updater, notifier = await kits.notifier_kit("first")
        count = (await notifier.get_update_since()).update_count
        tasks = await together(*(notifier.get_update_since(count) for _ in range(5)))
        await kits.settle()
        assert not any(task.done() for task in tasks)
        await updater.update_state("second")
        records = await asyncio.gather(*tasks)
        assert {record.value for record in records} == {"second"}
        assert {record.update_count for record in records} == {
            (await notifier.get_update_since()).update_count
        }

    @pytest.mark.covers("A44")
    @pytest.mark.parametrize("count", [None, 5])
    async def test_empty_waits_for_first(self, kits, count):
        updater, notifier = await kits.notifier_kit()
        (task,) = await together(notifier.get_update_since(count))
        await kits.settle()
        assert not task.done()
        await updater.update_state("first")
        assert (await task).value == "first"

    @pytest.mark.covers("A47")
    async def test_none_is_a_state(self, kits):
        updater, notifier = await kits.notifier_kit(None)
        record = await notifier.get_update_since()
        assert record.value is None
        assert record.update_count is not None
        await updater.update_state(None)
        assert (await notifier.get_update_since(record.update_count)).value is None

    @pytest.mark.covers("A34", "A42", "A45")
    async def test_final_record_repeats(self, kits):
        updater, notifier = await kits.notifier_kit("first")
        old = (await notifier.get_update_since()).update_count
        waiting = await together(notifier.get_update_since(old))
        await kits.settle()
        await updater.finish("done")
        records = [await one for one in waiting] + [
            await notifier.get_update_since(count) for count in (None, old, 10**9, "odd")
        ]
        assert records == [("done", None)] * 5

    @pytest.mark.covers("A35", "A43", "A46", "A57")
    async def test_failure_reason_repeats(self, kits):
        updater, notifier = await kits.notifier_kit("first")
        old = (await notifier.get_update_since()).update_count
        waiting = await together(notifier.get_update_since(old))
        await kits.settle()
        await updater.fail("broken")
        requests = [notifier.get_update_since(count) for count in (None, old, 10**9)]
        for one in [*waiting, *requests]:
            with pytest.raises(IterationFailed) as caught:
                await one
            assert caught.value.reason == "broken"
        assert await alice(notifier) == [("failed", "broken")]

    @pytest.mark.covers("A9", "A11", "A16", "A17", "A18")
    async def test_batches_show_last(self, kits):
        updater, notifier = await kits.notifier_kit()
        following, seen = 2, []
        await updater.update_state(1)
        async for value in notifier:
            seen.append(value)
            for _ in range(value):
                await updater.update_state(following)
                following += 1
            if following > 64:
                await updater.finish("done")
        assert seen == [1, 2, 4, 8, 16, 32]

    @pytest.mark.covers("A20")
    async def test_consumers_may_see_different_values(self, kits):
        updater, notifier = await kits.notifier_kit()
        one, other = aiter(notifier), aiter(notifier)
        await updater.update_state(1)
        assert await anext(one) == 1
        await updater.update_state(2)
        assert [await anext(one), await anext(other)] == [2, 2]

    @pytest.mark.covers("A21", "A22")
    async def test_all_waiters_get_it(self, kits):
        updater, notifier = await kits.notifier_kit()
        for last in (1, 2, 3):
            tasks = await together(*(notifier.get_update_since(last - 1 or None) for _ in range(3)))
            await kits.settle()
            await updater.update_state(last)
            assert [record.value for record in await asyncio.gather(*tasks)] == [last] * 3

    async def test_concurrent_reads_differ(self, kits):
        updater, notifier = await kits.notifier_kit()
        iterator = aiter(notifier)
        first, second = await together(anext(iterator), anext(iterator))
        await kits.settle()
        await updater.update_state(1)
        await kits.until(lambda: [first.done(), second.done()].count(True) == 1)
        await kits.settle()
        assert [first.done(), second.done()].count(True) == 1
        await updater.update_state(2)
        assert sorted([await first, await second]) == [1, 2]

    @pytest.mark.covers("A72", "A73")
    async def test_shared_reads_from_source(self, kits):
        updater, notifier = await kits.notifier_kit("first")
        shared = kits.make_notifier(await notifier.get_sharable_notifier_internals())
        again = kits.make_notifier(shared.get_sharable_notifier_internals())
        del notifier, shared
        record = await again.get_update_since()
        assert record.value == "first"
        (task,) = await together(again.get_update_since(record.update_count))
        await kits.settle()
        await updater.finish("done")
        assert await task == ("done", None)
        assert await again.completion() == "done"


class SubscriptionSuite:
    """The duties of a kit of which every value counts."""

    @pytest.mark.covers("A8", "A12", "A13")
    async def test_kit_publication_and_subscription(self, kits):
        kit = await kits.subscription_kit()
        assert (kit.publication, kit.subscription) == tuple(kit)
        assert hasattr(kit.subscription, "__aiter__")

    @pytest.mark.covers("A14", "A15", "A36", "A37")
    async def test_each_facet_for_and_nothing_else(self, kits):
        publication, subscription = await kits.subscription_kit()
        assert public(publication) == {"update_state", "finish", "fail"}
        assert public(subscription) == {"get_sharable_subscription_internals", "completion"}
        assert public(aiter(subscription)) == {"aclose", "completion", "subscribe"}

    @pytest.mark.covers("A10", "A23", "A31", "A32")
    async def test_latecomers_see_all(self, kits):
        publication, subscription = await kits.subscription_kit()
        early = await together(alice(subscription), alice(subscription))
        await kits.settle()
        await paula(publication, *range(20))
        expected = [("value", number) for number in range(20)] + [("finished",)]
        assert [await one for one in early] == [expected] * 2
        assert await alice(subscription) == expected

    @pytest.mark.covers("A25", "A26", "A27", "A29", "A30")
    async def test_suffix_all_from_start_to_end(self, kits):
        publication, subscription = await kits.subscription_kit()
        iterator = aiter(subscription)
        for value in (2, 5):
            await publication.update_state(value)
            assert await anext(iterator) == value
        from_9 = iterator.subscribe()
        (waiting,) = await together(alice(from_9))
        await kits.settle()
        assert not waiting.done()
        for value in (9, 13):
            await publication.update_state(value)
        assert await anext(iterator) == 9
        from_13 = iterator.subscribe()
        assert await anext(iterator) == 13
        from_end = iterator.subscribe()
        (none,) = await together(anext(aiter(from_end)))
        await kits.settle()
        assert not none.done(), "nothing of what was before"
        await publication.fail("Fail")
        with pytest.raises(IterationFailed):
            await none
        assert await waiting == [("value", 9), ("value", 13), ("failed", "Fail")]
        assert await alice(from_9) == await waiting, "and again"
        assert await alice(from_13) == [("value", 13), ("failed", "Fail")]
        assert await alice(subscription) == [("value", 2), ("value", 5), *await waiting]

    @pytest.mark.covers("A24", "A25")
    async def test_suffix_may_be_end_alone(self, kits):
        publication, subscription = await kits.subscription_kit()
        await paula(publication)
        iterator = aiter(subscription)
        assert await alice(iterator) == [("value", "a"), ("value", "b"), ("finished",)]
        bob = Bob()
        await observe_iteration(iterator.subscribe(), bob)
        assert bob.log == [("finished", "done")]

    @pytest.mark.covers("A28")
    async def test_iterators_are_independent(self, kits):
        publication, subscription = await kits.subscription_kit()
        for value in range(4):
            await publication.update_state(value)
        one, other = aiter(subscription), aiter(subscription)
        assert [await anext(one), await anext(one), await anext(other), await anext(one)] == [0, 1, 0, 2]
        assert await anext(other) == 1

    async def test_concurrent_reads_differ(self, kits):
        publication, subscription = await kits.subscription_kit()
        iterator = aiter(subscription)
        tasks = await together(*(anext(iterator) for _ in range(3)))
        await kits.settle()
        for value in range(3):
            await publication.update_state(value)
        assert sorted(await asyncio.gather(*tasks)) == [0, 1, 2]

    async def test_cancelled_read_loses_nothing(self, kits):
        publication, subscription = await kits.subscription_kit()
        iterator = aiter(subscription)
        (task,) = await together(anext(iterator))
        await kits.settle()
        publication.update_state("kept")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await anext(iterator) == "kept"

    @pytest.mark.covers("A71", "A73")
    async def test_shared_reads_from_source(self, kits):
        publication, subscription = await kits.subscription_kit()
        await publication.update_state("a")
        iterator = aiter(subscription)
        assert await anext(iterator) == "a"
        whole = kits.make_subscription(await subscription.get_sharable_subscription_internals())
        remainder = kits.make_subscription(iterator.subscribe().get_sharable_subscription_internals())
        again = kits.make_subscription(remainder.get_sharable_subscription_internals())
        del subscription, iterator, remainder
        await publication.update_state("b")
        moved = aiter(again)
        assert await anext(moved) == "b"
        await publication.finish("done")
        assert await alice(whole) == [("value", "a"), ("value", "b"), ("finished",)]
        assert await alice(again) == [("value", "b"), ("finished",)]
        assert await alice(moved.subscribe()) == [("finished",)]
        assert await again.completion() == "done"


class BothSuite:
    """The duties of both kinds of kit."""

    @pytest.fixture(params=["notifier", "subscription"])
    def make(self, request, kits):
        return kits.notifier_kit if request.param == "notifier" else kits.subscription_kit

    @pytest.mark.covers("A2", "A3", "A19")
    @pytest.mark.parametrize("fails", [False, True])
    async def test_same_order_same_end(self, kits, make, fails):
        producer, iterable = await make()
        observers = [Bob(), Bob(), Bob()]
        tasks = await together(*(observe_iteration(iterable, one) for one in observers))
        for value in range(30):
            await producer.update_state(value)
            # now and then the observers catch up, so that they see more than the last value
            if value % 7 == 0:
                await kits.settle()
        await (producer.fail("why") if fails else producer.finish("done"))
        await asyncio.gather(*tasks)
        for one in observers:
            *values, end = one.log
            numbers = [number for _, number in values]
            assert numbers == sorted(set(numbers))
            assert set(numbers) <= set(range(30))
            assert end == (("failed", "why") if fails else ("finished", "done"))

    @pytest.mark.covers("A4")
    async def test_an_iteration_need_not_end(self, kits, make):
        producer, iterable = await make()
        iterator = aiter(iterable)
        for value in range(50):
            await producer.update_state(value)
            assert await anext(iterator) == value
        (task,) = await together(anext(iterator))
        await kits.settle()
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @pytest.mark.covers("A5", "A6")
    @pytest.mark.parametrize("end", [None, False, 0, "", "done", [1, {"a": None}], {"deep": [[]]}])
    async def test_any_completion_value(self, kits, make, end):
        for method, reports in (("finish", "finished"), ("fail", "failed")):
            producer, iterable = await make()
            await getattr(producer, method)(end)
            bob = Bob()
            await observe_iteration(iterable, bob)
            assert bob.log == [(reports, end)]

    async def test_an_iteration_may_be_empty(self, kits, make):
        producer, iterable = await make()
        (waiting,) = await together(alice(iterable))
        await kits.settle()
        await producer.finish()
        assert await waiting == await alice(iterable) == [("finished",)]

    @pytest.mark.covers("A56", "A59")
    async def test_alice_sees_values_and_end(self, kits, make):
        producer, iterable = await make()
        seen = []
        (task,) = await together(alice(iterable, seen))
        for value in ("a", "b"):
            await producer.update_state(value)
            await kits.until(lambda value=value: seen[-1:] == [("value", value)])
        await producer.finish("done")
        assert await task == [("value", "a"), ("value", "b"), ("finished",)]

    @pytest.mark.covers("A58", "A59")
    async def test_bob_sees_the_completion_too(self, kits, make):
        producer, iterable = await make()
        bob = Bob()
        (task,) = await together(observe_iteration(iterable, bob))
        for value in ("a", "b"):
            await producer.update_state(value)
            await kits.until(lambda value=value: bob.log[-1:] == [("value", value)])
        await producer.finish("done")
        assert await task == "done"
        assert bob.log == [("value", "a"), ("value", "b"), ("finished", "done")]

    async def test_the_completion_can_be_had(self, kits, make):
        """D15."""
        producer, iterable = await make()
        (waiting,) = await together(iterable.completion())
        iterator = aiter(iterable)
        assert iterator.completion is None
        await kits.settle()
        await paula(producer, completion={"rows": 3})
        async for _ in iterator:
            pass
        assert iterator.completion == await waiting == await iterable.completion() == {"rows": 3}

    async def test_completion_of_failure_reason_raised(self, kits, make):
        producer, iterable = await make()
        await producer.update_state("a")
        await producer.fail("why")
        with pytest.raises(IterationFailed, match="why"):
            await iterable.completion()

    @pytest.mark.covers("A60")
    async def test_failure_reaches_observer(self, kits, make):
        producer, iterable = await make()
        await producer.fail("why")
        bob = Bob()
        assert await observe_iteration(iterable, bob) is None
        assert bob.log == [("failed", "why")]

    @pytest.mark.covers("A61")
    async def test_end_comes_again_and_again(self, kits, make):
        producer, iterable = await make()
        await producer.update_state("a")
        iterator = aiter(iterable)
        assert await anext(iterator) == "a"
        await producer.finish("done")
        for _ in range(3):
            with pytest.raises(StopAsyncIteration):
                await iterator.__anext__()
        failing, other = await make()
        await failing.fail("why")
        iterator = aiter(other)
        for _ in range(3):
            with pytest.raises(IterationFailed):
                await iterator.__anext__()
        await iterator.aclose()

    @pytest.mark.covers("A50")
    @pytest.mark.parametrize("end", ["finish", "fail"])
    @pytest.mark.parametrize("method", ["update_state", "finish", "fail"])
    async def test_after_end_nothing_can_follow(self, kits, make, end, method):
        producer, iterable = await make()
        await getattr(producer, end)("end")
        with pytest.raises(ClosedError):
            await getattr(producer, method)("more")
        bob = Bob()
        await observe_iteration(iterable, bob)
        assert [what for _, what in bob.log] == ["end"]

    async def test_order_of_calls_without_waiting(self, kits, make):
        producer, iterable = await make()
        results = [producer.update_state(number) for number in range(5)]
        last = producer.finish("done")
        numbers = [await one for one in results] + [await last]
        assert numbers == sorted(set(numbers))
        assert await iterable.completion() == "done"

    @pytest.mark.covers("A66", "A67")
    async def test_consumers_are_isolated(self, kits, make):
        """One raises, one never reads, one is cancelled, one floods: a good one sees what it should."""
        producer, iterable = await make()

        class Raises(Bob):
            def update_state(self, value):
                raise ZeroDivisionError

        async def flood():
            async def one():
                async for _ in iterable:
                    pass

            await asyncio.gather(*(one() for _ in range(200)))

        good, bad = Bob(), Raises()
        idle = aiter(iterable)
        tasks = await together(
            observe_iteration(iterable, good),
            observe_iteration(iterable, bad),
            observe_iteration(iterable, Bob()),
            flood(),
        )
        await kits.settle()
        tasks[2].cancel()
        for value in range(10):
            await producer.update_state(value)
            await kits.until(lambda value=value: good.log[-1:] == [("value", value)])
        await producer.finish("done")
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert good.log == [("value", number) for number in range(10)] + [("finished", "done")]
        assert [type(one) for one in results] == [str, ZeroDivisionError, asyncio.CancelledError, type(None)]
        del idle

    @pytest.mark.covers("A67")
    @pytest.mark.parametrize("which", range(3))
    async def test_reader_cancelled_as_a_value_comes(self, kits, make, which):
        """One that is cancelled between the wake-up and its turn takes neither the others' wake-up nor a value."""
        producer, iterable = await make()
        iterators = [aiter(iterable) for _ in range(3)]
        reading = await together(*(anext(one) for one in iterators))
        await kits.settle()
        published = producer.update_state("a")
        reading[which].cancel()
        await published
        await kits.until(lambda: all(one.done() for one in reading))
        results = await asyncio.gather(*reading, return_exceptions=True)
        assert [one for at, one in enumerate(results) if at != which] == ["a", "a"]
        assert isinstance(results[which], asyncio.CancelledError)
        assert await anext(iterators[which]) == "a", "a cancelled read loses nothing"
        await producer.finish("done")

    @pytest.mark.covers("A65", "A77")
    async def test_many_consumers_one_producer(self, kits, make):
        producer, iterable = await make()
        tasks = await together(*(alice(iterable) for _ in range(50)))
        await kits.settle()
        await paula(producer, "only")
        assert {tuple(log)[-1] for log in await asyncio.gather(*tasks)} == {("finished",)}

    @pytest.mark.covers("A75", "A76")
    @pytest.mark.parametrize("lossy", [False, True])
    @pytest.mark.parametrize("fails", [False, True])
    async def test_a_mirror_of_any_iteration(self, kits, make, lossy, fails):
        producer, iterable = await make()
        kit = make_notifier_kit() if lossy else make_subscription_kit()
        (task,) = await together(observe_iteration(iterable, kit[0]))
        for value in range(3):
            await producer.update_state(value)
            await kits.settle()
        await (producer.fail("why") if fails else producer.finish("done"))
        await task
        expected = [("failed", "why")] if fails else [("finished",)]
        assert await alice(kit[1]) == ([] if lossy else [("value", number) for number in range(3)]) + expected


def public(facet) -> set[str]:
    return {name for name in dir(facet) if not name.startswith("_")}


TestNotifier = in_virtual_time(NotifierSuite)
TestSubscription = in_virtual_time(SubscriptionSuite)
TestBoth = in_virtual_time(BothSuite)
