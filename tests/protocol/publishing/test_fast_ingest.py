"""A fast ingest: how much may be sent, and what each answer of the server means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    ApiError,
    BatchNotEnabledError,
    JetStreamError,
    NoRespondersError,
    ProtocolError,
    TooManyBatchesError,
    WrongLastSequenceError,
)
from jsclient.protocol.events import IngestGap, IngestRefused
from jsclient.protocol.publishing.fast_ingest import IngestTracker
from jsclient.protocol.wire.frames import Frame


def tracker(**options: Any) -> IngestTracker:
    return IngestTracker("_INBOX.id", **{"ack_every": 10, **options})


def frame(answer: Any, number: int = 1, op: int = 1) -> Frame:
    payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return f"_INBOX.id.10.fail.{number}.{op}.$FI".encode(), b"", b"", payload


def ack(seq: int, msgs: int = 10) -> Frame:
    return frame({"type": "ack", "seq": seq, "msgs": msgs})


def gap(first: int, after: int) -> Frame:
    return frame({"type": "gap", "last_seq": first, "seq": after})


def error(err_code: int, number: int, *, typed: bool = False) -> Frame:
    problem = {"code": 400, "err_code": err_code, "description": "no"}
    if typed:
        return frame({"type": "err", "seq": number, "error": problem}, number)
    return frame({"error": problem, "stream": "S", "seq": 0}, number)


def final(count: int, seq: int = 100) -> Frame:
    return frame({"stream": "S", "seq": seq, "batch": "id", "count": count})


NOBODY: Frame = (b"_INBOX.id.10.fail.3.1.$FI", b"", b"NATS/1.0 503\r\n\r\n", b"")


def started(sent: int = 1, **options: Any) -> IngestTracker:
    """An ingest that the server accepted, with this many messages sent."""
    ingest = tracker(**options)
    ingest.next_reply()
    assert ingest.receive_answer(ack(0)) is None
    for _ in range(sent - 1):
        ingest.next_reply()
    return ingest


# --- what goes out -----------------------------------------------------------------------------------------


def test_the_reply_says_all():
    ingest = tracker(gap_ok=True)
    assert ingest.id == "id"
    assert ingest.next_reply() == b"_INBOX.id.10.ok.1.0.$FI"
    assert ingest.next_reply() == b"_INBOX.id.10.ok.2.1.$FI"
    assert ingest.ping_reply() == b"_INBOX.id.10.ok.2.4.$FI"
    assert ingest.end_reply() == b"_INBOX.id.10.ok.3.3.$FI"
    assert ingest.commit_reply() == b"_INBOX.id.10.ok.3.2.$FI"
    assert ingest.sent == 3
    assert tracker().commit_reply() == b"_INBOX.id.10.fail.1.2.$FI"


def test_one_before_first_answer():
    ingest = tracker()
    assert (ingest.limit, ingest.accepted) == (1, False)
    ingest.next_reply()
    assert ingest.sent == ingest.limit
    ingest.receive_answer(ack(0, 4))
    assert (ingest.limit, ingest.accepted) == (8, True)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 70_000)), max_size=20), st.integers(1, 5))
def test_window_follows_newest_ack(acks, max_acks):
    ingest = started(100, ack_every=50, max_acks=max_acks)
    highest = 0
    for seq, msgs in acks:
        ingest.receive_answer(ack(seq, msgs))
        highest = max(highest, min(seq, 100))
        assert ingest.acked == highest
        assert ingest.flow == min(max(1, msgs), 50)  # the requested flow is the upper bound
        assert ingest.limit == highest + ingest.flow * max_acks


def test_ack_stands_for_those_before():
    ingest = started(30)
    ingest.receive_answer(ack(30))
    ingest.receive_answer(ack(10))  # late
    assert ingest.acked == 30


# --- what is missing or refused ------------------------------------------------------------------------------


def test_without_gaps_first_missing_ends():
    ingest = started(10)
    assert ingest.receive_answer(gap(4, 6)) is None
    assert isinstance(ingest.failure, JetStreamError)
    assert (ingest.limit, ingest.ended, ingest.lost) == (0, False, 2)
    ingest.receive_answer(ack(3))
    assert ingest.limit == 0
    ingest.receive_answer(final(3))
    assert (ingest.ended, ingest.acked, ingest.complete) == (True, 3, True)
    assert "4 to 5" in str(ingest.failure)


def test_with_gaps_missing_reported():
    ingest = started(10, gap_ok=True)
    reports = ingest.receive_answer(gap(4, 6))
    assert reports == IngestGap(ingest="id", first=4, last=5)
    assert (ingest.failure, ingest.lost) == (None, 2)
    ingest.close()
    ingest.receive_answer(final(10))
    assert (ingest.failure, ingest.acked, ingest.ended) == (None, 10, True)


def test_a_refused_message():
    strict, lax = started(10), started(10, gap_ok=True)
    assert strict.receive_answer(error(10071, 5, typed=True)) is None
    assert isinstance(strict.failure, WrongLastSequenceError)
    reports = lax.receive_answer(error(10071, 5, typed=True))
    assert isinstance(reports, IngestRefused)
    assert (reports.ingest, reports.number, type(reports.error)) == ("id", 5, WrongLastSequenceError)
    assert (lax.failure, lax.refused, lax.lost) == (None, 1, 0)


@pytest.mark.parametrize("refusal", [error(10054, 3), NOBODY])
def test_uncounted_refusal_missed(refusal):
    lax = started(4, gap_ok=True)
    assert isinstance(lax.receive_answer(refusal), IngestRefused)
    assert lax.receive_answer(gap(3, 4)) is None
    assert (lax.refused, lax.lost) == (1, 0)
    assert isinstance(lax.receive_answer(gap(3, 4)), IngestGap)  # known once
    strict = started(4)
    assert strict.receive_answer(refusal) is None
    failure = strict.failure
    assert isinstance(failure, ApiError | NoRespondersError)
    strict.receive_answer(gap(3, 4))
    strict.receive_answer(final(2))
    assert (strict.failure, strict.acked, strict.complete) == (failure, 2, True)


def test_some_of_a_gap_may_be_known():
    lax = started(9, gap_ok=True)
    lax.receive_answer(error(10054, 3))
    lax.receive_answer(error(10054, 8))
    reports = lax.receive_answer(gap(2, 6))
    assert reports == IngestGap(ingest="id", first=2, last=5)
    assert (lax.lost, lax.refused) == (3, 2)
    assert lax.receive_answer(gap(8, 9)) is None


# --- how it ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"), [(10205, BatchNotEnabledError), (10211, TooManyBatchesError), (10054, ApiError)]
)
def test_ingest_not_accepted_stored_nothing(code, kind):
    ingest = tracker()
    ingest.next_reply()
    ingest.receive_answer(error(code, 1))
    assert type(ingest.failure) is kind
    assert (ingest.ended, ingest.complete, ingest.accepted, ingest.acked) == (True, True, False, 0)


def test_refused_first_stores_nothing():
    ingest = started()
    ingest.receive_answer(error(10071, 1))
    assert (ingest.ended, ingest.complete, ingest.acked) == (True, True, 0)
    lax = started(2, gap_ok=True)
    lax.receive_answer(error(10071, 1, typed=True))
    assert (lax.ended, lax.failure) == (False, None)


@pytest.mark.parametrize("op", [3, 4])
@pytest.mark.parametrize("gap_ok", [False, True])
@pytest.mark.parametrize("sent", [1, 3])
def test_no_responders_refuses_none(op, gap_ok, sent):
    """An election: the next leader continues the ingest, and is asked again."""
    ingest = started(sent, gap_ok=gap_ok)
    subject = b"_INBOX.id.10.fail.%d.%d.$FI" % (sent, op)
    unavailable = json.dumps({"error": {"code": 503, "err_code": 10023, "description": "no"}}).encode()
    for answer in ((subject, b"", b"NATS/1.0 503\r\n\r\n", b""), (subject, b"", b"", unavailable)):
        assert ingest.receive_answer(answer) is None
    assert (ingest.refused, ingest.failure, ingest.ended) == (0, None, False)
    assert ingest.receive_answer(gap(1, sent + 1)) is not None or not gap_ok, "a gap is a gap"


def test_before_it_is_accepted_too():
    ingest = tracker()
    ingest.next_reply()
    assert ingest.receive_answer((b"_INBOX.id.10.fail.1.4.$FI", b"", b"NATS/1.0 503\r\n\r\n", b"")) is None
    assert (ingest.failure, ingest.ended) == (None, False)


def test_restart_by_ping_is_unknown():
    ingest = started(1)
    ingest.receive_answer(gap(1, 2))
    ingest.receive_answer(frame({"stream": "S", "seq": 0, "batch": "id", "count": 0}, op=4))
    assert ingest.ended
    assert not ingest.complete


def test_forgotten_leaves_unknown():
    ingest = started(20)
    ingest.receive_answer(ack(10))
    ingest.receive_answer(error(10208, 20))
    assert isinstance(ingest.failure, ApiError)
    assert (ingest.ended, ingest.limit) == (False, 0)
    ingest.close()
    ingest.receive_answer(frame(json.loads(error(10208, 21)[3]), 21, 3))  # the answer to the end
    assert (ingest.ended, ingest.complete, ingest.acked) == (True, False, 10)
    assert ingest.receive_answer(final(20)) is None  # too late to matter
    assert ingest.final is None


@pytest.mark.parametrize("gap_ok", [False, True])
def test_unknown_id_ends_ingest(gap_ok):
    ingest = started(3, gap_ok=gap_ok)
    ingest.receive_answer(error(10208, 3))
    assert (ingest.ended, type(ingest.failure)) == (False, ApiError)
    ingest.close()
    ingest.receive_answer(gap(3, 4))
    ingest.receive_answer(final(2))
    assert (ingest.ended, type(ingest.failure), ingest.complete) == (True, ApiError, not gap_ok)
    assert ingest.acked == (3 if gap_ok else 2)


def test_all_well_when_all_counted():
    ingest = started(12)
    ingest.close()
    ingest.receive_answer(final(12))
    assert ingest.final is not None
    assert (ingest.failure, ingest.acked, ingest.complete, ingest.final.count) == (None, 12, True, 12)


def test_fewer_than_sent_no_success():
    ingest = started(12)
    ingest.close()
    ingest.receive_answer(final(11))
    assert ingest.failure is not None
    assert (ingest.acked, ingest.complete) == (11, True)


@pytest.mark.parametrize("gap_ok", [False, True])
def test_unrequested_end_is_failure(gap_ok):
    ingest = started(12, gap_ok=gap_ok)
    ingest.receive_answer(final(12))
    assert ingest.failure is not None
    assert ingest.acked == 12


def test_single_store_is_detected():
    ingest = tracker()
    ingest.next_reply()
    ingest.receive_answer(frame({"stream": "S", "seq": 3}))
    assert isinstance(ingest.failure, ProtocolError)
    assert (ingest.acked, ingest.ended, ingest.complete) == (1, True, False)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"type":"ack"}',
        b'{"type":"ack","seq":true,"msgs":1}',
        b'{"type":"gap","seq":1}',
        b'{"type":"err","error":{}}',
        b'{"error":3}',
    ],
)
def test_nonsense_changes_nothing(payload):
    ingest = started(5)
    before = repr(ingest)
    with pytest.raises(ProtocolError):
        ingest.receive_answer(frame(payload))
    assert repr(ingest) == before


@pytest.mark.parametrize("subject", [b"x", b"a.b.c.d", b"a.1.x.$FI.z", b"", b"a." + b"1" * 30 + b".1.$FI"])
def test_error_on_odd_subject_nonsense(subject):
    ingest = started(5)
    with pytest.raises(ProtocolError):
        ingest.receive_answer((subject, b"", b"", error(10054, 1)[3]))


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_no_input_breaks_it(subject, header, payload):
    ingest = started(5)
    try:
        ingest.receive_answer((subject, b"", header, payload))
    except ProtocolError:
        pass
