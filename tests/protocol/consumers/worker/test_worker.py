"""The messages that a worker has in hand: whose turn it is, what is kept alive, what becomes of them."""

from __future__ import annotations

import pytest

from jsclient.protocol.consumers.worker.work_rules import WorkOptions, WorkRules
from jsclient.protocol.consumers.worker.worker import (
    CANCEL_TIMEOUT,
    DeliveriesExhaustedError,
    Phase,
    Reject,
    Workload,
    WorkOutcome,
)
from jsclient.protocol.models.consumer import ConsumerConfig


class Hands:
    """A workload, and short forms of the calls that the tests repeat. Time stands at ``now``."""

    def __init__(self, config: ConsumerConfig | None = None, **options) -> None:
        self.load: Workload[str] = Workload(
            WorkRules(WorkOptions(**options), config or ConsumerConfig(ack_wait=30.0))
        )
        self.now = 100.0

    def add(self, *seqs: int, key=None, deliveries=1):
        works = [self.load.add_message(f"m{seq}", (seq, 7), deliveries, key, self.now) for seq in seqs]
        return works[0] if len(works) == 1 else works

    def start(self):
        return self.load.start_work(self.now)

    def all(self) -> list[str]:
        """Start what can be started."""
        started = []
        while (work := self.start()) is not None:
            started.append(work.message)
        return started

    def end(self, work, error=None) -> WorkOutcome:
        """Its handler ended, and everything was said to the server."""
        self.load.ended(work)
        verdict = self.load.judge(work, error)
        if verdict.outcome is WorkOutcome.REPEAT:
            self.load.repeat(work, verdict.delay, self.now)
        else:
            self.load.settled(work)
        self.load.released(work)
        return verdict.outcome

    def tick(self, seconds: float):
        self.now += seconds
        return self.load.take_due(self.now)

    def settled(self, work) -> None:
        self.load.settled(work)
        self.load.released(work)


# --- turns ---------------------------------------------------------------------------------------------------


def test_runs_up_to_limit_in_order():
    hands = Hands(concurrency=2)
    one, *_ = hands.add(1, 2, 3)
    assert hands.all() == ["m1", "m2"]
    assert (hands.load.counts.running, hands.load.counts.waiting) == (2, 1)
    assert hands.end(one) is WorkOutcome.ACK
    assert hands.all() == ["m3"]


def test_room_until_full():
    hands = Hands(concurrency=2, prefetch=4)  # two of the four may wait here, two in the subscription
    assert hands.load.room == 4
    one, *_ = hands.add(1, 2, 3, 4)
    hands.all()
    assert hands.load.room == 0
    hands.end(one)
    assert hands.load.room == 1
    hands.add(5, 6, 7)  # messages that are not kept alive while they wait are taken as well
    assert hands.load.room == -2


def test_one_key_is_serial():
    hands = Hands(concurrency=3, ordered=True)
    a1 = hands.add(1, key="a")
    hands.add(2, key="a")
    hands.add(3, key="b")
    assert hands.all() == ["m1", "m3"]
    hands.end(a1)
    assert hands.all() == ["m2"]


def test_none_as_key_means_no_order():
    hands = Hands(concurrency=3, ordered=True)
    hands.add(1, 2, key=None)
    assert hands.all() == ["m1", "m2"]


def test_failure_holds_its_key():
    hands = Hands(concurrency=3, ordered=True)
    a1 = hands.add(1, key="a")
    hands.add(2, key="a")
    hands.add(3, key="b")
    assert hands.all() == ["m1", "m3"]
    assert hands.end(a1, ValueError()) is WorkOutcome.REPEAT
    assert hands.all() == []
    hands.tick(0.4)
    assert hands.all() == []
    hands.tick(0.1)
    assert hands.all() == ["m1"]
    assert a1.attempt == 2
    assert hands.end(a1, ValueError()) is WorkOutcome.REPEAT
    hands.tick(1.0)
    assert hands.all() == ["m1"]
    hands.end(a1)
    assert hands.all() == ["m2"]


def test_redelivery_goes_first():
    hands = Hands(concurrency=1, ordered=True)
    first = hands.add(5, key="a")
    hands.add(8, 9, key="a")
    assert hands.all() == ["m5"]
    hands.add(7, key="a", deliveries=2)
    hands.add(3, key="a", deliveries=2)  # too late for the delivery that runs
    taken = []
    work = first
    while work is not None:
        taken.append(work.message)
        hands.end(work)
        work = hands.start()
    assert taken == ["m5", "m3", "m7", "m8", "m9"]


