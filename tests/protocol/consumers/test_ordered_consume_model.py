"""The ordered pull tracker on a network that loses, repeats and falls silent: every message once, in order."""

from __future__ import annotations

import random

import pytest

from jsclient.protocol.consumers.consume import SendPull
from jsclient.protocol.consumers.fetch import Pull
from jsclient.protocol.consumers.ordered_consume import OrderedConsume
from jsclient.protocol.wire.frames import Frame
from tests.support.strategies import data, heartbeat, status

INTERVAL = 1.0
EXPIRES = 10.0
FORGOTTEN = 300.0  # seconds without a request
LARGEST = 100  # messages that a reader may request


class ConsumeServer:
    """A stream and the only consumer of our reader, with the requests that wait."""

    def __init__(self) -> None:
        self.generation = 0
        self.last = 0
        self.deleted = False
        self.refuses = True  # answers "no responders" when the consumer is gone
        self.out: list[tuple[int, int, int] | Frame] = []
        self.start(1)

    def start(self, start: int, now: float = 0.0) -> int:
        """A new consumer. The stream sequence before its start."""
        self.next = min(start, self.last + 1)
        self.consumer_seq = 0
        self.deleted, self.last_request = False, now
        self.requests: list[list[float]] = []  # number, messages owed, over at
        self.out = []
        return self.next - 1

    def stream_again(self) -> None:
        self.generation += 1
        self.last = 0
        self.vanish(says=False)

    def vanish(self, *, says: bool) -> None:
        if says and not self.deleted:
            self.out += [say(number, 409, "Consumer Deleted") for number, _, _ in self.requests]
        self.deleted = True
        self.requests = []

    def ask(self, ask: SendPull, now: float) -> None:
        self.forget(now)
        if not self.deleted:
            self.last_request = now
            self.requests.append([ask.number, ask.pull.batch, now + (ask.pull.expires or 0.0)])
            self.deliver()
            if ask.pull.no_wait:
                self.expire(now)
        elif self.refuses:
            self.out.append(say(ask.number, 503))

    def forget(self, now: float) -> None:
        """Remove the consumer if no request came for a long time."""
        if not self.requests and now - self.last_request >= FORGOTTEN:
            self.deleted = True

    def deliver(self) -> None:
        """What the consumer has to send now, to one request after the other."""
        while self.requests and not self.deleted and self.next <= self.last:
            request = self.requests.pop(0)
            self.consumer_seq += 1
            self.out.append((self.generation, self.next, self.consumer_seq))
            self.next += 1
            request[1] -= 1
            if request[1]:
                self.requests.append(request)

    def expire(self, now: float) -> None:
        for request in [request for request in self.requests if request[2] <= now]:
            self.requests.remove(request)
            self.out.append(say(request[0], 408, Nats_Pending_Messages=request[1], Nats_Pending_Bytes=0))

    def beat(self) -> None:
        _, reply, header, payload = heartbeat(self.consumer_seq, self.next - 1)
        self.out += [(inbox(number), reply, header, payload) for number, _, _ in self.requests]


def inbox(number: float) -> bytes:
    return b"_INBOX.reader.%d" % number


def say(number: float, code: int, description: str = "", **fields: object) -> Frame:
    _, reply, header, payload = status(code, description, **fields)
    return inbox(number), reply, header, payload


