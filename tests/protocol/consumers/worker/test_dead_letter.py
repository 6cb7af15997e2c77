"""The fields of a dead letter. No content of a message or an error can keep it from being written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.consumers.ack import AckKind, ack_payload
from jsclient.protocol.consumers.worker.dead_letter import (
    Exhausted,
    Origin,
    dead_letter_headers,
    dead_letter_id,
    dead_letter_subject,
    error_text,
    exhausted_subject,
    passes,
    read_exhausted,
    refutation,
    term_reason,
)
from jsclient.protocol.consumers.worker.reasons import Reject
from jsclient.protocol.models.consumer import ConsumerConfig, ConsumerInfo, SequenceInfo
from jsclient.protocol.wire.headers import Headers, encode_headers, parse_headers
from jsclient.protocol.wire.names import check_publish_subject

ORIGIN = Origin("ORDERS", "worker", "orders.new", 7, 1_700_000_000_123_456_789, 3)


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_says_where_message_and_why():
    assert dead_letter_headers(Headers(), ORIGIN, ValueError("no such customer")) == {
        "Dead-Letter-Stream": "ORDERS",
        "Dead-Letter-Consumer": "worker",
        "Dead-Letter-Subject": "orders.new",
        "Dead-Letter-Sequence": "7",
        "Dead-Letter-Timestamp": "1700000000123456789",
        "Dead-Letter-Deliveries": "3",
        "Dead-Letter-Error": "ValueError",
        "Dead-Letter-Reason": "no such customer",
    }


def test_headers_are_copied_but_inert():
    original = Headers(
        [("trace", "1"), ("trace", "2"), ("Nats-Msg-Id", "o-7"), ("nats-expected-last-sequence", "9")]
    )
    headers = dead_letter_headers(original, ORIGIN, ValueError())
    assert headers["trace"] == ["1", "2"]
    assert headers["Dead-Letter-Nats-Msg-Id"] == ["o-7"]
    assert headers["Dead-Letter-nats-expected-last-sequence"] == ["9"]
    assert not [name for name in headers if name.lower().startswith("nats-")]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("one\r\ntwo\0three"), "ValueError", "one two three"),
        (Reject("no such customer"), "Reject", "no such customer"),
        (
            json.JSONDecodeError("bad", "x", 0),
            "json.decoder.JSONDecodeError",
            "bad: line 1 column 1 (char 0)",
        ),
        (ValueError("x" * 5000), "ValueError", "x" * 1000),
        (ValueError("\udc80"), "ValueError", "?"),
        (ValueError(), "ValueError", ""),
        (Silent(), "tests.protocol.consumers.worker.test_dead_letter.Silent", "(no text available)"),
    ],
)
def test_error_class_and_line(error, kind, text):
    actual = error_text(error)
    assert (actual[0].rpartition(".")[2], actual[1]) == (kind.rpartition(".")[2], text)
    reason = term_reason(error)
    assert reason == (f"{actual[0]}: {text}" if text else actual[0])
    assert ack_payload(AckKind.TERM, reason=reason)


@given(st.binary(max_size=200), st.text(max_size=50), st.text(max_size=50))
def test_any_headers_writable(block, subject, text):
    """A subject and headers as the wire may bring them, and any error."""
    headers = parse_headers(b"NATS/1.0\r\n" + block + b"\r\n\r\n")[1]
    raw = subject.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    origin = Origin("S", "c", raw, 1, 1, 1)
    written = encode_headers(dead_letter_headers(headers, origin, ValueError(text)))
    assert parse_headers(written)[1]["Dead-Letter-Sequence"] == "1"


@pytest.mark.parametrize(
    ("pattern", "subject", "where"),
    [
        ("dead", "orders.new", "dead"),
        ("dead.orders", "orders.new", "dead.orders"),
        ("dead.>", "orders.new", "dead.orders.new"),
        ("dead.>", "orders.\udcff", "dead.orders.?"),
    ],
)
def test_subject_may_end_in_of_message(pattern, subject, where):
    assert check_publish_subject(dead_letter_subject(pattern, subject)) == where


def test_id_is_unique_per_consumer():
    ids = {
        dead_letter_id(Origin(stream, consumer, "s", seq, time, deliveries))
        for stream in ("A", "B")
        for consumer in ("c", "d")
        for seq in (1, 2)
        for time in (1, 2)
        for deliveries in (1, 2)  # not this
    }
    assert len(ids) == 16


def test_advisory_of_last_delivery_read():
    assert exhausted_subject("S", "c") == "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c"
    # as nats-server 2.10 and 2.15 sent it
    reports = (
        b'{"type":"io.nats.jetstream.advisory.v1.max_deliver","id":"ofGsOPAEqvOsavcFPU5sMj",'
        b'"timestamp":"2026-11-20T21:38:55.656801218Z","stream":"W","consumer":"c","stream_seq":2,"deliveries":2}'
    )
    assert read_exhausted(reports) == Exhausted("W", "c", 2, 2)


@pytest.mark.parametrize(
    ("seq", "deliveries", "reason"),
    [
        (5, 3, ""),
        (1, 2, ""),  # the limit that it had before
        (6, 3, "the consumer has delivered up to 5 only"),
        (5, 4, "it says 4 deliveries, max_deliver is 3"),
    ],
)
def test_advisory_compared_with_consumer(seq, deliveries, reason):
    info = ConsumerInfo(config=ConsumerConfig(max_deliver=3), delivered=SequenceInfo(stream_seq=5))
    assert refutation(Exhausted("W", "c", seq, deliveries), info, {2, 3}) == reason


def test_filters_compared_with_subject():
    one, two = ConsumerConfig(filter_subject="a.*"), ConsumerConfig(filter_subjects=["b", "c.>"])
    assert [passes(subject, [one, two]) for subject in ("a.x", "b", "c.x.y", "d", "a")] == [
        *(True, True, True),
        *(False, False),
    ]
    assert passes("d", [ConsumerConfig()])


def test_unverified_is_said_once():
    origin = Origin("S", "c", "s", 1, 1, 1)
    first = dead_letter_headers(parse_headers(b"NATS/1.0\r\n\r\n")[1], origin, ValueError(), "no\nright")
    assert first["Dead-Letter-Unverified"] == "no right"
    again = parse_headers(encode_headers(first))[1]
    assert "Dead-Letter-Unverified" not in dead_letter_headers(again, origin, ValueError())


@given(
    st.binary(max_size=100) | st.just(b"[]") | st.just(b'{"stream_seq":"2"}') | st.just(b'{"stream_seq":0}')
)
def test_anything_else_no_advisory(payload):
    assert read_exhausted(payload) is None
