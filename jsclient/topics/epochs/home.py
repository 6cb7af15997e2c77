"""The storage of a topic of epochs: a stream, or the memory of this process."""

from __future__ import annotations

import abc
from typing import Any

from ..._runtime.context import Context
from ...errors import (
    ConfigError,
    ProtocolError,
    StreamExistsError,
    StreamNotFoundError,
    TopicNotFoundError,
)
from ...protocol.epochs.records import data_subject, frontier_subject
from ...protocol.models.stream_config import RetentionPolicy, StreamConfig
from ...protocol.publishing.in_flight import MAX_BYTES
from ...publishing.publisher import Publisher
from ...streams.api import StreamManager
from ...streams.stream import Stream
from ..log import Log
from ..memory_log import MemoryLog
from ..stream_log import StreamLog
from .outlet import Outlet, StreamOutlet
from .schema import Schema, read_schema, schema_key

__all__ = ["Home", "MemoryHome", "StreamHome"]

_RACES = 3  # attempts, as other clients may create or change the stream at the same time


class Home(abc.ABC):
    """The storage of one topic.

    Attributes:
        topic: Its name.
    """

    topic: str

    @property
    def context(self) -> Context:
        """Its connection. Raises `ConfigError` for a topic in memory."""
        raise ConfigError(f"topic {self.topic!r} is in memory: it has no connection")

    @property
    def max_age(self) -> float:
        """Seconds after which messages are removed; 0: never. Needs `schema` or `make` first."""
        return 0.0

    @abc.abstractmethod
    async def schema(self) -> Schema:
        """The schema of the topic.

        Raises:
            TopicNotFoundError: It does not exist. ConfigError: Its stream cannot keep epochs whole. And those of
                any request.
        """

    @abc.abstractmethod
    async def make(self, schema: Schema, fields: dict[str, Any]) -> Schema:
        """Return the schema of the topic; create the topic with this one if it does not exist.

        Raises: ConfigError, and those of any request.
        """

    @abc.abstractmethod
    def log(self, partition: int | None = None) -> Log:
        """The log of one partition, or of all. Needs `schema` or `make` first."""

    @abc.abstractmethod
    def outlet(self, partition: int, *, max_in_flight: int, timeout: float | None) -> Outlet:
        """A writer to a partition. Needs `schema` or `make` first."""


class MemoryHome(Home):
    """A topic in the memory of this process."""

    def __init__(self, topic: str, log: MemoryLog) -> None:
        self.topic = topic
        self._log = log
        self._schema: Schema | None = None

    async def schema(self) -> Schema:
        if self._schema is None:
            raise TopicNotFoundError(self.topic)
        return self._schema

    async def make(self, schema: Schema, fields: dict[str, Any]) -> Schema:
        if fields:
            raise ConfigError(f"a topic in memory has no {', '.join(sorted(fields))}")
        self._schema = self._schema or schema
        return self._schema

    def log(self, partition: int | None = None) -> Log:
        return self._log

    def outlet(self, partition: int, *, max_in_flight: int, timeout: float | None) -> Outlet:
        return _MemoryOutlet(
            self._log, data_subject(self.topic, partition), frontier_subject(self.topic, partition)
        )


class _MemoryOutlet(Outlet):
    """A commit is atomic: it appends without yielding to other tasks."""

    @property
    def is_atomic(self) -> bool:
        return True

    async def commit(self, messages: Any, data: bytes, headers: Any, expected: int) -> int:
        last = await self._log.last(self._frontier)
        if expected == (last.seq if last else 0):
            for message in messages:
                await self.send(message)
        return await self.record(data, headers, expected, None)


