"""Direct get: requests, messages, ends, and no hole without an error."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    AnswerLostError,
    BadRequestError,
    ConfigError,
    MessageNotFoundError,
    NoRespondersError,
    ProtocolError,
    StatusError,
    TooManyResultsError,
)
from jsclient.protocol.consumers.status import Ending
from jsclient.protocol.models.message import read_direct_message
from jsclient.protocol.streams.direct_get import (
    DirectBatchTracker,
    batch_request,
    last_request,
    read_direct_answer,
)
from jsclient.protocol.wire.frames import Frame
from jsclient.protocol.wire.headers import parse_headers

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def block(*lines: str) -> bytes:
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


def message(
    seq: int, *, last: int | None = None, pending: int = 5, own: tuple[str, ...] = (), time: str = ""
) -> Frame:
    lines = (
        *own,
        "Nats-Stream: S",
        "Nats-Subject: a.b",
        f"Nats-Sequence: {seq}",
        f"Nats-Time-Stamp: {time or f'2030-01-31T12:00:{seq % 60:02}.123456789Z'}",
        f"Nats-Num-Pending: {pending}",
        f"Nats-Last-Sequence: {seq - 1 if last is None else last}",
    )
    return b"_INBOX.x", b"", block(*lines), b"data"


def end(last: int, pending: int = 0, *more: str) -> Frame:
    lines = (f"Nats-Num-Pending: {pending}", f"Nats-Last-Sequence: {last}", *more)
    return b"_INBOX.x", b"", "\r\n".join(["NATS/1.0 204 EOB", *lines, "", ""]).encode(), b""


def status(text: str) -> Frame:
    return b"_INBOX.x", b"", f"NATS/1.0 {text}\r\n\r\n".encode(), b""


# --- requests ------------------------------------------------------------------------------------------------


def test_requests_as_wire_them():
    assert batch_request(3) == {"batch": 3, "seq": 1}
    assert batch_request(3, seq=7, subject="a.>", max_bytes=10) == {
        "batch": 3, "seq": 7, "next_by_subj": "a.>", "max_bytes": 10
    }  # fmt: skip
    assert batch_request(3, start_time=NOON) == {"batch": 3, "start_time": "2030-01-31T12:00:00Z"}
    assert last_request("a") == {"multi_last": ["a"]}
    assert last_request(("a", "b.*"), batch=2, seq=3, up_to_seq=9, max_bytes=4) == {
        "multi_last": ["a", "b.*"], "batch": 2, "seq": 3, "up_to_seq": 9, "max_bytes": 4
    }  # fmt: skip
    assert last_request(["a"], up_to_time=NOON)["up_to_time"] == "2030-01-31T12:00:00Z"


def test_requests_that_cannot_work():
    for call in (
        lambda: batch_request(0),
        lambda: batch_request(True),
        lambda: batch_request(1, seq=0),
        lambda: batch_request(1, seq=2**64),
        lambda: batch_request(1, seq=1, start_time=NOON),
        lambda: batch_request(1, start_time="yesterday"),
        lambda: batch_request(1, subject="a b"),
        lambda: batch_request(1, max_bytes=-1),
        lambda: last_request([]),
        lambda: last_request(""),
        lambda: last_request("a", up_to_seq=1, up_to_time=NOON),
        lambda: last_request("a", seq=1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            call()


# --- one -------------------------------------------------------------------------------------------------------


def test_one_message_or_why_not():
    lines = ("Nats-Subject: a", "Nats-Sequence: 3", "Nats-Time-Stamp: 2030-01-31T12:00:00Z")
    actual = read_direct_answer((b"", b"", block(*lines), b"x"))
    assert (actual.subject, actual.seq, actual.data, actual.time, actual.num_pending) == (
        "a",
        3,
        b"x",
        NOON,
        None,
    )
    for text, kind in (
        ("404 Message Not Found", MessageNotFoundError),
        ("408 Bad Request", BadRequestError),
        ("412 Required Api Level", BadRequestError),
        ("503", NoRespondersError),
        ("500 no", StatusError),
    ):
        with pytest.raises(kind):
            read_direct_answer(status(text))
    with pytest.raises(ProtocolError):
        read_direct_answer((b"", b"", b"", b"x"))


@pytest.mark.parametrize("own", [(), ("Mine: 1", "Mine: 2"), ("Nats-Sequence: 1",), ("Nats-Stream: other",)])
@pytest.mark.parametrize(
    "time", ["2030-01-31T12:00:00Z", "2030-01-31T12:00:00.123456789Z", "2030-01-31T13:00:00+01:00"]
)
def test_one_message_on_both_paths(own, time):
    """The ordinary form of an answer is read at once. Another form of the time takes the slower path."""
    added = ("Nats-Stream: S", "Nats-Subject: a", "Nats-Sequence: 3", f"Nats-Time-Stamp: {time}")
    frame = (b"", b"", block(*own, *added), b"x")
    actual = read_direct_answer(frame)
    assert actual == read_direct_message(parse_headers(frame[2])[1], b"x")
    assert (actual.subject, actual.seq, actual.num_pending) == ("a", 3, None)
    assert actual.headers.pairs() == [tuple(line.split(": ")) for line in own]


def test_message_keeps_its_own_pending_header():
    """Only a batch has this header from the server."""
    added = ("Nats-Stream: S", "Nats-Subject: a", "Nats-Sequence: 3", "Nats-Time-Stamp: 2030-01-31T12:00:00Z")
    actual = read_direct_answer((b"", b"", block("Nats-Num-Pending: 7", *added), b"x"))
    assert (actual.headers, actual.num_pending) == ({"Nats-Num-Pending": "7"}, None)


def test_impossible_time_is_protocol_error():
    added = ("Nats-Stream: S", "Nats-Subject: a", "Nats-Sequence: 3", "Nats-Time-Stamp: 2030-02-31T12:00:00Z")
    with pytest.raises(ProtocolError):
        read_direct_answer((b"", b"", block(*added), b"x"))


# --- many ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.booleans())
def test_messages_in_order(steps, own):
    tracker = DirectBatchTracker(100)
    seq = 0
    for step in steps:
        before, seq = seq, seq + step
        frame = message(seq, last=before, own=("Mine: 1", "Mine: 2", "Nats-Sequence: 1") if own else ())
        actual = tracker.read_frame(frame)
        assert actual == read_direct_message(parse_headers(frame[2])[1], b"data")
        assert (actual.seq, actual.num_pending) == (seq, 5)
        assert actual.headers.get_all("Mine") == (["1", "2"] if own else [])
    assert (tracker.count, tracker.last_seq, tracker.ending) == (len(steps), seq, None)
    tracker.read_frame(end(seq, 3))
    assert (tracker.ending, tracker.num_pending, tracker.error) == (Ending.MAX_BYTES, 3, None)


@given(
    st.integers(0, 7_000_000_000).map(lambda second: datetime.fromtimestamp(second, UTC)),
    st.integers(0, 999_999_999),
    st.integers(0, 9),
)
def test_times_exact_on_both_paths(moment, ns, digits):
    fraction = f".{ns:09}"[: digits + 1] if digits else ""
    frame = message(1, time=f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z")
    tracker = DirectBatchTracker()
    assert tracker.read_frame(frame) == read_direct_message(parse_headers(frame[2])[1], b"data")
    assert tracker.read_frame(message(2, time=f"{moment:%Y-%m-%dT%H:%M:%S}Z")).time_ns % 10**9 == 0


@pytest.mark.parametrize(
    ("batch", "pending", "ending"),
    [(2, 9, Ending.FULL), (2, 0, Ending.FULL), (3, 1, Ending.MAX_BYTES), (3, 0, Ending.NO_MESSAGES),
     (None, 0, Ending.NO_MESSAGES), (None, 4, Ending.MAX_BYTES)],
)  # fmt: skip
def test_why_it_ended(batch, pending, ending):
    tracker = DirectBatchTracker(batch)
    tracker.read_frame(message(1))
    tracker.read_frame(message(2))
    assert tracker.read_frame(end(2, pending, "Nats-UpTo-Sequence: 77")) is None
    assert (tracker.ending, tracker.num_pending, tracker.up_to_seq) == (ending, pending, 77)


def test_missing_message_is_no_error():
    tracker = DirectBatchTracker(5)
    assert tracker.read_frame(status("404 Message Not Found")) is None
    assert (tracker.ending, tracker.error, tracker.num_pending) == (Ending.NO_MESSAGES, None, 0)


@pytest.mark.parametrize(
    ("text", "kind", "retryable"),
    [
        ("408 Bad Request", BadRequestError, False),
        ("413 Too Many Results", TooManyResultsError, False),
        ("429 Too Many Requests", StatusError, True),
        ("500 broken", StatusError, False),
        ("503", NoRespondersError, True),
    ],
)
def test_refusals(text, kind, retryable):
    tracker = DirectBatchTracker(5)
    assert tracker.read_frame(status(text)) is None
    assert type(tracker.error) is kind
    assert tracker.error.retryable is retryable
    assert tracker.ending in (Ending.REFUSED, Ending.NO_RESPONDERS)


def test_missing_message_noticed():
    tracker = DirectBatchTracker(5)
    tracker.read_frame(message(1))
    assert tracker.read_frame(message(3)) is None
    assert isinstance(tracker.error, ProtocolError)
    assert tracker.count == 1
    tracker = DirectBatchTracker(5)
    tracker.read_frame(message(1))
    tracker.read_frame(end(2))
    assert isinstance(tracker.error, ProtocolError)
    tracker = DirectBatchTracker(5)
    tracker.read_frame(message(2, last=1))
    assert isinstance(tracker.error, ProtocolError)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_lost_frame_ends_the_answer(steps, lost, cut):
    """One frame of a whole answer is lost in transit, anywhere: no later frame is taken, and the loss is reported."""
    seqs = [sum(steps[: at + 1]) for at in range(len(steps))]
    frames = [message(seq, last=seq - step) for seq, step in zip(seqs, steps, strict=True)]
    lost = min(lost, len(frames) - 1)
    answer = [*frames[:lost], *frames[lost + 1 :], end(seqs[-1])]
    tracker = DirectBatchTracker(100)
    taken = tracker.take_frames(answer[:cut])  # in two reads
    if tracker.ending is None:
        taken += tracker.take_frames(answer[cut:])
    assert taken == frames[:lost]
    assert isinstance(tracker.error, AnswerLostError)
    assert (tracker.ending, tracker.count) == (Ending.REFUSED, lost)
    assert tracker.last_seq == (seqs[lost - 1] if lost else 0)


def test_whole_answer_in_frames():
    frames = [message(seq) for seq in range(1, 6)]
    tracker = DirectBatchTracker(5)
    assert tracker.take_frames([*frames, end(5)]) == frames
    assert (tracker.ending, tracker.error, tracker.count, tracker.last_seq) == (Ending.FULL, None, 5, 5)
    repeated = DirectBatchTracker(5)
    assert repeated.take_frames([frames[0], frames[0]]) == frames[:1]
    assert isinstance(repeated.error, AnswerLostError)


def test_old_servers_single_answer_reported():
    lines = ("Nats-Subject: a", "Nats-Sequence: 3", "Nats-Time-Stamp: 2030-01-31T12:00:00Z")
    tracker = DirectBatchTracker(5)
    assert tracker.read_frame((b"", b"", block(*lines), b"x")) is None
    assert "2.11" in str(tracker.error)


@given(st.binary(max_size=300))
def test_no_header_block_breaks_it(raw):
    for header in (raw, b"NATS/1.0\r\n" + raw, message(1)[2][:-2] + raw, end(1)[2][:-2] + raw):
        tracker = DirectBatchTracker(5)
        tracker.read_frame((b"", b"", header, b""))
        tracker.read_frame((b"", b"", header, b"x"))


@pytest.mark.parametrize(
    "time",
    [
        "2030-02-31T12:00:00Z",
        "2030-01-31T25:00:00Z",
        "2030-01-31T12:00:00.1234567890Z",
        "x",
        "0000-01-01T00:00:00Z",
    ],
)
def test_time_none_protocol_error(time):
    tracker = DirectBatchTracker(5)
    assert tracker.read_frame(message(1, time=time)) is None
    assert isinstance(tracker.error, ProtocolError)
