"""The kits that stand on a log, on one in this process: the suites of all kits, and faults of the log."""

from __future__ import annotations

import asyncio
import functools
import random

import pytest

from jsclient import (
    ApiError,
    ClosedError,
    ConfigError,
    DisconnectedError,
    NotifierKit,
    ProducerFencedError,
    PublishFailed,
    RecordSkipped,
    RequestTimeoutError,
    SubscriptionKit,
    TooManyInFlightError,
    WrongLastSequenceError,
)
from jsclient.protocol.topics.position import Position
from jsclient.protocol.topics.record import Kind
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.topics.memory_log import MemoryLog
from jsclient.topics.notifiers.iteration import (
    IterationSubscription,
    Notifier,
    Producer,
    source_of,
)
from jsclient.topics.notifiers.log_iteration import LogSubscription, Newest, newest_own
from jsclient.topics.notifiers.log_producer import LogProducer
from jsclient.topics.notifiers.newest import NewestLog
from jsclient.topics.notifiers.stream_notifier import StreamNotifier
from tests.support.virtual import settle, virtual
from tests.topics.notifiers.test_iteration import BothSuite, NotifierSuite, SubscriptionSuite, in_virtual_time
from tests.topics.notifiers.test_stream_notifier import Context

CODEC = JsonCodec()


class OnMemory(NewestLog):
    """The collaborators of a notifier, on a log in this process."""

    def __init__(self, log):
        self.log = log
        self.context = Context()
        self._origin = None
        self.extent = log.extent

    async def read_newest(self):
        await asyncio.sleep(0)
        return await self.log.last()

    read_leader = read_newest

    async def open_pushes(self, arrived):
        await self.log.feed("republish").open("notifier", lambda records: arrived(records[-1]), lambda: None)

    def wait_for_newer(self, seq):
        pass

    async def close(self):
        await self.log.feed("republish").close("notifier")


class MemoryKits:
    async def notifier_kit(self, *initial):
        log = MemoryLog("a", max_records=1)
        producer = LogProducer(log, Newest(None, 0), CODEC)
        for value in initial:
            await producer.publish(Kind.VALUE, value)
        return NotifierKit(
            Producer(producer.publish), Notifier(Sharable(StreamNotifier(OnMemory(log), CODEC)))
        )

    async def subscription_kit(self):
        return kit_on(MemoryLog("a"))

    def make_notifier(self, internals):
        return Notifier(source_of(internals, lambda source: source))

    def make_subscription(self, internals):
        return IterationSubscription(source_of(internals, lambda arguments: source_on(*arguments)))

    async def settle(self):
        await settle(40)

    async def until(self, condition):
        await settle(40)
        assert condition()


class Sharable:
    def __init__(self, source):
        self.entry_after = source.entry_after

    async def internals(self):
        return self


def source_on(log, start=None):
    async def opened():
        return log

    first = start or Position(log.stream, log._incarnation, 0)
    return LogSubscription(opened, first, CODEC, lambda position: (log, position))


def kit_on(log, **options):
    producer = LogProducer(log, Newest(None, 0), CODEC, **options)
    return SubscriptionKit(Producer(producer.publish), IterationSubscription(source_on(log)))


@pytest.fixture
def kits():
    return MemoryKits()


def then_settled(test):
    """The resources of iterators are released soon after their last reference is gone."""

    @functools.wraps(test)
    async def settled(*args, **kwargs):
        await test(*args, **kwargs)
        await settle(40)

    return settled


TestNotifier = in_virtual_time(NotifierSuite, then_settled)
TestSubscription = in_virtual_time(SubscriptionSuite, then_settled)
TestBoth = in_virtual_time(BothSuite, then_settled)


# --- a producer whose log has faults -----------------------------------------------------------------------


class Faulty(MemoryLog):
    """Before and after what is appended, the next of these errors are raised."""

    def __init__(self):
        self.events = []
        super().__init__("a", on_event=self.events.append)
        self.before, self.after = [], []
        self.looks = 0

    async def append(self, data, **options):
        await asyncio.sleep(0)
        if self.before and (error := self.before.pop(0)):
            raise error
        position = await super().append(data, **options)
        if self.after and (error := self.after.pop(0)):
            raise error
        return position

    async def last(self, subject=None):
        self.looks += 1
        return await super().last(subject)

    async def data(self):
        return [record.data for record in (await self.history(0, 1000, 10**9)).records]


