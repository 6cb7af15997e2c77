"""Bursts in flight: one record for many publishes, and one for each as soon as anything goes wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import pytest

from jsclient.errors import ApiError, DisconnectedError
from jsclient.protocol.models import PubAck
from jsclient.protocol.publishing import burst_window
from jsclient.protocol.publishing.burst_window import Burst, BurstWindow
from jsclient.protocol.publishing.in_flight import ATTEMPT, AnsweredSubjects
from tests.protocol.publishing.test_publish_window_model import SEEDS, Simulation, check
from tests.support.acks import join_acks

ERROR = json.dumps({"error": {"code": 400, "err_code": 10077, "description": "no"}}).encode()


class Ticket:
    """Collects the acks that do not come with a burst."""

    def __init__(self) -> None:
        self.acks: list[PubAck] = []

    def done(self) -> bool:
        return False

    def set_result(self, ack: PubAck) -> None:
        self.acks.append(ack)


@pytest.fixture(
    params=[(None, 8), (None, 1), (join_acks, 8), (join_acks, 1)], ids=["each", "run", "joined", "joined run"]
)
def window(request, monkeypatch):
    window = BurstWindow("never")
    window.join_acks, least = request.param
    monkeypatch.setattr(burst_window, "_RUN", least)
    return window


def sequences(window, burst=None) -> list[int]:
    """The sequences of the acks, with runs first, and of the tickets of a burst."""
    runs = [seq for run in window.runs for seq in run.sequences]
    acks = window.acks if burst is None else window.acks + burst.ticket.acks
    return runs + [ack.seq for ack in acks]


def sent(window, count=4, number=1, subject=b"s"):
    """A burst with replies r.1, r.2, and so on."""
    texts = [b"%d" % each for each in range(number, number + count)]
    replies = [b"r.%b" % text for text in texts]
    sizes = [len(text) for text in texts]
    burst = Burst(
        Ticket(), replies, [subject] * count, [b""] * count, texts, sizes, number, 10.0, 2.0, repeatable=True
    )
    window.add_burst(burst, sum(sizes))
    return burst


def acked(*numbers: int):
    return [(b"r.%d" % one, b"", b"", b'{"stream":"S","seq":%d}' % one) for one in numbers]


def test_acks_in_order_need_no_records(window):
    sent(window)
    sent(window, 3, 5, b"t")
    assert (window.count, window.size) == (7, 7)
    assert window.answers(acked(1, 2), 1.0) == []
    assert (window.count, window.size, window.in_flight) == (5, 5, {})
    assert window.answers(acked(3, 4, 5, 6), 1.0) == []  # the end of one, and the beginning of the next
    assert window.answers(acked(7), 1.0) == []
    assert sequences(window) == [1, 2, 3, 4, 5, 6, 7]
    assert (window.count, window.size, window.stored, window.in_flight) == (0, 0, 7, {})
    assert list(window.answered.subjects) == [b"s", b"t"]


@pytest.mark.parametrize(
    "frames", [acked(2, 1, 3, 4), acked(1, 3, 2, 4), acked(9, 1, 2, 3, 4), acked(1, 1, 2, 3, 4)]
)
def test_acks_out_of_order(window, frames):
    burst = sent(window)
    assert window.answers(frames, 1.0) == []
    assert sorted(sequences(window, burst)) == [1, 2, 3, 4]
    assert (window.count, window.size, window.stored) == (0, 0, 4)


@pytest.mark.parametrize(
    "answer",
    [b'{"stream":"S","seq":0}', b'{"seq":2}', b'{"stream":"","seq":2}', b'{"stream":"S","seq":99999999999999999999}',
     b"", b"{", b'{"stream":"S","seq":2},{"stream":"S","seq":2}'],
)  # fmt: skip
def test_malformed_ack_confirms_nothing(window, answer):
    burst = sent(window)
    frames = acked(1, 2, 3, 4)
    frames[1] = (b"r.2", b"", b"", answer)
    failures = window.answers(frames, 1.0)
    assert sequences(window, burst) == [1, 3, 4]
    assert [entry.number for entry, _ in failures] + [e.number for e in window.in_flight.values()] == [2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"stream":"S","seq":1},{"stream":"S"', b'"seq":2}'),
        (b'{"stream":"S","seq":1},{"stream":"a}', b'{b","seq":2}'),
        (b'{"stream":"S","seq":1,"domain":"{"},{"stream":"a}', b'b","seq":2}'),
    ],
)
def test_malformed_acks_confirm_nothing_together(window, one, other):
    """Joined by a comma they would be two acks."""
    burst = sent(window)
    frames = acked(1, 2, 3, 4)
    frames[1:3] = [(b"r.2", b"", b"", one), (b"r.3", b"", b"", other)]
    failures = window.answers(frames, 1.0)
    assert sequences(window, burst) == [1, 4]
    assert [entry.number for entry, _ in failures] + [e.number for e in window.in_flight.values()] == [2, 3]


def test_error_names_its_message(window):
    burst = sent(window)
    window.answers(acked(1), 1.0)
    (failure,) = window.answers([(b"r.2", b"", b"", ERROR), *acked(3)], 1.0)
    assert (failure[0].number, failure[0].payload, failure[1].err_code) == (2, b"2", 10077)
    assert isinstance(failure[1], ApiError)
    assert sequences(window) == [1]
    assert [ack.seq for ack in burst.ticket.acks] == [3]
    assert list(window.in_flight) == [b"r.4"]


def test_new_burst_needs_no_records_while_older_publishes_have_them(window):
    sent(window)
    window.check_publishes(1.0)
    assert len(window.in_flight) == 4
    sent(window, 3, 5)
    assert window.answers(acked(1, 2, 3, 4, 5), 1.0) == []
    assert (window.in_flight, window.count, sequences(window)) == ({}, 2, [5])


def test_bursts_after_answers_out_of_order_have_records_for_a_while(window):
    sent(window)
    window.answers(acked(1, 3, 2, 4), 1.0)
    first = 5
    while not sequences(window):
        burst = sent(window, 2, first)
        assert window.count == 2
        window.answers(acked(first, first + 1), 1.0)
        assert (window.count, window.size) == (0, 0)
        assert len(sequences(window, burst)) == 2
        first += 2
    assert 50 < first < 500


def test_lost_connection(window):
    sent(window)
    window.answers(acked(1), 1.0)
    assert window.disconnected() == []
    assert [reply for reply, _ in window.connected(1.0)] == [b"r.2-2", b"r.3-2", b"r.4-2"]
    once = sent(window, 2, 5)
    once.repeatable = False
    window.disconnected()
    assert window.count == 3
    failures = window.fail_publishes(lambda entry: DisconnectedError("gone"))
    assert ([entry.number for entry, _ in failures], window.size, window.count) == ([2, 3, 4], 0, 0)


def test_answered_subjects_are_limited(window):
    for number in range(1, AnsweredSubjects.LIMIT + 10):
        sent(window, 1, number, b"s.%d" % number)
        window.answers(acked(number), 1.0)
    assert len(window.answered.subjects) <= AnsweredSubjects.LIMIT


@dataclass(slots=True)
class Watched(BurstWindow):
    """Reports the acks of bursts with the numbers of their messages."""

    simulation: Simulation | None = None

    def _acked(self, frames, start):
        number = self._bursts[0].number + self._bursts[0].acked if self._bursts else 0
        count = BurstWindow._acked(self, frames, start)
        self.simulation.in_bursts += count
        for run in self.runs:
            self.acks += [PubAck(stream=run.stream, seq=seq) for seq in run.sequences]
        self.runs.clear()
        for at in range(count):
            self.simulation.end(number + at, self.acks[at - count])
        return count


class OfBurst:
    """The ticket of a burst in the model."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def done(self) -> bool:
        return False

    def set_result(self, ack: PubAck) -> None:
        self.simulation.end(self.simulation.server.stored[ack.seq - 1], ack)


