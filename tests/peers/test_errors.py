"""The errors and events of peers, in words."""

from __future__ import annotations

import pickle

import pytest

from jsclient.errors import JetStreamError
from jsclient.peers.errors import (
    EventDelayed,
    EventGivenUp,
    EventRefused,
    HostNotAllowedError,
    PeerError,
    PeerHandlerFailed,
    QueryRefusedError,
)
from jsclient.protocol.peers.rules import Refusal


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PeerError("wrangler:no_Tx_failure", "no Tx"), "no Tx (wrangler:no_Tx_failure)"),
        (QueryRefusedError("POLICY"), "the query was refused: POLICY"),
        (QueryRefusedError("FAILED", "bad"), "the query was refused: FAILED: bad"),
        (HostNotAllowedError("tls://b"), "the host 'tls://b' is not one of the engine's allowed hosts"),
    ],
)
def test_errors_say_what_and_can_be_passed_on(error, text):
    assert isinstance(error, JetStreamError)
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_name_of_a_long_host_is_cut():
    assert len(str(HostNotAllowedError("x" * 10_000))) < 300


@pytest.mark.parametrize(
    "event",
    [
        EventRefused(peer="a", event="door:open", eci="a.c", refusal=Refusal.POLICY, detail="no", count=1),
        PeerHandlerFailed(peer="a", event="door:open", error=ValueError("bad"), attempt=1, retry_in=0.5),
        EventGivenUp(peer="a", event="door:open", error=ValueError("bad"), attempts=3),
        EventDelayed(
            peer="a",
            event="door:open",
            eci="a.c",
            host=None,
            error=ValueError("bad"),
            attempt=1,
            retry_in=0.5,
        ),
    ],
)
def test_events_name_the_peer_and_the_event(event):
    assert "peer 'a'" in str(event)
    assert "event 'door:open'" in str(event)
    assert event.severity == "warning"
