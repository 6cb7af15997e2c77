"""Reports stray messages, which other clients have stored under the keys of a handle with ``own``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..._runtime.connection.speedups import chosen
from ..._runtime.context import Context
from ...errors import ProtocolError
from ...protocol.buckets.keys import KeySpace
from ...protocol.events import RecordSkipped
from ...protocol.wire.frames import Frame
from ...protocol.wire.message_headers import MessageHeaders
from ..reading import Decode

__all__ = ["StrayMessages"]

T = TypeVar("T")


class StrayMessages:
    """Counts stray messages. An event reports the first one, then each one at which the count has doubled."""

    def __init__(self, context: Context, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._count = self._newest = 0

    def report_message(self, subject: str, seq: int) -> None:
        """Count a message, unless it or a newer message was counted before."""
        if seq <= self._newest:
            return
        self._count, self._newest = self._count + 1, seq
        if self._count & (self._count - 1) == 0:
            error = ProtocolError(f"message {seq} on {subject!r} was not written by a handle with own=True")
            self._context.emit(
                RecordSkipped(
                    stream=self._stream, subject=subject, stream_seq=seq, count=self._count, error=error
                )
            )

    def skipped(self, decode: Callable[..., T], keys: KeySpace) -> Decode[T]:
        """Return a function that decodes a message delivered by a consumer, or returns None if it is stray."""

        def decoded(frame: Frame, revision: int, time_ns: int, pending: int, *, is_initial: bool) -> T | None:
            if keys.is_stray(MessageHeaders(frame[2], chosen().find_header)):
                self.report_message(frame[0].decode("utf-8", "surrogateescape"), revision)
                return None
            return decode(keys, frame, revision, time_ns, pending, is_initial=is_initial)

        return decoded
