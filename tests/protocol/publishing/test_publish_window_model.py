"""The window of publishes against a server, with everything that can go wrong between them, from one seed each."""

from __future__ import annotations

import random
from collections import Counter

import msgspec

from jsclient.errors import (
    ApiError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    RequestTimeoutError,
)
from jsclient.protocol.models import PubAck
from jsclient.protocol.publishing.in_flight import ATTEMPT, InFlight
from jsclient.protocol.publishing.publish_window import NEVER, PublishWindow
from jsclient.protocol.wire.headers import parse_headers

UNKNOWN = (DisconnectedError, RequestTimeoutError)
SEEDS = 400


class Server:
    """A stream that stores an id once, judges sequences before ids, and is not always there."""

    def __init__(self) -> None:
        self.stored: list[int] = []  # numbers of messages, in order
        self.ids: dict[str, int] = {}  # id: sequence
        self.there = True
        self.full = False

    def take(self, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """The header block and payload of its answer."""
        if not self.there:
            return b"NATS/1.0 503\r\n\r\n", b""
        headers = parse_headers(header)[1]
        msg_id = headers.get("Nats-Msg-Id")
        expected = headers.get("Nats-Expected-Last-Sequence")
        # The server compares the sequence before it looks for the id.
        if expected is not None and int(expected) != len(self.stored):
            return self._error(10071)
        if msg_id in self.ids:
            return b"", msgspec.json.encode({"stream": "S", "seq": self.ids[msg_id], "duplicate": True})
        if "Nats-Expected-Last-Msg-Id" in headers:
            return self._error(10070)
        if self.full:
            return self._error(10077)
        self.stored.append(int(payload))
        if msg_id is not None:
            self.ids[msg_id] = len(self.stored)
        return b"", msgspec.json.encode({"stream": "S", "seq": len(self.stored)})

    @staticmethod
    def _error(err_code: int) -> tuple[bytes, bytes]:
        error = {"code": 400, "err_code": err_code, "description": "no"}
        return b"", msgspec.json.encode({"error": error})


class Ticket:
    """The caller that waits for a publish."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation, self.number = simulation, number

    def done(self) -> bool:
        return self.number in self.simulation.cancelled or self.number in self.simulation.outcomes

    def set_result(self, ack: PubAck) -> None:
        assert self.number not in self.simulation.cancelled
        self.simulation.end(self.number, ack)


class Simulation:
    """Publishes, a connection in both directions, and time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = Server()
        self.now = 0.0
        self.window: PublishWindow[Ticket] = PublishWindow("never an id")
        self.cancelled: set[int] = set()
        self.up = True
        self.to_server: list[tuple[bytes, bytes, bytes]] = []
        self.to_client: list[tuple[bytes, bytes, bytes, bytes]] = []
        self.outcomes: dict[int, object] = {}
        self.deadlines: dict[int, float] = {}
        self.with_id: set[int] = set()
        self.sent: Counter[int] = Counter()
        self.number = 0
        self.loses = True

    # --- what is done -----------------------------------------------------------------------------------------

    def publish(self) -> None:
        if not self.up:
            return
        self.number += 1
        number, timeout = self.number, self.chance.choice([0.5, 3.0, 10.0, 30.0])
        lines = ["NATS/1.0"]
        if self.chance.random() < 0.6:
            self.with_id.add(number)
            lines.append(f"Nats-Msg-Id: id-{number}")
        if self.chance.random() < 0.2:
            lines.append(f"Nats-Expected-Last-Sequence: {len(self.server.stored) + len(self.to_server)}")
        header = "\r\n".join([*lines, "", ""]).encode() if len(lines) > 1 else b""
        payload, deadline = b"%d" % number, self.now + timeout
        repeatable = number in self.with_id
        # only a message with an id is sent again before its deadline
        due = min(deadline, self.now + ATTEMPT) if repeatable else deadline
        size = len(header) + len(payload)
        entry = InFlight(Ticket(self, number), b"s", header, payload, size, number, deadline, due, repeatable)
        self.add(entry)
        self.deadlines[number] = deadline
        self.sent[number] += 1
        self.to_server.append((b"r.%d" % number, header, payload))

    def add(self, entry: InFlight) -> None:
        self.window.add_publish(b"r.%d" % entry.number, entry)

    def again(self, sends) -> None:
        order = [entry.number for _, entry in sends]
        assert order == sorted(order)
        for reply, entry in sends:
            assert not entry.ticket.done()
            self.sent[entry.number] += 1
            self.to_server.append((reply, entry.header, entry.payload))

    def failed(self, failures) -> None:
        for entry, error in failures:
            self.end(entry.number, error)

    def end(self, number: int, outcome: object) -> None:
        assert number not in self.outcomes, "twice"
        self.outcomes[number] = outcome
        assert self.now <= self.deadlines[number] + 0.05, "late"

    # --- what happens ----------------------------------------------------------------------------------------

    def network(self) -> None:
        """The server takes some, some answers arrive."""
        for _ in range(self.chance.randint(0, len(self.to_server))):
            reply, header, payload = self.to_server.pop(0)
            if self.loses and self.chance.random() < 0.05:
                continue  # a leader that dies with it
            block, body = self.server.take(header, payload)
            if not (self.loses and self.chance.random() < 0.1):
                self.to_client.append((reply, b"", block, body))
        count = self.chance.randint(0, len(self.to_client))
        frames, self.to_client = self.to_client[:count], self.to_client[count:]
        if frames and self.chance.random() < 0.1:
            frames.append(self.chance.choice(frames))
        self.failed(self.window.answers(frames, self.now))

    def lose(self) -> None:
        if self.up:
            self.up = False
            # Some of it reached the server. No answer will come.
            for _, header, payload in self.to_server[: self.chance.randint(0, len(self.to_server))]:
                self.server.take(header, payload)
            self.to_server, self.to_client = [], []
            self.failed(self.window.disconnected())

    def reconnect(self) -> None:
        if not self.up:
            self.up = True
            self.again(self.window.connected(self.now))

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.window.next_check <= until:
            self.now = max(self.now, self.window.next_check)
            failures, sends = self.window.check_publishes(self.now)
            self.failed(failures)
            self.again(sends)
        self.now = until

    def size_in_flight(self) -> int:
        return sum(entry.size for entry in self.window.in_flight.values())

    def forget(self) -> None:
        open_ones = [number for number in self.deadlines if number not in self.outcomes]
        if open_ones:
            self.cancelled.add(self.chance.choice(open_ones))

    def run(self, steps: int) -> None:
        actions = (
            [self.publish] * 8 + [self.network] * 6 + [self.lose, self.reconnect, self.reconnect, self.forget]
        )
        for _ in range(steps):
            self.chance.choice(actions)()
            if self.chance.random() < 0.3:
                self.pass_time(self.chance.choice([0.01, 0.1, 0.3, 1.0, 3.0]))
            if self.chance.random() < 0.05:
                self.server.there = not self.server.there
            if self.chance.random() < 0.03:
                self.server.full = not self.server.full
            assert self.window.size == self.size_in_flight()
        self.pass_time(40.0)


def check(simulation: Simulation) -> None:
    stored = Counter(simulation.server.stored)
    assert (simulation.window.in_flight, simulation.window.count) == ({}, 0)
    assert (simulation.window.size, simulation.window.next_check) == (0, NEVER)
    for number in range(1, simulation.number + 1):
        outcome = simulation.outcomes.get(number)
        # a publish whose future was cancelled has no outcome
        if outcome is None:
            assert number in simulation.cancelled, "no outcome"
            continue
        if not isinstance(outcome, JetStreamError):
            assert simulation.server.stored[outcome.seq - 1] == number, "another message's sequence"
        elif not isinstance(outcome, UNKNOWN):
            assert isinstance(outcome, ApiError | NoRespondersError)
            assert not stored[number], f"stored, and {outcome!r}"
        if number in simulation.with_id:
            assert stored[number] <= 1, "twice"
    assert max(stored.values(), default=0) <= 1, "twice"


def test_one_true_outcome_in_time():
    kinds: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = Simulation(seed)
        simulation.run(150)
        check(simulation)
        kinds.update(type(outcome).__name__ for outcome in simulation.outcomes.values())
    # The model is worth something only if all of it happens.
    assert set(kinds) == {
        "PubAck", "ApiError", "WrongLastSequenceError", "NoRespondersError", "DisconnectedError", "RequestTimeoutError",
    }  # fmt: skip


def test_no_loss_stored_in_order():
    for seed in range(50):
        simulation = Simulation(seed)
        simulation.loses = False
        for _ in range(60):
            simulation.chance.choice([simulation.publish, simulation.publish, simulation.network])()
        for _ in range(60):
            simulation.network()
        assert simulation.window.in_flight == {}
        simulation.pass_time(40.0)
        check(simulation)
        errors = [o for o in simulation.outcomes.values() if isinstance(o, JetStreamError)]
        assert {type(error).__name__ for error in errors} <= {"WrongLastSequenceError"}
        assert simulation.server.stored == sorted(simulation.server.stored)
        assert max(simulation.sent.values()) == 1
