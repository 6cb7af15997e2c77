"""Options of the source, parsed and checked on the driver, and the columns of rows with their types in Spark's DDL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any, Final, Literal

from ..errors import ConfigError, InvalidNameError
from ..protocol.wire.names import (
    check_consumer_name,
    check_filter_subject,
    check_stream_name,
    subjects_overlap,
)
from ..protocol.wire.units import format_time
from .server_options import OptionReader, ServerOptions

__all__ = [
    "BY_SCHEMA",
    "EPOCH_COLUMNS",
    "LOG_COLUMNS",
    "QUEUE_COLUMNS",
    "Place",
    "SourceOptions",
    "ddl",
    "read_settings",
]

LOG_COLUMNS: Final[Mapping[str, str]] = {
    "subject": "string",
    "data": "binary",
    "headers": "map<string,array<string>>",  # null for a message without headers
    "stream": "string",
    "sequence": "bigint",
    "timestamp": "timestamp",  # microseconds
    "timestamp_ns": "bigint",
    "stream_created": "timestamp",  # identifies the stream, even after one of the same name was deleted
}
QUEUE_COLUMNS: Final[Mapping[str, str]] = {
    **LOG_COLUMNS,
    "consumer": "string",
    "consumer_sequence": "bigint",
    "num_delivered": "int",
    "num_pending": "bigint",
    "reply": "string",  # the subject to which an ack is published
}
BY_SCHEMA: Final = frozenset({"timestamp_ns", "stream_created"})
"""Columns that the default schema omits. A user's schema can select them."""
EPOCH_COLUMNS: Final[Mapping[str, str]] = {
    "epoch": "bigint",  # or string with JSON, if times are not numbers
    "partition": "int",
    **LOG_COLUMNS,
}


def ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


MOST_FETCH = 24 << 20  # two requests in flight stay below the 64 MiB at which a server disconnects a client
WORTH_A_TASK = 512  # rows that justify another task. With fewer rows, a task costs more than it saves
_DEFAULT_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """The start or the end of a read, as set by the user."""

    kind: Literal["earliest", "latest", "sequence", "time"]
    sequence: int = 0  # the sequence of kind "sequence"
    time: str = ""  # the time of kind "time", in RFC 3339
    argument: str = ""  # name of the argument, for a reader that takes arguments instead of options


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a source."""

    connect: ServerOptions
    stream: str  # the name of the stream, or "" for several streams
    subjects: tuple[str, ...] = ()  # filters, empty for all messages
    mode: str = "log"  # "log" (by sequence, repeatable) or "queue" (claimed from ``consumer``)
    consumer: str | None = None  # the durable consumer that shows progress (log) or delivers messages (queue)
    start: Place = Place("latest")  # start of a new query or a batch read
    end: Place = Place("latest")  # end of a batch read: a sequence is inclusive, a time is exclusive
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None  # in log mode, how many messages a batch waits for
    # How long a batch waits for ``min_offsets_per_trigger`` messages after the previous batch, in seconds.
    max_trigger_delay: float = 900.0
    min_partitions: int = _DEFAULT_PARTITIONS  # use at least this many tasks if there are enough rows
    min_partition_rows: int = WORTH_A_TASK  # add a task only for at least this many rows
    max_messages_per_partition: int | None = None  # add tasks if a task would get more rows than this
    fail_on_data_loss: bool = True  # raise an error if messages were removed before they were read
    read_mode: str = "auto"  # "auto", "consumer" or "direct"
    include_headers: bool = True  # add the column "headers" to the default schema
    pushdown: bool = False  # let a batch read push filters down. Spark needs a setting for this, too
    poll_interval: float = 0.1  # minimum number of seconds between two polls for new messages
    fetch_max_bytes: int = 8 << 20  # bytes requested at once
    batch_rows: int = 8192  # rows of one Arrow batch
    ack_on: str = "batch"  # when claimed messages are acked: "batch", "manual" or "purge"
    streams: tuple[str, ...] = ()  # the names of several streams, in order
    # Pattern that selects streams by name, where * stands for any characters.
    stream_pattern: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
        """Parse the options of a source.

        Args:
            options: The options that Spark passes.
            streaming: True for a streaming read, False for a batch read. If None, the kind of read is unknown, and
                options of either kind are accepted.

        Raises:
            ConfigError: An option is missing, invalid or unknown, or contradicts another.
        """
        reader = OptionReader(options, "the source 'jetstream'")
        connect = ServerOptions.read(reader)
        mode = reader.choice("mode", ("log", "queue"), "log")
        _refuse_by_mode(reader, mode)
        _refuse_by_kind(reader, streaming, mode)
        names, pattern = _streams(reader, mode)
        read = cls(
            connect=connect,
            stream=names[0] if len(names) == 1 else "",
            streams=names if len(names) > 1 else (),
            stream_pattern=pattern,
            subjects=_subjects(reader),
            mode=mode,
            consumer=_consumer(reader, mode),
            start=_start(reader, "earliest" if streaming is False else "latest"),
            end=_end(reader),
            max_messages_per_trigger=reader.read_count("maxMessagesPerTrigger"),
            max_bytes_per_trigger=reader.size("maxBytesPerTrigger"),
            min_offsets_per_trigger=reader.read_count("minOffsetsPerTrigger"),
            max_trigger_delay=_delay(reader),
            pushdown=reader.flag("pushdown", default=False),
            **read_settings(reader),
            ack_on=reader.choice("ackOn", ("batch", "manual", "purge"), "batch"),
        )
        reader.finish()
        read._check()
        return read

    def _check(self) -> None:
        if self.start.kind == self.end.kind == "sequence" and self.start.sequence > self.end.sequence:
            raise ConfigError(
                f"option 'startingSequence' is {self.start.sequence}, which is after 'endingSequence', "
                f"{self.end.sequence}"
            )
        least, most = self.min_offsets_per_trigger, self.max_messages_per_trigger
        if least is not None and most is not None and least > most:
            raise ConfigError(
                f"option 'minOffsetsPerTrigger' is {least}, which is more than 'maxMessagesPerTrigger', {most}"
            )
        if len(self.subjects) > 1 and self.read_mode == "direct":
            raise ConfigError(
                "option 'subjects' has more than one filter, which 'readMode' = 'direct' cannot read: "
                "use 'readMode' = 'consumer', or one source for each and union them"
            )
        for one, other in combinations(self.subjects, 2):
            if subjects_overlap(one, other):
                raise ConfigError(f"option 'subjects': {one!r} and {other!r} overlap: omit one")

    @property
    def has_several(self) -> bool:
        """Whether the source may read several streams."""
        return bool(self.streams or self.stream_pattern)

    def for_stream(self, stream: str) -> SourceOptions:
        """Return the options for one of several streams."""
        return replace(self, stream=stream, streams=(), stream_pattern=None)

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the default schema."""
        known = LOG_COLUMNS if self.mode == "log" else QUEUE_COLUMNS
        omitted = BY_SCHEMA if self.include_headers else {*BY_SCHEMA, "headers"}
        return {name: kind for name, kind in known.items() if name not in omitted}


