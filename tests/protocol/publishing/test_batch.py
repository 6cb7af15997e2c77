"""An atomic batch: numbers without a hole, one commit at the end, and what each answer means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    ApiError,
    BatchIncompleteError,
    BatchNotAtomicError,
    ClosedError,
    ConfigError,
    ProtocolError,
)
from jsclient.protocol.publishing import batch
from jsclient.protocol.publishing.batch import BatchMessage, BatchState, BatchTracker, check_batch_headers
from jsclient.protocol.wire.headers import encode_headers, parse_headers

ERROR = b'{"error":{"code":400,"err_code":10176,"description":"atomic publish batch is incomplete"}}'


def ack(batch: str = "id", count: int = 1) -> bytes:
    return b'{"stream":"S","seq":7,"batch":"%b","count":%d}' % (batch.encode(), count)


def fields(message: BatchMessage) -> dict[str, str]:
    return dict(parse_headers(message.header)[1])


@given(st.integers(1, 40), st.none() | st.integers(1, 9))
def test_numbered_last_commits(count, ack_every):
    tracker = BatchTracker("id", ack_every)
    out = [tracker.add_message(f"s.{number}", b"", b"%d" % number) for number in range(1, count + 1)]
    sent = [message for message in [*out, tracker.commit()] if message is not None]
    assert [message.payload for message in sent] == [b"%d" % number for number in range(1, count + 1)]
    assert [message.subject for message in sent] == [f"s.{number}" for number in range(1, count + 1)]
    assert [fields(message)["Nats-Batch-Sequence"] for message in sent] == [
        str(number) for number in range(1, count + 1)
    ]
    assert {fields(message)["Nats-Batch-Id"] for message in sent} == {"id"}
    assert ["Nats-Batch-Commit" in fields(message) for message in sent] == [False] * (count - 1) + [True]
    requests = {1, count} | ({n for n in range(1, count + 1) if n % ack_every == 0} if ack_every else set())
    assert {number for number, message in enumerate(sent, start=1) if message.acked} == requests
    assert (tracker.count, tracker.sent, tracker.state) == (count, count, BatchState.COMMITTING)


@given(st.dictionaries(st.sampled_from(["A", "B", "C"]), st.text("abc ", max_size=5), max_size=3))
def test_user_headers_first_bounded(headers):
    tracker = BatchTracker("x" * 64)
    block = encode_headers(headers) if headers else b""
    tracker.add_message("s", block, b"")
    message = tracker.commit()
    actual = fields(message)
    assert {name: actual[name] for name in headers} == {
        name: value.strip() for name, value in headers.items()
    }
    assert len(message.header) <= len(block) + tracker.overhead
    assert list(actual)[len(headers) :] == ["Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"]


def command(message: BatchMessage) -> bytes:
    to, size = message.subject.encode(), len(message.header) + len(message.payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(message.header), size, message.header, message.payload)


@given(
    st.lists(st.tuples(st.sampled_from(["s.a", "s.ü"]), st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]))),
    st.none() | st.integers(1, 9),
    st.integers(0, 2000),
)
def test_plain_message_is_added_as_any_other(messages, ack_every, earlier):
    """Two trackers of the same messages, one of which adds plain messages in one call if it can."""
    slow, fast = BatchTracker("id", ack_every), BatchTracker("id", ack_every)
    slow.sent = fast.sent = earlier
    for number, (subject, header) in enumerate(messages):
        payload = b"x" * number
        message = slow.add_message(subject, header, payload)
        commands: list[bytes] = []
        size = 0 if header else fast.add_plain(subject, payload, commands)
        if not size:
            assert not commands
            assert fast.add_message(subject, header, payload) == message
        else:
            assert message is not None
            assert (b"".join(commands), message.acked) == (command(message), False)
            assert size == len(command(message))
        assert fast == slow
    if messages:
        assert fast.commit() == slow.commit()
        assert fast.restart(commit=True) == slow.restart(commit=True)


def test_plain_message_of_ended_batch_refused():
    tracker = BatchTracker("id")
    for _ in range(3):
        tracker.add_message("s", b"", b"")
    assert tracker.add_plain("s", b"", [])
    tracker.abandon_batch()
    assert not tracker.add_plain("s", b"", [])
    with pytest.raises(ClosedError):
        tracker.add_message("s", b"", b"")


def test_plain_messages_over_limit_not_kept(monkeypatch):
    monkeypatch.setattr(batch, "MAX_KEPT", 3)
    tracker = BatchTracker("id")
    tracker.add_message("s", b"", b"1")
    tracker.add_message("s", b"", b"2")
    for sent in (2, 3, 4):
        assert tracker.add_plain("s", b"x", [])
        assert (tracker.sent, tracker.can_restart) == (sent, sent < 4)


def test_beginnings_of_commands_are_bounded():
    tracker, commands = BatchTracker("id"), []
    for size in range(1010):
        if not tracker.add_plain("s", b"x" * size, commands):
            tracker.add_message("s", b"", b"x" * size)
    assert tracker._lines is not None
    assert len(tracker._lines) <= tracker._lines.CAPACITY


def test_empty_commit_refused():
    tracker = BatchTracker("id")
    with pytest.raises(ConfigError, match="empty"):
        tracker.commit()
    assert tracker.state is BatchState.OPEN


def test_ended_takes_nothing():
    tracker = BatchTracker("id")
    tracker.add_message("s", b"", b"")
    tracker.commit()
    with pytest.raises(ClosedError, match="committing"):
        tracker.add_message("s", b"", b"")
    with pytest.raises(ClosedError):
        tracker.commit()
    assert tracker.abandon_batch() is None
    assert tracker.state is BatchState.COMMITTING


def test_held_batch_dropped():
    tracker = BatchTracker("id")
    assert tracker.add_message("s.first", b"", b"1") is None
    first = tracker.add_message("s.second", b"", b"2")
    assert first is not None
    tracker.read_answer(b"")
    tracker.add_message("s.third", b"", b"3")
    farewell = tracker.abandon_batch()
    assert farewell is not None
    assert (farewell.subject, farewell.payload, farewell.acked) == ("s.first", b"", False)
    # The server waits for 3. An unknown batch begins with 1 only.
    assert fields(farewell) == {"Nats-Batch-Id": "id", "Nats-Batch-Sequence": "4"}
    assert tracker.state is BatchState.ABANDONED
    assert tracker.abandon_batch() is None


@pytest.mark.parametrize("published", [0, 1, 2])
def test_unknown_batch_dropped(published):
    """A server that knows no batches would store it."""
    tracker = BatchTracker("id")
    for _ in range(published):
        tracker.add_message("s", b"", b"")
    assert tracker.abandon_batch() is None
    assert tracker.state is BatchState.ABANDONED


def test_early_answer_is_error():
    tracker = BatchTracker("id")
    tracker.read_answer(b"")
    assert tracker.accepted
    with pytest.raises(BatchIncompleteError):
        tracker.read_answer(ERROR)
    with pytest.raises(BatchNotAtomicError) as caught:
        tracker.read_answer(b'{"stream":"S","seq":3}')
    assert (caught.value.batch, caught.value.stream, caught.value.seq) == ("id", "S", 3)
    with pytest.raises(ProtocolError):
        tracker.read_answer(b"nonsense")


def committed() -> BatchTracker:
    tracker = BatchTracker("id")
    tracker.add_message("s", b"", b"")
    tracker.add_message("s", b"", b"")
    tracker.commit()
    return tracker


def test_ack_of_commit_must_be_of_this_batch():
    tracker = committed()
    actual = tracker.read_commit(ack(count=2))
    assert (actual.stream, actual.seq, actual.count) == ("S", 7, 2)
    assert tracker.state is BatchState.COMMITTED


@pytest.mark.parametrize(
    ("answer", "error", "state"),
    [
        (ERROR, ApiError, BatchState.ABANDONED),
        (b'{"stream":"S","seq":3}', BatchNotAtomicError, BatchState.UNKNOWN),
        (ack("other", 2), ProtocolError, BatchState.UNKNOWN),
        (ack("id", 1), ProtocolError, BatchState.UNKNOWN),
        (b"", ProtocolError, BatchState.UNKNOWN),
        (b"[]", ProtocolError, BatchState.UNKNOWN),
        (b"{}", ProtocolError, BatchState.UNKNOWN),
    ],
)
def test_other_answers_to_the_commit(answer, error, state):
    tracker = committed()
    with pytest.raises(error):
        tracker.read_commit(answer)
    assert tracker.state is state


def test_headers_would_spoil_batch_refused():
    for name in ("Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Expected-Last-Msg-Id"):
        with pytest.raises(ConfigError, match=name):
            check_batch_headers({name: "1"}, first=True)
    check_batch_headers({"Nats-Expected-Last-Sequence": "1"}, first=True)
    with pytest.raises(ConfigError, match="first"):
        check_batch_headers({"Nats-Expected-Last-Sequence": "1"}, first=False)
    check_batch_headers({"Nats-Msg-Id": "1", "Mine": "2"}, first=False)