class ConsumeSimulation:
    """A reader, the server, and what goes wrong between them, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = ConsumeServer()
        self.server.refuses = self.random.random() < 0.5  # servers before 2.11 say nothing
        self.now = 0.0
        self.known = 0  # the generation that the reader believes in
        self.got: list[tuple[int, int]] = []
        self.resets = self.most = 0
        self.faults = True
        self.reader = OrderedConsume("ORDERS", "c", Pull(1), 0, inactive_threshold=FORGOTTEN)
        self.do(self.reader.recreated("c", self.server.start(1), self.now))

    def chance(self, probability: float) -> bool:
        return self.faults and self.random.random() < probability

    def do(self, commands: list) -> None:
        for command in commands:
            if (
                isinstance(command, SendPull)
                and not self.reader.is_forgotten(self.now)
                and not self.chance(0.05)
            ):
                self.server.ask(command, self.now)

    # --- how it is read --------------------------------------------------------------------------------------

    def read(self) -> None:
        window = self.random.choice([1, 2, 5, LARGEST])
        max_bytes = self.random.choice([None, None, 300])
        pull = Pull(window, EXPIRES, max_bytes, idle_heartbeat=INTERVAL)
        self.do(self.reader.read_continuously(pull, self.random.randint(0, window), self.now))

    def fetch(self) -> None:
        reader = self.reader
        reader.rest()
        if reader.request is None and not reader.buffer.owed and reader.cursor.wants is None:
            count = self.random.randint(1, 10)
            no_wait = self.chance(0.3)
            pull = Pull(count, None if no_wait else 2.0, no_wait=no_wait)
            self.do([reader.fetch(pull, self.now)])

    def leave_fetch(self) -> None:
        self.reader.request = None

    def take(self) -> None:
        for _ in range(self.random.randint(1, 10)):
            if self.reader.front:
                frame, commands = self.reader.take_frame()
                generation, stream_seq = map(int, frame[3].split())
                self.got.append((generation, stream_seq))
                self.do(commands)
        position = self.got[-1] if self.got else (0, 0)
        if self.reader.front and self.reader.cursor.wants is None and position[0] == self.known:
            assert self.reader.position >= position[1]

    # --- what happens ----------------------------------------------------------------------------------------

    def publish(self) -> None:
        self.server.last += self.random.randint(1, 5)

    def network(self) -> None:
        self.server.deliver()
        frames: list[Frame] = []
        for item in self.server.out:
            # lost on its way
            if self.chance(0.1):
                continue
            if len(item) == 3:
                generation, stream_seq, consumer_seq = item
                frame = data(stream_seq, consumer_seq, payload=b"%d %d" % (generation, stream_seq))
            else:
                frame = item
            frames += [frame, frame] if self.chance(0.03) else [frame]
        self.server.out = []
        if self.chance(0.05):
            self.random.shuffle(frames)
        if frames:
            self.do(self.reader.receive(frames, self.now))
        self.most = max(self.most, len(self.reader.front))

    def beat(self) -> None:
        self.now += INTERVAL
        if not self.chance(0.2):
            self.server.beat()
        self.server.expire(self.now)
        self.network()

    def time_passes(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 10.0, 400.0]) if self.faults else 0.0
        self.server.forget(self.now)
        reader = self.reader
        while (deadline := reader.deadline) is not None and deadline <= self.now:
            self.do(reader.tick(deadline))
        if reader.request is not None and (deadline := reader.request.deadline) is not None:
            self.do(reader.tick_request(max(deadline, self.now)))
        reader.buffer.end_pause(self.now)

    def consumer_vanishes(self) -> None:
        if self.chance(0.3):
            self.server.vanish(says=self.chance(0.5))

    def reconnect(self) -> None:
        if self.chance(0.5):
            self.reader.disconnected()
            self.server.out = []
            self.reader.cursor.consumer_lost("the connection was made anew")

    def stream_again(self) -> None:
        if self.chance(0.1):
            self.server.stream_again()

    def recreate(self) -> None:
        """What the handle does: a new consumer, and a look at which stream it is."""
        reader, server = self.reader, self.server
        if reader.cursor.wants is None:
            return
        self.resets += 1
        resume = reader.cursor.resume_stream_seq
        if server.generation != self.known:
            self.known = server.generation
            reader.cursor.stream_began_again("ORDERS", "c", server.last)
            return
        behind = self.random.randint(0, 3) if self.chance(0.3) else 0  # a replica that lags
        started = server.start(max(1, resume - behind), self.now)
        self.do(reader.recreated(f"c{self.resets}", started, self.now))

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
            self.read,
            self.fetch,
            self.leave_fetch,
        ]
        for _ in range(steps):
            self.random.choice(actions)()
        self.faults = False
        self.leave_fetch()
        self.read()
        for _ in range(4 * self.server.last + 40):
            self.network()
            self.take()
            self.beat()
            self.time_passes()
            self.recreate()


def check(simulation: ConsumeSimulation) -> None:
    """A run from 1 of each generation of the stream, and all messages of the last generation."""
    got, server = simulation.got, simulation.server
    generations = [generation for generation, _ in got]
    assert generations == sorted(generations)
    for generation in set(generations):
        numbers = [number for of, number in got if of == generation]
        assert numbers == list(range(1, len(numbers) + 1))
    assert sum(of == server.generation for of in generations) == server.last


@pytest.mark.covers("J93", "J94")
def test_each_message_once_in_order():
    """Rows 92, 95 to 99, 105: losses, repeats, silence, restarts, lagging replicas, in both ways of reading."""
    resets = 0
    for seed in range(400):
        simulation = ConsumeSimulation(seed)
        simulation.run(120)
        try:
            check(simulation)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {simulation.got}") from error
        resets += simulation.resets
    assert resets > 1000, "the faults do happen"


def test_no_faults_no_reset():
    for seed in range(100):
        simulation = ConsumeSimulation(seed)
        simulation.faults = False
        window = simulation.random.choice([1, 3, 10])
        threshold = simulation.random.randint(0, window)
        pull = Pull(window, EXPIRES, idle_heartbeat=INTERVAL)
        simulation.do(simulation.reader.read_continuously(pull, threshold, 0.0))
        actions = [simulation.publish, simulation.network, simulation.beat, simulation.take]
        for _ in range(120):
            simulation.random.choice(actions)()
            simulation.network()
        assert simulation.reader.cursor.wants is None
        assert simulation.resets == 0
        assert simulation.most <= window