class Bursts(Simulation):
    """Publishes some messages at a time."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.window = Watched("never an id", simulation=self)
        self.window.join_acks = join_acks if seed % 2 else None
        self.in_bursts = 0

    def size_in_flight(self) -> int:
        bursts = sum(sum(burst.sizes[burst.acked :]) for burst in self.window._bursts)
        assert self.window.count == len(self.window.in_flight) + sum(
            len(burst.replies) - burst.acked for burst in self.window._bursts
        )
        return super().size_in_flight() + bursts

    def publish(self) -> None:
        if not self.up:
            return
        first, count = self.number + 1, self.chance.randint(1, 6)
        deadline, repeatable = (
            self.now + self.chance.choice([0.5, 3.0, 10.0, 30.0]),
            self.chance.random() < 0.6,
        )
        numbers = range(first, first + count)
        headers = [b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\n\r\n" % n if repeatable else b"" for n in numbers]
        payloads = [b"%d" % n for n in numbers]
        replies = [b"r.%d" % n for n in numbers]
        sizes = [len(header) + len(payload) for header, payload in zip(headers, payloads, strict=True)]
        # only messages with ids are sent again before their deadline
        due = min(deadline, self.now + ATTEMPT) if repeatable else deadline
        burst = Burst(
            OfBurst(self), replies, [b"s"] * count, headers, payloads, sizes, first, deadline, due, repeatable
        )
        self.window.add_burst(burst, sum(sizes))
        self.window.next_check = min(self.window.next_check, due)
        self.number += count
        for number, *message in zip(numbers, replies, headers, payloads, strict=True):
            self.deadlines[number] = deadline
            self.with_id |= {number} if repeatable else set()
            self.sent[number] += 1
            self.to_server.append(tuple(message))

    def forget(self) -> None:
        """The messages of a burst are always wanted."""


def test_one_true_outcome_in_time(monkeypatch):
    kinds: Counter[str] = Counter()
    in_bursts = 0
    for seed in range(SEEDS):
        monkeypatch.setattr(burst_window, "_RUN", 1 + seed % 3)
        simulation = Bursts(seed)
        simulation.run(150)
        check(simulation)
        in_bursts += simulation.in_bursts
        kinds.update(type(outcome).__name__ for outcome in simulation.outcomes.values())
    assert set(kinds) == {
        "PubAck",
        "ApiError",
        "NoRespondersError",
        "DisconnectedError",
        "RequestTimeoutError",
    }
    assert 0 < in_bursts < kinds["PubAck"]
