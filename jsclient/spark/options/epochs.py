"""Options of the source and the sink for topics of epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ConfigError, InvalidNameError
from ...protocol.wire.names import check_publish_subject, check_stream_name
from ...tables.server_options import OptionReader, ServerOptions
from ...tables.source_options import SourceOptions, read_settings
from .sink import SinkOptions, publish_settings

__all__ = ["EpochSinkOptions", "EpochSourceOptions", "is_epochs"]

_MOST_PARTITIONS = 4096


def is_epochs(options: Mapping[str, str]) -> bool:
    """Return whether the options name a topic of epochs rather than a stream."""
    return any(name.lower() == "epochs" for name in options)


@dataclass(frozen=True, slots=True)
class EpochSourceOptions:
    """Options for reading a topic of epochs."""

    topic: str
    read: SourceOptions  # the topic's stream, and how to read its messages
    start: str | int = "latest"  # where a new query starts: "earliest", "latest", or the number of an epoch
    max_epochs_per_trigger: int | None = None  # maximum number of epochs in a micro-batch

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> EpochSourceOptions:
        """Parse the options of a read.

        Args:
            options: The options that Spark passes.
            streaming: True for a streaming read, False for a batch read, or None if unknown.

        Raises:
            ConfigError: An option is missing, invalid or unknown, or contradicts another.
        """
        reader = OptionReader(options, "the source 'jetstream' with option 'epochs'")
        connect = ServerOptions.read(reader)
        topic, stream = _topic(reader)
        if streaming is False:
            for name in ("startingOffsets", "maxEpochsPerTrigger", "pollIntervalMs"):
                reader.refuse(name, "is for streaming reads: a batch read reads everything stored; omit it")
        read = SourceOptions(connect, stream, (f"{topic}.*.data",), **read_settings(reader))
        start = _start(reader, "earliest" if streaming is False else "latest")
        most = reader.read_count("maxEpochsPerTrigger")
        reader.finish()
        return cls(topic, read, start, most)


def _start(reader: OptionReader, default: str) -> str | int:
    epoch = reader.integer("startingEpoch")
    chosen = reader.choice("startingOffsets", ("earliest", "latest"), default)
    if epoch is None:
        return chosen
    if reader.text("startingOffsets") is not None:
        raise ConfigError("options 'startingOffsets' and 'startingEpoch' are both given: choose one")
    return epoch


@dataclass(frozen=True)
class EpochSinkOptions:
    """Options for writing micro-batches as epochs."""

    topic: str
    stream: str
    partitions: int | None  # number of partitions, or None for the topic's own number (a new topic has 1)
    write: SinkOptions  # how rows are published

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> EpochSinkOptions:
        """Parse the options of a write. Raises the same errors as `SinkOptions.parse`."""
        reader = OptionReader(options, "the sink of JetStream with option 'epochs'")
        connect = ServerOptions.read(reader)
        topic, stream = _topic(reader)
        dedup = reader.choice("dedup", ("auto", "content", "column"), "auto")
        write = SinkOptions(
            connect=connect,
            subject=f"{topic}.0.data",
            dedup=None if dedup == "auto" else dedup,
            expected_stream=stream,
            **publish_settings(reader),
        )
        partitions = reader.read_count("partitions", most=_MOST_PARTITIONS)
        reader.finish()
        return cls(topic, stream, partitions, write)


def _topic(reader: OptionReader) -> tuple[str, str]:
    """Return the names of the topic and of its stream."""
    name = reader.required("epochs", "give the name of the topic")
    stream = reader.text("stream")
    try:
        check_publish_subject(name)
    except InvalidNameError as error:
        raise ConfigError(f"option 'epochs': {error}") from None
    try:
        return name, check_stream_name(name.replace(".", "_") if stream is None else stream)
    except InvalidNameError as error:
        raise ConfigError(f"option 'stream': {error}") from None
