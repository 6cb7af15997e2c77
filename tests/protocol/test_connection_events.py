"""What is said about a connection."""

from __future__ import annotations

import pytest

from jsclient.protocol.connection_events import Disconnected, LameDuck, PermissionDenied, Reconnected


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Disconnected(), "the connection was lost; reconnecting"),
        (Disconnected(reason="no answer"), "the connection was lost: no answer; reconnecting"),
        (Reconnected(), "reconnected"),
        (Reconnected(url="nats://a:4222"), "reconnected to nats://a:4222"),
        (PermissionDenied(operation="publish", subject="a"), "the server denies this user to publish to 'a'"),
    ],
)
def test_text(event, text):
    assert str(event) == text
    assert event.about == "connection"


@pytest.mark.parametrize(
    ("others", "severity", "words"),
    [
        (0, "warning", "nothing is sent until it is back: connect with several servers"),
        (1, "info", "the client then connects to the other server"),
        (3, "info", "the client then connects to one of 3 others"),
    ],
)
def test_stopping_server_warns_without_another_one(others, severity, words):
    event = LameDuck(url="nats://a:4222", others=others)
    assert event.severity == severity
    assert words in str(event)
    assert "nats://a:4222" in str(event)


def test_refused_acks_say_what_to_allow():
    text = str(PermissionDenied(operation="publish", subject="$JS.ACK.S.c.1", needed="$JS.ACK.S.>"))
    assert "stay unacked" in text
    assert text.endswith("allow the user to publish to '$JS.ACK.S.>'")
