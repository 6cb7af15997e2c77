"""Fixtures of the tests of peers."""

from __future__ import annotations

import pytest

from jsclient.peers import Peer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Peer.wait_for` wait longer by default, because events take their time on a slow machine."""
    monkeypatch.setattr(Peer.wait_for, "__defaults__", (30.0,))
