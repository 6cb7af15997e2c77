"""The JSAck grammar, and which acks go out."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient.errors import ConfigError, NotJetStreamMessageError
from jsclient.protocol.consumers import ack
from jsclient.protocol.consumers.ack import (
    AckKind,
    AckState,
    Metadata,
    ack_payload,
    has_whole_numbers,
    is_jsack,
    last_of_run,
    last_of_whole_run,
    read_jsack,
    run_of,
    sequences,
)
from jsclient.protocol.wire.frames import is_data
from tests.support.calls import Calls
from tests.support.examples import examples
from tests.support.strategies import data, good_names, odd_jsacks, u64

V1 = "$JS.ACK.ORDERS.worker.3.22.20.1700000000123456789.7"
V2 = "$JS.ACK.hub.aHash.ORDERS.worker.3.22.20.1700000000123456789.7"
FIELDS = {
    "stream": "ORDERS",
    "consumer": "worker",
    "num_delivered": 3,
    "stream_seq": 22,
    "consumer_seq": 20,
    "timestamp_ns": 1_700_000_000_123_456_789,
    "num_pending": 7,
}
NOT_NUMBERS = [
    "",
    "-1",
    "+1",
    "1_0",
    " 1",
    "1 ",
    "1.5".replace(".", ","),
    "0x1",
    "1e3",
    "a",
    "٣",
    "１",
    "²",
    "9" * 400,
    "0" * 400,
    str(2**64),
    "1\n",
    "1\x00",
]


def outcome(function, reply):
    try:
        return function(reply)
    except NotJetStreamMessageError as error:
        return type(error)


@pytest.mark.covers("J61", "J63")
def test_first_form_nine_tokens():
    assert read_jsack((V1).encode()) == Metadata(**FIELDS, domain=None)


@pytest.mark.covers("J64", "J67")
def test_second_form_same_fields():
    assert read_jsack((V2).encode()) == Metadata(**FIELDS, domain="hub")


@pytest.mark.covers("J65")
@pytest.mark.parametrize("extra", [".x", ".x.y", ".12345", "." + ".".join("abcdefgh")])
def test_tokens_past_eleventh_ignored(extra):
    assert read_jsack((V2 + extra).encode()) == read_jsack((V2).encode())
    assert sequences((V2 + extra).encode()) == (22, 20, FIELDS["timestamp_ns"], 7)


@pytest.mark.covers("J66")
@pytest.mark.parametrize(
    "reply",
    [
        "",
        "$JS.ACK",
        "$JS.ACK.",
        V1.removeprefix("$JS."),
        V1.replace("$JS", "$JT"),
        V1.replace("ACK", "ack"),
        V1.replace("ACK", "ACKS"),
        "x." + V1,
        V1.rsplit(".", 1)[0],
        V1 + ".x",
        V2.rsplit(".", 1)[0],
        "_INBOX.a.b.c.d.e.f.g.h",
    ],
)
def test_wrong_start_or_count_refused(reply):
    with pytest.raises(NotJetStreamMessageError) as caught:
        read_jsack(reply.encode())
    assert caught.value.reply == reply
    assert outcome(sequences, reply.encode()) is NotJetStreamMessageError


@pytest.mark.covers("J66")
@pytest.mark.parametrize("form", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("from_end", range(1, 6))
@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_numeric_tokens_64_bits(form, from_end, text):
    tokens = form.split(".")
    tokens[-from_end] = text
    reply = ".".join(tokens)
    assert outcome(read_jsack, reply.encode()) is NotJetStreamMessageError
    assert outcome(sequences, reply.encode()) is NotJetStreamMessageError


@pytest.mark.covers("J66")
@pytest.mark.parametrize("form", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("zero", ["0", "00"])
def test_sequences_start_at_one(form, zero):
    for position in (3, 4):
        tokens = form.split(".")
        tokens[-position] = zero
        reply = ".".join(tokens)
        assert not is_jsack(reply.encode())
        assert outcome(read_jsack, reply.encode()) is NotJetStreamMessageError
        assert outcome(sequences, reply.encode()) is NotJetStreamMessageError
    tokens[-4:-2] = ["010", "01"]
    assert sequences(".".join(tokens).encode())[:2] == (10, 1)


@pytest.mark.covers("J66")
@pytest.mark.parametrize("form", [V1, V2], ids=["v1", "v2"])
def test_no_token_may_be_empty(form):
    tokens = form.split(".")
    for index in range(len(tokens)):
        reply = ".".join([*tokens[:index], "", *tokens[index + 1 :]])
        assert outcome(read_jsack, reply.encode()) is NotJetStreamMessageError, reply
        assert outcome(sequences, reply.encode()) is NotJetStreamMessageError, reply


def test_largest_numbers_of_server_pass():
    top = 2**64 - 1
    metadata = read_jsack(b"$JS.ACK.S.C" + b".%d" % top * 5)
    assert (metadata.num_delivered, metadata.stream_seq, metadata.timestamp_ns, metadata.num_pending) == (
        top,
    ) * 4
    assert metadata.timestamp.year == 2554


@pytest.mark.covers("J68")
def test_underscore_as_domain_means_none():
    assert read_jsack((V2.replace("hub", "_")).encode()).domain is None


@pytest.mark.covers("J69")
def test_account_hash_not_used():
    other = read_jsack((V2.replace("aHash", "another")).encode())
    assert other == read_jsack((V2).encode())
    assert "aHash" not in repr(other)
    assert not any("hash" in field or "account" in field for field in Metadata.__struct_fields__)


@pytest.mark.covers("J70")
def test_timestamp_has_nanoseconds():
    metadata = read_jsack((V1).encode())
    assert metadata.timestamp_ns == 1_700_000_000_123_456_789
    assert metadata.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


SEQUENCES = st.integers(1, 2**64 - 1)


@pytest.mark.covers("J63", "J64", "J67", "J70")
@given(good_names, good_names, u64, SEQUENCES, SEQUENCES, u64, u64, st.none() | good_names)
def test_what_is_written_is_read(stream, consumer, delivered, sseq, cseq, ts, pending, domain):
    start = "$JS.ACK." if domain is None else f"$JS.ACK.{domain}.h."
    reply = f"{start}{stream}.{consumer}.{delivered}.{sseq}.{cseq}.{ts}.{pending}"
    expected = Metadata(stream, consumer, delivered, sseq, cseq, ts, pending, domain)
    assert read_jsack(reply.encode()) == expected
    assert sequences(reply.encode()) == (sseq, cseq, ts, pending)


def by_the_grammar(reply: str) -> Metadata | None:
    """The plain reading of ADR-15, token by token."""
    match reply.split("."):
        case ["$JS", "ACK", stream, consumer, *numbers] if len(numbers) == 5:
            domain, remainder = None, [stream, consumer]
        case ["$JS", "ACK", domain, account, stream, consumer, *numbers] if len(numbers) >= 5:
            remainder = [account, stream, consumer, domain, *numbers[5:]]
        case _:
            return None
    if not all(remainder) or any(set(number) - set("0123456789") or not number for number in numbers[:5]):
        return None
    if any(len(number) > 20 or int(number) >= 2**64 for number in numbers[:5]):
        return None
    if not all(int(sequence) for sequence in numbers[1:3]):
        return None
    return Metadata(stream, consumer, *map(int, numbers[:5]), None if domain == "_" else domain)


@settings(max_examples=examples(1500))
@given(odd_jsacks)
def test_all_jsack_readers_agree(reply):
    wire = reply.encode("utf-8", "surrogatepass")
    whole, short = outcome(read_jsack, wire), outcome(sequences, wire)
    assert is_jsack(wire) == isinstance(whole, Metadata)
    if isinstance(whole, Metadata):
        assert short == (whole.stream_seq, whole.consumer_seq, whole.timestamp_ns, whole.num_pending)
        assert whole == by_the_grammar(reply)
    else:
        assert short is NotJetStreamMessageError
        assert by_the_grammar(reply) is None


def test_run_continues_or_single():
    frames = [data(10 + number, number) for number in range(5, 9)]
    run = run_of(frames[0][1])
    assert last_of_run(frames, run, 5) == 18
    assert last_of_run(frames, run, None) == 18
    assert not last_of_run(frames, run, 4)
    assert not last_of_run(frames, b"", None)
    assert not last_of_run([*frames, data(30, 10)], run, 5), "a hole"
    assert not last_of_run([*frames, frames[-1]], run, 5), "a repeat"
    assert not last_of_run([frames[1], frames[0]], run, 5), "out of order"
    for due in (5, None):
        again = [data(10, 5), data(10, 6)]
        assert not last_of_run(again, run_of(again[0][1]), due), "a repeated stream sequence"
        back = [data(10, 5), data(9, 6)]
        assert not last_of_run(back, run_of(back[0][1]), due), "a smaller stream sequence"
    for odd in (
        b"",
        b"_INBOX.x",
        b"$JS.ACK.S",
        run,
        run + b".15.x.1.1",
        run.replace(b".1", b".2", 1) + b".15.9.1.1",
    ):
        assert not last_of_run([*frames, (b"s", odd, b"", b"")], run, 5), odd


numbers = st.sampled_from([1, 990, 1000, 1990, 9995, 99_990, 10**6 - 3]) | st.integers(1, 2**50)
damages = st.sampled_from(["none", "repeat", "gap", "longer", "shorter", "other run", "odd", "consumer gap"])


@settings(max_examples=examples(800))
@given(numbers, numbers, st.integers(ack._MANY, 60), st.integers(0, 100), damages)
def test_runs_compared_at_once_and_one_by_one_agree(seq, due, size, index, damage):
    """A run of many frames is compared as one text: it must accept what the comparison of each number accepts."""
    frames = [data(seq + number, due + number) for number in range(size)]
    run, index = run_of(frames[0][1]), index % size
    reply = frames[index][1]
    head, stream, consumer, remainder = (
        reply.rsplit(b".", 4)[0],
        seq + index,
        due + index,
        reply.split(b".", 7)[-1],
    )
    reply = {
        "none": reply,
        "repeat": frames[index - 1][1],
        "gap": b"%b.%d.%d.%b" % (head, stream + 1, consumer, remainder),
        "consumer gap": b"%b.%d.%d.%b" % (head, stream, consumer + 1, remainder),
        "longer": b"%b.%d.%d0.%b" % (head, stream, consumer, remainder),
        "shorter": b"%b.%d.%b" % (head, stream, remainder),
        "other run": b"x" + reply,
        "odd": b"%b.%dx.%d.%b" % (head, stream, consumer, remainder),
    }[damage]
    frames[index] = (b"s", reply, b"", b"")
    at_once = ack._consecutive(frames, run, due)
    assert at_once in (0, by_one(frames, run, due))
    assert last_of_run(frames, run, due) == by_one(frames, run, due)
    if damage == "none" and min(seq, due) >= 1000:
        assert at_once == seq + size - 1
    assert last_of_whole_run(frames, run, due) == by_one_and_whole(frames, run, due)


def by_one(frames: Any, run: bytes, due: int) -> int:
    with mock.patch.object(ack, "_MANY", sys.maxsize):
        return last_of_run(frames, run, due)


def by_one_and_whole(frames: Any, run: bytes, due: int) -> int:
    whole = all(has_whole_numbers([frame], run) for frame in frames)
    return by_one(frames, run, due) if whole else 0


@pytest.mark.parametrize("size", [ack._TABLE, 300, 2500, ack._MAX_TABLE, ack._MAX_TABLE + 1])
@pytest.mark.parametrize("seq", [1, 999, 1000, 1990, 9_500, 99_999, 123_456, 10**15 + 999])
@pytest.mark.parametrize("due", [1, 1000, 20_998, 999_900])
def test_run_of_many_is_compared_as_table(seq, due, size):
    """No function is called for a message, also where digits carry, unless the numbers become longer."""
    frames = [data(seq + number, due + number) for number in range(size)]
    run = run_of(frames[0][1])
    with Calls() as calls:
        assert last_of_whole_run(frames, run, due) == seq + size - 1
    same = all(len(str(first)) == len(str(first + size - 1)) and first >= 1000 for first in (seq, due))
    compared = [name for name in calls.by_name if name.endswith(": last_of_run")]
    assert bool(compared) == (not same or size > ack._MAX_TABLE), calls
    for at in (0, 1, size // 2, size - 1):
        other = [*frames[:at], data(seq + at + 1, due + at), *frames[at + 1 :]]
        assert last_of_whole_run(other, run, due) == by_one(other, run, due)
        other = [*frames[:at], data(seq + at, due + at + 1), *frames[at + 1 :]]
        assert last_of_whole_run(other, run, due) == 0


@pytest.mark.parametrize("change", ["", *"x 0.-", "00"])
def test_one_odd_reply_among_many(change):
    """Each byte of a reply is checked, wherever the reply stands in the run."""
    frames = [data(20_500 + number, 7_600 + number) for number in range(60)]
    run = run_of(frames[0][1])
    for at in (0, 30, 59):
        reply = frames[at][1]
        for index in range(len(reply)):
            odd = reply[:index] + change.encode() + reply[index + 1 :]
            some = [*frames[:at], (b"s", odd, b"", b""), *frames[at + 1 :]]
            assert last_of_whole_run(some, run, 7_600) == by_one_and_whole(some, run, 7_600), odd


ROW = ".1000.2000.1764300000000000000.500"


@pytest.mark.parametrize("row", [ROW, ".1.1.0.0", ".1.1.1764300000000000000.18446744073709551615"])
@pytest.mark.parametrize("change", ["none", *"x.0-", "shorter"])
def test_numbers_of_many_checked_like_those_of_one(row, change):
    """Many replies are compared as a table first, each with one change at any place."""
    run = b"$JS.ACK.S.c.1"
    for place in range(len(row)):
        odd = row[:place] + change.removeprefix("shorter") + row[place + 1 :] if change != "none" else row
        for rows in ([ROW] * 50 + [odd], [odd] * 51, [odd] + [row] * 50):
            frames = [(b"orders.new", run + text.encode(), b"", b"x") for text in rows]
            each = all(has_whole_numbers([frame], run) for frame in frames)
            assert has_whole_numbers(frames, run) == each, rows


@pytest.mark.parametrize("reply", [V1 + ".more", V2 + ".more", "$JS.ACK.S", ""])
def test_odd_reply_starts_no_run(reply):
    assert run_of(reply.encode()) == b""


@pytest.mark.covers("J61")
def test_reply_starts_right_marks_data():
    assert is_data((b"s", V1.encode(), b"", b""))
    assert not is_data((b"s", b"$JS.ACKS.a", b"", b""))
    assert not is_data((b"s", b"_INBOX.a", b"", b""))


# --- acks ------------------------------------------------------------------------------------------------


@pytest.mark.covers("J72", "J73", "J74", "J75", "J77")
def test_four_acks_as_they_stand_on_wire():
    assert [kind.value for kind in AckKind] == [b"+ACK", b"-NAK", b"+TERM", b"+WPI"]
    assert [kind.is_terminal for kind in AckKind] == [True, True, True, False]


def test_nak_may_carry_delay_in_nanoseconds():
    assert ack_payload(AckKind.NAK) == b"-NAK"
    assert ack_payload(AckKind.NAK, delay=0) == b'-NAK {"delay": 0}'
    assert ack_payload(AckKind.NAK, delay=1.5) == b'-NAK {"delay": 1500000000}'


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", True])
def test_delay_none_refused(delay):
    with pytest.raises(ConfigError):
        ack_payload(AckKind.NAK, delay=delay)


def test_term_may_carry_reason_of_one_line():
    assert ack_payload(AckKind.TERM, reason="") == b"+TERM"
    assert ack_payload(AckKind.TERM, reason="bad — input") == "+TERM bad — input".encode()


@pytest.mark.parametrize("reason", ["a\r\nPUB x 0\r\n", "a\nb", "a\x00b", "\ud800"])
def test_reason_could_end_line_refused(reason):
    with pytest.raises(ConfigError):
        ack_payload(AckKind.TERM, reason=reason)


@pytest.mark.covers("J76", "J77")
def test_terminal_ack_last_one():
    state = AckState()
    for _ in range(3):
        assert state.begin_ack(AckKind.IN_PROGRESS)
        state.succeeded(AckKind.IN_PROGRESS)
    assert not state.acked
    assert state.begin_ack(AckKind.NAK)
    state.succeeded(AckKind.NAK)
    assert state.acked
    assert not any(state.begin_ack(kind) for kind in AckKind)


@pytest.mark.covers("J78")
def test_failed_ack_leaves_message_ackable():
    state = AckState()
    assert state.begin_ack(AckKind.ACK)
    state.failed(AckKind.ACK)
    assert not state.acked
    assert state.begin_ack(AckKind.TERM)


@given(st.lists(st.tuples(st.sampled_from(AckKind), st.booleans(), st.integers(0, 5)), max_size=20))
@pytest.mark.covers("J76", "J78")
def test_one_terminal_ack_in_flight(steps):
    state, under_way, sent = AckState(), [], []
    for kind, succeeds, which in steps:
        if which < len(under_way):
            ended = under_way.pop(which)
            (state.succeeded if succeeds else state.failed)(ended)
            sent += [ended] * succeeds
        if state.begin_ack(kind):
            under_way.append(kind)
        terminal = [one for one in (*under_way, *sent) if one.is_terminal]
        assert len(terminal) <= 1
    assert state.acked == any(one.is_terminal for one in sent)
