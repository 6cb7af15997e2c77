"""Targets without a state: what reads bytes and returns a value. Two implementations of one thing are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from integration.campaign.fuzz import reference
from integration.campaign.fuzz import samples as s
from integration.campaign.fuzz.engine import DifferenceError, Target, same
from integration.campaign.fuzz.grammar import BLOCK, JSON, SUBJECT, TEXT, WIRE
from jsclient._runtime.connection.speedups import chosen
from jsclient._runtime.connection.wire import FrameReader
from jsclient.errors import JetStreamError, NotJetStreamMessageError, ProtocolError
from jsclient.peers.backend import read_answer, unpack
from jsclient.protocol.connection.urls import shared_identity, shown
from jsclient.protocol.consumers.ack import is_jsack, read_jsack, sequences
from jsclient.protocol.consumers.push import whole_number
from jsclient.protocol.consumers.status import classify
from jsclient.protocol.consumers.worker.dead_letter import read_exhausted
from jsclient.protocol.epochs.frontier import Int, Product
from jsclient.protocol.epochs.live import read_live, read_live_request, write_live
from jsclient.protocol.epochs.records import EpochPosition, FrontierRecord
from jsclient.protocol.models.account import AccountInfo
from jsclient.protocol.models.consumer import ConsumerInfo
from jsclient.protocol.models.message import read_stored_message
from jsclient.protocol.models.publish import PubAck, read_pub_ack
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.peers.channel import check_eci, read_subject
from jsclient.protocol.peers.relationship import read_value, write_value
from jsclient.protocol.publishing.schedule import check_cron
from jsclient.protocol.streams.counter import read_counter, read_number
from jsclient.protocol.streams.direct_get import DirectBatchTracker, read_direct_answer
from jsclient.protocol.topics.position import Position
from jsclient.protocol.topics.record_codec import (
    DeliveredRecords,
    RepublishedRecords,
    StoredRecords,
    kind_of,
    link_of,
    republished_record,
    stored_record,
)
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.protocol.wire.api import next_offset, page_items, read_response
from jsclient.protocol.wire.checks import is_at_least
from jsclient.protocol.wire.codec import from_wire, to_wire
from jsclient.protocol.wire.headers import Headers, encode_headers, inline_status, parse_headers
from jsclient.protocol.wire.names import (
    check_consumer_name,
    check_filter_subject,
    check_publish_subject,
    check_queue,
    check_stream_name,
    check_token,
    subject_matches,
    subjects_overlap,
)
from jsclient.protocol.wire.replies import may_answer, may_answer_flow_control
from jsclient.protocol.wire.server_error import read_server_error
from jsclient.protocol.wire.units import format_time, parse_time, parse_time_ns
from jsclient.tables.offsets import LogOffset
from jsclient.topics.notifiers.descriptors import NotifierDescriptor, SubscriptionDescriptor, read_descriptor

Take = Callable[[bytes], object]


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def plain(take: Take) -> Callable[[Random], Take]:
    """A target that needs neither chance nor state."""
    return lambda _: take


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of its documented error."""
    try:
        return call()
    except JetStreamError as error:
        return type(error)


def jsack(data: bytes) -> None:
    expected = reference.jsack(data)
    same(is_jsack(data), expected is not None, "is_jsack and the specification")
    try:
        metadata = read_jsack(data)
    except NotJetStreamMessageError:
        same(None, expected, "read_jsack and the specification")
        same(attempt(lambda: sequences(data)), NotJetStreamMessageError, "sequences and read_jsack")
        raise
    read = msgspec.structs.astuple(metadata)
    same(read, expected, "read_jsack and the specification")
    same(
        sequences(data),
        (metadata.stream_seq, metadata.consumer_seq, metadata.timestamp_ns, metadata.num_pending),
        "sequences and read_jsack",
    )
    assert metadata.timestamp  # it is computed


def headers(data: bytes) -> None:
    status, actual = parse_headers(data)
    code, pairs = reference.headers(data)
    same(inline_status(data), code, "inline_status and the specification")
    same(status.code if status else 0, code, "parse_headers and inline_status")
    same(actual.pairs(), pairs, "parse_headers and the specification")
    if status is not None:
        classify(status.code, status.description)
    try:
        block = encode_headers(actual)
    except JetStreamError:
        return
    same(parse_headers(block)[1].pairs(), pairs, "headers written and read again")


class Host:
    def __init__(self) -> None:
        self.others: list[Any] = []

    def on_line(self, line: bytes) -> None: ...

    def on_other(self, sid: bytes, frame: Any) -> None:
        self.others.append((sid, *frame))

    def on_sink_error(self, error: Exception) -> None:
        raise error