class StreamHome(Home):
    """A topic in a stream, whose metadata holds the schema.

    Args:
        streams: The connection's streams.
        topic: The topic's name.
        stream: The stream's name; one stream may hold several topics.
    """

    def __init__(self, streams: StreamManager, topic: str, stream: str) -> None:
        self.topic = topic
        self._streams = streams
        self._context = streams._context  # noqa: SLF001  a handle is made of what another one is made of
        self._name = stream
        self._stream: Stream | None = None

    @property
    def context(self) -> Context:
        return self._context

    async def schema(self) -> Schema:
        try:
            stream = await self._streams.stream(self._name)
        except StreamNotFoundError:
            raise TopicNotFoundError(self.topic) from None
        found = self._schema_of(stream)
        if found is None:
            raise TopicNotFoundError(self.topic)
        return found

    async def make(self, schema: Schema, fields: dict[str, Any]) -> Schema:
        for _ in range(_RACES):
            try:
                stream = await self._streams.stream(self._name)
            except StreamNotFoundError:
                try:
                    stream = await self._streams.create_stream(self._new(schema, fields))
                except StreamExistsError:
                    continue
            found = self._schema_of(stream)
            if found is not None:
                return found
            await self._streams.update_stream(self._with_topic(stream.config, schema))
        raise ProtocolError(f"stream {self._name!r} does not keep the schema of topic {self.topic!r}")

    def _subjects(self) -> list[str]:
        return [f"{self.topic}.*.data", f"{self.topic}.*.frontier"]

    def _new(self, schema: Schema, fields: dict[str, Any]) -> StreamConfig:
        metadata = {**fields.pop("metadata", {}), schema_key(self.topic): schema.to_json()}
        defaults: dict[str, Any] = {"allow_direct": True}
        config = StreamConfig(
            name=self._name, subjects=self._subjects(), metadata=metadata, **{**defaults, **fields}
        )
        self._check(config)
        return config

    def _with_topic(self, config: StreamConfig, schema: Schema) -> StreamConfig:
        """The configuration of an existing stream with this topic added."""
        self._check(config)
        subjects = [*(config.subjects or ())]
        return config.replace(
            subjects=[*subjects, *(one for one in self._subjects() if one not in subjects)],
            metadata={**(config.metadata or {}), schema_key(self.topic): schema.to_json()},
        )

    def _schema_of(self, stream: Stream) -> Schema | None:
        """The schema in a stream's metadata, None if the stream does not hold the topic."""
        text = (stream.config.metadata or {}).get(schema_key(self.topic))
        if text is None:
            return None
        self._check(stream.config)
        self._stream = stream
        return read_schema(text, self.topic)

    def _check(self, config: StreamConfig) -> None:
        """Refuse a stream that removes messages from the middle: parts of an epoch would be missing without notice."""
        retention = config.retention or RetentionPolicy.LIMITS
        if retention != RetentionPolicy.LIMITS:
            raise ConfigError(
                f"stream {self._name!r} has retention {retention!s}: messages without an interested consumer are not "
                "stored, so a reader could take a part of an epoch for all of it; use retention limits, or a live topic"
            )
        if (config.max_msgs_per_subject or 0) > 0:
            raise ConfigError(
                f"stream {self._name!r} has max_msgs_per_subject: it would remove parts of epochs from the middle"
            )

    @property
    def stream(self) -> Stream:
        """The stream, as last seen."""
        assert self._stream is not None, "schema() or make() comes first"
        return self._stream

    @property
    def max_age(self) -> float:
        return self.stream.config.max_age or 0.0

    def log(self, partition: int | None = None) -> StreamLog:
        which = "*" if partition is None else partition
        return StreamLog(self._context, self.stream, f"{self.topic}.{which}.*")

    def outlet(self, partition: int, *, max_in_flight: int, timeout: float | None) -> Outlet:
        publisher = Publisher(
            self._context,
            max_in_flight=max_in_flight,
            max_bytes=MAX_BYTES,
            timeout=timeout,
            room_timeout=None,
            resend=True,
        )
        return StreamOutlet(
            self._context,
            self.stream,
            self.log(partition),
            data_subject=data_subject(self.topic, partition),
            frontier_subject=frontier_subject(self.topic, partition),
            publisher=publisher,
            timeout=timeout,
        )
