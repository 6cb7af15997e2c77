"""Options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ...protocol.wire.names import check_publish_subject, check_stream_name, check_token
from ...tables.server_options import OptionReader, ServerOptions

__all__ = ["SinkOptions", "publish_settings"]

MAX_BYTES = 32 * 1024 * 1024
"""Default for the bytes in flight per task. Two tasks stay below the server's limit for pending data of one client."""


@dataclass(frozen=True)
class SinkOptions:
    """Options of a sink. The driver sends them to the executors."""

    connect: ServerOptions
    subject: str | None = None  # subject for rows that have none
    # Source of the message ids. "content" hashes the row, "source" derives the id from the message that the row was
    # read from, "column" uses the column ``msg_id``, and "none" sends no ids. None selects "column" if that column
    # exists, and "content" otherwise.
    dedup: str | None = None
    # How equal rows with content ids are stored. "partition" stores each of them. "epoch" stores equal rows of
    # different partitions once, so that a replay may move rows between partitions.
    dedup_scope: str = "partition"
    # What to do with headers of a row whose names begin with "Nats-": "own" drops them, "keep" publishes them.
    headers: str = "own"
    # How rows that were already stored are recognized: "window" uses the stream's duplicate window, so a repetition
    # must come within it, and "ledger" works at any time. With "none", rows may be stored twice.
    exactly_once: str = "window"
    # Expected duplicate window of the stream in seconds. A shorter window is logged as a warning.
    min_duplicate_window: float = 120.0
    expected_stream: str | None = None  # the stream that must store the messages
    ack_timeout: float = 10.0  # seconds to wait for an ack, per attempt
    retries: int = 5  # attempts to resend rows that were refused temporarily or whose outcome is unknown
    window: int = 4000  # messages in flight per task
    window_bytes: int = MAX_BYTES  # bytes in flight per task
    ledger: str = "jsclient_spark"  # name of the bucket with the ledgers
    fail_on_older_checkpoint: bool = True  # refuse a query whose ledger has later epochs than its checkpoint
    # Together, this name and `dedup_batch` identify a batch write. Repeating a write with the same name and number
    # stores no row twice.
    dedup_key: str | None = None
    dedup_batch: int | None = None
    # Index of this write among the writes of one batch to the same destination. Set by `publish_batch`.
    dedup_write: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options of ``writeStream`` or ``write``. Raises the same errors as `SourceOptions.parse`."""
        reader = OptionReader(options, "the sink of JetStream")
        dedup = reader.choice("dedup", ("auto", "content", "source", "column", "none"), "auto")
        exactly_once = reader.choice(
            "exactlyOnce", ("window", "ledger", "none"), "none" if dedup == "none" else "window"
        )
        if dedup == "none" and exactly_once != "none":
            raise ConfigError(
                f"options 'dedup' and 'exactlyOnce' are 'none' and {exactly_once!r}: without message ids "
                "nothing is stored exactly once; omit 'dedup', or set 'exactlyOnce' to 'none'"
            )
        # If rows may be stored twice anyway, they need no message ids, which the server would have to remember.
        if dedup == "auto" and exactly_once == "none":
            dedup = "none"
        subject, stream = reader.text("subject"), reader.text("expectedStream")
        ledger = reader.text("ledger", cls.ledger) or cls.ledger
        read = cls(
            connect=ServerOptions.read(reader),
            subject=None if subject is None else check_publish_subject(subject),
            dedup=None if dedup == "auto" else dedup,
            exactly_once=exactly_once,
            min_duplicate_window=reader.seconds("minDuplicateWindow", cls.min_duplicate_window),
            expected_stream=None if stream is None else check_stream_name(stream),
            **publish_settings(reader),
            ledger=check_stream_name(check_token(ledger, "ledger")),
            fail_on_older_checkpoint=reader.flag("failOnOlderCheckpoint", default=True),
            dedup_key=reader.text("dedupKey"),
            dedup_batch=reader.read_count("dedupBatch", least=0),
            dedup_write=reader.read_count("dedupWrite", 0, least=0) or 0,
        )
        reader.finish()
        if exactly_once == "ledger" and subject is None and stream is None:
            raise ConfigError("option 'expectedStream' is missing: the ledger has to know where the rows go")
        if read.dedup_batch is not None and read.dedup_key is None:
            raise ConfigError("option 'dedupKey' is missing: 'dedupBatch' is a number within it")
        if read.dedup_write and read.dedup_batch is None:
            raise ConfigError("option 'dedupBatch' is missing: 'dedupWrite' is a number within it")
        if read.dedup_key is not None and dedup == "none":
            raise ConfigError("option 'dedupKey' is set, but 'dedup' = 'none' disables message ids")
        return read

    def ids(self, *, column: bool) -> str:
        """Return where message ids come from: "content", "source", "column" or "none".

        Args:
            column: Whether the rows have a column ``msg_id``.

        Raises:
            ConfigError: The column is missing, or would be ignored.
        """
        if self.dedup is None:
            return "column" if column else "content"
        if self.dedup == "column" and not column:
            raise ConfigError("option 'dedup' is 'column', but the rows have no column 'msg_id'")
        if column and self.dedup != "column":
            raise ConfigError(
                f"the rows have a column 'msg_id', but option 'dedup' is {self.dedup!r}: "
                "omit the option, or drop the column"
            )
        return self.dedup


def publish_settings(reader: OptionReader) -> dict[str, Any]:
    """Read the options that say how rows are published, and return them as fields of `SinkOptions`."""
    default = SinkOptions
    return {
        "dedup_scope": reader.choice("dedupScope", ("partition", "epoch"), default.dedup_scope),
        "headers": reader.choice("headers", ("own", "keep"), default.headers),
        "ack_timeout": reader.seconds("ackTimeout", default.ack_timeout),
        "retries": reader.read_count("retries", default.retries, least=0, most=1000) or 0,
        "window": reader.read_count("window", default.window, most=1_000_000) or default.window,
        "window_bytes": reader.size("windowBytes", default.window_bytes) or default.window_bytes,
    }
