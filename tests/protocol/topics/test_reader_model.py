"""The reader on a network that loses, repeats and reorders pushes, and a history that lags, fails and forgets.

It gives the history after its position, in order, once, or says what is missing. Never a hole.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import HistoryTruncatedError
from jsclient.protocol.topics.links import MissingRule
from jsclient.protocol.topics.position import Extent, Position
from jsclient.protocol.topics.quiet_timer import QuietTimer
from jsclient.protocol.topics.reader import AskHistory, Cancel, Command, Reader, Subscribe
from jsclient.protocol.topics.record import Record

RUNS = 120  # for each rate of loss


class StreamTopic:
    """A stream of which some records are of no interest, and the publisher's side of subscriptions."""

    def __init__(self, chance: random.Random, links: str, *, replays: bool) -> None:
        self.chance, self.links, self.replays = chance, links, replays
        self.records: list[Record] = []
        self.last = 0
        self.first = 1
        self.last_of: dict[str, int] = {}
        self.subscriptions: dict[str, int] = {}  # id: the last record it sent

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.last += 1
            if self.chance.random() < 0.25 and self.links != "none":
                continue  # of another topic
            subject = self.chance.choice("abc") if self.links == "subject" else "a"
            previous = None if self.links == "none" else self.last_of.get(subject, 0)
            self.last_of[subject] = self.last
            self.records.append(Record(seq=self.last, time_ns=self.last, subject=subject, previous=previous))

    def since(self, seq: int) -> list[Record]:
        return [record for record in self.records if record.seq > seq]

    def subscribe(self, id: str, since: int) -> None:
        self.subscriptions[id] = since if self.replays else self.last

    def pushes(self) -> list[tuple[str, Record]]:
        out = []
        for which, sent in self.subscriptions.items():
            out += [(which, record) for record in self.since(sent)]
            self.subscriptions[which] = self.last
        return out

    def forget(self) -> None:
        """The window moves."""
        self.first = self.chance.randint(self.first, self.last + 1)
        self.records = [record for record in self.records if record.seq >= self.first]

    @property
    def extent(self) -> Extent:
        return Extent("S", "1", self.first, self.last)


