"""The error of `connect`: it names the server, what it answered, and what to do."""

from __future__ import annotations

import ssl
from urllib.parse import urlparse

import pytest

from jsclient._runtime.connection.connect_errors import (
    FailedAttempt,
    connect_error,
    is_refusal,
    reason,
    server_error,
)
from jsclient._runtime.connection.credentials import CallbackError
from jsclient.errors import AuthenticationError, ConnectError
from jsclient.protocol.connection.handshake import RefusedError, TlsNotOfferedError

WHERE = "nats://a:4222"
REFUSED = RefusedError("Authorization Violation")


def failed(error: BaseException, host: str = "a") -> FailedAttempt:
    return FailedAttempt(urlparse(f"nats://user:secret@{host}:4222"), error)


def test_reason_of_an_error_without_text_is_its_class():
    assert (reason(TimeoutError()), reason(OSError("gone"))) == ("TimeoutError", "gone")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (REFUSED, True),
        (RefusedError("User Authentication Expired"), True),
        (RefusedError("maximum connections exceeded"), False),
        (ssl.SSLError("certificate has expired"), False),
    ],
)
def test_only_the_answer_of_a_server_refuses_credentials(error, expected):
    assert is_refusal(error) is expected


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TlsNotOfferedError(), f"TLS was requested, and {WHERE} does not offer it"),
        (RefusedError("maximum account active connections exceeded"), "raise its limit"),
        (RefusedError("maximum connections exceeded"), "raise max_connections of the server"),
        (ConnectionRefusedError(111, "refused"), "connect(..., wait=30) waits"),
        (ssl.SSLError("bad certificate"), f"cannot connect to {WHERE}: "),
    ],
)
def test_what_each_failure_says(error, text):
    caught = server_error(WHERE, error)
    assert text in str(caught)
    assert not isinstance(caught, AuthenticationError)


def test_refusals_say_whether_credentials_were_given():
    given = server_error(WHERE, REFUSED, expiry=" (expired at noon)")
    assert (type(given), str(given)) == (
        AuthenticationError,
        f"{WHERE} refused the credentials: Authorization Violation (expired at noon)",
    )
    missing = server_error(WHERE, REFUSED, identified=False)
    assert str(missing).startswith(f"no credentials were given, and {WHERE} requires them")


def test_error_of_a_callback_is_the_cause():
    cause = ValueError("bad file")
    error = CallbackError("the callback failed")
    error.__cause__ = cause
    assert server_error(WHERE, error).__cause__ is cause
    several = connect_error([failed(OSError("gone")), failed(error, "b")])
    assert several.__cause__ is cause


def test_refusal_is_more_important_than_a_server_that_is_gone():
    error = connect_error([failed(OSError("gone")), failed(REFUSED, "b")])
    assert isinstance(error, AuthenticationError)
    assert "nats://b:4222" in str(error)


def test_all_servers_are_named_without_user_info():
    error = connect_error([failed(OSError("gone")), failed(TimeoutError(), "b")])
    assert type(error) is ConnectError
    assert "nats://a:4222 (gone); nats://b:4222 (TimeoutError)" in str(error)
    assert "secret" not in str(error)
