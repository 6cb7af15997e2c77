"""When a reader from which nothing comes is checked, and what is reported, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jsclient.protocol.consumers.check_budget import STALL_AFTER, CheckBudget
from jsclient.protocol.consumers.diagnosis import Finding
from jsclient.protocol.consumers.stall import (
    HandlerTimes,
    Look,
    StallTracker,
    handler_hangs,
)
from jsclient.protocol.events import ConsumerStalled

NAMES = {"stream": "S", "consumer": "c"}
PAUSED = Finding(code="paused", level="warning", what="it is paused", evidence="9 wait", fix="call resume()")
FULL = Finding(code="max_ack_pending", level="warning", what="it is full", fix="ack")


class StalledReader:
    """A reader in virtual time, polled as its watch does."""

    def __init__(self) -> None:
        self.tracker = StallTracker(25.0)
        self.now = 1000.0
        self.arrived = self.asks = 0
        self.waits = True
        self.events: list[object] = []
        self.looks: list[float] = []
        self.findings: list[Finding] = []

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            steps = self.tracker.poll(self.now, self.arrived, self.asks, asking=self.waits, **NAMES)
            for step in steps:
                if not isinstance(step, Look):
                    self.events.append(step)
                    continue
                self.looks.append(self.now - 1000)
                self.events += self.tracker.looked(self.now, self.findings, stood_for=step.stood_for, **NAMES)
            self.now += self.tracker.interval

    @property
    def reports(self) -> list[str]:
        return [f"{type(event).__name__} {event.reason}" for event in self.events]


def test_first_check_is_before_ack_wait():
    assert StallTracker(STALL_AFTER).interval * 2 + STALL_AFTER < 30


def test_healthy_reader_is_checked_seldom_without_reports():
    reader = StalledReader()
    reader.run(3600)
    assert reader.looks == list(range(25, 3600, 25))
    assert reader.events == []


def test_reader_that_gets_messages_is_not_checked():
    reader = StalledReader()
    for _ in range(200):
        reader.run(20)
        reader.arrived += 1
    assert reader.looks == []


def test_busy_program_is_not_checked():
    reader = StalledReader()
    reader.waits = False
    reader.run(600)
    assert reader.looks == []
    assert reader.tracker.is_idle(reader.now)


def test_short_waits_in_a_loop_are_one_long_wait():
    reader = StalledReader()
    reader.waits = False
    for _ in range(30):
        reader.asks += 1
        reader.run(1.25)
    assert reader.looks == [25]


def test_a_poll_between_two_calls_shows_no_busy_program():
    """A loop of `fetch(expires=5)`: every fourth poll may fall exactly between two calls."""
    reader = StalledReader()
    reader.findings = [PAUSED]
    for number in range(24):
        reader.waits = number % 4 != 3
        reader.run(reader.tracker.interval)
        reader.asks += number % 4 == 3
    assert reader.looks == [25]
    assert reader.reports == ["ConsumerStalled paused"]


def test_a_reason_is_reported_once_and_its_end():
    reader = StalledReader()
    reader.findings = [PAUSED]
    reader.run(500)
    assert reader.reports == ["ConsumerStalled paused"]
    (event,) = reader.events
    assert event == ConsumerStalled(
        reason="paused", evidence="it is paused: 9 wait", fix="call resume()", stood_for=25.0, **NAMES
    )
    assert str(event) == (
        "nothing came for 25 s: it is paused: 9 wait. What to do: call resume() (consumer 'c' of stream 'S')"
    )
    reader.arrived += 1
    reader.run(10)
    assert reader.reports == ["ConsumerStalled paused", "ConsumerResumed paused"]
    assert reader.events[-1].stood_for == pytest.approx(500, abs=3)


def test_another_reason_is_reported_too():
    reader = StalledReader()
    reader.findings = [PAUSED, FULL]
    reader.run(30)
    reader.findings = [FULL]
    reader.run(30)
    reader.findings = []
    reader.run(100)
    assert reader.reports == [
        "ConsumerStalled paused",
        "ConsumerStalled max_ack_pending",
        "ConsumerResumed max_ack_pending",
    ]


def test_fault_after_long_idle_time_is_reported_as_soon():
    reader = StalledReader()
    reader.run(3590)
    reader.findings = [PAUSED]
    reader.run(35)
    assert reader.reports == ["ConsumerStalled paused"]


def test_looks_are_rare_once_a_reason_is_reported():
    reader = StalledReader()
    reader.findings = [PAUSED]
    reader.run(3600)
    assert reader.looks[:6] == [25, 50, 75, 125, 225, 425]
    assert max(after - before for before, after in pairwise(reader.looks)) == 300


def test_program_that_never_acks_is_reported_at_doubling_pauses():
    """Each redelivery looks like progress."""
    reader = StalledReader()
    reader.findings = [FULL]
    reported_at = []
    for _ in range(240):
        before = len(reader.events)
        reader.run(30)
        reader.arrived += 1
        reported_at += [
            reader.now - 1000 for event in reader.events[before:] if isinstance(event, ConsumerStalled)
        ]
    assert len(reported_at) == 7  # in two hours
    pauses = [after - before for before, after in pairwise(reported_at)]
    assert pauses == sorted(pauses)
    assert reader.reports.count("ConsumerResumed max_ack_pending") == 7


def test_thousands_of_readers_share_a_budget():
    budget = CheckBudget()
    readers = [StalledReader() for _ in range(2000)]
    for reader in readers:
        reader.tracker = StallTracker(25.0, budget)
    looks = []
    for _ in range(int(600 / readers[0].tracker.interval)):
        for reader in readers:
            reader.run(reader.tracker.interval)
    looks = sorted(moment for reader in readers for moment in reader.looks)
    assert len(looks) <= 600 * 10 + 2000
    assert all(reader.looks for reader in readers)
    later = [moment for moment in looks if moment > 100]
    assert len(later) <= 500 * 10 + 20


def test_looks_are_frequent_again_after_a_message():
    reader = StalledReader()
    reader.run(800)
    reader.arrived, reader.findings = 1, [PAUSED]
    reader.run(30)
    assert reader.reports == ["ConsumerStalled paused"]


def test_notes_are_no_reason():
    reader = StalledReader()
    reader.findings = [Finding(code="paused", level="note", what="paused")]
    reader.run(600)
    assert reader.events == []


def test_failed_check_is_information():
    reader = StalledReader()
    reader.findings = [Finding(code="could_not_look", level="unknown", what="unknown", fix="permit it")]
    reader.run(60)
    assert [event.severity for event in reader.events] == ["info"]
    reader.arrived += 1
    reader.run(5)
    assert len(reader.events) == 1


def test_next_check_when_a_handler_is_due():
    tracker = StallTracker(25.0)
    tracker.poll(0, 0, 0, asking=True, **NAMES)
    assert tracker.poll(25, 0, 0, asking=True, **NAMES) == [Look(25)]
    tracker.looked(25, [], stood_for=25, due=5.0, **NAMES)
    assert tracker.poll(29, 0, 0, asking=True, **NAMES) == []
    assert tracker.poll(30, 0, 0, asking=True, **NAMES) == [Look(30)]


def test_handlers_are_timed_from_what_is_seen():
    times = HandlerTimes()
    assert times.seen(10, []) == 0.0
    assert times.seen(20, [("a", 12.0), ("b", 19.0)]) == 8
    assert times.seen(30, [("a", 30.0)]) == 18  # a callback's start is not known: the first sight counts
    assert times.longest == 1  # b, when it was last seen
    assert times.seen(40, []) == 0.0
    assert times.longest == 18


def test_hanging_handlers_are_reported_once_each():
    times = HandlerTimes()
    running = [("a", 0.0), ("b", 10.0)]
    times.seen(60, running)
    assert times.hanging(60, 30.0) == []
    times.seen(61, running)
    assert times.hanging(61, 30.0) == [("a", 61)]
    times.seen(71, running)
    assert times.hanging(71, 30.0) == [("b", 61)]
    assert times.all_ended(71) is None
    times.seen(72, [])
    assert times.all_ended(72) == 72
    assert times.all_ended(73) is None


def test_handlers_long_by_nature_do_not_hang():
    times = HandlerTimes(longest=100.0)
    times.seen(200, [("a", 0.0)])
    assert times.hanging(200, 30.0) == []
    times.seen(201, [("a", 0.0)])
    assert times.hanging(201, 30.0) == [("a", 201)]


def test_event_of_a_hanging_handler():
    event = handler_hangs(
        "S", "c", "message 'x' (stream sequence 5, attempt 1)", 61, 30, others=2, keeps_alive=False
    )
    assert str(event).startswith(
        "the handler of message 'x' (stream sequence 5, attempt 1) has run for 61 s, longer than twice the ack_wait, "
        "and so do 2 more handlers: ack_wait is 30 s; the server delivers it again. What to do: "
    )