class ReaderSimulation:
    """All from one seed."""

    def __init__(self, seed: int, loss: float, *, forgets: bool = False) -> None:
        self.chance = random.Random(seed)
        pick = self.chance.choice
        self.links = pick(["all", "all", "subject", "none"])
        self.topic = StreamTopic(self.chance, self.links, replays=pick([True, False]))
        self.loss, self.forgets = loss, forgets
        self.faults = True
        self.now = 0.0
        self.everything: list[Record] = []
        self.got: list[Record] = []
        self.got_by: list[tuple[int, int]] = []  # reader and sequence
        self.in_flight: list[tuple[str, Record]] = []
        self.questions: list[AskHistory] = []
        self.history_requests = 0
        for _ in range(self.chance.randint(0, 3)):
            self.topic.publish()
        self.start_seq = self.topic.last
        self.readers = 0
        self.reader = self.new_reader(Position("S", "1", self.start_seq, 0))

    def new_reader(self, start: Position) -> Reader:
        pick = self.chance.choice
        self.readers += 1
        reader = Reader(
            start,
            f"r{self.readers}",
            QuietTimer(1.0, pick([1.0, 8.0])),
            push=pick([True, True, False]),
            replays=self.topic.replays,
            missing=MissingRule(by_subject=self.links == "subject"),
            catch_up=pick(["at once", "timer"]),
            max_pending=pick([1, 3, 20, 10_000]),
        )
        self.reader = reader
        self.carry_out(reader.begin_reading(self.now))
        return reader

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, AskHistory):
                self.history_requests += 1
                self.questions.append(command)
            elif isinstance(command, Subscribe):
                if self.faults and self.chance.random() < 0.1:
                    self.carry_out(self.reader.feed_lost(command.id, self.now))
                    continue
                self.topic.subscribe(command.id, command.since)
                self.carry_out(self.reader.subscribed(command.id, self.now))
            elif isinstance(command, Cancel) and not (self.faults and self.chance.random() < 0.2):
                self.topic.subscriptions.pop(command.id, None)  # else the publisher did not hear of it

    # --- what happens -----------------------------------------------------------------------------------------

    def publish(self) -> None:
        self.topic.publish()
        self.everything += [
            r for r in self.topic.since(0) if not self.everything or r.seq > self.everything[-1].seq
        ]

    def send(self) -> None:
        for push in self.topic.pushes():
            if self.chance.random() < self.loss:
                continue
            self.in_flight += [push, push] if self.faults and self.chance.random() < 0.1 else [push]
        if self.faults and self.chance.random() < 0.2:
            self.chance.shuffle(self.in_flight)

    def arrive(self) -> None:
        count = self.chance.randint(0, 6) if self.faults else len(self.in_flight)
        arrived, self.in_flight = self.in_flight[:count], self.in_flight[count:]
        while arrived:
            which = arrived[0][0]
            run = [record for of, record in arrived if of == which]
            arrived = [push for push in arrived if push[0] != which]
            self.carry_out(self.reader.offer(which, run, self.now))

    def answer(self) -> None:
        if not self.questions:
            return
        requests = self.questions.pop(0)
        if self.faults and self.chance.random() < 0.15:
            self.reader.interrupted()
            self.questions.insert(0, requests)  # the runtime repeats it
            return
        lags = self.faults and self.chance.random() < 0.2
        head = self.chance.randint(0, self.topic.last) if lags else self.topic.last
        actual = [record for record in self.topic.since(requests.since) if record.seq <= head]
        size = min(requests.limit, self.chance.randint(1, 5))
        up_to = head if self.chance.random() < 0.5 else 0
        more = len(actual) > size
        if self.forgets and self.chance.random() < 0.2:
            self.topic.forget()
        extent = self.topic.extent if self.reader.needs_extent(actual[:size]) else None
        self.carry_out(
            self.reader.page(
                requests, actual[:size], self.now, more=more, extent=extent, up_to=0 if more else up_to
            )
        )

    def take(self) -> None:
        taken, commands = self.reader.take_records(self.chance.randint(1, 6))
        self.got += taken
        self.got_by += [(self.readers, record.seq) for record in taken]
        self.carry_out(commands)

    def time_passes(self) -> None:
        self.now += self.chance.choice([0.1, 1.0, 10.0])
        self.carry_out(self.reader.tick(self.now))

    def disconnect(self) -> None:
        if self.reader.id is not None:
            self.carry_out(self.reader.feed_lost(self.reader.id, self.now))

    def switch(self) -> None:
        self.carry_out(self.reader.set_push(self.now, push=not self.reader.push))

    def restart(self) -> None:
        """The process dies. The next process has only the token."""
        if self.reader.error is None:
            token = self.reader.position.to_json()
            self.questions.clear()
            self.new_reader(Position.from_json(token))

    def forget(self) -> None:
        if self.forgets and self.chance.random() < 0.3:
            self.topic.forget()

    def run(self, steps: int) -> None:
        common = [
            self.publish,
            self.send,
            self.arrive,
            self.arrive,
            self.answer,
            self.answer,
            self.take,
            self.take,
        ]
        rare = [self.time_passes, self.time_passes, self.disconnect, self.switch, self.restart, self.forget]
        for _ in range(steps):
            self.chance.choice(common if self.chance.random() < 0.8 else rare)()
        self.faults = self.forgets = False
        for _ in range(len(self.everything) + 20):
            for action in (self.send, self.arrive, self.answer, self.take):
                action()
            self.now = max(self.now, min(self.reader.deadline, self.now + 100))
            self.carry_out(self.reader.tick(self.now))

    def check(self) -> None:
        history = [record for record in self.everything if record.seq > self.start_seq]
        got, error = self.got, self.reader.error
        if error is not None:
            assert isinstance(error, HistoryTruncatedError)
            assert self.topic.first > 1
            assert error.wanted is not None
            history = [record for record in history if record.seq < error.wanted]
        if self.links != "subject":
            assert got == history
            return
        assert {record.seq for record in got} >= {record.seq for record in history}
        assert len(set(self.got_by)) == len(self.got_by), "again only after a restart"
        for subject in "abc":
            mine = [record.seq for record in got if record.subject == subject]
            assert mine == sorted(mine) or self.readers > 1


@pytest.mark.covers("T1", "T13", "T15", "T28", "T39", "T41", "T42")
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.3, 1.0])
def test_history_in_order_and_once(loss):
    for seed in range(RUNS):
        simulation = ReaderSimulation(seed, loss)
        simulation.run(150)
        assert simulation.reader.error is None, f"seed {seed}"
        try:
            simulation.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {simulation.links}") from error


@pytest.mark.covers("T2", "T10")
@pytest.mark.parametrize("loss", [0.05, 1.0])
def test_forgotten_history_reported(loss):
    lost = 0
    for seed in range(RUNS):
        simulation = ReaderSimulation(seed, loss, forgets=True)
        simulation.run(150)
        try:
            simulation.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {simulation.links}") from error
        lost += simulation.reader.error is not None
    assert 0.2 * RUNS < lost < RUNS, "it does happen, and not always"


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.05, 0.3, 1.0]), st.integers(1, 60))
def test_of_any_seed(seed, loss, steps):
    simulation = ReaderSimulation(seed, loss)
    simulation.run(steps)
    assert simulation.reader.error is None
    simulation.check()


def test_no_loss_no_requests():
    for seed in range(20):
        simulation = ReaderSimulation(seed, 0.0)
        simulation.faults = False
        reader = Reader(Position("S", "1", simulation.topic.last), "quiet", max_pending=10_000)
        simulation.reader, simulation.topic.replays, simulation.history_requests = reader, True, 0
        simulation.topic.subscriptions.clear()
        simulation.got, simulation.start_seq = [], simulation.topic.last
        simulation.carry_out(reader.begin_reading(0.0))
        if simulation.links != "all":
            continue
        for _ in range(60):
            for action in (simulation.publish, simulation.send, simulation.arrive, simulation.take):
                action()
        assert simulation.history_requests == 0
        simulation.take()
        assert reader.discarded == reader.repeated == 0
