"""Peers of several accounts on a server, for their tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
INBOUND = "wrangler:inbound_pending_subscription_added"
ADDED = "wrangler:subscription_added"
REMOVED = "wrangler:subscription_removed"


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
