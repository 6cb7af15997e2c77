"""The reasons that calls give while the connection is down."""

from __future__ import annotations

from jsclient._runtime.connection.credentials import CallbackError
from jsclient._runtime.connection.outage import Outage
from jsclient.errors import AuthenticationError, ConnectError
from jsclient.protocol.connection.handshake import RefusedError
from jsclient.protocol.connection.pool import Server
from jsclient.protocol.connection.urls import parse_url

SERVER = Server(parse_url("nats://ann:secret@a:1"))


def remark() -> str:
    return " (expired)"


def test_connected_has_no_reason():
    assert str(Outage()) == ""


def test_newest_attempt_is_named():
    outage = Outage(OSError("reset"))
    assert str(outage) == "the connection was lost (reset)"
    assert outage.attempt_failed(SERVER, OSError("no route"), remark) is None
    assert outage.attempt_failed(SERVER, TimeoutError(), remark) is None
    assert str(outage) == "the connection was lost (reset), then nats://a:1: TimeoutError"


def test_refusal_is_reported_once():
    outage = Outage(OSError("reset"))
    refused = RefusedError("'Authorization Violation'")
    error = outage.attempt_failed(SERVER, refused, remark)
    assert isinstance(error, AuthenticationError)
    assert str(error) == "nats://a:1 refused the credentials: 'Authorization Violation' (expired)"
    assert outage.attempt_failed(SERVER, refused, remark) is None
    assert str(error) in str(outage)


def test_full_server_is_no_refusal():
    assert (
        Outage(OSError("x")).attempt_failed(SERVER, RefusedError("'maximum connections exceeded'"), remark)
        is None
    )


def test_failing_callback_is_reported_once():
    outage = Outage(OSError("reset"))
    error = outage.attempt_failed(SERVER, CallbackError("token raised KeyError('vault')"), remark)
    assert isinstance(error, ConnectError)
    assert not isinstance(error, AuthenticationError)
    assert outage.attempt_failed(SERVER, CallbackError("again"), remark) is None
