"""Members of an iteration as records of a log, and back."""

from __future__ import annotations

from typing import Any

from ...errors import JetStreamError
from ...protocol.events import RecordSkipped
from ...protocol.topics.record import Kind, Record
from ...protocol.topics.value_codec import Codec
from ..log import Log
from .iteration import Entry
from .newest import NewestLog

__all__ = ["EntryReader", "encode_entry", "passable_reason"]


def passable_reason(reason: Any) -> Any:
    """A reason that can be encoded: an exception becomes its class and text."""
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason


def encode_entry(kind: Kind, value: Any, codec: Codec) -> bytes:
    """The payload of a member's record. Raises `ConfigError` if the codec cannot encode the value."""
    return codec.encode(passable_reason(value) if kind is Kind.FAIL else value)


class EntryReader:
    """Decodes records into members of an iteration.

    Any client that may publish to the subject can store a payload that the codec cannot decode. Such a record is not a
    value of the iteration: it is skipped, counted, and reported with the event `RecordSkipped`.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._skipped = 0

    def entry(self, record: Record, log: Log | NewestLog) -> Entry | None:
        """The member in a record of this log; None: the record is skipped.

        Raises:
            ProtocolError: The record ends the iteration, and its completion or reason cannot be decoded.
        """
        try:
            value = self._codec.decode(record.data)
        except JetStreamError as error:
            if record.is_last:
                raise
            self._skipped += 1
            if self._skipped & (self._skipped - 1) == 0:
                log.emit(
                    RecordSkipped(
                        stream=log.stream,
                        subject=record.subject,
                        stream_seq=record.seq,
                        count=self._skipped,
                        error=error,
                    )
                )
            return None
        return Entry(record.kind if record.is_last else Kind.VALUE, value, record.seq)
