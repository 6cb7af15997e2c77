"""Reports the messages that other clients have stored under the keys of a handle with ``own``."""

from __future__ import annotations

from typing import Any

from ..._runtime.context import Context
from ...consumers.message import Message
from ...errors import ProtocolError
from ...protocol.buckets.entry import KeyValueEntry
from ...protocol.buckets.keys import KeySpace
from ...protocol.events import RecordSkipped
from .entries import entry_of

__all__ = ["StrayMessages"]


class StrayMessages:
    """Counts stray messages. The first is reported, and then each one at which the count has doubled."""

    def __init__(self, context: Context, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._count = self._newest = 0

    def report(self, subject: str, seq: int) -> None:
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

    def own_entry(
        self,
        keys: KeySpace,
        message: Message,
        is_initial: bool,  # noqa: FBT001  a decoder
    ) -> KeyValueEntry[Any] | None:
        """Return the entry in a message that a consumer has delivered, or None if the message is stray."""
        if keys.is_stray(message.headers):
            self.report(message.subject, message.metadata.stream_seq)
            return None
        return entry_of(keys, message, is_initial)
