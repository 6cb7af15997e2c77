"""The writer of a partition: data without waiting for acks, frontier records one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ..._runtime.context import Context
from ..._runtime.publish import publish
from ...errors import JetStreamError, PublishesFailedError
from ...protocol.models.publish import PubAck
from ...protocol.publishing.batch import BATCH_SERVER
from ...protocol.topics.record import Kind
from ...protocol.topics.record_codec import kind_headers
from ...protocol.wire.version import is_at_least
from ...publishing.batch import AtomicBatch
from ...publishing.publisher import Publisher
from ...streams.stream import Stream
from ..log import Log

__all__ = ["Outgoing", "Outlet", "StreamOutlet"]

_BATCH_TIMEOUT: Final = 10.0  # seconds that a server keeps a batch


class Outgoing(NamedTuple):
    """A message of data. ``named``: its id is the user's, so it may have been stored before."""

    data: bytes
    headers: Mapping[str, str]
    msg_id: str
    named: bool = False


class Outlet:
    """Writes to one partition of a log, one record at a time.

    Attributes:
        repeated: Since `flush`: messages that were not stored because their id had been stored before, each with the
            sequence of that message.
    """

    def __init__(self, log: Log, data_subject: str, frontier_subject: str) -> None:
        self.repeated: list[tuple[Outgoing, int]] = []
        self._log = log
        self._data, self._frontier = data_subject, frontier_subject

    async def send(self, message: Outgoing) -> None:
        """Send data; `flush` reports whether it was stored. Raises those of a publish: nothing was sent."""
        end = (await self._log.extent()).last_seq if message.named else 0
        stored = await self._log.append(
            message.data, subject=self._data, headers=message.headers, msg_id=message.msg_id
        )
        if stored.seq <= end:
            self.repeated.append((message, stored.seq))

    async def flush(self) -> None:
        """Wait until everything that was sent is stored.

        Raises:
            PublishesFailedError: Some of it was not stored, or the outcome is unknown. From then on every `send` and
                `flush` raises it.
        """

    async def record(self, data: bytes, headers: Mapping[str, str], expected: int, msg_id: str | None) -> int:
        """Store a frontier record that directly follows the message ``expected``, 0 for none. Returns its sequence.

        Raises:
            WrongLastSequenceError: It would follow another one. And those of any publish.
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
        return False

    async def commit(
        self, messages: Sequence[Outgoing], data: bytes, headers: Mapping[str, str], expected: int
    ) -> int:
        """Store data and a frontier record, all or nothing. Returns the sequence of the record. Raises as `record`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Write nothing more. Messages in flight may be stored or not."""


class StreamOutlet(Outlet):
    """Writes to a stream: data through a window of publishes, and an epoch as an atomic batch if that is possible."""

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
        self._named_under_way: set[asyncio.Future[PubAck]] = set()
        self._failure: JetStreamError | None = None

    async def send(self, message: Outgoing) -> None:
        if self._failure is not None or self._publisher.failed:
            await self.flush()
        future = await self._publisher.publish(
            self._data,
            message.data,
            headers=message.headers,
            msg_id=message.msg_id,
        )
        if message.named:
            self._named_under_way.add(future)
            future.add_done_callback(lambda done: self._acked(done, message))

    def _acked(self, future: asyncio.Future[PubAck], message: Outgoing) -> None:
        self._named_under_way.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, JetStreamError):
            self._failure = self._failure or PublishesFailedError([(self._data, error)])
        elif future.result().duplicate:
            self.repeated.append((message, future.result().seq))

    async def flush(self) -> None:
        try:
            await self._publisher.flush()
        except PublishesFailedError as error:
            self._failure = self._failure or error
        while self._named_under_way:
            await asyncio.wait(self._named_under_way)
            await asyncio.sleep(0)  # their callbacks come before this
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
        return bool(self._stream.config.allow_atomic) and is_at_least(
            self._context.connection.server_version, BATCH_SERVER
        )

    async def commit(
        self, messages: Sequence[Outgoing], data: bytes, headers: Mapping[str, str], expected: int
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
