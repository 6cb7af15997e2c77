"""Events with a history: one suite for a log in this process and for a stream.

`EventSuite` says what `EventSource` must do. It gets a ``world``, which makes logs. Here they are in memory and time is
virtual. On a server: integration/topics/test_event_history.py.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import jsclient
from jsclient import ClosedError, ConfigError, EventSource, HistoryTruncatedError, Position
from jsclient.protocol.topics.record import Kind
from jsclient.topics.log import Page
from jsclient.topics.memory_log import MemoryLog
from tests.support.virtual import settle, virtual
from tests.topics.notifiers.test_iteration import in_virtual_time

QUIET = 0.2


class MemoryWorld:
    """Logs in this process."""

    prefix = "s"

    def __init__(self):
        self.events = []

    async def source(self, tail="a", **window):
        """A source of its log, which keeps at most this many events."""
        log = MemoryLog(f"s.{tail}", max_records=window.get("max_msgs"), on_event=self.events.append)
        return EventSource(log)

    async def until(self, condition):
        await settle()
        assert condition()


@pytest.fixture
def world():
    return MemoryWorld()


async def publish(source, *values):
    return [await source.publish(value) for value in values]


def data(events):
    return [event.data for event in events]


async def read(sub, count):
    return [(await sub.next(10.0)).data for _ in range(count)]


class EventSuite:
    """The duties of sources, histories and subscriptions."""

    # --- publishing, and the history -------------------------------------------------------------------------

    @pytest.mark.covers("T5", "T8", "T9", "T11", "T12", "T13")
    async def test_history_after_position(self, world):
        source = await world.source()
        at = await publish(source, b"1", b"2", b"3")
        assert at == sorted(at)
        assert data(await source.history()) == [b"1", b"2", b"3"]
        assert data(await source.history(at[0])) == [b"2", b"3"]
        assert await source.history(at[2]) == []
        assert data(await source.history(Position.from_json(at[1].to_json()))) == [b"3"]
        stamps = [event.time_ns for event in await source.history()]
        assert stamps == sorted(stamps)
        assert stamps[0] > 0

    @pytest.mark.covers("T11", "T12")
    async def test_and_strictly_after_a_time(self, world):
        source = await world.source()
        await publish(source, b"1", b"2")
        events = await source.history()
        before = datetime.now(UTC) - timedelta(hours=1)
        assert data(await source.history(before)) == [b"1", b"2"]
        # A datetime has microseconds: take the microsecond at or before the stamp of the last event.
        time_ns = events[-1].time_ns
        cut = datetime.fromtimestamp(time_ns // 10**9, UTC) + timedelta(microseconds=time_ns % 10**9 // 1000)
        expected = [event for event in events if event.time_ns > time_ns // 1000 * 1000]
        assert await source.history(cut) == expected
        assert await source.history(datetime.now(UTC) + timedelta(hours=1)) == []
        with pytest.raises(ConfigError):
            await source.history(datetime.now())  # noqa: DTZ005  without a time zone

    async def test_history_in_pages(self, world):
        source = await world.source()
        at = await publish(source, *(b"%d" % number for number in range(25)))
        history = source.history()
        assert history.position is None
        got = []
        async for event in history:
            got.append(int(event.data))
            assert history.position == at[len(got) - 1]
            if len(got) == 7:
                break
        remainder = source.history(history.position)
        batches = [[int(event.data) for event in batch] async for batch in remainder.batches(10)]
        assert batches == [[*range(7, 17)], [*range(17, 25)]]
        assert remainder.position == at[-1]
        assert data(await source.history(at[4], limit=3)) == [b"5", b"6", b"7"]
        with pytest.raises(ConfigError):
            source.history(limit=0)

    async def test_history_of_nothing_empty(self, world):
        source = await world.source()
        assert await source.history() == []
        assert await source.history("now") == []

    @pytest.mark.covers("T2", "T10")
    async def test_window_passed_reported_with_there(self, world):
        source = await world.source(max_msgs=3)
        at = await publish(source, *(b"%d" % number for number in range(10)))
        assert data(await source.history()) == [b"7", b"8", b"9"]
        assert data(await source.history(at[6])) == [b"7", b"8", b"9"], "nothing is missing"
        for since in (at[0], at[5], datetime.now(UTC) - timedelta(hours=1)):
            with pytest.raises(HistoryTruncatedError) as caught:
                await source.history(since)
            assert caught.value.first_available == at[7].seq
            assert data(await source.history(since, allow_truncated=True)) == [b"7", b"8", b"9"]

    async def test_position_none_of_stream_refused(self, world):
        source, other = await world.source(), await world.source("b")
        [at] = await publish(source, b"1")
        await publish(other, b"1")
        for wrong in (at.at(2), Position("x", at.incarnation, 1), Position(at.stream, "x", 1)):
            with pytest.raises(jsclient.PositionInvalidError):
                await source.history(wrong)
            with pytest.raises(jsclient.PositionInvalidError):
                await source.subscribe(wrong)

    @pytest.mark.covers("T7")
    async def test_linked_event_or_refused(self, world):
        source = await world.source()
        rival = EventSource(await source.log())
        await source.publish(b"1", linked=True)
        await source.publish(b"2", linked=True)
        await rival.publish(b"3", linked=True)
        with pytest.raises(jsclient.WrongLastSequenceError):
            await source.publish(b"4", linked=True)
        assert data(await source.history()) == [b"1", b"2", b"3"]
        await source.publish(b"4", linked=True)
        await source.publish(b"5")
        await source.publish(b"6", linked=True)
        await asyncio.gather(*(source.publish(b"7", linked=True) for _ in range(5)))
        events = await source.history()
        assert [event.previous for event in events[1:4]] == [event.seq for event in events[:3]]
        assert len(events) == 11

    async def test_what_is_expected_is_checked(self, world):
        source = await world.source()
        at = await source.publish(b"1", expected=0)
        with pytest.raises(jsclient.WrongLastSequenceError):
            await source.publish(b"2", expected=0)
        await source.publish(b"2", expected=at.seq, headers={"Trace": "7"})
        assert (await source.current()).event.headers["Trace"] == "7"
        with pytest.raises(ConfigError):
            await source.publish(b"3", expected=2, linked=True)

    async def test_a_message_id_is_stored_once(self, world):
        source = await world.source()
        assert await source.publish(b"1", msg_id="x") == await source.publish(b"1", msg_id="x")
        assert data(await source.history()) == [b"1"]

    async def test_several_subjects(self, world):
        source = await world.source("*")
        with pytest.raises(ConfigError):
            await source.publish(b"1")
        with pytest.raises(ConfigError):
            await source.publish(b"1", subject="elsewhere")
        await source.publish(b"1", subject=f"{world.prefix}.x")
        await source.publish(b"2", subject=f"{world.prefix}.y", linked=True)
        await source.publish(b"3", subject=f"{world.prefix}.x", linked=True)
        tails = [event.subject.removeprefix(world.prefix) for event in await source.history()]
        assert tails == [".x", ".y", ".x"]

    # --- subscribing -----------------------------------------------------------------------------------------

    @pytest.mark.covers("T4", "T6", "T16", "T17", "T18", "T19")
    async def test_nothing_missed_between(self, world):
        source = await world.source()
        event, at = await source.current()
        assert event is None
        await publish(source, b"1")
        assert data(await source.history(at)) == [b"1"]
        event, at = await source.current()
        assert (event.data, at.seq, at.time_ns) == (b"1", event.seq, event.time_ns)
        await publish(source, b"2", b"3")  # the user thinks it over
        async with await source.subscribe(at, id="reader") as sub:
            await publish(source, b"4")
            assert await read(sub, 3) == [b"2", b"3", b"4"]
            assert sub.id.startswith("reader-")

    async def test_where_it_begins(self, world):
        source = await world.source()
        at = await publish(source, b"1", b"2")
        subs = [
            await source.subscribe(since)
            for since in ("first", "now", at[0], datetime.now(UTC) - timedelta(hours=1))
        ]
        await publish(source, b"3")
        got = [await read(sub, count) for sub, count in zip(subs, (3, 1, 2, 3), strict=True)]
        whole = [b"1", b"2", b"3"]
        assert got == [whole, [b"3"], [b"2", b"3"], whole]
        for sub in subs:
            assert sub.pending == 0
            assert sub.position.seq == (await source.current()).position.seq
            await sub.close()

    @pytest.mark.covers("T1", "T2", "T3", "T22", "T23", "T24", "T25", "T40")
    async def test_coming_back_goes_on_from_one_token(self, world):
        source = await world.source()
        await publish(source, b"1", b"2")
        async with await source.subscribe("first") as sub:
            first_id = sub.id
            assert await read(sub, 1) == [b"1"]
            token = sub.position.to_json()
        await publish(source, b"3")  # without a subscriber, which the publisher does not notice
        async with await source.subscribe(Position.from_json(token)) as sub:
            await publish(source, b"4")
            assert await read(sub, 3) == [b"2", b"3", b"4"]
            assert sub.id != first_id

    @pytest.mark.covers("T39", "T41", "T42")
    async def test_push_and_poll_switch(self, world):
        source = await world.source()
        async with await source.subscribe("first", push=None, quiet=QUIET) as sub:
            assert sub.id is None
            for number, push in enumerate(("auto", None, "consumer", "auto", None)):
                await publish(source, b"%d" % (2 * number))
                await sub.set_push(push)
                await publish(source, b"%d" % (2 * number + 1))
                assert (sub.id is None) == (push is None)
            assert await read(sub, 10) == [b"%d" % number for number in range(10)]
            with pytest.raises(ConfigError):
                await sub.set_push("sometimes")

    @pytest.mark.covers("T14", "T28")
    async def test_callback_gets_them_one_after_other(self, world):
        source, got, inside = await world.source(), [], []

        async def take(event):
            inside.append(event)
            await asyncio.sleep(0)
            assert len(inside) == 1
            inside.clear()
            got.append(event.data)

        await publish(source, b"1", b"2")
        sub = await source.subscribe("first", callback=take)
        await publish(source, b"3")
        await world.until(lambda: len(got) == 3)
        assert got == [b"1", b"2", b"3"]
        assert sub.position == (await source.current()).position
        with pytest.raises(ConfigError):
            await sub.next()
        for call in (sub.batches, sub.__aiter__):
            with pytest.raises(ConfigError):
                call()
        await sub.close()
        await publish(source, b"4")
        await sub.wait()
        assert len(got) == 3

    async def test_callback_error_reported(self, world):
        source, got = await world.source(), []

        async def take(event):
            got.append(event.data)
            if event.data == b"1":
                raise ValueError("odd")
            if event.data == b"2":
                raise asyncio.CancelledError

        sub = await source.subscribe(callback=take)
        at = await publish(source, b"1", b"2", b"3")
        await world.until(lambda: len(got) == 3 and len(world.events) == 2)
        assert [type(event) for event in world.events] == [jsclient.HandlerFailed] * 2
        assert (world.events[0].stream_seq, str(world.events[0].error)) == (at[0].seq, "odd")
        await sub.close()

    async def test_callback_may_cancel_subscription(self, world):
        source, got = await world.source(), []

        async def take(event):
            got.append(event.data)
            await sub.close()
            await sub.wait()

        sub = await source.subscribe(callback=take)
        await publish(source, b"1", b"2", b"3")
        await sub.wait()
        assert got == [b"1"]

    @pytest.mark.covers("T10")
    async def test_subscription_window_passed_says_so(self, world):
        source = await world.source(max_msgs=3)
        at = await publish(source, *(b"%d" % number for number in range(10)))
        sub = await source.subscribe(at[0])
        for _ in range(2):
            with pytest.raises(HistoryTruncatedError) as caught:
                await sub.next(10.0)
            assert caught.value.first_available == at[7].seq
        await sub.close()
        got = []
        sub = await source.subscribe(at[0], callback=got.append)
        with pytest.raises(HistoryTruncatedError):
            await sub.wait()
        await world.until(lambda: [type(event) for event in world.events] == [jsclient.ErrorRaised])
        assert not got
        world.events.clear()
        await sub.close()
        async with await source.subscribe(at[0], allow_truncated=True) as sub:
            assert await read(sub, 3) == [b"7", b"8", b"9"]
        await world.until(lambda: [type(event).__name__ for event in world.events] == ["HistoryTruncated"])

    async def test_ends_where_topic_ends(self, world):
        source = await world.source()
        await source.publish(b"1")
        await (await source.log()).append(b"done", kind=Kind.FINISH)
        sub = await source.subscribe("first")
        assert [event.kind async for event in sub] == [Kind.VALUE, Kind.FINISH]
        with pytest.raises(ClosedError):
            await sub.next()
        await sub.close()
        assert data(await source.history()) == [b"1", b"done"]

    async def test_cancelled_keeps_position(self, world):
        source = await world.source()
        sub = await source.subscribe()
        [at] = await publish(source, b"1")
        assert await read(sub, 1) == [b"1"]
        waiting = asyncio.create_task(sub.next())
        await asyncio.sleep(0)
        await sub.close()
        await sub.close()
        with pytest.raises(ClosedError):
            await waiting
        await publish(source, b"2")
        with pytest.raises(ClosedError):
            await sub.next()
        assert sub.position == at
        assert sub.id is None

    async def test_what_cannot_be_is_refused(self, world):
        source = await world.source()
        for options in ({"callback": 7}, {"id": "a b"}, {"id": ""}, {"push": "x"}, {"quiet": 0.0}):
            with pytest.raises(ConfigError):
                await source.subscribe(**options)
        sub = await source.subscribe()
        with pytest.raises(ConfigError, match="callback"):
            await sub.wait()
        await sub.close()


TestEvents = in_virtual_time(EventSuite)


class Between(MemoryLog):
    """A client publishes after each look at the newest record."""

    async def last(self, subject=None):
        actual = await super().last(subject)
        await self.append(b"in between")
        return actual


@pytest.mark.covers("T4", "T16", "T19")
@virtual
async def test_published_during_read_follows():
    for there in (0, 1):
        log = Between("a")
        for _ in range(there):
            await log.append(b"first")
        event, at = await EventSource(log).current()
        assert (event is None) == (there == 0)
        assert at.seq == there
        assert data(await EventSource(log).history(at, limit=1)) == [b"in between"]


class Lagging(MemoryLog):
    """Its history comes from a replica that is one record older than the previous answer."""

    behind = 3

    async def history(self, since, limit, max_bytes):
        page = await super().history(since, limit, max_bytes)
        self.behind -= 1
        end = self._last_seq - max(self.behind, 0)
        return Page([record for record in page.records if record.seq <= end], up_to=end)


@virtual
async def test_history_complete_on_replica():
    log = Lagging("a")
    for number in range(5):
        await log.append(b"%d" % number)
    assert data(await EventSource(log).history()) == [b"0", b"1", b"2", b"3", b"4"]
