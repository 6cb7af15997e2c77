"""The life cycle of subscriptions and readers."""

from __future__ import annotations

from enum import Enum

__all__ = ["State"]


class State(Enum):
    """Moves only forward; a drained reader closes once its last message was taken."""

    NEW = "new"  # opened on first use
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"
