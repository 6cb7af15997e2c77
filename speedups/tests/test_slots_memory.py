"""Compiled slots release all objects after acks, after errors, and when they are deleted with publishes in flight."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref

import pytest
from jsclient_speedups import Slots

from jsclient.protocol.models.publish import quick_pub_acks
from tests.protocol.publishing.test_slot_window import DoneError, SlotOutbox
from tests.publishing.kit import add_outbox
from tests.support.fake import connected

from .test_memory import blocks_kept, copied
from .test_slots import Side, Ticket

ACK = b'{"stream":"S", "seq":7}'


def test_publishes_leave_nothing():
    side = Side(Slots)
    side.slots.connect({}, 1e9, 1e9, side.outbox, lambda moment: None, None, None)

    def work():
        first = side.slots.number + 1
        for _ in range(2000):
            assert not side.publish(b"a", b"", b"x", 0.0, 5.0, False, True)
        frames = [(b"%d" % number, b"", b"", ACK) for number in range(first, first + 1500)]
        assert side.slots.take(frames, 0, {}) == (1500, 1500)
        assert side.slots.take(frames, 0, {}) == (0, 0)
        assert len(side.slots.drain()) == 500
        side.tickets.clear()
        side.outbox.commands.clear()

    assert blocks_kept(work, 50) < 50
    assert len(side.slots) == 0


def test_errors_leave_nothing():
    def work():
        side = Side(Slots)
        side.publish(b"a", b"", b"x", 0.0, 5.0, False, True)
        for frames in ([None], [(b"1", b"", b"", None)], [(None, b"", b"", ACK)]):
            with pytest.raises((TypeError, SystemError)):
                side.slots.take(frames, 0, {})
        with pytest.raises(TypeError):
            side.slots.publish(b"a", None, b"x", 0.0, 5.0, False, True)

    assert blocks_kept(work, 300) < 50


def test_failing_futures_leave_nothing():
    """An error that a future raises ends the call. The other publishes keep their slots."""

    class Failing(Ticket):
        def set_result(self, ack):
            raise RuntimeError("closed")

    def work():
        tickets = []
        slots = Slots(Failing, tickets, quick_pub_acks, DoneError, 2.0, 500)
        slots.connect({}, 9, 99, SlotOutbox(), lambda moment: None, None, None)
        for _ in range(3):
            assert slots.publish(b"a", b"", b"x", 0.0, 5.0, False, True) is not None
        frames = [(b"%d" % number, b"", b"", ACK) for number in (1, 2, 3)]
        for left in (2, 1, 0):
            with pytest.raises(RuntimeError, match="closed"):
                slots.take(frames[2 - left :], 0, {})
            assert (len(slots), slots.size) == (left, left)

    assert blocks_kept(work, 300) < 50


def test_reference_counts():
    subject, header, data = copied(b"orders.new"), copied(b"NATS/1.0\r\n\r\n"), copied(b"payload")
    parts = (subject, header, data)
    before = [sys.getrefcount(part) for part in parts]
    side = Side(Slots)
    for _ in range(100):
        assert not side.publish(*parts, 0.0, 5.0, False, True)
    assert [sys.getrefcount(part) for part in parts] == [count + 100 for count in before]
    alike = sys.getrefcount(Ticket([]))
    side.slots.take([(b"%d" % number, b"", b"", ACK) for number in range(1, 41)], 0, {})
    assert [sys.getrefcount(part) for part in parts] == [count + 60 for count in before]
    assert {sys.getrefcount(side.tickets[index]) for index in range(40)} == {alike + 1}
    fields = side.slots.drain()
    assert len(fields) == 60
    del fields
    assert [sys.getrefcount(part) for part in parts] == before
    side.publish(*parts, 0.0, 5.0, False, True)
    side.outbox.commands.clear()
    side.slots = None
    assert [sys.getrefcount(part) for part in parts] == before


def test_cycle_is_collected():
    """Slots refer to their window through `sooner`, and the window refers to the slots."""

    class Window:
        def next_check(self, moment): ...

    window = Window()
    window.slots = Slots(Ticket, [], quick_pub_acks, DoneError, 2.0, 500)
    window.slots.connect({}, 9, 99, SlotOutbox(), window.next_check, None, None)
    window.slots.publish(b"a", b"", b"x", 0.0, 5.0, False, True)
    gone = weakref.ref(window)
    del window
    gc.collect()
    assert gone() is None


def test_publishing_while_garbage_is_collected():
    """A finalizer may publish even in the middle of a publish, of acks or of a drain. Each number is used only once."""

    async def main() -> None:
        async with connected() as (js, connection):
            add_outbox(connection)
            publisher = js.publisher(max_in_flight=100_000)
            futures = [await publisher.publish("a", b"x")]

            class Late:
                def __init__(self) -> None:
                    self.cycle = self

                def __del__(self) -> None:
                    futures.append(publisher.send("a", b"late"))

            threshold = gc.get_threshold()
            gc.set_threshold(3)
            try:
                for _ in range(20):
                    for _ in range(60):
                        Late()
                        futures.append(publisher.send("a", b"x"))
                    publisher._window.expand()
            finally:
                gc.set_threshold(*threshold)
            gc.collect()
            assert publisher.in_flight == publisher.published == len(futures) == len(set(futures))
            connection.outbox.flush()
            sent = [one for one in connection.sent if not one.subject.startswith("$JS.")]
            assert len({one.reply for one in sent}) == len(sent) == len(futures)
            [inbox] = connection.inboxes
            inbox.sink([(one.reply.encode(), b"", b"", ACK) for one in sent])
            assert all(future.result().seq == 7 for future in futures)
            assert (publisher.in_flight, publisher.in_flight_bytes) == (0, 0)
            await publisher.close()

    asyncio.run(main())
