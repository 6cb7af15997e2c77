"""A window with slots sees the same server, answers and time as a window without, and makes records in few cases."""

from __future__ import annotations

from collections import Counter

import pytest

from jsclient.errors import DisconnectedError, JetStreamError
from jsclient.protocol.models.publish import quick_pub_acks
from jsclient.protocol.publishing import slot_window
from jsclient.protocol.publishing.in_flight import ATTEMPT, AnsweredSubjects, InFlight
from jsclient.protocol.publishing.publish_window import NEVER
from jsclient.protocol.publishing.slot_window import SlotWindow
from tests.protocol.publishing.kit import ack, nobody, refusal, reply
from tests.protocol.publishing.test_publish_window_model import Simulation, Ticket, check
from tests.support.slots import Slots


class DoneError(Exception):
    """The error of a ticket that is done."""


class SlotOutbox:
    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.size = 0


class SlotTicket(Ticket):
    def set_result(self, ack) -> None:
        if self.done():
            raise DoneError
        Ticket.set_result(self, ack)


class SlotSimulation(Simulation):
    """Publishes go into slots if these take them."""

    def __init__(self, seed: int, kind=Slots) -> None:
        Simulation.__init__(self, seed)
        self.in_slots = 0
        self.slots = kind(
            lambda loop: SlotTicket(self, self.number), None, quick_pub_acks, DoneError, ATTEMPT, 1000
        )
        self.window = SlotWindow("never an id", AnsweredSubjects(), self.slots)
        self.slots.prefix = b"r."
        self.slots.connect(self.window.in_flight, NEVER, NEVER, SlotOutbox(), self.sooner, None, None)

    def sooner(self, moment: float) -> None:
        self.window.next_check = min(self.window.next_check, moment)

    def add(self, entry: InFlight) -> None:
        timeout = entry.deadline - self.now
        future = self.slots.publish(
            entry.subject, entry.header, entry.payload, self.now, timeout, entry.repeatable, True
        )
        if future is None:
            self.slots.number += 1
            Simulation.add(self, entry)
        else:
            self.in_slots += 1
        assert self.slots.number == self.number

    def size_in_flight(self) -> int:
        if self.chance.random() < 0.1:
            self.window.expand()
            return Simulation.size_in_flight(self)
        return self.window.size


@pytest.fixture
def short_pause(monkeypatch):
    monkeypatch.setattr(slot_window, "_RESTING", 3)


def simulate(kind, seeds) -> None:
    kinds: Counter[str] = Counter()
    in_slots = 0
    for seed in seeds:
        simulation = SlotSimulation(seed, kind)
        simulation.run(150)
        check(simulation)
        in_slots += simulation.in_slots
        kinds.update(type(outcome).__name__ for outcome in simulation.outcomes.values())
    assert in_slots > 10 * len(seeds)
    assert set(kinds) == {
        "PubAck", "ApiError", "WrongLastSequenceError", "NoRespondersError", "DisconnectedError", "RequestTimeoutError",
    }  # fmt: skip


def test_one_true_outcome_in_time(short_pause):
    simulate(Slots, range(400))


class Ending:
    """A ticket that keeps what it is given."""

    def __init__(self, loop) -> None:
        self.acks = []
        loop.append(self)

    def done(self) -> bool:
        return bool(self.acks)

    def set_result(self, ack) -> None:
        if self.acks:
            raise DoneError
        self.acks.append(ack)


def filled(count: int, kind=Slots):
    """A window with publishes in slots, and their tickets."""
    tickets: list[Ending] = []
    slots = kind(Ending, tickets, quick_pub_acks, DoneError, ATTEMPT, 1000)
    window = SlotWindow("never an id", AnsweredSubjects(), slots)
    slots.prefix = b"_INBOX.x."
    slots.connect(window.in_flight, NEVER, NEVER, SlotOutbox(), lambda moment: None, None, None)
    for number in range(1, count + 1):
        assert slots.publish(b"a", b"", b"%d" % number, 0.0, 5.0, False, True) is tickets[-1]
    return window, slots, tickets


def ended(tickets) -> list[int]:
    return [number for number, ticket in enumerate(tickets, 1) if ticket.acks]