def read_settings(reader: OptionReader) -> dict[str, Any]:
    """Read the options that say how messages are read, and return them as fields of `SourceOptions`."""
    least = reader.read_count("minPartitions", most=100_000)
    size = reader.size("fetchMaxBytes", 8 << 20) or 0
    if size > MOST_FETCH:
        raise ConfigError(f"option 'fetchMaxBytes' is {size}: {MOST_FETCH} at most")
    return {
        "min_partitions": _DEFAULT_PARTITIONS if least is None else least,
        "min_partition_rows": WORTH_A_TASK if least is None else 1,
        "max_messages_per_partition": reader.read_count("maxMessagesPerPartition"),
        "fail_on_data_loss": reader.flag("failOnDataLoss", default=True),
        "read_mode": reader.choice("readMode", ("auto", "consumer", "direct"), "auto"),
        "include_headers": reader.flag("includeHeaders", default=True),
        "poll_interval": (reader.read_count("pollIntervalMs", 100, most=3_600_000) or 100) / 1000,
        "fetch_max_bytes": size,
        "batch_rows": reader.read_count("batchRows", 8192, most=1 << 20) or 8192,
    }


_STARTS = ("startingOffsets", "startingSequence", "startingTimestamp")
_ENDS = ("endingSequence", "endingTimestamp")
_WAITS = ("minOffsetsPerTrigger", "maxTriggerDelay")
_OF_ONE_STREAM = {
    "startingSequence": "use 'startingTimestamp' or 'startingOffsets'",
    "endingSequence": "use 'endingTimestamp'",
    "consumer": "omit it, or use one source for each stream and union them",
}


def _refuse_by_mode(reader: OptionReader, mode: str) -> None:
    if mode == "log":
        reader.refuse("ackOn", "is for mode 'queue': log mode needs no acks")
        return
    for name in (*_STARTS, *_ENDS):
        reader.refuse(name, "is for mode 'log': a queue starts at the position of its consumer")
    reader.refuse("subjects", "is for mode 'log': the consumer of a queue has its own filters")
    reader.refuse("readMode", "is for mode 'log': claimed messages are read by direct get")
    for name in _WAITS:
        reader.refuse(name, "is for mode 'log': a queue claims messages as they are stored")


def _refuse_by_kind(reader: OptionReader, streaming: bool | None, mode: str) -> None:  # noqa: FBT001  internal
    if streaming:
        for name in _ENDS:
            reader.refuse(name, "is for batch reads: a streaming query has no end")
        reader.refuse("pushdown", "is for batch reads: Spark pushes no filters into a streaming query")
    elif streaming is False:
        if mode == "queue":
            raise ConfigError("option 'mode' is 'queue': that is for streaming reads; batch reads need 'log'")
        for name in ("maxMessagesPerTrigger", "maxBytesPerTrigger", "pollIntervalMs", *_WAITS):
            reader.refuse(name, "is for streaming reads: a batch read has one batch; omit it")
        reader.refuse("consumer", "is for streaming reads: a batch read has no progress to show")


