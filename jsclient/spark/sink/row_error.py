"""Errors about rows, with the row, the cause, and the number of rows of its partition that are stored."""

from __future__ import annotations

from collections.abc import Sequence

from ..._runtime.retry import is_transient
from ...errors import (
    ApiError,
    ConfigError,
    DisconnectedError,
    InvalidNameError,
    JetStreamError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDeniedError,
    PublishError,
    RequestTimeoutError,
    WrongLastSequenceError,
)

__all__ = ["BadRow", "RowError", "advice", "is_passing"]

_NO_ROOM = 429
_EXPECTED = "the row's headers expect it: leave out those named Nats-Expected-..."
_REMEDIES = {  # advice on how to fix an error, by err_code
    10054: "make the row smaller, or raise max_msg_size of the stream",
    10060: "another stream than that of option 'expectedStream' has this subject: name that one, or change the subject",
    10070: _EXPECTED,
    10097: "make msg_id and headers shorter",
    10109: "the stream is sealed, which cannot be undone, so write to another one",
    10165: "the header Nats-TTL of a row is a number of seconds, or a duration such as 1h",
}


class BadRow(Exception):
    """Raised inside the sink when a row cannot be published, or was not stored because another row has its id.

    `PartitionWriter` turns it into a `RowError`.

    Attributes:
        row: Index of the row in its part of a batch. If all rows were acked already, the index in the partition.
        column: Column that causes the error.
        reason: The cause, and how to fix it.
    """

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(row, column, reason)
        self.row: int = row
        self.column: str = column
        self.reason: str = reason


class RowError(PublishError):
    """Raised when a row of a partition cannot be published, which fails the task.

    Attributes:
        partition: Number of the partition, or -1 for rows that the driver publishes.
        row: Index of the row in the partition, from 0, or -1 if the error is not about a row.
        subject: Subject of the row, or "" if unknown.
        column: Column that causes the error, or "" if it is not about a column.
        reason: The cause, and how to fix it.
        stored: Number of rows of the partition that are stored.
        unknown: Number of rows that may or may not be stored.
    """

    def __init__(  # noqa: PLR0917  unpickling passes positional arguments
        self, partition: int, row: int, subject: str, column: str, reason: str, stored: int, unknown: int
    ) -> None:
        super().__init__(partition, row, subject, column, reason, stored, unknown)
        self.partition = partition
        self.row = row
        self.subject = subject
        self.column = column
        self.reason = reason
        self.stored = stored
        self.unknown = unknown

    def __str__(self) -> str:
        where = f"partition {self.partition}" if self.partition >= 0 else "the driver's part of the batch"
        if self.row >= 0:
            where = f"row {self.row} of {where}"
            if self.subject:
                where += f" (subject {self.subject!r:.200})"
        if self.column:
            where += f", column {self.column!r}"
        unknown = f"; of {self.unknown} more this is unknown" if self.unknown else ""
        return f"{where}: {self.reason}. Of this partition {self.stored} rows are stored{unknown}"


def is_passing(error: JetStreamError) -> bool:
    """Return whether publishing the row again can succeed, or can show that the row is stored."""
    # Retry more than a request. A stream that is full now may have space later, and a refused reconnect may succeed.
    return (
        is_transient(error)
        or isinstance(error, ConnectionError)
        or (isinstance(error, ApiError) and error.code == _NO_ROOM)
    )


def advice(error: JetStreamError, servers: Sequence[str]) -> str:
    """Return the text of an error, with advice on how to fix it.

    ``servers`` are the URLs to mention if the server did not answer.
    """
    text = str(error)
    if isinstance(error, NoRespondersError):
        return f"{text}: create a stream with this subject, or look at account, domain and prefix"
    if isinstance(error, PermissionDeniedError):
        what = (
            "the subjects of the rows" if error.operation == "publish" else "its inbox (option 'inboxPrefix')"
        )
        return f"{text}: let the user {error.operation} to {what}"
    if isinstance(error, MaxPayloadError):
        return f"{text}: make the row smaller, or raise max_payload of the server"
    if isinstance(error, WrongLastSequenceError):
        return f"{text}: {_EXPECTED}"
    if isinstance(error, ApiError) and error.err_code in _REMEDIES:
        return f"{text}: {_REMEDIES[error.err_code]}"
    if isinstance(error, RequestTimeoutError):
        return (
            f"{text}: the server or the network ({', '.join(servers)}) was too slow; "
            "options 'ackTimeout' and 'retries' give more time"
        )
    if isinstance(error, InvalidNameError | ConfigError):
        return text
    if isinstance(error, DisconnectedError):
        text = f"{text} ({', '.join(servers)})"
    return f"{type(error).__name__}: {text}"
