"""The storage of a topic of epochs, which is a stream or the memory of this process."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..._runtime.context import Context
from ..._runtime.publish import publish
from ...errors import (
    ConfigError,
    FailedPublishInfo,
    JetStreamError,
    ProtocolError,
    PublishesFailedError,
    StreamExistsError,
    StreamNotFoundError,
    TopicNotFoundError,
)
from ...protocol.epochs.presence import presence_subject
from ...protocol.epochs.records import Schema, data_subject, frontier_subject, read_schema, schema_key
from ...protocol.events import Event
from ...protocol.models.publish import PubAck
from ...protocol.models.stream_config import RetentionPolicy, StreamConfig
from ...protocol.publishing.batch import BATCH_SERVER
from ...protocol.topics.record import Kind
from ...protocol.topics.record_codec import kind_headers
from ...protocol.wire.checks import is_at_least
from ...publishing.batch import AtomicBatch
from ...publishing.publisher import Publisher
from ...streams.api import StreamManager
from ...streams.stream import Stream
from ..log import Log
from ..memory_log import MemoryLog
from ..stream_log import StreamLog
from .presence import Presence, is_present

__all__ = ["Home", "MemoryHome", "OutgoingRecord", "Outlet", "StreamHome", "StreamOutlet"]

_BATCH_TIMEOUT: Final = 10.0  # seconds for which a server keeps an unfinished batch


class OutgoingRecord(NamedTuple):
    """A data message. ``named`` is true if the user chose its id, so it may have been stored before."""

    data: bytes
    headers: Mapping[str, str]
    msg_id: str
    named: bool = False


class Outlet:
    """Writes data and frontier records to one partition of a log.

    Attributes:
        repeated: The messages since `flush` that were not stored because a message with their id had been stored
            before, each with the sequence of the stored message.
    """

    def __init__(self, log: Log, data_subject: str, frontier_subject: str) -> None:
        self.repeated: list[tuple[OutgoingRecord, int]] = []
        self._log = log
        self._data, self._frontier = data_subject, frontier_subject

    async def send(self, message: OutgoingRecord) -> None:
        """Send data without waiting until it is stored. `flush` reports a failure.

        If this call raises, the message was not sent.
        """
        end = (await self._log.extent()).last_seq if message.named else 0
        stored = await self._log.append(
            message.data, subject=self._data, headers=message.headers, msg_id=message.msg_id
        )
        if stored.seq <= end:
            self.repeated.append((message, stored.seq))

    async def flush(self) -> None:
        """Wait until everything that was sent is stored.

        Raises `PublishesFailedError` if a message was not stored, or its outcome is unknown. Every later call raises
        it too.
        """

    async def record(self, data: bytes, headers: Mapping[str, str], expected: int, msg_id: str | None) -> int:
        """Store a frontier record, and return its sequence.

        ``expected`` is the sequence of the subject's last message, or 0 for an empty subject. Raises
        `WrongLastSequenceError` if the sequence differs. May raise any other error that publishing can raise.
        """
        stored = await self._log.append(
            data,
            subject=self._frontier,
            kind=Kind.FRONTIER,
            headers=headers,
            expected=expected,
            msg_id=msg_id,
        )
        return stored.seq

    @property
    def is_atomic(self) -> bool:
        """Whether `commit` is available."""
        return True

    async def commit(
        self, messages: Sequence[OutgoingRecord], data: bytes, headers: Mapping[str, str], expected: int
    ) -> int:
        """Store data and a frontier record together or not at all. Return the sequence of the frontier record.

        May raise any error of `record`.
        """
        last = await self._log.last(self._frontier)
        if expected == (last.seq if last else 0):
            # Appending to a log in memory never suspends, so no other task can come between these messages.
            for message in messages:
                await self.send(message)
        return await self.record(data, headers, expected, None)

    async def close(self) -> None:
        """Stop writing. Messages in flight may be stored or not."""


class StreamOutlet(Outlet):
    """Writes data to a stream with a window of publishes, and a whole epoch as an atomic batch if possible."""

    def __init__(
        self,
        context: Context,
        stream: Stream,
        log: Log,
        *,
        data_subject: str,
        frontier_subject: str,
        publisher: Publisher,
        timeout: float | None = None,
    ) -> None:
        super().__init__(log, data_subject, frontier_subject)
        self._timeout = timeout
        self._context = context
        self._stream = stream
        self._publisher = publisher
        self._named_in_flight: set[asyncio.Future[PubAck]] = set()
        self._failure: JetStreamError | None = None

    async def send(self, message: OutgoingRecord) -> None:
        if self._failure is not None or self._publisher.failed:
            await self.flush()
        future = await self._publisher.publish(
            self._data,
            message.data,
            headers=message.headers,
            msg_id=message.msg_id,
        )
        if message.named:
            self._named_in_flight.add(future)
            future.add_done_callback(lambda done: self._acked(done, message))

    def _acked(self, future: asyncio.Future[PubAck], message: OutgoingRecord) -> None:
        self._named_in_flight.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, JetStreamError):
            self._failure = self._failure or PublishesFailedError(
                [FailedPublishInfo(self._data, error, msg_id=message.msg_id)]
            )
        elif future.result().duplicate:
            self.repeated.append((message, future.result().seq))

    async def flush(self) -> None:
        try:
            await self._publisher.flush()
        except PublishesFailedError as error:
            self._failure = self._failure or error
        while self._named_in_flight:
            await asyncio.wait(self._named_in_flight)
            await asyncio.sleep(0)  # let `_acked` run, which records failures and duplicates
        if self._failure is not None:
            raise self._failure

    async def record(self, data: bytes, headers: Mapping[str, str], expected: int, msg_id: str | None) -> int:
        ack = await publish(
            self._context,
            self._frontier,
            data,
            headers={**headers, **kind_headers(Kind.FRONTIER)},
            expected_stream=self._stream.name,
            expected_last_subject_seq=expected,
            msg_id=msg_id,
            timeout=self._timeout,
            stream_exists=True,
        )
        return ack.seq

    @property
    def is_atomic(self) -> bool:
        version = self._context.connection.server_version
        return bool(self._stream.config.allow_atomic) and is_at_least(version, BATCH_SERVER)

    async def commit(
        self, messages: Sequence[OutgoingRecord], data: bytes, headers: Mapping[str, str], expected: int
    ) -> int:
        batch = AtomicBatch(self._context, ack_every=None, timeout=_BATCH_TIMEOUT)
        try:
            for message in messages:
                await batch.publish(
                    self._data, message.data, headers=message.headers, expected_stream=self._stream.name
                )
            ack = await batch.commit(
                self._frontier,
                data,
                headers={**headers, **kind_headers(Kind.FRONTIER)},
                expected_last_subject_seq=expected,
            )
        except BaseException:
            await batch.abandon()
            raise
        return ack.seq

    async def close(self) -> None:
        await self._publisher.close()


_RACES = 3  # attempts to create or change the stream, which other clients may change at the same time


class Home(abc.ABC):
    """The storage of one topic. Call `schema` or `make` before the other methods."""

    topic: str

    @property
    def context(self) -> Context:
        """The context of the connection. Raises `ConfigError` for a topic in memory."""
        raise ConfigError(f"topic {self.topic!r} is in memory: it has no connection")

    @property
    def problem(self) -> str:
        """The known reason why the connection is down. "" if it is connected, or if the topic needs no server."""
        return ""

    @property
    def max_age(self) -> float:
        """How long messages are stored, in seconds, or 0 if they are stored indefinitely."""
        return 0.0

    @abc.abstractmethod
    async def schema(self) -> Schema:
        """Return the schema of the topic.

        Raises `TopicNotFoundError` if the topic doesn't exist, or `ConfigError` if its stream may remove parts of an
        epoch. May raise any other request error.
        """

    @abc.abstractmethod
    async def make(self, schema: Schema, fields: dict[str, Any]) -> Schema:
        """Return the schema of the topic. If the topic does not exist, create it with ``schema``.

        May raise any error of `schema` except `TopicNotFoundError`.
        """

    @abc.abstractmethod
    async def has_publisher(self, partition: int) -> bool:
        """Return whether a live publisher has the partition. Raises `DisconnectedError` or `ClosedError` if offline."""

    @abc.abstractmethod
    async def announce(self, partition: int, is_alive: Callable[[], bool]) -> Presence | None:
        """Make `has_publisher` return True as long as ``is_alive`` does. May raise any error of subscribing."""

    @abc.abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event to the user."""

    @abc.abstractmethod
    def log(self, partition: int | None = None) -> Log:
        """Return the log of one partition, or of all partitions."""

    @abc.abstractmethod
    def outlet(self, partition: int, *, max_in_flight: int, timeout: float | None) -> Outlet:
        """Return an outlet that writes to a partition."""