def lost():
    return RequestTimeoutError("an answer", 5.0)


def refused():
    return ApiError(400, 10077, "maximum messages exceeded")


@virtual
@pytest.mark.covers("A18", "A25")
@pytest.mark.parametrize("seed", range(20))
async def test_each_value_stored_once(seed):
    chance, log = random.Random(seed), Faulty()
    errors = [lambda: None, lambda: None, lost, lambda: DisconnectedError("away")]
    log.before = [chance.choice(errors)() for _ in range(60)]
    log.after = [chance.choice(errors)() for _ in range(60)]
    log._ids = _Forgetful() if seed % 2 else log._ids
    publication, subscription = kit_on(log)
    numbers = [publication.update_state(number) for number in range(30)] + [publication.finish("done")]
    assert [await one for one in numbers] == list(range(1, 32))
    assert await log.data() == [b"%d" % number for number in range(30)] + [b'"done"']
    assert [value async for value in subscription] == list(range(30))
    await log.close()
    assert not log.open


class _Forgetful(dict):
    """A stream without a duplicate window."""

    def __setitem__(self, key, value):
        pass


@virtual
async def test_unstored_value_unknown():
    log = Faulty()
    publication, _ = kit_on(log, timeout=10)
    log.before = [lost() for _ in range(1000)]
    first, second = publication.update_state(1), publication.update_state(2)
    for one in (first, second):
        with pytest.raises(RequestTimeoutError):
            await one
    log.before = []
    assert await publication.update_state(3) == 1
    assert await log.data() == [b"3"]


@virtual
@pytest.mark.covers("A73", "A74")
async def test_awaitables_of_kits_are_not_looped_over():
    """An awaitable of a kit is not an iterable, and stays usable. A subscription made of a promise is an iterable."""
    publication, subscription = kit_on(Faulty())
    stored = publication.update_state("a")
    promise = subscription.get_sharable_subscription_internals()
    for awaitable in (stored, promise):
        with pytest.raises(TypeError, match="__aiter__"):
            async for _ in awaitable:
                pass
    assert await stored == 1
    await publication.finish("done")
    again = MemoryKits().make_subscription(promise)
    assert [value async for value in again] == ["a"]


@virtual
async def test_slow_is_not_failed():
    """Each value is counted from the time its predecessors are stored. A busy machine needs more than that for many."""

    class SlowIterator(Faulty):
        async def append(self, data, **options):
            await asyncio.sleep(1.0)
            return await super().append(data, **options)

    log = SlowIterator()
    publication, _ = kit_on(log, timeout=10)
    numbers = [publication.update_state(number) for number in range(100)]
    assert [await one for one in numbers] == list(range(1, 101))
    assert log.events == []


@virtual
async def test_failure_reported_once():
    log = Faulty()
    publication, _ = kit_on(log)
    for awaited in (True, False, "late"):
        log.before, log.events[:] = [refused()], []
        result = publication.update_state("refused")
        publication.update_state("after it")
        if awaited is True:
            with pytest.raises(ApiError):
                await result
        await settle()
        if awaited == "late":
            with pytest.raises(ApiError):
                await result
        reports = [one for one in log.events if isinstance(one, PublishFailed)]
        assert [(one.count, one.subject) for one in reports] == ([] if awaited is True else [(2, "a")])
        # the failure was never awaited, so the next call raises it
        if awaited is False:
            with pytest.raises(ApiError):
                publication.update_state("lost too")
        await publication.update_state("good")
    assert await log.data() == [b'"good"'] * 3


@virtual
async def test_end_refused_none():
    log = Faulty()
    publication, _ = kit_on(log)
    log.before = [refused()]
    with pytest.raises(ApiError):
        await publication.finish("done")
    assert await publication.update_state("more") == 1
    assert await publication.finish("done") == 2
    with pytest.raises(ClosedError):
        publication.update_state("late")


@virtual
async def test_cancelled_wait_stops_nothing():
    log = Faulty()
    publication, _ = kit_on(log)

    async def wait(one):
        return await one

    waiting = asyncio.create_task(wait(publication.update_state("a")))
    await asyncio.sleep(0)
    waiting.cancel()
    await settle()
    assert await log.data() == [b'"a"']
    log.before = [refused()]
    waiting = asyncio.create_task(wait(publication.update_state("b")))
    await asyncio.sleep(0)
    waiting.cancel()
    await settle()
    assert [one.count for one in log.events if isinstance(one, PublishFailed)] == [1], "nobody else was told"


