"""Reports stray messages, which other clients have stored under the keys of a handle with ``own``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import TypeVar

from ..._runtime.connection.speedups import chosen
from ..._runtime.context import Context
from ...errors import ProtocolError
from ...protocol.buckets.keys import KeySpace
from ...protocol.consumers.ack_numbers import AckNumbers
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

    def skipped(self, decode: Callable[..., list[T]], keys: KeySpace) -> Decode[T]:
        """Return a function that decodes messages delivered by a consumer, and omits those that are stray."""

        def decode_own(frames: list[Frame], numbers: AckNumbers, *, is_initial: bool) -> list[T]:
            find = chosen().find_header
            own = [not keys.is_stray(MessageHeaders(block, find)) for _, _, block, _ in frames]
            if not all(own):  # rare, because only other clients store stray messages
                for (subject, _, _, _), seq, is_own in zip(frames, numbers.stream_seqs, own, strict=True):
                    if not is_own:
                        self.report_message(subject.decode("utf-8", "surrogateescape"), seq)
                frames = [*compress(frames, own)]
                numbers = AckNumbers(*[[*compress(column, own)] for column in numbers])
            return decode(keys, frames, numbers, is_initial=is_initial) if frames else []

        return decode_own
