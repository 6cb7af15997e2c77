"""The ordered tracker on a network that loses, repeats and falls silent: every message once, in order."""

from __future__ import annotations

import random

import pytest

from jsclient.errors import JetStreamError
from jsclient.protocol.consumers.monitors import HeartbeatMonitor
from jsclient.protocol.consumers.ordered import OrderedTracker
from tests.support.strategies import data, heartbeat

INTERVAL = 1.0


class OrderedServer:
    """A stream and the only consumer of our reader."""

    def __init__(self) -> None:
        self.generation = 0
        self.last = 0
        self.deleted = False
        self.start(1)

    def start(self, start: int) -> int:
        """A new consumer. The stream sequence before its start."""
        self.next = min(start, self.last + 1)
        self.consumer_seq = 0
        self.deleted = False
        return self.next - 1

    def stream_again(self) -> None:
        self.generation += 1
        self.last, self.deleted = 0, True

    def deliver(self) -> list[tuple[int, int, int]]:
        """What the consumer has to send now: generation, stream and consumer sequence."""
        out = []
        while not self.deleted and self.next <= self.last:
            self.consumer_seq += 1
            out.append((self.generation, self.next, self.consumer_seq))
            self.next += 1
        return out


class OrderedSimulation:
    """A reader, the server, and what goes wrong between them, all from one seed."""

    def __init__(self, seed: int, max_pending: int | None = None) -> None:
        self.random = random.Random(seed)
        self.server = OrderedServer()
        self.now = 0.0
        self.known = 0  # the generation that the reader believes in
        self.got: list[tuple[int, int]] = []
        self.resets = 0
        self.faults = True
        self.reader = OrderedTracker(
            "ORDERS",
            "c",
            max_pending or self.random.choice([1, 2, 5, 100]),
            10_000_000,
            heartbeat=HeartbeatMonitor(INTERVAL),
        )
        self.reader.recreated("c", self.server.start(1), self.now)

    def chance(self, probability: float) -> bool:
        return self.faults and self.random.random() < probability

    # --- steps -----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        self.server.last += self.random.randint(1, 5)

    def network(self) -> None:
        frames = []
        for generation, stream_seq, consumer_seq in self.server.deliver():
            if self.chance(0.1):
                continue
            frame = data(stream_seq, consumer_seq, payload=b"%d %d" % (generation, stream_seq))
            frames += [frame, frame] if self.chance(0.05) else [frame]
        if self.chance(0.1):
            self.random.shuffle(frames)
        if frames:
            self.reader.receive(frames, self.now)

    def beat(self) -> None:
        self.now += INTERVAL
        if not self.server.deleted and not self.chance(0.2):
            self.reader.receive([heartbeat(self.server.consumer_seq, self.server.next - 1)], self.now)

    def time_passes(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 10.0])
        while self.reader.deadline <= self.now and self.reader.cursor.wants is None:
            self.reader.tick(self.reader.deadline)

    def consumer_vanishes(self) -> None:
        self.server.deleted = self.server.deleted or self.chance(0.5)

    def reconnect(self) -> None:
        if self.chance(0.5):
            self.reader.cursor.consumer_lost("the connection was made anew")

    def stream_again(self) -> None:
        if self.chance(0.1):
            self.server.stream_again()

    def take(self) -> None:
        for _ in range(self.random.randint(1, 10)):
            try:
                frame, _ = self.reader.take_frame()
            except JetStreamError as error:
                raise AssertionError("nothing here is an error") from error
            if frame is not None:
                generation, stream_seq = map(int, frame[3].split())
                self.got.append((generation, stream_seq))

    def recreate(self) -> None:
        """As the handle does: create a new consumer when there is room, and check which stream it belongs to."""
        reader, server = self.reader, self.server
        if reader.cursor.wants is None or not reader.may_recreate:
            return
        self.resets += 1
        resume = reader.cursor.resume_stream_seq
        behind = self.random.randint(0, 3) if self.chance(0.3) else 0  # a replica that lags
        reader.recreated(f"c{self.resets}", server.start(max(1, resume - behind)), self.now)
        if server.generation != self.known:
            self.known = server.generation
            reader.cursor.stream_began_again(reader.stream, reader.consumer, server.last)

    def run(self, steps: int) -> None:
        actions = [
            self.publish,
            self.network,
            self.network,
            self.beat,
            self.take,
            self.take,
            self.time_passes,
            self.consumer_vanishes,
            self.reconnect,
            self.stream_again,
            self.recreate,
            self.recreate,
        ]
        for _ in range(steps):
            self.random.choice(actions)()
        self.faults = False
        for _ in range(4 * self.server.last + 20):
            self.network()
            self.take()
            self.beat()
            self.time_passes()
            self.recreate()


def check(simulation: OrderedSimulation) -> None:
    """A run from 1 of each generation of the stream, and all messages of the last generation."""
    got, server = simulation.got, simulation.server
    generations = [generation for generation, _ in got]
    assert generations == sorted(generations)
    for generation in set(generations):
        numbers = [number for of, number in got if of == generation]
        assert numbers == list(range(1, len(numbers) + 1))
    assert sum(of == server.generation for of in generations) == server.last


@pytest.mark.row(92, 109)
@pytest.mark.covers("J93", "J94")
def test_each_message_once_in_order():
    resets = 0
    for seed in range(400):
        simulation = OrderedSimulation(seed)
        simulation.run(80)
        try:
            check(simulation)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {simulation.got}") from error
        resets += simulation.resets
    assert resets > 1000, "the faults do happen"


def test_without_faults_there_no_reset():
    for seed in range(50):
        simulation = OrderedSimulation(seed, max_pending=10_000)
        simulation.faults = False
        actions = [simulation.publish, simulation.network, simulation.beat, simulation.take]
        for _ in range(80):
            simulation.random.choice(actions)()
            simulation.network()
        assert simulation.reader.cursor.wants is None
        assert simulation.resets == 0