def test_a_key_leaves_nothing_behind():
    hands = Hands(concurrency=2, ordered=True)
    for seq in range(1, 1000):
        work = hands.add(seq, key=seq)
        assert hands.start() is work
        hands.end(work)
    assert hands.load.idle
    assert not hands.load._key_queues
    assert not hands.load._ready


# --- what becomes of them ------------------------------------------------------------------------------------


def test_nak_until_last_delivery():
    hands = Hands(max_deliver=3)
    for deliveries, outcome in ((1, WorkOutcome.RETRY), (2, WorkOutcome.RETRY), (3, WorkOutcome.DEAD)):
        work = hands.add(1, deliveries=deliveries)
        assert hands.start() is work
        assert hands.end(work, ValueError()) is outcome
    counts = hands.load.counts
    assert (counts.failed, counts.retried) == (3, 2)


def test_repeats_here_count_as_deliveries_do():
    hands = Hands(max_deliver=4, ordered=True)
    work = hands.add(1, key="a", deliveries=2)
    fates = []
    while WorkOutcome.DEAD not in fates:
        assert hands.start() is work
        fates.append(hands.end(work, ValueError()))
        hands.tick(60.0)
    assert fates == [WorkOutcome.REPEAT, WorkOutcome.REPEAT, WorkOutcome.DEAD]


@pytest.mark.parametrize("ordered", [True, False])
def test_rejected_message_not_tried_again(ordered):
    hands = Hands(max_deliver=5, ordered=ordered)
    work = hands.add(1, key="a")
    hands.start()
    assert hands.end(work, Reject("no such customer")) is WorkOutcome.DEAD


def test_message_nobody_survived_not_handled():
    hands = Hands(max_deliver=3, handler_timeout=5.0)
    work = hands.add(1, deliveries=4)
    assert isinstance(work.final_error, DeliveriesExhaustedError)
    assert "4 times" in str(work.final_error)
    assert hands.start() is work  # in its turn
    assert hands.tick(5.0).overdue == []  # no handler runs
    assert hands.add(2, deliveries=3).final_error is None


def test_redelivery_of_in_hand_same_work():
    hands = Hands(concurrency=2)
    one = hands.add(1)
    assert hands.load.add_message("again", (1, 7), 2, None, hands.now) is None
    assert (one.message, one.latest, one.deliveries) == ("again", "again", 2)  # it had not begun
    hands.start()
    assert hands.load.add_message("once more", (1, 7), 3, None, hands.now) is None
    assert (one.message, one.latest, one.deliveries) == ("again", "once more", 3)
    assert hands.all() == []
    assert hands.load.counts.duplicates == 2
    assert hands.load.add_message("of a new stream", (1, 8), 1, None, hands.now) is not None
    hands.settled(one)
    assert hands.add(1) is not None


# --- time ----------------------------------------------------------------------------------------------------


def test_keep_alive_at_each_third_of_ack_wait():
    hands = Hands()
    one, two = hands.add(1, 2)
    hands.start()
    assert hands.load.deadline == 110.0
    assert hands.tick(8.9).keep_alive == []
    assert hands.tick(1.1).keep_alive == [one, two]
    assert hands.load.deadline == 120.0
    hands.settled(one)
    assert hands.tick(10.0).keep_alive == [two]
    assert hands.load.counts.kept_alive == 3
    hands.start()
    hands.settled(two)
    assert hands.load.deadline is None


def test_backoff_sets_each_deadline():
    hands = Hands(ConsumerConfig(backoff=[3.0, 30.0]))
    fresh = hands.add(1)
    old = hands.add(2, deliveries=2)
    assert hands.tick(1.0).keep_alive == [fresh]
    assert hands.tick(1.0).keep_alive == [fresh]
    hands.load.add_message("again", (1, 7), 2, None, hands.now)  # from now on it is an old one too
    assert hands.tick(1.0).keep_alive == []
    assert hands.tick(7.0).keep_alive == [old]
    assert hands.tick(2.0).keep_alive == [fresh]


