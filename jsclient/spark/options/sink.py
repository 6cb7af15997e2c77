"""What may be said of a sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ConfigError
from ...protocol.wire.names import check_publish_subject, check_stream_name, check_token
from .connect import ConnectOptions
from .values import OptionReader

__all__ = ["SinkOptions"]

MAX_BYTES = 32 * 1024 * 1024
"""Bytes that a task has under way, by default: two tasks stay below what a server holds back for one client."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a sink, which go to the executors with it.

    Attributes:
        connect: How to reach the servers.
        subject: Of rows that have none of their own.
        dedup: Where message ids come from: "content" of the row, its "index" in the partition, the "column" ``msg_id``,
            or "none". None: "column" where there is that column, else "content".
        dedup_scope: Of equal rows, with ids from content. "partition": each is a message. "epoch": those of different
            partitions are one message, and it does not matter in which partition a row is when its epoch is replayed.
        exactly_once: "window": while the stream remembers ids; "ledger": also after that; "none": at least once.
        min_duplicate_window: Seconds for which the stream should remember ids; a shorter time is warned of.
        expected_stream: The stream that has to store the messages.
        ack_timeout: Seconds that a message may take to be stored, in each of its tries.
        retries: How often rows are sent again which were refused for the moment, or whose fate is unknown.
        window: Messages of a task that may be under way.
        window_bytes: Bytes of them.
        ledger: Name of the bucket that keeps the ledgers.
        dedup_key, dedup_batch: Of a batch write: what it is called and its number there. One that is repeated under
            the same names stores nothing twice.
    """

    connect: ConnectOptions
    subject: str | None = None
    dedup: str | None = None
    dedup_scope: str = "partition"
    exactly_once: str = "window"
    min_duplicate_window: float = 120.0
    expected_stream: str | None = None
    ack_timeout: float = 10.0
    retries: int = 5
    window: int = 4000
    window_bytes: int = MAX_BYTES
    ledger: str = "jsclient_spark"
    dedup_key: str | None = None
    dedup_batch: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read the options of ``writeStream`` or ``write``.

        Raises:
            ConfigError: An option is wrong, unknown, missing, or does not go with another one.
        """
        given = OptionReader(options, "the sink of JetStream")
        dedup = given.choice("dedup", ("auto", "content", "index", "column", "none"), "auto")
        exactly_once = given.choice(
            "exactlyOnce", ("window", "ledger", "none"), "none" if dedup == "none" else "window"
        )
        if dedup == "none" and exactly_once != "none":
            raise ConfigError(
                f"options 'dedup' and 'exactlyOnce' are 'none' and {exactly_once!r}: without message ids "
                "nothing is stored exactly once; leave 'dedup' out, or set 'exactlyOnce' to 'none'"
            )
        if dedup == "auto" and exactly_once == "none":
            dedup = "none"
        subject, stream = given.text("subject"), given.text("expectedStream")
        ledger = given.text("ledger", cls.ledger) or cls.ledger
        read = cls(
            connect=ConnectOptions.read(given),
            subject=None if subject is None else check_publish_subject(subject),
            dedup=None if dedup == "auto" else dedup,
            dedup_scope=given.choice("dedupScope", ("partition", "epoch"), cls.dedup_scope),
            exactly_once=exactly_once,
            min_duplicate_window=given.seconds("minDuplicateWindow", cls.min_duplicate_window),
            expected_stream=None if stream is None else check_stream_name(stream),
            ack_timeout=given.seconds("ackTimeout", cls.ack_timeout),
            retries=given.count("retries", cls.retries, least=0, most=1000) or 0,
            window=given.count("window", cls.window, most=1_000_000) or cls.window,
            window_bytes=given.size("windowBytes", cls.window_bytes) or cls.window_bytes,
            ledger=check_stream_name(check_token(ledger, "ledger")),
            dedup_key=given.text("dedupKey"),
            dedup_batch=given.count("dedupBatch", least=0),
        )
        given.finish()
        if read.dedup_batch is not None and read.dedup_key is None:
            raise ConfigError("option 'dedupKey' is missing: 'dedupBatch' is a number within it")
        if read.dedup_key is not None and dedup == "none":
            raise ConfigError("option 'dedupKey' is given, but there are no message ids with 'dedup' none")
        return read

    def ids(self, *, column: bool) -> str:
        """Where ids come from: "content", "index", "column" or "none".

        Args:
            column: Whether the rows have a column ``msg_id``.

        Raises:
            ConfigError: The column is missing, or there in vain.
        """
        if self.dedup is None:
            return "column" if column else "content"
        if self.dedup == "column" and not column:
            raise ConfigError("option 'dedup' is 'column', but the rows have no column 'msg_id'")
        if column and self.dedup != "column":
            raise ConfigError(
                f"the rows have a column 'msg_id', but option 'dedup' is {self.dedup!r}: "
                "leave the option out, or drop the column"
            )
        return self.dedup
