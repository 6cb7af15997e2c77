"""Frames that come before there is anybody to take them."""

from __future__ import annotations

from ..protocol.wire.frames import Frame, Sink

__all__ = ["Intake"]


class Intake:
    """A sink that holds what arrives until it is opened, and drops what arrives after it is closed.

    The server may deliver before its answer to the create request has been read.
    """

    __slots__ = ("_held", "_target")

    def __init__(self) -> None:
        self._held: list[Frame] | None = []
        self._target: Sink | None = None

    def __call__(self, frames: list[Frame]) -> None:
        if self._target is not None:
            self._target(frames)
        elif self._held is not None:
            self._held.extend(frames)

    def open(self, target: Sink) -> None:
        """From now on frames go to ``target``; first those that were held."""
        held, self._held, self._target = self._held, None, target
        if held:
            target(held)

    def close(self) -> None:
        """Nobody takes frames any more."""
        self._held = self._target = None
