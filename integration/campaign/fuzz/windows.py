"""Compiled slots of publishes, compared with the window in Python: the same publishes, answers and time."""

from __future__ import annotations

from random import Random
from typing import Any

from integration.campaign.fuzz import samples as s
from integration.campaign.fuzz.engine import Target, same
from integration.campaign.fuzz.grammar import JSON, bytes_damaged
from jsclient._runtime.connection.speedups import chosen
from jsclient.errors import JetStreamError
from jsclient.protocol.models.publish import PubAck, quick_pub_acks
from jsclient.protocol.publishing.in_flight import ATTEMPT, AnsweredSubjects, InFlight
from jsclient.protocol.publishing.publish_window import PublishWindow
from jsclient.protocol.publishing.slot_window import SlotWindow

PREFIX, TIMEOUT, LARGEST = b"_INBOX.p.", 5.0, 1000


class OverError(Exception):
    """A ticket has its outcome already."""


class Ticket:
    """A receiver of one outcome."""

    def __init__(self, loop: list[Any]) -> None:
        self.ack: PubAck | None = None
        loop.append(self)

    def done(self) -> bool:
        return self.ack is not None

    def set_result(self, ack: PubAck) -> None:
        if self.ack is not None:
            raise OverError
        self.ack = ack


class Commands:
    """Stands for an outbox."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.size = 0


class Pair:
    """A window of each kind."""

    def __init__(self, kind: Any) -> None:
        self.tickets: tuple[list[Ticket], list[Ticket]] = [], []
        self.plain: PublishWindow[Ticket] = PublishWindow("never")
        self.slots = kind(Ticket, self.tickets[1], quick_pub_acks, OverError, ATTEMPT, LARGEST)
        self.with_slots: SlotWindow[Ticket] = SlotWindow("never", AnsweredSubjects(), self.slots)
        self.slots.prefix = PREFIX
        limit = float("inf")
        self.slots.connect(self.with_slots.in_flight, limit, limit, Commands(), self.sooner, None, None)
        self.windows = self.plain, self.with_slots

    def sooner(self, moment: float) -> None:
        self.with_slots.next_check = min(self.with_slots.next_check, moment)

    def publish(self, head: bytes, now: float) -> None:
        number, size = self.slots.number + 1, len(head) + 1
        due = now + ATTEMPT if head else now + TIMEOUT
        fields = (b"orders.new", head, b"x", size, number, now + TIMEOUT, due, bool(head))
        reply = b"%b%d" % (PREFIX, number)
        self.plain.add_publish(reply, InFlight(Ticket(self.tickets[0]), *fields))
        if self.slots.publish(b"orders.new", head, b"x", now, TIMEOUT, bool(head), True) is None:
            self.slots.number = number
            self.with_slots.add_publish(reply, InFlight(Ticket(self.tickets[1]), *fields))

    def both(self, what: str, *arguments: Any) -> None:
        """Do the same with both windows, and compare what comes of it."""
        results = [getattr(window, what)(*arguments) for window in self.windows]
        seen = [
            [(item[0].number, str(item[1])) if isinstance(item[0], InFlight) else item[0] for item in part]
            for part in map(flat, results)
        ]
        same(seen[1], seen[0], f"what {what} returns, with slots and without")
        states = [
            (window.count, window.size, window.stored, window.next_check, list(window.answered.subjects))
            for window in self.windows
        ]
        same(states[1], states[0], f"the window after {what}, with slots and without")
        acks = [[ticket.ack for ticket in tickets[-300:]] for tickets in self.tickets]
        same(acks[1], acks[0], f"acks after {what}, with slots and without")


def flat(result: Any) -> list[Any]:
    """Failures, or failures and sends."""
    return [*result[0], *result[1]] if isinstance(result, tuple) else result


def slots(chance: Random) -> Any:
    kind = chosen().slots
    pair, now = None if kind is None else Pair(kind), 0.0

    def take(data: bytes) -> None:
        nonlocal now
        if pair is None:
            return
        now += 0.01
        for _ in range(chance.choice((1, 1, 5))):
            pair.publish(
                chance.choice((b"", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % pair.slots.number)), now
            )
        frames = []
        for number in range(max(pair.slots.number - 8, 1), pair.slots.number + 2):
            reply = b"%b%d" % (PREFIX, number)
            payload = b'{"stream":"S", "seq":%d}' % number
            if chance.random() < 0.1:
                reply = chance.choice((data, bytes_damaged(chance, reply), reply + b"-2"))
            if chance.random() < 0.1:
                payload = chance.choice((data, bytes_damaged(chance, payload)))
            block = bytes_damaged(chance, s.STATUSES[6]) if chance.random() < 0.05 else b""
            frames += [(reply, b"", block, payload)] * chance.choice((0, 1, 1, 1, 1, 2))
        pair.both("answers", frames, now)
        if chance.random() < 0.02:
            pair.both("disconnected")
            pair.both("connected", now)
        if chance.random() < 0.05:
            pair.both("tick", now + chance.choice((0, 2, 10)))
        if pair.plain.count > 200:
            pair.both("fail", lambda entry: JetStreamError("over"))
        if chance.random() < 0.2:
            pair.slots.rest(0)

    return take


WINDOWS = [Target("tracker: publishes in slots", slots, s.PUB_ACKS, JSON)]