class MemoryHome(Home):
    """Stores a topic in the memory of this process."""

    def __init__(self, topic: str, log: MemoryLog) -> None:
        self.topic = topic
        self._log = log
        self._schema: Schema | None = None
        self._alive: dict[int, Callable[[], bool]] = {}

    async def schema(self) -> Schema:
        if self._schema is None:
            raise TopicNotFoundError(self.topic)
        return self._schema

    async def make(self, schema: Schema, fields: dict[str, Any]) -> Schema:
        if fields:
            raise ConfigError(f"a topic in memory has no {', '.join(sorted(fields))}")
        self._schema = self._schema or schema
        return self._schema

    async def has_publisher(self, partition: int) -> bool:
        return partition in self._alive and self._alive[partition]()

    async def announce(self, partition: int, is_alive: Callable[[], bool]) -> Presence | None:
        self._alive[partition] = is_alive
        return None

    def emit(self, event: Event) -> None:
        self._log.emit(event)

    def log(self, partition: int | None = None) -> Log:
        return self._log

    def outlet(self, partition: int, *, max_in_flight: int, timeout: float | None) -> Outlet:
        return Outlet(self._log, data_subject(self.topic, partition), frontier_subject(self.topic, partition))


class StreamHome(Home):
    """Stores a topic in a stream, whose metadata contains the schema. A stream may have several topics."""

    def __init__(self, streams: StreamManager, topic: str, stream: str) -> None:
        self.topic = topic
        self._streams = streams
        self._context = streams._context  # noqa: SLF001  shared by all handles of a connection
        self._name = stream
        self._stream: Stream | None = None

    @property
    def context(self) -> Context:
        return self._context

    @property
    def problem(self) -> str:
        return self._context.connection.problem

    async def schema(self) -> Schema:
        try:
            stream = await self._streams.stream(self._name)
        except StreamNotFoundError:
            raise TopicNotFoundError(self.topic) from None
        schema = self._schema_of(stream)
        if schema is None:
            raise TopicNotFoundError(self.topic)
        return schema

    async def make(self, schema: Schema, fields: dict[str, Any]) -> Schema:
        for _ in range(_RACES):
            try:
                stream = await self._streams.stream(self._name)
            except StreamNotFoundError:
                try:
                    stream = await self._streams.create_stream(self._new(schema, fields))
                except StreamExistsError:
                    continue
            existing = self._schema_of(stream)
            if existing is not None:
                return existing
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
        self._check_config(config)
        return config

    def _with_topic(self, config: StreamConfig, schema: Schema) -> StreamConfig:
        """Return the configuration of an existing stream with this topic added."""
        self._check_config(config)
        subjects = [*(config.subjects or ())]
        return config.replace(
            subjects=[*subjects, *(subject for subject in self._subjects() if subject not in subjects)],
            metadata={**(config.metadata or {}), schema_key(self.topic): schema.to_json()},
        )

    def _schema_of(self, stream: Stream) -> Schema | None:
        """Return the schema in a stream's metadata, or None if the stream does not have the topic."""
        text = (stream.config.metadata or {}).get(schema_key(self.topic))
        if text is None:
            return None
        self._check_config(stream.config)
        self._stream = stream
        return read_schema(text, self.topic)

    def _check_config(self, config: StreamConfig) -> None:
        """Refuse a stream that may remove messages from the middle, since parts of an epoch would be lost unnoticed."""
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
        """The stream, as of its last lookup."""
        assert self._stream is not None, "schema() or make() comes first"
        return self._stream

    @property
    def max_age(self) -> float:
        return self.stream.config.max_age or 0.0

    async def has_publisher(self, partition: int) -> bool:
        return await is_present(self._context, presence_subject(self.topic, partition))

    async def announce(self, partition: int, is_alive: Callable[[], bool]) -> Presence | None:
        presence = Presence(self._context, presence_subject(self.topic, partition), is_alive)
        await presence.begin_answering()
        return presence

    def emit(self, event: Event) -> None:
        self._context.emit(event)

    def log(self, partition: int | None = None) -> StreamLog:
        which = "*" if partition is None else partition
        return StreamLog(self._context, self.stream, f"{self.topic}.{which}.*")

    def outlet(self, partition: int, *, max_in_flight: int, timeout: float | None) -> Outlet:
        publisher = Publisher(self._context, max_in_flight=max_in_flight, timeout=timeout)
        return StreamOutlet(
            self._context,
            self.stream,
            self.log(partition),
            data_subject=data_subject(self.topic, partition),
            frontier_subject=frontier_subject(self.topic, partition),
            publisher=publisher,
            timeout=timeout,
        )