def read_wire(pieces: list[bytes], *, compiled: bool = True) -> tuple[list[Any], list[Any], bool]:
    """The frames of the sink, the frames of other subscriptions, and whether the reader refused the remaining bytes."""
    host = Host()
    reader, frames = FrameReader(host), []
    if not compiled:
        reader._compiled = None
    reader.max_payload = 1 << 40
    reader.sinks[b"1"] = frames.extend
    try:
        for piece in pieces:
            reader.feed(piece)
    except ProtocolError:
        return frames, host.others, True
    return frames, host.others, False


def wire(chance: Random) -> Take:
    def take(data: bytes) -> None:
        whole = read_wire([data])
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((1, 2, 5))))
        parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        same(read_wire(parts), whole, "the wire in pieces and at once")
        if chosen().scan is not None:
            same(read_wire(parts, compiled=False), whole, "the wire with the compiled scanner and without")
        expected = reference.frames(data)
        same(whole[2], expected is None, "whether the wire is malformed, and the specification")
        if expected is None:
            raise ProtocolError("malformed")
        same(whole[0], [frame[1:] for frame in expected if frame[0] == b"1"], "frames and the specification")
        same(whole[1], [frame for frame in expected if frame[0] != b"1"], "others and the specification")

    return take


def model(cls: type[Any]) -> Take:
    def take(data: bytes) -> None:
        wire = to_wire(from_wire(cls, read_response(data)))  # with the fields that are always sent
        same(to_wire(from_wire(cls, wire)), wire, f"{cls.__name__} written and read again")

    return take


def pub_ack(data: bytes) -> None:
    fast = attempt(lambda: read_pub_ack(data))
    slow = attempt(lambda: from_wire(PubAck, read_response(data)))
    if isinstance(fast, PubAck):
        if abs(fast.count or 0) < 2**63:  # the fast path takes any count: a batch compares it with its own
            same(fast, slow, "the fast path of an ack and the slow one")
        if not (0 < fast.seq < 2**64 and fast.stream):
            raise DifferenceError(f"an ack without a place is taken: {fast!r}")
    elif isinstance(slow, PubAck) and 0 < slow.seq < 2**64 and slow.stream:
        raise DifferenceError(f"the fast path of an ack and the slow one: {fast!r}, {slow!r}")
    if not isinstance(fast, PubAck):
        raise ProtocolError("refused")


def pages(data: bytes) -> None:
    answer = read_response(data)
    for field in ("streams", "consumers"):
        items = page_items(answer, field)
        after = next_offset(answer, 0, len(items))
        if after is not None and after <= 0:
            raise DifferenceError(f"a page that never ends: {after}")


def stored(data: bytes) -> None:
    message = read_stored_message(read_response(data))
    attempt(lambda: read_counter(message))


