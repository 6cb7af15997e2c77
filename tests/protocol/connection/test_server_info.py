"""INFO as servers send it, and as only a hostile one would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ProtocolError
from jsclient.protocol.connection.server_info import MAX_ANNOUNCED, ServerInfo, read_info

REAL = (
    b'{"server_id":"NA","server_name":"n","version":"2.15.1","proto":1,"go":"go1.25","host":"0.0.0.0","port":4222,'
    b'"headers":true,"auth_required":true,"tls_available":true,"max_payload":1048576,"jetstream":true,'
    b'"client_id":5,"client_ip":"127.0.0.1","nonce":"abc","connect_urls":["127.0.0.1:1","[::1]:2"],"xkey":"X"}'
)


def test_fields_of_real_server():
    info = read_info(b" " + REAL)
    assert (info.version, info.server_id, info.nonce) == ("2.15.1", "NA", "abc")
    assert (info.headers, info.auth_required, info.tls_available) == (True, True, True)
    assert (info.tls_required, info.tls_verify, info.ldm) == (False, False, False)
    assert info.max_payload == 1048576
    assert info.connect_urls == ("127.0.0.1:1", "[::1]:2")


def test_empty_object_has_defaults():
    assert read_info(b"{}") == ServerInfo()


@pytest.mark.parametrize("limit", ["-1", "0", '"5"', "2147483649", "true", "null", "1.5", "1e400"])
def test_limit_without_sense_is_none(limit):
    assert read_info(b'{"max_payload":%b}' % limit.encode()).max_payload is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"7",
        b"{",
        b'{"connect_urls":5}',
        b'{"connect_urls":"a:1"}',
        b"[" * 60_000,
        b"\xff{}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_malformed_info_refused(body):
    with pytest.raises(ProtocolError, match="malformed INFO"):
        read_info(body)


def test_odd_fields_have_defaults():
    info = read_info(
        b'{"nonce":5,"version":[],"server_id":null,"ldm":"yes","connect_urls":[7,"a:1",null,{}]}'
    )
    assert (info.nonce, info.version, info.server_id, info.ldm) == ("", "", "", True)
    assert info.connect_urls == ("a:1",)


def test_no_more_servers_than_kept():
    urls = ",".join(f'"a:{port}"' for port in range(1, 5000))
    info = read_info(b'{"connect_urls":[%b]}' % urls.encode())
    assert info.connect_urls is not None
    assert len(info.connect_urls) == MAX_ANNOUNCED


@given(st.binary(max_size=200))
def test_any_bytes_give_info_or_documented_error(body):
    try:
        assert isinstance(read_info(body), ServerInfo)
    except ProtocolError:
        pass
