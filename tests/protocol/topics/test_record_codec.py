"""Records from frames: decoding many at a time gives the same records as decoding each alone, the long way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import NotJetStreamMessageError, ProtocolError
from jsclient.protocol.consumers.ack import read_jsack, sequences
from jsclient.protocol.consumers.status import Ending
from jsclient.protocol.streams.direct_get import DirectBatchTracker, read_direct_answer
from jsclient.protocol.topics.record import NO_HEADERS, Kind, Record, RecordHeaders, sizes
from jsclient.protocol.topics.record_codec import (
    DeliveredRecords,
    RepublishedRecords,
    StoredRecords,
    kind_of,
    link_of,
    republished_record,
    stored_record,
)
from jsclient.protocol.wire.headers import Headers, parse_headers

OWN = [
    b"",
    b"A: b\r\n",
    b"A: b\r\nA: c\r\nEmpty:\r\n",
    b"Jsc-Kind: finish\r\n",
    b"Jsc-Kind: frontier\r\nJsc-Kind: fail\r\n",
    b"Nats-Expected-Last-Subject-Sequence: 7\r\n",
    b"Nats-Expected-Last-Subject-Sequence: 7\r\nNats-Expected-Last-Subject-Sequence-Subject: a.*\r\n",
    b"Nats-Stream: FORGED\r\nNats-Sequence: 99\r\nNats-Last-Sequence: 98\r\n",
    b"Nats-Stream: S\r\nNats-Subject: f\r\nNats-Sequence: 1\r\nNats-Time-Stamp: 2001-01-01T00:00:00Z\r\n"
    b"Nats-Num-Pending: 5\r\nNats-Last-Sequence: 0\r\n",
    b"odd line\r\n: no name\r\n",
    b"A: \xff\xfe\r\n",
]
SECONDS = ["2026-01-31T12:00:00", "2026-01-31T12:00:01", "1999-12-31T23:59:59"]
FRACTIONS = ["", ".5", ".123456789", ".000000001"]
END = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: %d\r\n\r\n"


@st.composite
def stored(draw: st.DrawFn) -> list[tuple[bytes, str, int, str]]:
    """A message as a stream stores it: own headers, subject, sequence, time."""
    count = draw(st.integers(1, 8))
    seqs = sorted(draw(st.lists(st.integers(1, 50), min_size=count, max_size=count, unique=True)))
    pick = st.sampled_from
    return [
        (
            draw(pick(OWN)),
            draw(pick(["a.b", "a.c", "ü"])),
            seq,
            draw(pick(SECONDS)) + draw(pick(FRACTIONS)) + "Z",
        )
        for seq in seqs
    ]


def direct(own: bytes, subject: str, seq: int, time: str, before: int, pending: int = 9) -> tuple[bytes, ...]:
    head = f"Nats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\nNats-Time-Stamp: {time}\r\n"
    tail = f"Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {before}\r\n\r\n"
    return b"_INBOX.1", b"", b"NATS/1.0\r\n" + own + head.encode() + tail.encode(), b"data %d" % seq


def answers(lie: list[tuple[bytes, str, int, str]]) -> list[tuple[bytes, ...]]:
    before = [0, *(seq for _, _, seq, _ in lie)]
    return [
        direct(*one, at, len(lie) - number) for number, (one, at) in enumerate(zip(lie, before, strict=False))
    ]


@given(stored(), st.booleans(), st.integers(1, 9))
def test_stored_like_single(lie, linked, at_once):
    frames = answers(lie)
    slow, fast = DirectBatchTracker(), DirectBatchTracker()
    expected = [stored_record(slow.read_frame(frame), linked=linked) for frame in frames]
    reading = StoredRecords(fast, linked=linked)
    got = []
    for start in range(0, len(frames), at_once):
        got += reading.read_frames(frames[start : start + at_once])
        assert fast.last_seq == got[-1].seq
    assert got == expected
    assert (fast.count, fast.last_seq, fast.num_pending) == (slow.count, slow.last_seq, slow.num_pending)
    assert reading.read_frames([(b"_INBOX.1", b"", END % fast.last_seq, b"")]) == []
    assert (fast.ending, fast.num_pending, fast.error) == (Ending.MAX_BYTES, 3, None)


@given(stored(), st.integers(0, 7))
def test_lost_part_keeps_the_first(lie, lost):
    frames = answers(lie)
    lost %= len(frames)
    tracker = DirectBatchTracker()
    got = StoredRecords(tracker, linked=True).read_frames(
        [*frames[:lost], *frames[lost + 1 :], (b"", b"", END % 50, b"")]
    )
    assert [record.seq for record in got] == [seq for _, _, seq, _ in lie[:lost]]
    assert isinstance(tracker.error, ProtocolError)
    assert tracker.count == lost


def test_odd_answer_read_slowly():
    """As a server might send its headers in another order, or more of them."""
    lines = b"Nats-Sequence: 2\r\nNats-Subject: a\r\nNats-Time-Stamp: 2026-01-31T12:00:00Z\r\nNats-Last-Sequence: 1\r\n"
    odd = (b"", b"", b"NATS/1.0\r\nNats-New: 1\r\n" + lines + b"Nats-Num-Pending: 4\r\n\r\n", b"odd")
    tracker = DirectBatchTracker()
    frames = [
        direct(b"", "a", 1, "2026-01-31T12:00:00Z", 0),
        odd,
        direct(b"", "a", 3, "2026-01-31T12:00:00Z", 2),
    ]
    got = StoredRecords(tracker, linked=False).read_frames(frames)
    assert [(record.seq, record.data) for record in got] == [(1, b"data 1"), (2, b"odd"), (3, b"data 3")]
    assert (tracker.count, tracker.num_pending, tracker.error) == (3, 9, None)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        (b"Nats-Time-Stamp: 2026", b"Nats-Time-Stamp: year"),
        (b"Nats-Sequence: 1", b"Nats-Sequence: x"),
        (b"Nats-Subject: a", b"Nats-Subjekt: a"),
        (b"Nats-Num-Pending: 9", b"Nats-Num-Pending: many"),
    ],
)
def test_answer_makes_no_sense_error(line, other):
    frame = direct(b"", "a", 1, "2026-01-31T12:00:00Z", 0)
    frame = (*frame[:2], frame[2].replace(line, other), frame[3])
    tracker = DirectBatchTracker()
    try:
        assert StoredRecords(tracker, linked=False).read_frames([frame]) == []
    except ProtocolError as error:
        tracker.error = error
    assert isinstance(tracker.error, ProtocolError)


# --- header blocks that no client writes ---------------------------------------------------------------------------


odd_blocks = st.one_of(
    st.binary(min_size=2, max_size=40),
    st.sampled_from(
        [
            b"NATS/1.0",
            b"NATS/1.0\r\n",
            b"XXXX\r\n\r\n",
            b"\r\n",
            b"NATS/1.0\r\nA: 1\r\nB: 2",
            b"NATS/1.0\r\n\r\nA: 1\r\n\r\n",
        ]
    ),
    st.sampled_from(OWN).map(lambda own: b"NATS/1.0 204 EOB\r\n" + own + b"\r\n"),
)


@given(odd_blocks, st.booleans())
def test_any_stored_header_block_just_data(block, linked):
    """The server cuts the last two bytes of a block, whatever they are, and appends its own headers."""
    plain = direct(b"", "a", 7, "2026-01-31T12:00:00Z", 3)
    frames = [
        direct(b"", "a", 3, "2026-01-31T12:00:00Z", 0),
        (*plain[:2], block[:-2] + plain[2][10:], plain[3]),
    ]
    frames.append(direct(b"", "a", 8, "2026-01-31T12:00:00Z", 7))
    tracker, single = DirectBatchTracker(), DirectBatchTracker()
    records = StoredRecords(tracker, linked=linked).read_frames(frames)
    assert [(one.seq, one.subject, one.data) for one in records] == [
        (n, "a", b"data %d" % n) for n in (3, 7, 8)
    ]
    assert tracker.error is None
    messages = [single.read_frame(frame) for frame in frames]
    assert [(one.seq, one.subject, one.headers) for one in messages] == [
        (one.seq, one.subject, one.headers) for one in records
    ]
    assert read_direct_answer(frames[1]).headers == records[1].headers


@given(odd_blocks)
def test_odd_header_block_is_data(block):
    plain = republished(b"", "a", 7, "2026-01-31T12:00:00Z", 3)
    odd = (*plain[:2], block[:-2] + plain[2][10:], plain[3])
    rejected = []
    actual = RepublishedRecords("S").read_frames([plain, odd, plain], rejected.append)
    assert [(one.seq, one.previous, one.subject, one.data) for one in actual] == [(7, 3, "a", b"x")] * 3
    assert rejected == []


# --- what is pushed ----------------------------------------------------------------------------------------------


def republished(own: bytes, subject: str, seq: int, time: str, before: int = 4) -> tuple[bytes, ...]:
    head = f"Nats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\nNats-Time-Stamp: {time}\r\n"
    return (
        b"p.a",
        b"",
        b"NATS/1.0\r\n" + own + head.encode() + b"Nats-Last-Sequence: %d\r\n\r\n" % before,
        b"x",
    )


@given(stored())
def test_republished_like_single(lie):
    frames = [republished(*one, before=0) for one in lie]
    rejected = []
    assert RepublishedRecords("S").read_frames(frames, rejected.append) == [
        republished_record(f, "S") for f in frames
    ]
    assert rejected == []


@pytest.mark.parametrize(("seq", "before"), [(0, 0), (4, 4), (4, 5), (2**64, 3), (2**70, 2**69)])
def test_republished_out_of_range_returned(seq, before):
    frame = republished(b"", "a", seq, "2026-01-31T12:00:00Z", before)
    rejected = []
    assert RepublishedRecords("S").read_frames([frame], rejected.append) == []
    assert rejected == [frame]
    with pytest.raises(ProtocolError):
        republished_record(frame, "S")


@pytest.mark.parametrize("own", [b"", b"odd line\r\n", b"Nats-Sequence: 1\r\n"])
def test_jump_names_no_predecessor(own):
    frames = [republished(own, "a", seq, "2026-01-31T12:00:00Z", before) for seq, before in ((5, 4), (9, 5))]
    for jumps, last in ((True, 5), (False, None)):
        got = RepublishedRecords("S", jumps=jumps).read_frames(frames, pytest.fail)
        assert [record.previous for record in got] == [4, last]


def test_stream_did_not_republish_returned():
    good = republished(b"", "a", 5, "2026-01-31T12:00:00Z")
    others = [
        (*good[:2], good[2].replace(b"Stream: S", b"Stream: T"), b""),
        (b"p.a", b"", b"", b"x"),
        (*good[:2], good[2].replace(b"Sequence: 5", b"Sequence: " + b"9" * 5000), b""),
    ]
    rejected = []
    got = RepublishedRecords("S").read_frames([others[0], good, *others[1:]], rejected.append)
    assert [record.seq for record in got] == [5]
    assert rejected == others


@given(st.sampled_from(OWN), st.sampled_from([None, 0, 6]), st.booleans())
def test_delivered_like_single(own, previous, linked):
    reply = b"$JS.ACK.S.c.1.9.8.1750000000123456789.7"
    reading = DeliveredRecords(linked=linked)
    for block in (b"NATS/1.0\r\n" + own + b"\r\n", b"", b"NATS/1.0\r\n" + own + b"\r\n"):
        frame = (b"a.b", reply, block, b"data")
        seq, consumer_seq, time_ns, pending = sequences(reply)
        assert (consumer_seq, pending) == (8, 7)
        headers, whole = parse_headers(block)[1], read_jsack(reply)
        link = link_of(headers) if linked else None
        expected = Record(
            seq=whole.stream_seq,
            time_ns=whole.timestamp_ns,
            subject="a.b",
            data=b"data",
            headers=headers,
            previous=previous if link is None else link,
            kind=kind_of(headers),
        )
        assert reading.record(frame, seq, time_ns, previous) == expected


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.S.c.1.9.8.1750000000123456789.7",
        b"$JS.ACK.hub.acc.S.c.1.9.8.1750000000123456789.7",
        b"$JS.ACK.hub.acc.S.c.1.9.8.1750000000123456789.7.more.tokens",
        b"$JS.ACK.S.c.1.9.8.17500000001234567890.7",
    ],
)
def test_jsack_says_where_record_lies(reply):
    whole = read_jsack(reply)
    assert sequences(reply) == (whole.stream_seq, whole.consumer_seq, whole.timestamp_ns, whole.num_pending)
    with pytest.raises(NotJetStreamMessageError):
        sequences(reply.replace(b".9.", b".+9."))


# --- headers of records ------------------------------------------------------------------------------------------


def test_record_headers_frozen():
    headers = RecordHeaders([("a", "1"), ("a", "2"), ("b", "3")])
    for change in (
        lambda: headers.add("c", "4"),
        lambda: headers.__setitem__("a", "4"),
        lambda: headers.__delitem__("a"),
        lambda: headers.update(c="4"),
        headers.clear,
        headers.popitem,
        lambda: headers.pop("a"),
        lambda: headers.setdefault("c", "4"),
    ):
        with pytest.raises(TypeError, match="copy"):
            change()
    with pytest.raises(TypeError):
        headers |= {"c": "4"}
    assert headers == Headers([("a", "1"), ("a", "2"), ("b", "3")])
    copy = headers.copy()
    copy["a"] = "9"
    assert (copy["a"], headers.get_all("a")) == ("9", ["1", "2"])
    assert Record(seq=1).headers is NO_HEADERS == {}


def test_size_of_records_of_all_they_carry():
    plain = Record(seq=1, subject="ab", data=b"cde")
    headed = Record(seq=2, subject="ab", headers=Headers({"x": "yz"}), kind=Kind.FRONTIER)
    assert (plain.size, headed.size, sizes([plain, headed])) == (5, 5, [5, 5])
