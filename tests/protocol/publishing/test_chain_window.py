"""A chain of records against a server that loses, delays and forgets: no hole, no repeat, whatever others publish."""

from __future__ import annotations

import random

import msgspec
import pytest

from jsclient.errors import ApiError, JetStreamError, RequestTimeoutError
from jsclient.protocol.models import PubAck
from jsclient.protocol.publishing.chain_window import ChainWindow
from jsclient.protocol.publishing.in_flight import ATTEMPT, InFlight
from jsclient.protocol.publishing.publish_window import NEVER
from jsclient.protocol.wire.headers import parse_headers

SEEDS = 300
TIMEOUT = 60.0


class ChainServer:
    """A stream. ``cluster``: it remembers the ids of what it then does not store, as older clusters do."""

    def __init__(self, *, cluster: bool) -> None:
        self.cluster = cluster
        self.stored: list[tuple[str, bytes]] = []  # id and payload
        self.ids: dict[str, int] = {}
        self.last_id = ""
        self.there = True

    def take(self, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """The header block and payload of its answer."""
        if not self.there:
            return b"NATS/1.0 503\r\n\r\n", b""
        headers = parse_headers(header)[1]
        msg_id = headers["Nats-Msg-Id"]
        if (seq := self.ids.get(msg_id)) is not None:
            return self._refused(10158) if not seq else self._acked(seq, duplicate=True)
        last_seq, last_id = (
            headers.get("Nats-Expected-Last-Sequence"),
            headers.get("Nats-Expected-Last-Msg-Id"),
        )
        assert (last_seq is None) != (last_id is None)
        assert last_id is None or not self.cluster, "that breaks the stream"
        if (last_seq is not None and int(last_seq) != len(self.stored)) or last_id not in (
            None,
            self.last_id,
        ):
            # A cluster remembers the id of a refused message, so a repetition is refused as a duplicate.
            if self.cluster:
                self.ids[msg_id] = 0
            return self._refused(10071 if last_id is None else 10070)
        return self._acked(self.store(msg_id, payload))

    def store(self, msg_id: str, payload: bytes) -> int:
        self.stored.append((msg_id, payload))
        self.last_id = msg_id
        if msg_id:
            self.ids[msg_id] = len(self.stored)
        return len(self.stored)

    @staticmethod
    def _acked(seq: int, **fields: object) -> tuple[bytes, bytes]:
        return b"", msgspec.json.encode({"stream": "S", "seq": seq, **fields})

    @staticmethod
    def _refused(err_code: int) -> tuple[bytes, bytes]:
        error = {"code": 400, "err_code": err_code, "description": "no"}
        return b"", msgspec.json.encode({"error": error})


class Ticket:
    def __init__(self) -> None:
        self.ack: PubAck | None = None
        self.cancelled = False

    def done(self) -> bool:
        return self.cancelled or self.ack is not None

    def set_result(self, ack: PubAck) -> None:
        assert not self.done()
        self.ack = ack


class ChainSimulation:
    """A publisher of a chain, the network, and time."""

    def __init__(self, seed: int, *, cluster: bool, loses: bool = True) -> None:
        self.chance = random.Random(seed)
        self.server = ChainServer(cluster=cluster)
        self.window: ChainWindow[Ticket] = ChainWindow("never an id", name="n", by_id=not cluster)
        self.most = 1 if cluster else 20
        self.loses = loses
        self.now = 0.0
        self.number = 0
        self.tickets: dict[int, Ticket] = {}
        self.errors: dict[int, JetStreamError] = {}
        self.to_server: list[tuple[bytes, bytes, bytes]] = []
        self.to_client: list[tuple[bytes, bytes, bytes, bytes]] = []
        self.at_gate: tuple[str, str | int] | None = None  # id and link of one that waits to go out

    def publish(self) -> None:
        """A record arrives. It may wait after it was given its place, as when the wire is slow."""
        window = self.window
        if self.at_gate is not None:
            if not window.is_broken and window._connected:
                (msg_id, link), self.at_gate = self.at_gate, None
                self.go(msg_id, link)
            return
        if (
            window.is_broken
            or window.link is None
            or len(window.in_flight) >= self.most
            or not window._connected
        ):
            return
        msg_id, link = window.id_of(self.number + 1), window.link
        # the write buffer is full, so that this record waits with the link that it was given
        if self.loses and self.chance.random() < 0.2:
            self.at_gate = msg_id, link
        else:
            self.go(msg_id, link)

    def go(self, msg_id: str, link: str | int) -> None:
        window = self.window
        self.number = number = self.number + 1
        guard = "Nats-Expected-Last-Sequence" if isinstance(link, int) else "Nats-Expected-Last-Msg-Id"
        header = f"NATS/1.0\r\nA: b\r\nNats-Msg-Id: {msg_id}\r\n{guard}: {link}\r\n\r\n".encode()
        if window.link == link:
            window.link = window.link_after(number, link)
        elif window.link is not None:
            window.is_broken = True
        payload, ticket = b"%d" % number, Ticket()
        self.tickets[number] = ticket
        size = len(header) + len(payload)
        deadline, due = self.now + TIMEOUT, self.now + ATTEMPT
        window.add_publish(
            b"r.%d" % number, InFlight(ticket, b"s", header, payload, size, number, deadline, due, True)
        )
        self.to_server.append((b"r.%d" % number, header, payload))

    def network(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(0, len(self.to_server))):
            late = self.loses and chance.random() < 0.1
            reply, header, payload = self.to_server.pop(chance.randrange(len(self.to_server)) if late else 0)
            if self.loses and chance.random() < 0.05:
                continue
            answer = self.server.take(header, payload)
            if not (self.loses and chance.random() < 0.05):
                self.to_client.append((reply, b"", *answer))
        count = chance.randint(0, len(self.to_client))
        arrived, self.to_client = self.to_client[:count], self.to_client[count:]
        self.failed(self.window.answers(arrived, self.now))

    def failed(self, failures) -> None:
        for entry, error in failures:
            assert entry.number not in self.errors
            self.errors[entry.number] = error

    def again(self, sends) -> None:
        self.to_server += [(reply, entry.header, entry.payload) for reply, entry in sends]

    def check_stream(self) -> None:
        """As the publisher does while the chain is broken. A new leader may not have applied all yet."""
        window, stored = self.window, self.server.stored
        if not window.is_broken or not window._connected or not self.server.there:
            return
        seen = len(stored)
        # a new leader may lack the last record
        if self.loses and seen and self.chance.random() < 0.1:
            seen -= 1
        number = window.number_of(stored[seen - 1][0]) if seen else 0
        if number is None:
            self.failed(window.end_chain(None))
            return
        if number < window.known(self.number):
            assert self.loses, "nobody lags"
            return
        failures, sends = window.last_is(number, seen, "S", self.now)
        self.failed(failures)
        self.again(sends)

    def step(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(0, 4)):
            self.publish()
        self.network()
        # The stream loses its leader, or the connection breaks, and what was on its way may be lost.
        if self.loses:
            if chance.random() < 0.05:
                self.server.there = not self.server.there
            if chance.random() < 0.03:
                self.failed(self.window.disconnected())
                self.to_client.clear()
                if chance.random() < 0.5:
                    self.to_server.clear()
            if chance.random() < 0.05 and self.window.in_flight:
                chance.choice([*self.window.in_flight.values()]).ticket.cancelled = True
        if not self.window._connected and chance.random() < 0.5:
            self.again(self.window.connected(self.now))
        if chance.random() < 0.3:
            self.check_stream()
        self.now += chance.choice([0.0, 0.1, 1.0])
        if self.now >= self.window.next_check:
            failures, sends = self.window.check_publishes(self.now)
            self.failed(failures)
            self.again(sends)

    def calm(self) -> None:
        """From here on nothing goes wrong."""
        self.loses, self.server.there = False, True
        for _ in range(400):
            if not self.window._connected:
                self.again(self.window.connected(self.now))
            self.network()
            self.check_stream()
            self.now += 0.05
            if self.now >= self.window.next_check:
                failures, sends = self.window.check_publishes(self.now)
                self.failed(failures)
                self.again(sends)
            # the record that waited for the write buffer is published last
            if self.at_gate is not None:
                self.publish()
            elif not self.window.in_flight and not self.to_server:
                return
        raise AssertionError("it does not end")

    def check(self, *, rival: bool = False) -> None:
        numbers = [int(payload) for _, payload in self.server.stored if payload != b"rival"]
        assert numbers == sorted(set(numbers)), "a repeat, or out of order"
        positions = {
            int(payload): seq for seq, (_, payload) in enumerate(self.server.stored, 1) if payload != b"rival"
        }
        for number, ticket in self.tickets.items():
            if ticket.ack is not None:
                assert positions[number] == ticket.ack.seq, "told as stored, and it is not there"
            elif number in self.errors and not isinstance(self.errors[number], RequestTimeoutError):
                assert number not in positions, "told as refused, and it is there"
        # A cancelled publish may leave a hole, any other must not.
        missing = [
            n
            for n in range(1, max(numbers, default=0))
            if n not in positions and not self.tickets[n].cancelled
        ]
        assert not missing, "a hole"
        if rival:
            first_rival = [payload for _, payload in self.server.stored].index(b"rival")
            assert all(payload == b"rival" for _, payload in self.server.stored[first_rival:]), (
                "behind a rival"
            )
        assert self.window.size == 0
        assert self.window.in_flight == {}


@pytest.mark.parametrize("cluster", [False, True])
def test_chain_no_hole_and_no_repeat(cluster):
    broken = 0
    for seed in range(SEEDS):
        simulation = ChainSimulation(seed, cluster=cluster)
        for _ in range(120):
            simulation.step()
        simulation.calm()
        simulation.check()
        broken += simulation.window._round
    assert broken > SEEDS


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("loses", [False, True])
def test_nothing_stored_behind_rival(cluster, loses):
    fenced = 0
    for seed in range(SEEDS):
        simulation = ChainSimulation(seed, cluster=cluster, loses=loses)
        for turn in range(80):
            simulation.step()
            if turn == 40:
                simulation.server.store("", b"rival")
        simulation.calm()
        simulation.check(rival=True)
        fenced += simulation.window.is_fenced
    assert fenced > SEEDS / 2


def test_refused_has_no_successor():
    simulation = ChainSimulation(0, cluster=False, loses=False)
    for _ in range(3):
        simulation.publish()
    too_large = msgspec.json.encode({"error": {"code": 400, "err_code": 10054, "description": "too large"}})
    first, second, third = simulation.to_server
    simulation.to_server.clear()
    simulation.failed(simulation.window.answers([(first[0], b"", b"", too_large)], 0.0))
    for reply, header, payload in (second, third):
        answer = simulation.server.take(header, payload)
        simulation.failed(simulation.window.answers([(reply, b"", *answer)], 0.0))
    assert simulation.window.is_broken
    simulation.check_stream()
    assert simulation.errors.keys() == {1, 2, 3}
    assert [error.err_code for error in simulation.errors.values() if isinstance(error, ApiError)] == [
        10054,
        10070,
        10070,
    ]
    assert simulation.window.link is None, "nothing can follow"
    assert simulation.window.in_flight == {}


def test_what_is_known_to_be_stored():
    simulation = ChainSimulation(0, cluster=False, loses=False)
    window = simulation.window
    for _ in range(4):
        simulation.publish()
    assert window.known(4) == 0
    window.skip(5, window.link)
    simulation.network()
    while simulation.to_server or simulation.to_client:
        simulation.network()
    assert (window.known(5), window.place_of(4)) == (4, 4)


def test_record_keeps_all_headers():
    window = ChainWindow("never", name="n")
    header = b"NATS/1.0\r\nTag: a\r\nTag: b\r\nNats-Msg-Id: n:1\r\nNats-Expected-Last-Sequence: 0\r\n\r\n"
    window.add_publish(b"r.1", InFlight(Ticket(), b"s", header, b"", len(header), 1, TIMEOUT, ATTEMPT, True))
    window.check_publishes(ATTEMPT)
    [(_, entry)] = window.last_is(0, 7, "S", 3.0)[1]
    headers = parse_headers(entry.header)[1]
    assert headers.get_all("Tag") == ["a", "b"]
    assert (headers["Nats-Msg-Id"], headers["Nats-Expected-Last-Sequence"]) == ("n:1:1", "7")


def test_full_at_once_leaderless_late():
    for err_code, at_once in ((10077, True), (10008, False)):
        simulation = ChainSimulation(0, cluster=False, loses=False)
        simulation.publish()
        answer = {"error": {"code": 503, "err_code": err_code, "description": "no"}}
        simulation.failed(
            simulation.window.answers([(b"r.1", b"", b"", msgspec.json.encode(answer))], simulation.now)
        )
        assert bool(simulation.errors) is at_once
        simulation.failed(simulation.window.check_publishes(TIMEOUT)[0])
        [error] = simulation.errors.values()
        assert isinstance(error, ApiError)
        assert error.err_code == err_code


def test_nothing_goes_out_while_broken():
    simulation = ChainSimulation(0, cluster=False, loses=False)
    simulation.publish()
    simulation.publish()
    window = simulation.window
    assert window.check_publishes(ATTEMPT) == ([], [])
    assert window.is_broken
    assert window.check_publishes(TIMEOUT - 0.1) == ([], [])
    failures, sends = window.check_publishes(TIMEOUT)
    assert [type(error) for _, error in failures] == [RequestTimeoutError] * 2
    assert sends == []
    assert window.next_check == NEVER


@pytest.mark.parametrize("msg_id", ["", "n", "n:", "n:x", "m:1", "n:-1", "n:\xb2", "nn:1"])
def test_whose_a_record_is(msg_id):
    window = ChainWindow("never", name="n")
    assert window.number_of(msg_id) is None
    assert window.number_of("n:17") == window.number_of("n:17:3") == 17