@virtual
@pytest.mark.covers("A50")
async def test_other_producer_fences():
    log = Faulty()
    publication, _ = kit_on(log)
    await publication.update_state("mine")
    await log.append(b'"theirs"', msg_id="jsc-other:1")
    for _ in range(2):
        with pytest.raises(ProducerFencedError) as caught:
            await publication.update_state("refused")
        assert (caught.value.expected, caught.value.found) == (1, 2)
    other = LogProducer(log, await newest_own(log), CODEC)
    await other.publish(Kind.FINISH, "over")
    for _ in range(2):
        with pytest.raises(ClosedError):
            await publication.update_state("refused")
    assert await log.data() == [b'"mine"', b'"theirs"', b'"over"']


@virtual
@pytest.mark.covers("A50", "A66")
@pytest.mark.parametrize("stored", [False, True])
async def test_uncertain_first_value_after_takeover(stored):
    """The newest record is the predecessor's, or the value itself: neither is another producer's takeover."""
    log = Faulty()
    before, subscription = kit_on(log)
    await before.update_state("before")
    (log.after if stored else log.before).append(lost())
    after = LogProducer(log, await newest_own(log), CODEC)
    assert await after.publish(Kind.VALUE, "first") == 2
    assert await after.publish(Kind.FINISH, "done") == 3
    assert [value async for value in subscription] == ["before", "first"]
    assert await log.data() == [b'"before"', b'"first"', b'"done"']


@virtual
async def test_unrelated_records_fence_and_end_nothing():
    """A stranger's request whose answer was stored under the subject, a copy of an end among them."""
    log = Faulty()
    publication, subscription = kit_on(log)
    await publication.update_state("a")
    copied = {"Jsc-Kind": "finish", "Nats-Sequence": "1"}
    for _ in range(100):
        await log.append(b'{"stream":"S","seq":3}')
    await log.append(b'"over"', headers=copied, msg_id="jsc-other:2")
    await publication.update_state("b")
    for _ in range(100):
        await log.append(b"")
    again = LogProducer(log, await newest_own(log), CODEC)
    await again.publish(Kind.VALUE, "c")
    await log.append(b"0")
    await again.publish(Kind.FINISH, "done")
    await log.append(b"1")
    late = LogProducer(log, await newest_own(log), CODEC)
    with pytest.raises(ClosedError):
        late.publish(Kind.VALUE, "d")
    with pytest.raises(ClosedError):
        await publication.update_state("refused")
    assert [value async for value in subscription] == ["a", "b", "c"]
    await settle()
    skipped = [one for one in log.events if isinstance(one, RecordSkipped)]
    assert {one.count for one in skipped} == {1, 2, 4, 8, 16, 32, 64, 128}


@virtual
async def test_contradicting_server_is_not_retried_for_ever():
    log = Faulty()
    publication, _ = kit_on(log)
    log.before = [WrongLastSequenceError(400, 10071, "wrong last sequence") for _ in range(100)]
    with pytest.raises(ProducerFencedError):
        await publication.update_state("a")
    assert log.looks <= 3


@virtual
async def test_waits_bounded_by_number_and_by_size():
    log = Faulty()
    for options in ({"max_pending": 3}, {"max_pending_bytes": 40}):
        publication, _ = kit_on(log, **options)
        log._closed = False
        for _ in range(3):
            last = publication.update_state("x" * 10)
        with pytest.raises(TooManyInFlightError):
            publication.update_state("x" * 10)
        await last
        await publication.update_state("x" * 1000)
        log = Faulty()
    for options in ({"timeout": 0}, {"max_pending": 0}, {"max_pending_bytes": 0}):
        with pytest.raises(ConfigError):
            kit_on(log, **options)


@virtual
async def test_close_waits_in_flight():
    log = Faulty()
    publication, _ = kit_on(log)
    publication.update_state("a")
    (producer,) = log.open
    await producer.abandon()
    assert await log.data() == [b'"a"']
    log.before = [lost() for _ in range(1000)]
    with pytest.raises(ClosedError):
        publication.update_state("late")
    log = Faulty()
    log.before = [lost() for _ in range(1000)]
    publication, _ = kit_on(log)
    publication.update_state("a")
    (producer,) = log.open
    await producer.abandon()
    await settle()
    (event,) = [one for one in log.events if isinstance(one, PublishFailed)]
    assert isinstance(event.error, ClosedError)
    await log.close()
