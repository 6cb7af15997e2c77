"""Compiled slots behave like the slots in Python, which are the specification, also within a window."""

from __future__ import annotations

from random import Random

import pytest
from jsclient_speedups import Slots

from jsclient._runtime.connection.speedups import chosen
from jsclient.protocol.models.publish import quick_pub_acks
from jsclient.protocol.publishing import slot_window
from tests.protocol.publishing.test_slot_window import DoneError, SlotOutbox, simulate
from tests.support.slots import Slots as Specified

from .test_commands_and_acks import ack, damaged

PREFIXES = [b"_INBOX.a.", b"_INBOX.b.", b"", b"x" * 300]
HEADERS = [b"", b"", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"]


class Ticket:
    def __init__(self, loop) -> None:
        self.result = None
        loop.append(self)

    def done(self) -> bool:
        return self.result is not None

    def set_result(self, ack) -> None:
        if self.result is not None:
            raise DoneError
        self.result = ack


class Side:
    """Slots of one implementation, with all objects that they change."""

    def __init__(self, kind) -> None:
        self.tickets, self.sooner, self.checked = [], [], []
        self.others, self.answered, self.outbox = {}, {}, SlotOutbox()
        self.slots = kind(Ticket, self.tickets, quick_pub_acks, DoneError, 2.0, 500)
        self.slots.small, self.slots.next_check = 100, 1e9
        self.slots.connect(
            self.others, 150, 9_000, self.outbox, self.sooner.append, self.checked.append, self.too_much
        )

    def too_much(self, size):
        self.checked.append(-size)
        return size > 11_000

    def state(self):
        slots = self.slots
        return (
            (len(slots), slots.number, slots.size, slots.oldest, slots.prefix, self.sooner, self.checked),
            (self.outbox.size, self.outbox.commands[-1:], list(self.answered), len(self.tickets)),
            [ticket.result for ticket in self.tickets[-200:]],
        )

    def publish(self, *arguments):
        future = self.slots.publish(*arguments)
        assert future is None or future is self.tickets[-1]
        return future is None

    def drain(self):
        return [(reply, self.tickets.index(ticket), *rest) for reply, ticket, *rest in self.slots.drain()]

    def change_prefix(self, prefix):
        try:
            self.slots.prefix = prefix
        except ValueError:
            return "refused"

    def jump(self, count):
        """Pretend that other publishes were sent without a slot."""
        self.slots.number += count
        self.others[self.slots.number] = None

    def end_others(self):
        self.others.clear()

    def cancel(self, index):
        if self.tickets:
            self.tickets[-1 - index % len(self.tickets)].result = "cancelled"


def answers(random: Random, slots) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return answers to the oldest publishes in order, with a few other answers among them."""
    frames = []
    first = slots.oldest or 1
    for number in range(first, min(slots.number + 1, first + random.choice([1, 5, 40, 300]))):
        reply, payload = b"%b%d" % (slots.prefix, number), ack(random)
        if random.random() < 0.02:
            reply = random.choice(
                [
                    damaged(random, b"..." + reply)[3:],
                    b"%b0%d" % (slots.prefix, number),
                    slots.prefix,
                    b"9" * 30,
                ]
            )
        if random.random() < 0.03:
            payload = damaged(random, payload)
        if random.random() < 0.9:
            frames.append((reply, b"", random.choice([b"", b"NATS/1.0 503\r\n\r\n"]), payload))
    if len(frames) > 1 and random.random() < 0.2:
        at = random.randrange(len(frames))
        frames[at], frames[0] = frames[0], frames[at]
    if frames and random.random() < 0.1:
        frames.append(random.choice(frames))
    return frames


def step(random: Random, slots):
    """Return the name and the arguments of the next call for both implementations."""
    match random.randrange(30):
        case 0:
            return "drain", ()
        case 1:
            return "change_prefix", (random.choice(PREFIXES),)
        case 2:
            return "jump", (random.choice([1, 1, 50, 300]),)
        case 3:
            return "end_others", ()
        case 4:
            return "cancel", (random.randrange(20),)
        case _:
            data = b"x" * random.choice([0, 1, 99, 101, 400, 501])
            now, timeout = random.random() * 9, random.choice([1.0, 5.0])
            flags = random.random() < 0.3, random.random() < 0.3
            return "publish", (b"orders.new", random.choice(HEADERS), data, now, timeout, *flags)


def test_both_do_the_same(block):
    first, count = block
    settled = 0
    for seed in range(first, first + count // 100):
        random = Random(seed)
        compiled, specified = Side(Slots), Side(Specified)
        for _ in range(random.choice([50, 400])):
            if random.random() < 0.1:
                frames, start = answers(random, specified.slots), random.choice([0, 0, 0, 1, -1])
                taken = [side.slots.take(frames, start, side.answered) for side in (compiled, specified)]
                assert taken[0] == taken[1], seed
                settled += taken[0][1]
                if random.random() < 0.1:
                    compiled.slots.rest(5)
                    specified.slots.rest(5)
            else:
                what, arguments = step(random, specified.slots)
                assert getattr(compiled, what)(*arguments) == getattr(specified, what)(*arguments), seed
            assert compiled.state() == specified.state(), seed
            if random.random() < 0.05:
                moment = random.random() * 9
                compiled.slots.next_check = specified.slots.next_check = moment
    assert settled > count // 100


def test_window_with_them(block, monkeypatch):
    monkeypatch.setattr(slot_window, "_RESTING", 3)
    first, count = block
    simulate(Slots, range(first, first + max(count // 100, 40)))


def test_they_are_in_use():
    assert chosen().slots is Slots


@pytest.mark.parametrize("wrong", [None, "text", 5, bytearray(b"a")], ids=repr)
def test_other_types_are_errors(wrong):
    side = Side(Slots)
    for index in range(3):
        parts = [b"a"] * 3
        parts[index] = wrong
        with pytest.raises(TypeError):
            side.slots.publish(*parts, 0.0, 5.0, False, True)
    with pytest.raises(TypeError):
        side.slots.prefix = wrong
    assert not side.publish(b"a", b"", b"b", 0.0, 5.0, False, True)
    for frames in (wrong, [wrong], [(b"1", b"", b"", wrong)]):
        with pytest.raises((TypeError, SystemError)):
            side.slots.take(frames, 0, {})
    assert side.slots.take([(b"1", b"", b"", b'{"stream":"S","seq":1}')], 0, {}) == (1, 1)