def test_keep_alive_of_all_after_reconnect():
    hands = Hands()
    works = hands.add(1, 2)
    hands.now += 1
    hands.load.reconnected(hands.now)
    assert hands.load.deadline == hands.now
    assert hands.tick(0).keep_alive == works
    assert hands.tick(0).keep_alive == []


def test_without_keep_alive_nothing_awaited():
    hands = Hands(keep_alive=False)
    hands.add(1)
    assert hands.load.deadline is None


def test_slow_handler_abandoned():
    hands = Hands(concurrency=2, handler_timeout=5.0, keep_alive=False)
    one, two = hands.add(1, 2)
    hands.start()
    assert hands.load.deadline == 105.0
    hands.now += 1
    hands.start()
    assert hands.tick(4.0).overdue == [one]
    assert hands.load.deadline == hands.now + CANCEL_TIMEOUT
    due = hands.tick(CANCEL_TIMEOUT)
    assert (due.overdue, due.stuck, one.abandoned) == ([two], [one], True)
    assert hands.load.judge(one, TimeoutError(), stuck=True).outcome is WorkOutcome.RETRY
    hands.load.settled(one)
    hands.load.ended(two)
    assert hands.tick(CANCEL_TIMEOUT).stuck == []
    assert hands.load.counts.running == 2  # its place is taken until it ends
    hands.load.released(one)
    assert hands.load.counts.running == 1


def test_stuck_handler_holds_key():
    hands = Hands(concurrency=2, ordered=True, handler_timeout=5.0)
    one = hands.add(1, key="a")
    two = hands.add(2, key="a")
    hands.start()
    hands.tick(5.0)
    assert hands.tick(CANCEL_TIMEOUT).stuck == [one]
    assert (
        hands.load.judge(one, TimeoutError(), stuck=True).outcome is WorkOutcome.RETRY
    )  # not here: it still runs
    hands.load.settled(one)
    assert hands.all() == []
    hands.load.released(one)
    assert hands.start() is two


# --- the end -------------------------------------------------------------------------------------------------


def test_stop_returns_waiting():
    hands = Hands(concurrency=1, ordered=True)
    a1 = hands.add(1, key="a")
    hands.add(2, key="a")
    hands.add(4, 3, key="b")
    assert hands.start() is a1
    assert [work.message for work in hands.load.stop_starting()] == ["m2", "m3", "m4"]
    assert [work.message for work in hands.load.held] == ["m1"]
    assert hands.load.counts.waiting == 0
    assert hands.end(a1, ValueError()) is WorkOutcome.RETRY  # this worker ends before another attempt
    assert hands.load.idle
    assert hands.start() is None


def test_stop_returns_retries():
    hands = Hands(concurrency=1, ordered=True)
    a1 = hands.add(1, key="a")
    hands.add(2, key="a")
    hands.start()
    hands.end(a1, ValueError())
    assert [work.message for work in hands.load.stop_starting()] == ["m1", "m2"]
    assert hands.load.idle
    assert hands.load.deadline is None


@pytest.mark.parametrize("ordered", [True, False])
def test_would_not_come_again_not_returned(ordered):
    hands = Hands(ConsumerConfig(max_deliver=2, ack_wait=30.0), concurrency=1, ordered=ordered)
    running = hands.add(1, key="a")
    hands.start()
    hands.add(2, key="a")
    last = hands.add(3, key="a", deliveries=2)
    hands.add(4, key="b")
    assert [work.message for work in hands.load.stop_starting()] == ["m2", "m4"]
    hands.end(running)
    assert hands.start() is last
    hands.end(last)
    assert hands.load.idle


def test_second_stop_is_noop():
    hands = Hands(concurrency=1)
    hands.add(1, 2)
    hands.start()
    assert len(hands.load.stop_starting()) == 1
    assert hands.load.stop_starting() == []
    hands.add(3)  # came in late
    assert [work.message for work in hands.load.stop_starting()] == ["m3"]


def test_settled_work_may_return():
    hands = Hands(concurrency=2, handler_timeout=5.0)
    one = hands.add(1)
    hands.start()
    hands.tick(5.0)
    hands.tick(CANCEL_TIMEOUT)
    hands.load.settled(one)
    again = hands.add(1, deliveries=2)
    assert hands.start() is again
    assert one.phase is Phase.SETTLED
