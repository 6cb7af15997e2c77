"""The answer to a publish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ApiError, ProtocolError, WrongLastSequenceError
from jsclient.protocol.models import (
    PubAck,
    read_pub_ack,
)
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
