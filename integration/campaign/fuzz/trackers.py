"""Targets with a state: trackers of the protocol, fed with what servers and strangers may send."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from integration.campaign.fuzz import samples as s
from integration.campaign.fuzz.engine import DifferenceError, Target, same
from integration.campaign.fuzz.grammar import BLOCK, JSON, SUBJECT, bytes_damaged
from jsclient.errors import JetStreamError
from jsclient.peers.backend import unpack
from jsclient.protocol.consumers.ack import sequences
from jsclient.protocol.consumers.consume import ConsumeTracker
from jsclient.protocol.consumers.fetch import Pull, PullRequest
from jsclient.protocol.consumers.monitors import GapTracker, HeartbeatMonitor
from jsclient.protocol.consumers.ordered import OrderedTracker
from jsclient.protocol.consumers.ordered_consume import OrderedConsume
from jsclient.protocol.consumers.priority import Pin
from jsclient.protocol.consumers.push import PushTracker
from jsclient.protocol.epochs.frontier import Int, Product
from jsclient.protocol.epochs.records import EpochReading
from jsclient.protocol.epochs.trackers import EpochSubscriber
from jsclient.protocol.models.publish import PubAck
from jsclient.protocol.peers.relationship import Fresh
from jsclient.protocol.peers.rules import Install, Queried, Received, Stored, Tick
from jsclient.protocol.peers.tracker import PeerTracker
from jsclient.protocol.publishing.batch import BatchTracker
from jsclient.protocol.publishing.chain_window import ChainWindow
from jsclient.protocol.publishing.fast_ingest import IngestTracker
from jsclient.protocol.publishing.in_flight import InFlight
from jsclient.protocol.publishing.publish_window import PublishWindow
from jsclient.protocol.streams.direct_get import read_direct_answer
from jsclient.protocol.topics.position import Extent, Position
from jsclient.protocol.topics.reader import AskHistory, Reader, Subscribe
from jsclient.protocol.topics.record import Record
from jsclient.protocol.topics.record_codec import RepublishedRecords, stored_record
from jsclient.protocol.wire.headers import parse_headers

Take = Callable[[bytes], object]


def some_ack(chance: Random, number: int) -> bytes:
    """The JSAck that comes next, or a different JSAck."""
    near = number + chance.choice((0, 0, 0, 0, 0, 1, 3, -1, -5))
    return b"$JS.ACK.ORDERS.worker.1.%d.%d.1700000000123456789.7" % (max(near, 0), max(near, 0))


def push(kind: type[Any]) -> Callable[[Random], Take]:
    """A push subscription: what is taken is data. An ordered one gives rising sequences only."""

    def make(chance: Random) -> Take:
        gaps = {} if kind is OrderedTracker else {"gaps": GapTracker()}
        tracker = kind("ORDERS", "worker", 50, 100_000, heartbeat=HeartbeatMonitor(1.0, 3.0), **gaps)
        last, now = 0, 0.0

        def take(data: bytes) -> None:
            nonlocal last, now
            now += chance.random()
            reply = data if chance.random() < 0.5 else some_ack(chance, tracker.received + 1)
            block = bytes_damaged(chance, chance.choice((b"", *s.STATUSES)))
            frames = [
                (b"orders.new", some_ack(chance, tracker.received + n), b"", b"x")
                for n in range(chance.choice((0, 0, 3)))
            ]
            tracker.receive([*frames, (b"orders.new", reply, block, chance.choice((b"", b"x")))], now)
            if tracker.pending > 50:
                raise DifferenceError(f"the queue holds {tracker.pending} of 50")
            if chance.random() < 0.05:
                tracker.tick(now)
            if kind is OrderedTracker and "went back" in str(tracker.cursor.wants):
                # One number was wrong. It may have been given out. What follows is read from before it.
                while tracker.take_frame()[0] is not None:
                    pass
                last = tracker.cursor.last_stream_seq
            if kind is OrderedTracker and tracker.cursor.wants is not None and tracker.may_recreate:
                tracker.recreated("again", tracker.cursor.last_stream_seq, now)
            while chance.random() < 0.7 and (taken := tracker.take_frame()[0]) is not None:
                seq = sequences(taken[1])[0]
                if kind is OrderedTracker and seq <= last:
                    raise DifferenceError(f"an ordered reader goes back: {seq} after {last}")
                last = seq

        return take

    return make


def consume(kind: type[Any]) -> Callable[[Random], Take]:
    """A reader that pulls."""

    def make(chance: Random) -> Take:
        tracker = kind("ORDERS", "worker", Pull(50, 5.0, 100_000, idle_heartbeat=1.0), 25)
        tracker.connected(0.0)
        count, now = 0, 0.0

        def take(data: bytes) -> None:
            nonlocal count, now
            now += chance.random() / 4
            count += 1
            block = (
                data if chance.random() < 0.5 else bytes_damaged(chance, chance.choice((b"", *s.STATUSES)))
            )
            number = chance.choice((b"1", b"%d" % chance.randrange(20), b"x", b""))
            frames = [(b"_INBOX.1." + number, b"", block, chance.choice((b"", b"", b"x")))]
            if chance.random() < 0.4:
                frames.append((b"orders.new", some_ack(chance, count), block, b"x"))
            tracker.receive(frames, now)
            # an end is a legal answer to these frames: continue with the same tracker
            if tracker.error is not None:
                tracker.error = None
                raise JetStreamError("ended")
            if chance.random() < 0.1:
                tracker.tick(now)
                tracker.disconnected()
                tracker.connected(now)
            while tracker.front and chance.random() < 0.9:
                tracker.take_frame()

        return take

    return make


def request(chance: Random) -> Take:
    """One request of a fetch."""

    def take(data: bytes) -> None:
        requests = PullRequest(
            Pull(chance.choice((1, 50)), 5.0, idle_heartbeat=chance.choice((None, 1.0))), 0.0
        )
        pin = Pin("ORDERS", "worker", "a")
        for moment in range(4):
            if requests.ended:
                break
            status, _ = parse_headers(data if moment % 2 else chance.choice(s.STATUSES))
            pin.message(data)
            if status is not None:
                requests.status(status.code, status.description, moment)
            else:
                requests.data(moment, len(data))
            requests.check_deadline(moment)
        if requests.owed < 0:
            raise DifferenceError(f"a request is owed {requests.owed}")

    return take


class Ticket:
    """A receiver of one outcome."""

    def __init__(self) -> None:
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, ack: PubAck) -> None:
        if self.over:
            raise DifferenceError("a ticket has two outcomes")
        if not (isinstance(ack, PubAck) and ack.seq > 0 and ack.stream):
            raise DifferenceError(f"an ack without a place: {ack!r}")
        self.over = True


def window(kind: Callable[[], Any]) -> Callable[[Random], Take]:
    """Publishes in flight, and their answers."""

    def make(chance: Random) -> Take:
        publishes, number, now = kind(), 0, 0.0

        def take(data: bytes) -> None:
            nonlocal number, now
            number, now = number + 1, now + 0.01
            reply = b"_INBOX.p.%d" % number
            head = chance.choice((b"", b"NATS/1.0\r\nNats-Msg-Id: i%d\r\n\r\n" % number))
            publishes.add_publish(
                reply, InFlight(Ticket(), b"orders.new", head, b"x", 10, number, now + 5, now + 1, bool(head))
            )
            block = bytes_damaged(chance, chance.choice((b"", b"", s.STATUSES[6])))
            publishes.answers(
                [(reply, b"", block, data), (chance.choice((reply, data)), b"", b"", data)], now
            )
            if chance.random() < 0.05:
                publishes.disconnected()
                publishes.connected(now)
            if chance.random() < 0.2:
                publishes.check_publishes(now + chance.choice((0, 2, 10)))
            if publishes.size < 0:
                raise DifferenceError(f"{publishes.size} bytes in flight")
            if len(publishes.in_flight) > 200:
                publishes.fail_publishes(lambda entry: JetStreamError("over"))

        return take

    return make


def ingest(chance: Random) -> Take:
    tracker: Any = None

    def take(data: bytes) -> None:
        nonlocal tracker
        if tracker is None or tracker.ended or tracker.failure is not None:
            tracker = IngestTracker("_INBOX.t.tok", 10, gap_ok=chance.random() < 0.5)
        while tracker.sent < min(tracker.limit, 100):
            tracker.next_reply()
        subject = chance.choice(
            (tracker.ping_reply(), tracker.end_reply(), b"%b%d.1.$FI" % (tracker.reply, tracker.sent), data)
        )
        tracker.receive_answer((subject, b"", chance.choice((b"", s.STATUSES[6])), data))
        if not tracker.ended and tracker.acked > tracker.sent:
            raise DifferenceError(f"{tracker.acked} are acked of {tracker.sent}")

    return take


def batch(chance: Random) -> Take:
    def take(data: bytes) -> None:
        tracker = BatchTracker("id1")
        for _ in range(3):
            tracker.add_message("a.b", b"", b"x")
        if chance.random() < 0.3:
            tracker.read_answer(chance.choice((b"", data)))
        tracker.commit()
        ack = tracker.read_commit(data)
        same((ack.batch, ack.count), ("id1", 3), "a commit and its batch")

    return take


def epochs(chance: Random) -> Take:
    """A subscriber of a topic into whose subjects a stranger writes."""
    order: Any = chance.choice((Int(), Product(Int(), Int())))
    skipped: list[Any] = []
    reading: Any = EpochReading(order, "T", (0, 1), lambda record, error: skipped.append(error))
    core: Any = EpochSubscriber(order, frozenset((0, 1)))
    seq = 0

    def take(data: bytes) -> None:
        nonlocal seq
        seq += 1
        partition = chance.randrange(2)
        subject = f"T.{partition}.{chance.choice(('data', 'frontier'))}"
        block, _, payload = data.partition(b"\r\n\r\n")
        # What is no header block becomes the payload of a valid message.
        if not block.startswith(b"NATS"):
            block, payload = EPOCH_BLOCKS[chance.randrange(2)], data
        head = b"NATS/1.0\r\nNats-Stream: T\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n" % (
            subject.encode(),
            seq,
        )
        tail = (
            b"Nats-Time-Stamp: 2026-01-31T12:00:00Z\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: %d\r\n\r\n"
            % (seq - 1)
        )
        own = block.partition(b"\r\n")[2]
        frame = b"_INBOX.1", b"", head[:10] + (own + b"\r\n" if own else b"") + head[10:] + tail, payload
        record = stored_record(read_direct_answer(frame), linked=True)
        if reading.partition_of(record) is None:
            return
        if not core.is_ready and record.subject.endswith("frontier"):
            entry = reading.entry_of(record)
            if entry is not None:
                core.receive_message(partition, entry.record.snapshot, record.seq)
        elif core.is_ready and (message := reading.message(record, core.lower_of)) is not None:
            core.receive_message(*message, record.seq)
        if core.is_ready:
            assert core.position

    return take


EPOCH_BLOCKS = (
    b"NATS/1.0\r\nJsc-Kind: frontier\r\nJsc-Producer: p1\r\nNats-Expected-Last-Subject-Sequence: 0",
    b"NATS/1.0\r\nJsc-Epoch: 3\r\nJsc-Producer: p1",
)
EPOCH_SAMPLES = (
    s.FRONTIER,
    s.FRONTIER2,
    *(block + b"\r\n\r\n" + s.FRONTIER for block in EPOCH_BLOCKS),
)


def peer(chance: Random) -> Take:
    """A peer to which strangers send events and queries on its channels."""
    tracker = PeerTracker("ann", accepts=lambda attrs: chance.random() < 0.5)
    count, revisions = 0, {}

    def fresh() -> Fresh:
        return Fresh(f"id{count}", f"ch{count}", f"vk{count}", f"pk{count}")

    def do(event: Any) -> None:
        for command in tracker.handle(event, float(count)):
            # it receives what it stores again, as from the store
            if type(command).__name__ == "Store":
                revisions[command.key] = revisions.get(command.key, 0) + 1
                tracker.handle(Stored(command.key, command.value, revisions[command.key]), float(count))

    do(Install(fresh()))

    def take(data: bytes) -> None:
        nonlocal count
        count += 1
        attrs = unpack(data)
        if attrs is None:
            raise JetStreamError("no object")
        channels = [eci for eci, _ in tracker.channels] or ["ann.x"]
        eci = chance.choice((*channels, "ann.none"))
        name = chance.choice(PEER_EVENTS)
        do(Received(eci, "wrangler", name, attrs, fresh()))
        if chance.random() < 0.1:
            do(Queried(eci, "subscription", chance.choice(("wellKnown_Rx", "established", "x")), attrs))
        if chance.random() < 0.05:
            do(Tick())

    return take


PEER_EVENTS = (
    "new_subscription_request", "inbound_removal", "outbound_pending_subscription_approved", "outbound_removal",
    "established_removal", "subscription", "pending_subscription_approval", "send_event_on_subs", "x",
)  # fmt: skip


def reader(chance: Random) -> Take:
    """A reader of a topic: pushes that may be anything, a history that is right. It gives rising sequences."""
    under: Any = Reader(
        Position("S", "1", 0, 0), "r", push=True, replays=chance.random() < 0.5, max_pending=20
    )
    questions: list[Any] = []
    last, stored, now = 0, 0, 0.0

    def carry_out(commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, AskHistory):
                questions.append(command)
            elif isinstance(command, Subscribe):
                carry_out(under.subscribed(command.id, now))

    carry_out(under.begin_reading(0.0))

    def take(data: bytes) -> None:
        nonlocal last, stored, now
        stored, now = stored + 1, now + 0.1
        frames = [(b"_INBOX.1", b"", block, b"x") for block in (data, s.republished(stored, stored - 1))]
        records = RepublishedRecords("S").read_frames(frames, lambda frame: None)
        records = [
            one for one in records if one.seq <= stored or chance.random() < 0.1
        ]  # ids are rarely guessed
        carry_out(under.offer(under.id or "", records, now))
        if chance.random() < 0.1:
            carry_out(under.tick(now + 60))
        if questions and chance.random() < 0.7:
            requests = questions.pop(0)
            page = [
                Record(seq=n, time_ns=n, subject="a.b", previous=n - 1)
                for n in range(requests.since + 1, stored + 1)
            ]
            extent = Extent("S", "1", 1, stored)
            carry_out(under.page(requests, page[:10], now, more=len(page) > 10, extent=extent))
        taken, commands = under.take_records(10)
        carry_out(commands)
        for one in taken:
            if one.seq <= last:
                raise DifferenceError(f"a reader goes back: {one.seq} after {last}")
            last = one.seq
        if under.error is not None:
            error, under.error = under.error, None
            raise error

    return take


TRACKERS = [
    Target("tracker: push", push(PushTracker), s.ACKS, SUBJECT),
    Target("tracker: ordered push", push(OrderedTracker), s.ACKS, SUBJECT),
    Target("tracker: messages()", consume(ConsumeTracker), s.STATUSES, BLOCK),
    Target("tracker: ordered pull", consume(OrderedConsume), s.STATUSES, BLOCK),
    Target("tracker: fetch, pin", request, s.BLOCKS, BLOCK),
    Target("tracker: publishes", window(lambda: PublishWindow("never")), s.PUB_ACKS, JSON),
    Target("tracker: chain", window(lambda: ChainWindow("never", name="c")), s.PUB_ACKS, JSON),
    Target("tracker: ingest", ingest, s.INGEST, JSON),
    Target("tracker: batch", batch, s.PUB_ACKS, JSON),
    Target("tracker: epochs", epochs, EPOCH_SAMPLES, (*BLOCK, *JSON)),
    Target("tracker: peer", peer, (s.ATTRIBUTES,), JSON),
    Target("tracker: topic reader", reader, s.REPUBLISHED, BLOCK),
]  # fmt: skip
