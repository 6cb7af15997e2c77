"""The answer to a publish."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ApiError, ProtocolError, WrongLastSequenceError
from jsclient.protocol.models import (
    PubAck,
    read_pub_ack,
)
from jsclient.protocol.models.publish import AckRun, read_ack_run
from jsclient.protocol.wire.codec import encode
from tests.protocol.models.kit import JSON


def test_an_acknowledged_publish():
    assert read_pub_ack(b'{"stream":"S","seq":7}') == PubAck(stream="S", seq=7)
    assert read_pub_ack(b'{"stream":"S","seq":7,"duplicate":true,"domain":"hub","new":1}') == PubAck(
        stream="S", seq=7, duplicate=True, domain="hub", extra={"new": 1}
    )
    assert read_pub_ack(b'{"stream":"S","seq":7,"val":"12","batch":"b","count":3}') == PubAck(
        stream="S", seq=7, val="12", batch="b", count=3
    )


def test_a_refused_publish():
    with pytest.raises(WrongLastSequenceError):
        read_pub_ack(b'{"error":{"code":400,"err_code":10071,"description":"x"},"stream":"S","seq":0}')
    with pytest.raises(ProtocolError, match="sequence -1"):
        read_pub_ack(b'{"stream":"S","seq":-1}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"+OK",
        b'{"stream":"S"}',
        b'{"seq":1}',
        b'{"stream":7,"seq":1}',
        b'{"stream":"S","seq":"1"}',
        b'{"stream":"S","seq":true}',
        b'{"stream":"S","seq":0}',
        b'{"stream":"S","seq":-1}',
        b'{"stream":"S","seq":18446744073709551616}',
        b'{"stream":"","seq":1}',
    ],
)
def test_what_is_no_acknowledgement(data):
    with pytest.raises(ProtocolError):
        read_pub_ack(data)


@given(
    st.binary() | st.dictionaries(st.sampled_from(["stream", "seq", "duplicate", "error"]), JSON).map(encode)
)
def test_any_pub_ack_or_error(data):
    try:
        assert isinstance(read_pub_ack(data), PubAck)
    except (ApiError, ProtocolError):
        pass


def joined(*texts: bytes) -> bytes:
    return b"[%b]" % b",".join(texts)


def test_run_of_acks():
    texts = [b'{"stream":"S", "domain":"hub", "seq":%d}' % seq for seq in (7, 8, 2**64 - 1)]
    assert read_ack_run(joined(*texts), 3) == AckRun("S", [7, 8, 2**64 - 1])


@pytest.mark.parametrize(
    "other",
    [
        b'{"stream":"T","seq":2}',
        b'{"stream":"S","seq":2,"duplicate": true}',
        b'{"stream":"S","seq":2,"val":"5"}',
        b'{"stream":"S","seq":0}',
        b'{"stream":"S","seq":-1}',
        b'{"stream":"S","seq":18446744073709551616}',
        b'{"stream":"S","seq":2.5}',
        b'{"stream":"S","seq":02}',
        b'{"stream":"S","seq":}',
        b'{"stream":"S","seq":2',
        b'{"stream":"S","seq":2,3}',
        b'{"stream":"S","seq":2}}',
        b'{"stream":"S"}',
        b"{}",
        b"2",
    ],
)
def test_no_run_with_another_answer(other):
    one = b'{"stream":"S","seq":1}'
    for texts in ((one, other), (other, one), (one, other, one)):
        assert read_ack_run(joined(*texts), len(texts)) is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"seq":1}',
        b'{"stream":"","seq":1}',
        b'{"duplicate":true,"stream":"S","seq":1}',
        b'{"a":1,"stream":"S","seq":1}',
    ],
)
def test_no_run_of_acks_that_say_more_or_less(text):
    assert read_ack_run(joined(text, text), 2) is None


PARTS = st.sampled_from(
    [b'"stream":"S",', b'"seq":', b"1", b"2", b"}", b",", b" ", b'"domain":"d",', b'"duplicate":true']
)


@given(st.lists(st.lists(PARTS, max_size=7).map(b"".join), min_size=1, max_size=3), st.booleans())
def test_run_has_the_acks_of_its_texts(bodies, ordinary):
    """Whatever the texts are, each of which begins with its only brace."""
    texts = [b"{" + (b'"stream":"S","seq":1%b}' % body if ordinary else body) for body in bodies]
    run = read_ack_run(joined(*texts), len(texts))
    if run is not None:
        assert [PubAck(stream=run.stream, seq=seq) for seq in run.sequences] == [
            msgspec.structs.replace(read_pub_ack(text), domain=None) for text in texts
        ]