def frame_of(block: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    return b"_INBOX.1", b"", block, b"data"


def direct(chance: Random) -> Take:
    def take(data: bytes) -> None:
        frames = [
            frame_of(s.direct(1, 0)),
            frame_of(s.as_stored(data, s.direct(2, 1))),
            frame_of(s.direct(3, 2)),
        ]
        linked = chance.random() < 0.5
        slow, fast = DirectBatchTracker(), DirectBatchTracker()
        expected = []
        for frame in frames:
            message = slow.read_frame(frame)
            if message is None:
                break
            expected.append(stored_record(message, linked=linked))
        got = StoredRecords(fast, linked=linked).read_frames(frames)
        same(got, expected, "stored records at once and one by one")
        same(
            (fast.ending, type(fast.error), fast.last_seq, fast.num_pending, fast.count),
            (slow.ending, type(slow.error), slow.last_seq, slow.num_pending, slow.count),
            "the end of a page, read at once and one by one",
        )
        attempt(lambda: DirectBatchTracker().take_frames(frames))

    return take


def direct_answer(data: bytes) -> None:
    """An answer that the server did not write as it does: no more than a documented error."""
    frames = [frame_of(s.direct(1, 0)), frame_of(data), frame_of(s.direct(3, 2))]
    StoredRecords(DirectBatchTracker(batch=3), linked=True).read_frames(frames)
    attempt(lambda: DirectBatchTracker().take_frames(frames))
    read_direct_answer(frame_of(data))


def forged(data: bytes) -> None:
    """A message on a republished subject that a stranger published."""
    RepublishedRecords("S").read_frames([frame_of(s.REPUBLISHED[0]), frame_of(data)], lambda frame: None)


def republished(data: bytes) -> None:
    stored_now = s.as_stored(data, s.republished(3, 2))
    frames = [frame_of(block) for block in (s.REPUBLISHED[0], stored_now, s.REPUBLISHED[1])]
    foreign: list[Any] = []
    got = RepublishedRecords("S").read_frames(frames, foreign.append)
    expected = [attempt(lambda frame=frame: republished_record(frame, "S")) for frame in frames]
    same(
        got,
        [one for one in expected if not isinstance(one, type)],
        "republished records at once and one by one",
    )
    same(
        len(foreign), sum(isinstance(one, type) for one in expected), "foreign records at once and one by one"
    )


def delivered(chance: Random) -> Take:
    def take(data: bytes) -> None:
        linked = chance.random() < 0.5
        frames = [(b"a.b", s.ACK, block, b"x") for block in (b"", data, s.BLOCKS[-1])]
        got = DeliveredRecords(linked=linked).read_frames(frames)
        for record, (_, reply, block, payload) in zip(got, frames, strict=True):
            own, position = parse_headers(block)[1] if block else Headers(), read_jsack(reply)
            same(record.headers, own, "headers of delivered records at once and one by one")
            same((record.seq, record.time_ns), (position.stream_seq, position.timestamp_ns), "their place")
            same((record.subject, record.data), ("a.b", payload), "their subject and data")
            same(record.kind, kind_of(own), "their kind")
            same(record.previous, link_of(own) if linked else None, "their link")

    return take


def position(data: bytes) -> None:
    actual = Position.from_json(data)
    same(Position.from_json(actual.to_json()), actual, "a position written and read again")


def epoch_position(data: bytes) -> None:
    for order in (Int(), Product(Int(), Int())):
        actual = attempt(lambda order=order: EpochPosition.from_json(data, order))
        if not isinstance(actual, type):
            same(
                EpochPosition.from_json(actual.to_json(), order),
                actual,
                "an epoch position written and read again",
            )


def frontier(data: bytes) -> None:
    for order in (Int(), Product(Int(), Int())):
        actual = attempt(lambda order=order: FrontierRecord.from_json(data, order))
        if not isinstance(actual, type):
            same(
                FrontierRecord.from_json(actual.to_json(order), order),
                actual,
                "a frontier written and read again",
            )


def live(data: bytes) -> None:
    block, _, payload = data.partition(b"\r\n\r\n")
    actual = read_live(block + b"\r\n\r\n", payload or s.FRONTIER, Int())
    if actual.message is not None:
        same(
            read_live(*write_live(actual, Int()), Int()).message,
            actual.message,
            "a live message written and read again",
        )


def descriptor(data: bytes) -> None:
    document = json.loads(data) if data[:1] == b"{" and valid(data) else data
    for kind in (NotifierDescriptor, SubscriptionDescriptor):
        actual = attempt(lambda kind=kind: read_descriptor(document, kind))
        if not isinstance(actual, type):
            same(read_descriptor(actual.to_dict(), kind), actual, "a descriptor written and read again")


def valid(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def peer_value(data: bytes) -> None:
    for key in ("relationship.r1", "channel.c1"):
        actual = attempt(lambda key=key: read_value(key, data))
        if not isinstance(actual, type):
            same(read_value(key, write_value(actual)), actual, "a value of a peer written and read again")


def peer_payload(data: bytes) -> None:
    unpack(data)
    attempt(lambda: read_answer(data))
    read_subject(text(data))
    attempt(lambda: check_eci(text(data)))


def replies(data: bytes) -> None:
    subject = text(data)
    if may_answer(subject, ("_INBOX", "_INBOX_guest")) and (
        not subject.startswith("_INBOX")
        or set(subject) & set(" \r\n\0")
        or {"*", ">", ""} & {*subject.split(".")}
    ):
        raise DifferenceError(f"an answer would go to {subject!r}")
    if may_answer_flow_control(data) and (not data.startswith(b"$JS.FC.") or set(data) & set(b" \t\r\n\0")):
        raise DifferenceError(f"an answer to flow control would go to {data!r}")


NAMES = (check_stream_name, check_consumer_name, check_publish_subject, check_filter_subject, check_queue)


def names(data: bytes) -> None:
    arguments = text(data)
    for check in NAMES:
        if attempt(lambda check=check: check(arguments)) == arguments and set(arguments) & set(" \r\n\t\0"):
            raise DifferenceError(f"{check.__name__} takes {arguments!r}")
    attempt(lambda: check_token(arguments, "token"))
    if attempt(lambda: check_filter_subject(arguments)) == arguments:
        same(subjects_overlap(arguments, arguments), True, "a filter overlaps with itself")
        if attempt(lambda: check_publish_subject(arguments)) == arguments:
            same(subject_matches(arguments, arguments), True, "a subject matches itself")


def times(data: bytes) -> None:
    arguments = text(data)
    moment, ns = parse_time(arguments), parse_time_ns(arguments)
    same(ns // 1000 * 1000 % 1_000_000_000, moment.microsecond * 1000, "parse_time and parse_time_ns")
    same(parse_time(format_time(moment)), moment, "a time written and read again")


def small_things(data: bytes) -> None:
    arguments = text(data)
    attempt(lambda: read_number(arguments, "a number"))
    attempt(lambda: check_cron(arguments))
    whole_number(arguments)
    is_at_least(arguments, (2, 10))
    shown(arguments)
    shared_identity([arguments], {})
    read_exhausted(data)


def server_error(data: bytes) -> None:
    read_server_error(data.decode(errors="replace"))


def offsets(data: bytes) -> None:
    if data[:1] == b"{" and valid(data) and isinstance(document := json.loads(data), dict):
        LogOffset.of_json(document)


def json_codec(data: bytes) -> None:
    codec = JsonCodec()
    value = codec.decode(data)
    again = codec.decode(codec.encode(value))
    if again != value and value == value:  # noqa: PLR0124  NaN
        raise DifferenceError(f"a JSON value written and read again: {value!r:.100}, {again!r:.100}")


PARSERS = [
    Target("acks: JSAck", plain(jsack), s.ACKS, SUBJECT),
    Target("headers and statuses", plain(headers), s.BLOCKS, BLOCK, total=True),
    Target("wire frames", wire, s.WIRE, WIRE),
    Target("API: consumer info", plain(model(ConsumerInfo)), (s.CONSUMER_INFO, s.REFUSED), JSON),
    Target("API: stream info", plain(model(StreamInfo)), (s.STREAM_INFO, s.REFUSED), JSON),
    Target("API: account info", plain(model(AccountInfo)), (s.ACCOUNT, s.REFUSED), JSON),
    Target("API: pages", plain(pages), (s.NAMES,), JSON),
    Target("API: stored message", plain(stored), (s.STORED,), JSON),
    Target("publish ack", plain(pub_ack), s.PUB_ACKS, JSON),
    Target("records: direct get", direct, s.BLOCKS, BLOCK),
    Target("records: a malformed direct get", plain(direct_answer), s.DIRECT, BLOCK),
    Target("records: republished", plain(republished), s.BLOCKS, BLOCK),
    Target("records: forged as republished", plain(forged), s.REPUBLISHED, BLOCK),
    Target("records: delivered", delivered, s.BLOCKS, BLOCK),
    Target("positions", plain(position), (s.POSITION,), JSON),
    Target("positions of epochs", plain(epoch_position), (b'{"v":1,"since":3,"missed":[1],'
           b'"frontiers":[[2]],"records":[[0,1]],"stream":"S","incarnation":"x"}',), JSON),
    Target("epochs: frontier record", plain(frontier), (s.FRONTIER, s.FRONTIER2), JSON),
    Target("epochs: request", plain(read_live_request), (s.ASKED,), JSON),
    Target("epochs: live message", plain(live), s.LIVE, BLOCK),
    Target("notifiers: descriptor", plain(descriptor), (s.NOTIFIER, s.SUBSCRIPTION), JSON),
    Target("peers: stored value", plain(peer_value), (s.RELATIONSHIP, s.CHANNEL), JSON),
    Target("peers: payload, subject", plain(peer_payload), (s.ATTRIBUTES, b"pico.ev.ann.c1.door.open"),
           (*JSON, *SUBJECT)),
    Target("replies", plain(replies), s.SUBJECTS, SUBJECT, total=True),
    Target("names and subjects", plain(names), s.SUBJECTS, SUBJECT),
    Target("times", plain(times), s.TIMES, TEXT),
    Target("cron, numbers, versions, URLs", plain(small_things),
           (*s.CRON, b"-12", b"2.15.1", b"nats://u:p@h:1", s.EXHAUSTED),
           TEXT),
    Target("server errors", plain(server_error), s.ERRORS, TEXT, total=True),
    Target("Spark: offsets", plain(offsets), (s.OFFSET,), JSON),
    Target("values: JSON", plain(json_codec), (s.ATTRIBUTES, b"[1,2.5,null]"), JSON),
]  # fmt: skip
