"""The handshake, step by step, with servers of each kind and with peers that are not NATS servers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ProtocolError
from jsclient.protocol.connection.handshake import (
    MAX_LINE,
    ConnectSettings,
    Handshake,
    HandshakeEndedError,
    HandshakeError,
    Identify,
    NotNatsError,
    Ready,
    RefusedError,
    StartTls,
    TlsNotOfferedError,
    Write,
)

SETTINGS = ConnectSettings("1.2.3")
INFO = b'INFO {"version":"2.15.1","headers":true,"nonce":"n"}\r\n'
TLS_REQUIRED = b'INFO {"tls_required":true}\r\n'
TLS_AVAILABLE = b'INFO {"tls_available":true}\r\n'


def handshake(*, wants_tls: bool = False, **options) -> Handshake:
    return Handshake(SETTINGS, wants_tls=wants_tls, **options)


def greeted(**options) -> Handshake:
    """A handshake that has sent CONNECT."""
    shake = handshake(**options)
    (step,) = shake.receive(INFO)
    assert isinstance(step, Identify)
    shake.identified({})
    return shake


def connect_fields(settings: ConnectSettings = SETTINGS, **identity) -> dict[str, object]:
    shake = Handshake(settings, wants_tls=False)
    shake.receive(INFO)
    (write,) = shake.identified(identity)
    connect, ping, tail = write.data.split(b"\r\n")
    assert (ping, tail) == (b"PING", b"")
    verb, _, body = connect.partition(b" ")
    assert verb == b"CONNECT"
    return json.loads(body)


def test_plain_handshake():
    shake = handshake()
    assert shake.begin() == []
    (step,) = shake.receive(INFO)
    assert step.info.nonce == "n"
    (write,) = shake.identified({"user": "ann"})
    assert b'"user": "ann"' in write.data
    (ready,) = shake.receive(b"PONG\r\n")
    assert ready == Ready(step.info, b"")


def test_fields_of_connect():
    assert connect_fields() == {
        "verbose": False,
        "pedantic": False,
        "lang": "python3",
        "version": "1.2.3",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
    }
    named = connect_fields(ConnectSettings("1", name="worker", no_echo=True), auth_token="t")
    assert (named["name"], named["echo"], named["auth_token"]) == ("worker", False, "t")


def test_bytes_after_pong_belong_to_the_connection():
    (ready,) = greeted().receive(b"PONG\r\nMSG a 1 2\r\nhi\r\n")
    assert ready.rest == b"MSG a 1 2\r\nhi\r\n"


@given(st.lists(st.integers(1, 60), max_size=10))
def test_input_may_be_cut_anywhere(cuts):
    shake, steps = handshake(), []
    data = INFO + b"PING\r\n+OK\r\nPONG\r\nrest"
    for cut in [*cuts, len(data)]:
        piece, data = data[:cut], data[cut:]
        new = shake.receive(piece)
        while new and isinstance(new[-1], Identify):
            steps += new
            new = shake.identified({})
        steps += new
    kinds = [type(step) for step in steps]
    assert kinds == [Identify, Write, Write, Ready] or (kinds[-1] is Ready and steps[-1].rest != b"rest")


def test_server_that_pings_first():
    assert greeted().receive(b"PING\r\nPONG\r\n")[0] == Write(b"PONG\r\n")


def test_newer_info_before_pong():
    (ready,) = greeted().receive(b'INFO {"version":"9"}\r\nPONG\r\n')
    assert ready.info.version == "9"


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "wants"), [(TLS_REQUIRED, False), (TLS_REQUIRED, True), (TLS_AVAILABLE, True)]
)
def test_tls_after_info(info, wants):
    shake = handshake(wants_tls=wants)
    assert shake.receive(info) == [StartTls()]
    (step,) = shake.tls_started()
    assert isinstance(step, Identify)


def test_tls_that_is_only_available_is_not_used():
    (step,) = handshake().receive(TLS_AVAILABLE)
    assert isinstance(step, Identify)


def test_tls_not_offered_sends_nothing():
    with pytest.raises(TlsNotOfferedError):
        handshake(wants_tls=True).receive(INFO)


def test_tls_first():
    shake = handshake(wants_tls=True, tls_first=True)
    assert shake.begin() == [StartTls()]
    assert shake.tls_started() == []
    (step,) = shake.receive(TLS_REQUIRED)
    assert isinstance(step, Identify)


@pytest.mark.parametrize("info", [INFO, TLS_REQUIRED])
def test_encrypted_transport_needs_no_tls(info):
    shake = handshake(wants_tls=True, tls_first=True, secure=True)
    assert shake.begin() == []
    (step,) = shake.receive(info)
    assert isinstance(step, Identify)


def test_websocket_without_tls_is_not_upgraded():
    (step,) = handshake(upgradable=False).receive(TLS_REQUIRED)
    assert isinstance(step, Identify)
    with pytest.raises(TlsNotOfferedError):
        handshake(upgradable=False, wants_tls=True).receive(TLS_REQUIRED)


def test_clear_text_before_tls_is_not_read_as_encrypted():
    with pytest.raises(HandshakeError, match="between INFO and TLS"):
        handshake().receive(TLS_REQUIRED + b"PONG\r\n")


def test_refusal_before_tls():
    with pytest.raises(RefusedError, match="maximum connections exceeded"):
        handshake().receive(TLS_REQUIRED + b"-ERR 'maximum connections exceeded'\r\n")


# --- refusals and nonsense ---------------------------------------------------------------------------------------


def test_refused_credentials():
    with pytest.raises(RefusedError, match=r"^'Authorization Violation'$"):
        greeted().receive(b"-ERR 'Authorization Violation'\r\n")


def test_refused_before_info():
    with pytest.raises(RefusedError, match="maximum connections"):
        handshake().receive(b"-ERR 'maximum connections exceeded'\r\n")


def test_refusal_that_is_not_text():
    with pytest.raises(RefusedError, match=r"\\xff"):
        greeted().receive(b"-ERR \xff\r\n")


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\r\n", b"HTTP/1.1 400\r\n", b"x" * (MAX_LINE + 1)]
)
def test_no_nats_server(greeting):
    with pytest.raises(NotNatsError, match="does not begin with INFO"):
        handshake().receive(greeting)


@pytest.mark.parametrize("size", [MAX_LINE + 1, 10_000_000])
@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_info_without_end(size, end):
    with pytest.raises(HandshakeError, match="more than 65,536 bytes"):
        handshake().receive(b"INFO {" + b" " * size + end)


def test_dripping_info_without_end():
    shake = handshake()
    for _ in range(MAX_LINE // 1000):
        assert shake.receive(b"INFO" * 250) == []
    with pytest.raises(HandshakeError, match="more than"):
        shake.receive(b"INFO" * 250)


def test_malformed_info():
    with pytest.raises(ProtocolError):
        handshake().receive(b"INFO []\r\n")


def test_something_else_than_pong():
    with pytest.raises(HandshakeError, match="something else than PONG"):
        greeted().receive(b"MSG a 1 0\r\n")


def test_end_of_the_connection():
    assert isinstance(handshake().ended(), HandshakeEndedError)
    shake = greeted()
    shake.receive(b"-ERR 'Authorization")
    assert isinstance(shake.ended(), RefusedError)