_DURATION = re.compile(r"([0-9]{1,12})(us|ms|s|m|min|h|d|)", re.IGNORECASE | re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _delay(reader: OptionReader) -> float:
    """Return ``maxTriggerDelay`` in seconds. Spark's notation is ``15m``, ``500ms``, or milliseconds without a unit."""
    text = reader.text("maxTriggerDelay")
    if text is None:
        return 900.0
    if reader.text("minOffsetsPerTrigger") is None:
        raise ConfigError("option 'maxTriggerDelay' needs 'minOffsetsPerTrigger': omit it, or set both")
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(f"option 'maxTriggerDelay' is {text!r}: a time such as 15m, 30s or 500ms is needed")
    return int(match[1]) * _SECONDS[match[2].lower()]


def _streams(reader: OptionReader, mode: str) -> tuple[tuple[str, ...], str | None]:
    """Return the names of the streams, in order, or the pattern of their names."""
    pattern = reader.text("streamPattern")
    if pattern is None:
        reader.required(
            "stream", "set the name of the stream to read, or 'streamPattern' for several streams"
        )
    names = reader.names("stream")
    if names and pattern is not None:
        raise ConfigError("options 'stream' and 'streamPattern' are both set: choose one")
    for name in names:
        _named("stream", check_stream_name, name)
    if len(names) == 1:
        return names, None
    if len(set(names)) < len(names):
        raise ConfigError(f"option 'stream' is {','.join(names)!r}: one of the names is there twice; omit it")
    # A consumer or a sequence belongs to a single stream, so refuse these options for several streams.
    setting = f"'stream' is {','.join(names)!r}" if pattern is None else f"'streamPattern' is {pattern!r}"
    if mode == "queue":
        raise ConfigError(
            f"option {setting}, but mode 'queue' claims the messages of one stream, that of 'consumer': use one source "
            "for each stream and union them"
        )
    for option, instead in _OF_ONE_STREAM.items():
        reader.refuse(option, f"is for one stream, and {setting}: {instead}")
    return tuple(sorted(names)), None if pattern is None else _pattern(pattern)


def _pattern(text: str) -> str:
    if "," in text:
        raise ConfigError(
            f"option 'streamPattern' is {text!r}: one pattern is needed, which is not split at commas: name the "
            "streams in 'stream', or use one source for each pattern and union them. For a comma in a name, use *"
        )
    try:
        check_stream_name(text.replace("*", "") or "x")
    except InvalidNameError:
        raise ConfigError(
            f"option 'streamPattern' is {text!r}: a name of a stream is needed, in which * stands for any characters, "
            "such as ORDERS_*; it is not a regular expression"
        ) from None
    return text


def _subjects(reader: OptionReader) -> tuple[str, ...]:
    names = reader.names("subjects")
    for name in names:
        _named("subjects", check_filter_subject, name)
    return () if names == (">",) else names


def _consumer(reader: OptionReader, mode: str) -> str | None:
    if mode == "queue":
        reader.required("consumer", "mode 'queue' needs the durable pull consumer to claim messages from")
    name = reader.text("consumer")
    return None if name is None else _named("consumer", check_consumer_name, name)


def _named(option: str, check, name: str) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001  from `names`
    try:
        return str(check(name))
    except InvalidNameError as error:
        raise ConfigError(f"option {option!r}: {error}") from None


def _start(reader: OptionReader, default: Literal["earliest", "latest"]) -> Place:
    _one_of(reader, _STARTS)
    if reader.text("startingSequence"):
        return Place("sequence", sequence=reader.read_count("startingSequence") or 1)
    if (time := _time(reader, "startingTimestamp")) is not None:
        return Place("time", time=time)
    chosen = reader.choice("startingOffsets", ("earliest", "latest"), default)
    return Place("earliest" if chosen == "earliest" else "latest")


def _end(reader: OptionReader) -> Place:
    _one_of(reader, _ENDS)
    if reader.text("endingSequence"):
        return Place("sequence", sequence=reader.read_count("endingSequence") or 1)
    if (time := _time(reader, "endingTimestamp")) is not None:
        return Place("time", time=time)
    return Place("latest")


def _one_of(reader: OptionReader, names: tuple[str, ...]) -> None:
    chosen = [name for name in names if reader.text(name) is not None]
    if len(chosen) > 1:
        raise ConfigError(f"options {' and '.join(map(repr, chosen))} are both set: choose one")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(reader: OptionReader, name: str) -> str | None:
    """Return a time in RFC 3339, or None if the option is not set.

    The option may also be milliseconds since 1970, because Kafka's source accepts them.
    """
    text = reader.text(name)
    if text is None:
        return None
    try:
        if re.fullmatch("[0-9]{1,15}", text):
            return format_time(_EPOCH + timedelta(milliseconds=int(text)))
        return format_time(text)
    except (ConfigError, OverflowError):
        raise ConfigError(
            f"option {name!r} is {text!r}: a time such as 2026-01-31T12:00:00Z, with a time zone, is needed, or "
            "milliseconds since 1970"
        ) from None
