"""The numbers of many JSAcks are those of each JSAck by itself, also where they do not have the usual form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import NotJetStreamMessageError
from jsclient.protocol.consumers.ack import sequences
from jsclient.protocol.consumers.ack_numbers import AckNumbers, ack_numbers

STARTS = (
    b"$JS.ACK.S.C.1",
    b"$JS.ACK.S.C.10",
    b"$JS.ACK.S.C_2.1",
    b"$JS.ACK.S.D.1",
    b"$JS.ACK.hub.hash.S.C.1",
)
ENDS = (b"", b"", b"", b".more.tokens")
NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 20)
TEXTS = NUMBERS.map(lambda number: b"%d" % number) | st.just(b"007")


def frames_with(*replies: bytes):
    return [(b"$KV.b.k", reply, b"", b"value") for reply in replies]


def one_by_one(frames) -> list[tuple[int, ...]]:
    rows = [sequences(reply) for _, reply, _, _ in frames]
    return [(seq, time_ns, pending) for seq, _, time_ns, pending in rows]


@st.composite
def reply(draw, starts) -> bytes:
    seqs = [b"%d" % draw(st.integers(1, 2**64 - 1) | st.integers(1, 20)) for _ in range(2)]
    start = draw(st.sampled_from(starts))
    end = draw(st.sampled_from(ENDS)) if b"hub" in start else b""
    return b".".join([start, *seqs, draw(TEXTS), draw(TEXTS)]) + end


@given(
    st.sampled_from([STARTS, STARTS[:1], STARTS[1:2], STARTS[4:]]).flatmap(
        lambda s: st.lists(reply(s), max_size=9)
    )
)
def test_same_as_one_by_one(replies):
    frames = frames_with(*replies)
    assert [*zip(*ack_numbers(frames), strict=True)] == one_by_one(frames)


@pytest.mark.parametrize("count", [1, 3, 4, 500])
def test_usual_messages(count):
    frames = frames_with(
        *[b"$JS.ACK.KV_b.c.1.%d.%d.17%d.%d" % (n + 5, n + 1, n, count - n - 1) for n in range(count)]
    )
    numbers = ack_numbers(frames)
    assert [*zip(*numbers, strict=True)] == one_by_one(frames)
    assert numbers.between(1, 3) == AckNumbers(*[column[1:3] for column in numbers])


def test_nothing():
    assert ack_numbers([]) == AckNumbers([], [], [])


@pytest.mark.parametrize("count", [1, 5])
def test_not_a_jsack(count):
    with pytest.raises(NotJetStreamMessageError):
        ack_numbers(frames_with(*[b"orders.new"] * count))
