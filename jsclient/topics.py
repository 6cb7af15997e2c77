"""Topics, and what is built on them: the part of `JetStream` that hands them out."""

from __future__ import annotations

from .streams import StreamManager

__all__ = ["Topics"]


class Topics(StreamManager):
    """What `JetStream` does with topics."""
