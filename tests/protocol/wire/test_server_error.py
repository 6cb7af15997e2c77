"""What the server's ``-ERR`` lines mean."""

from __future__ import annotations

import pytest

from jsclient.errors import AuthenticationError, PermissionDeniedError, ProtocolError
from jsclient.protocol.wire.server_error import is_authentication, read_server_error


@pytest.mark.parametrize(
    ("text", "operation", "subject"),
    [
        ('Permissions Violation for Publish to "orders.new"', "publish", "orders.new"),
        ('permissions violation for subscription to "a.>"', "subscribe", "a.>"),
        ('Permissions Violation for Subscription to "a.*" using queue "q"', "subscribe", "a.*"),
    ],
)
def test_denied_subject_keeps_the_connection(text, operation, subject):
    error, closes = read_server_error(text)
    assert isinstance(error, PermissionDeniedError)
    assert (error.operation, error.subject, closes) == (operation, subject, False)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization Violation",
        "User Authentication Expired",
        "User Authentication Revoked",
        "Account Authentication Expired",
    ],
)
def test_refused_or_expired_credentials_close_it(text):
    error, closes = read_server_error(text)
    assert isinstance(error, AuthenticationError)
    assert closes
    assert text in str(error)
    assert is_authentication(text)


@pytest.mark.parametrize(
    ("text", "closes"),
    [
        ("Invalid Subject", False),
        ("Invalid Publish Subject", False),
        ("Invalid Subscription Subject", False),
        ("maximum subscriptions exceeded", False),
        ('Permissions Violation for Publish with Reply of "_R_.a"', False),
        ("Stale Connection", True),
        ("maximum connections exceeded", True),
        ("Maximum Payload Violation", True),
        ("something of the future", True),
        ("", True),
    ],
)
def test_other_errors(text, closes):
    error, actual = read_server_error(text)
    assert type(error) is ProtocolError
    assert actual is closes
    assert not is_authentication(text)
