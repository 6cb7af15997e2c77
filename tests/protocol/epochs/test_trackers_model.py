"""The model check of the rules for epochs: random partial orders, partitions, publishers and times of joining.

Per partition a random run has a multiset of capabilities, and sends a batch, or drops, downgrades or splits one. Each
change of the lower frontier that is to be seen writes a frontier record. A subscriber joins at a random record of each
partition and gets the rest in random interleaving. A violation is a time of which it got some but not all batches of
the whole run.

Strymon's text can be read in three ways that are not safe. Each is kept here with a test that finds its violations.
``JSCLIENT_MODEL_RUNS=10000`` runs the long form.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jsclient.protocol.epochs.frontier import Antichain, Order
from jsclient.protocol.epochs.records import DataMessage, EpochPosition, FrontierRecord
from jsclient.protocol.epochs.trackers import Data, EpochBuffer, EpochPublisher, EpochSubscriber
from tests.protocol.epochs.orders import some_order

RUNS = int(os.environ.get("JSCLIENT_MODEL_RUNS", "600"))
UNSAFE_RUNS = 1500  # at most, to find a violation

Log = list[
    tuple[Any, int | None] | FrontierRecord[Any]
]  # a batch is (time, number), for both see `partition_log`


def partition_log(
    chance: random.Random, publisher: EpochPublisher[Any], times: list[Any], numbers: Counter[str]
) -> Log:
    """The records of one partition."""
    log: Log = [publisher.first_record()]
    order, held = publisher.order, [publisher.order.bottom]

    def announce(changes: list[tuple[Any, int]]) -> None:
        record = publisher.update(changes)
        if record is not None:
            log.append(record)

    for _ in range(chance.randint(2, 14)):
        if not held:
            break
        one = chance.choice(held)
        later = [time for time in times if order.less_equal(one, time)]
        what = chance.random()
        if what < 0.5:
            time = chance.choice(later)
            publisher.send(time)
            numbers["sent"] += 1
            log.append((time, numbers["sent"]))
        else:
            # Drop the capability, delay it, or split it into two later ones.
            into = [chance.choice(later) for _ in range(0 if what < 0.6 else 1 if what < 0.85 else 2)]
            held.remove(one)
            held += into
            announce([(one, -1), *((time, 1) for time in into)])
    if chance.random() < 0.7:
        announce([(time, -1) for time in held])
    return log


class Run:
    """One topic, and one subscriber of it."""

    def __init__(
        self,
        seed: int,
        publisher: Callable[[Order[Any]], EpochPublisher[Any]] = EpochPublisher,
        subscriber: Callable[..., EpochSubscriber[Any]] = EpochSubscriber,
        *,
        restarts: bool = False,
        **options: Any,
    ) -> None:
        chance = random.Random(seed)
        self.order, times = some_order(chance)
        numbers: Counter[str] = Counter()
        self.logs = [
            partition_log(chance, publisher(self.order), times, numbers) for _ in range(chance.randint(1, 3))
        ]
        self.sent: dict[Any, list[int]] = {}
        for log in self.logs:
            for entry in log:
                if isinstance(entry, tuple):
                    self.sent.setdefault(entry[0], []).append(entry[1])
        self.subscriber = subscriber(self.order, frozenset(range(len(self.logs))), **options)
        self.buffer: EpochBuffer[Any] = EpochBuffer(self.order)
        self.got: dict[Any, list[int]] = {}
        self.whole: dict[Any, list[int]] = {}
        self.released: list[Any] = []
        self.restarts = self.since = 0
        self.stream = self.merged(chance)  # in one stream, the first of them at 1
        self.begin(
            {p: chance.choice(self.records(p)) for p in range(len(self.logs))}, chance, restarts=restarts
        )

    def merged(self, chance: random.Random) -> list[tuple[int, Any]]:
        turns = [partition for partition, log in enumerate(self.logs) for _ in log]
        chance.shuffle(turns)
        logs = [iter(log) for log in self.logs]
        return [(partition, next(logs[partition])) for partition in turns]

    def records(self, partition: int) -> list[int]:
        """The sequences of the frontier records of a partition."""
        return [
            seq
            for seq, (of, entry) in enumerate(self.stream, 1)
            if of == partition and isinstance(entry, FrontierRecord)
        ]

    def begin(self, joins: dict[int, int], chance: random.Random, since: int = 0, *, restarts: bool) -> None:
        """Take the snapshots, and read the records after the first of them, or after a position."""
        for partition, seq in joins.items():
            self.receive(partition, self.stream[seq - 1][1].snapshot, seq)
        assert not since or self.subscriber.position.since == since
        for seq in range((since or min(joins.values())) + 1, len(self.stream) + 1):
            partition, entry = self.stream[seq - 1]
            message = entry.update if isinstance(entry, FrontierRecord) else DataMessage(*entry)
            self.receive(partition, message, seq)
            if restarts and chance.random() < 0.1:
                self.restart(chance)
                return

    def restart(self, chance: random.Random) -> None:
        """The process dies. The next process has only the token."""
        self.restarts += 1
        before = self.since
        position = EpochPosition.from_json(self.subscriber.position.to_json(), self.order)
        partitions = self.subscriber.partitions
        self.since = position.since
        assert self.since >= before, "it never goes back"
        self.subscriber = EpochSubscriber(self.order, partitions, resumed=position)
        self.buffer = EpochBuffer(self.order)
        joins = {}
        for partition in range(len(self.logs)):
            records = self.records(partition)
            joins[partition] = max((seq for seq in records if seq <= position.since), default=records[0])
        self.begin(joins, chance, position.since, restarts=True)

    def receive(self, partition: int, message: Any, seq: int) -> None:
        for event in self.subscriber.receive_message(partition, message, seq):
            if isinstance(event, Data):
                self.got.setdefault(event.time, []).append(event.items)
                self.buffer.add_data(event, 1)
            else:
                assert set(event.frontier) == set(self.subscriber.frontier)
        for epoch in self.buffer.completed(self.subscriber.frontier):
            assert epoch.time not in self.whole
            assert self.subscriber.is_completed(epoch.time)
            self.whole[epoch.time] = [*epoch.batches]
            self.released.append(epoch.time)

    @property
    def violations(self) -> list[Any]:
        return [time for time, items in self.got.items() if sorted(items) != sorted(self.sent[time])]

    def check_whole_epochs(self) -> None:
        for time, items in self.whole.items():
            assert sorted(items) == sorted(self.sent[time])
        for index, later in enumerate(self.released):
            for earlier in self.released[:index]:
                assert not self.order.less_equal(later, earlier)


@pytest.mark.covers("S4", "S5", "S13", "S15", "S18", "S41", "S46")
def test_all_or_nothing_on_join():
    kinds: Counter[str] = Counter()
    for seed in range(RUNS):
        run = Run(seed)
        assert run.violations == [], f"seed {seed}"
        run.check_whole_epochs()
        kinds["some"] += bool(run.got)
        kinds["dropped"] += len(run.got) < len(run.sent)
        kinds["whole"] += bool(run.whole)
        kinds["over"] += run.subscriber.is_over
        kinds["empty filter"] += not run.subscriber.filter
    # The model is worth something only if all of it happens.
    assert min(kinds.values()) > RUNS // 20, kinds
    assert len(kinds) == 5


@pytest.mark.covers("S26", "S46")
def test_coarser_filter_is_safe():
    for seed in range(RUNS // 4):
        run, coarse = Run(seed), Run(seed, coarser=(Run(seed).order.bottom,))
        assert coarse.violations == [], f"seed {seed}"
        assert set(coarse.got) <= set(run.got)


@pytest.mark.covers("S27")
def test_partial_never_called_whole():
    count = 0
    for seed in range(RUNS // 4):
        run = Run(seed, atomic=False)
        count += bool(run.violations)
        run.check_whole_epochs()
        assert set(run.whole) <= set(Run(seed).got)
    assert count > 0


def test_restart_repeats_same_epochs():
    restarts = 0
    for seed in range(RUNS // 2):
        run = Run(seed, restarts=True)
        run.check_whole_epochs()
        assert run.whole == Run(seed).whole, f"seed {seed}"
        restarts += run.restarts
        if run.subscriber.is_over:
            assert run.subscriber.position.frontiers == ((),), "what is passed is forgotten"
    assert restarts > RUNS // 5


# --- readings that are not safe ---------------------------------------------------------------------------------


def before(order: Order[Any], one: Any, other: Any) -> bool:
    return one != other and order.less_equal(one, other)


class AfterEvery(EpochSubscriber[Any]):
    """ "Forwarding only elements which are strictly larger than any element": than each of them."""

    def passes(self, time: Any) -> bool:
        return all(before(self.order, element, time) for element in self.filter)


class AfterOne(EpochSubscriber[Any]):
    """The same, read as: than some of them."""

    def passes(self, time: Any) -> bool:
        return not self.filter or any(before(self.order, element, time) for element in self.filter)


class OnlyActive(EpochPublisher[Any]):
    """ "Antichain of maximal elements in active": completed ones are taken out of the upper frontier."""

    def _changed(self, visible: Any) -> FrontierRecord[Any] | None:
        record = super()._changed(visible)
        if record is None:
            return None
        self.upper = Antichain.maximal(self.order, self._active)
        return FrontierRecord(record.updates, record.lower, self.upper.elements)


class OwnLower(EpochSubscriber[Any]):
    """ "Remove any elements S < T" by the update of one partition, not by what all of them are at."""

    def _update(self, partition: Any, updates: Any) -> Any:
        events = super()._update(partition, updates)
        own = self._lower[partition].frontier
        self.filter = Antichain(self.order, tuple(time for time in self.filter if own.some_below(time)))
        return events


def violations(runs: int, **parts: Any) -> int:
    """Runs with a violation. Looked for until there are enough of them."""
    count = 0
    for seed in range(runs):
        count += bool(Run(seed, **parts).violations)
        if count == 3:
            break
    return count


@pytest.mark.covers("S41")
@pytest.mark.parametrize("reading", [AfterEvery, AfterOne])
def test_larger_is_not_not_before(reading):
    assert violations(UNSAFE_RUNS, subscriber=reading) == 3


@pytest.mark.covers("S17", "S21")
def test_active_upper_is_too_little():
    assert violations(UNSAFE_RUNS, publisher=OnlyActive) == 3


@pytest.mark.covers("S19", "S44", "S47")
def test_one_partition_keeps_filter():
    assert violations(UNSAFE_RUNS, subscriber=OwnLower) == 3