def test_ordinary_acks_create_no_records():
    window, slots, tickets = filled(5)
    assert (window.count, window.size, window.has_older(1), window.has_older(0)) == (5, 5, True, False)
    assert window.answers([ack(3), ack(1), ack(2)], 1.0) == []
    assert (ended(tickets), window.in_flight, window.count, window.size) == ([1, 2, 3], {}, 2, 2)
    assert (window.stored, slots.oldest, list(window.answered.subjects)) == (3, 4, [b"a"])


def test_refusal_creates_records():
    window, slots, tickets = filled(5)
    failures = window.answers([ack(1), refusal(3, 10077), ack(2), ack(4)], 1.0)
    assert [entry.number for entry, _ in failures] == [3]
    assert (ended(tickets), list(window.in_flight), slots.oldest) == ([1, 2, 4], [reply(5)], 0)
    assert slots.publish(b"a", b"", b"6", 0.0, 5.0, False, True) is None, "it rests"


@pytest.mark.parametrize(
    "odd",
    [ack(1), ack(9), ack(b"_INBOX.x.03"), ack(b"_INBOX.y.3"), ack(b"_INBOX.x.")],
    ids=["again", "never sent", "zero", "prefix", "empty"],
)
def test_answer_to_nothing_settles_nothing(odd):
    window, _, tickets = filled(4)
    assert window.answers([ack(1), odd, ack(2)], 1.0) == []
    assert (ended(tickets), [len(ticket.acks) for ticket in tickets]) == ([1, 2], [1, 1, 0, 0])
    assert (list(window.in_flight), window.size, window.stored) == ([reply(3), reply(4)], 2, 2)


@pytest.mark.parametrize("body", [{"stream": "", "seq": 1}, {"stream": "S", "seq": 0}, b"", b"{}", b"\xff"])
def test_answer_that_is_no_ack(body):
    window, _, tickets = filled(2)
    payload = body if isinstance(body, bytes) else b'{"stream":"%b","seq":%d}' % tuple(
        value.encode() if isinstance(value, str) else value for value in body.values()
    )  # fmt: skip
    [(entry, error)] = window.answers([(reply(1), b"", b"", payload), ack(2)], 1.0)
    assert (entry.number, ended(tickets), window.count) == (1, [2], 0)
    assert isinstance(error, JetStreamError)


def test_publish_without_responders_is_sent_again():
    window, _, tickets = filled(2)
    assert window.answers([nobody(1), ack(2)], 1.0) == []
    assert list(window.in_flight) == [reply(1)]
    [(again, entry)] = window.check_publishes(window.next_check)[1]
    assert (again, entry.number) == (b"_INBOX.x.1-2", 1)
    assert window.answers([ack(again)], 2.0) == []
    assert ended(tickets) == [1, 2]


def test_lost_connection_ends_all():
    window, _, _ = filled(3)
    failures = window.disconnected()
    assert [(entry.number, type(error)) for entry, error in failures] == [
        (n, DisconnectedError) for n in (1, 2, 3)
    ]
    assert (window.count, window.size) == (0, 0)


def test_deadline_ends_all():
    window, _, _ = filled(3)
    failures, sends = window.check_publishes(5.0)
    assert ([entry.number for entry, _ in failures], sends, window.count) == ([1, 2, 3], [], 0)


def test_ticket_done_before_ack():
    window, _, tickets = filled(2)
    tickets[0].acks.append("cancelled")
    assert window.answers([ack(1), ack(2)], 1.0) == []
    assert (tickets[0].acks, len(tickets[1].acks), window.count, window.stored) == (["cancelled"], 1, 0, 2)


def test_record_is_newer_than_slots():
    """What is not put into slots comes after what is: the order of sending is the order of records."""
    window, slots, tickets = filled(3)
    slots.number = 4
    window.add_publish(reply(4), InFlight(Ending(tickets), b"a", b"", b"4", 1, 4, 5.0, 5.0))
    assert list(window.in_flight) == [reply(n) for n in (1, 2, 3, 4)]
    assert slots.publish(b"a", b"", b"5", 0.0, 5.0, False, True) is not None
    assert window.count == 5
    assert window.answers([ack(n) for n in (1, 5, 2, 4, 3)], 1.0) == []
    assert (window.count, window.size) == (0, 0)
