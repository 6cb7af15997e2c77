"""Holds the frames that arrive before their handle exists."""

from __future__ import annotations

from ..protocol.wire.frames import Frame, Sink

__all__ = ["Intake"]


class Intake:
    """A sink that holds frames until it is opened, and drops those that arrive after it is closed.

    The server may deliver before its answer to the create request has been read. Once open, it is replaced in the
    reader's table by the handle's own sink: messages do not pass through it.
    """

    __slots__ = ("_held", "_key", "_sinks", "_target")

    def __init__(self) -> None:
        self._held: list[Frame] | None = []
        self._target: Sink | None = None
        self._sinks: dict[bytes, Sink] = {}
        self._key = b""

    def __call__(self, frames: list[Frame]) -> None:
        if self._target is not None:
            self._target(frames)
        elif self._held is not None:
            self._held.extend(frames)

    def installed(self, sinks: dict[bytes, Sink], key: bytes) -> None:
        """Report the table in which this sink stands under ``key``."""
        self._sinks, self._key = sinks, key

    def open(self, target: Sink) -> None:
        """Pass the frames held so far to ``target``, and all later ones."""
        held, self._held, self._target = self._held, None, target
        self._replace(target)
        if held:
            target(held)

    def close(self) -> None:
        """Drop all later frames."""
        self._held = self._target = None
        self._replace(self)

    def _replace(self, sink: Sink) -> None:
        if self._key in self._sinks:  # else it is unsubscribed
            self._sinks[self._key] = sink
