"""Publishing to a topic, and ending it: `Topic.publisher`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from ..errors import (
    ApiError,
    ClosedError,
    ConfigError,
    MaxPayloadError,
    ProducerFencedError,
    PublishesFailedError,
    WrongLastSequenceError,
)
from ..protocol.models.publish import PubAck
from ..protocol.topics.position import Position
from ..protocol.topics.record import Kind, Record
from ..protocol.wire.header_names import MSG_ID
from ..publishing.limits import MAX_BYTES
from ..publishing.publisher import Publisher
from .chain_publisher import ChainPublisher
from .stream_log import StreamLog

__all__ = ["TopicPublisher"]

_WRONG_LAST_MSG_ID: Final = 10070


class TopicPublisher:
    """Publishes to a topic. Created by `Topic.publisher`.

    Leaving ``async with`` waits until all records are stored, and raises `PublishesFailedError` for failures that were
    not retrieved.
    """

    def __init__(self, log: StreamLog, publisher: Publisher | ChainPublisher) -> None:
        self._log = log
        self._publisher = publisher.publisher if isinstance(publisher, ChainPublisher) else publisher
        self._chain = publisher if isinstance(publisher, ChainPublisher) else None
        self._at_end = asyncio.Lock()
        self._end_id = ""  # message id of the last record, once it may have been sent
        self._ending = self._ended = False

    @classmethod
    async def open(
        cls,
        find: Callable[[], Awaitable[StreamLog]],
        *,
        chained: bool,
        max_in_flight: int,
        timeout: float | None,
    ) -> Self:
        """See `Topic.publisher`."""
        log = await find()
        log.own_subject(None)
        last = await log.last()
        if last is not None and last.is_last:
            raise ClosedError(f"the topic {log.subject!r} has ended: no record can follow")
        if chained:
            after = (await log.extent()).last_seq
            chain = ChainPublisher(
                log.context, log.handle, after=after, max_in_flight=max_in_flight, timeout=timeout
            )
            return cls(log, chain)
        publisher = Publisher(
            log.context,
            max_in_flight=max_in_flight,
            max_bytes=MAX_BYTES,
            timeout=timeout,
            room_timeout=None,
            resend=True,
        )
        return cls(log, publisher)

    @property
    def subject(self) -> str:
        """The subject of the topic."""
        return self._log.subject

    def __repr__(self) -> str:
        return f"<TopicPublisher of {self.subject}: {self._publisher.in_flight} in flight>"

    async def publish(
        self,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_id: str | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a record and return the future of its ack. Waits for room if the window is full.

        Args:
            data, headers: As in `JetStream.publish`.
            msg_id: Stored once within the stream's duplicate window. Not for chained records, which have ids.

        Raises:
            ClosedError: The topic has ended, or the publisher was closed. ConfigError, MaxPayloadError: Nothing was
                sent. ProducerFencedError, ClosedError: Records are chained, and an earlier one failed: nothing was
                sent.

        A record is known to be stored when its future is done, or after `flush`, `finish`, or the end of ``async
        with``, which wait for all records. The future raises as `JetStream.publish`. If records are chained and another
        client has published, it raises `WrongLastSequenceError`, or `ApiError` with ``err_code`` 10070. Cancelled:
        nothing was sent.
        """
        self._check_open()
        if self._chain is None:
            return await self._publisher.publish(self.subject, data, headers=headers, msg_id=msg_id)
        if msg_id is not None:
            raise ConfigError("msg_id is given, but chained records have their own ids: omit it")
        return await self._chain.append(self.subject, data, headers, self._check_open)

    def _check_open(self) -> None:
        if self._ended or self._ending:
            raise ClosedError(
                f"the topic {self.subject!r} has ended, or is being ended: no record can follow"
            )

    async def update_state(self, data: bytes, /) -> asyncio.Future[PubAck]:
        """The same as `publish`: to readers of the latest record, a record is the new state of the topic."""
        return await self.publish(data)

    async def flush(self) -> None:
        """Wait until all records sent are stored.

        Raises:
            ProducerFencedError: Records are chained, and another client has published: later ones are not stored.
            PublishesFailedError: Some failed, and their futures were not awaited.
        """
        try:
            await self._publisher.flush()
        except PublishesFailedError as error:
            raise self._fenced(error) or error from error

    async def finish(self, completion: bytes = b"") -> Position:
        """Store all records sent, end the topic with a completion, and return the position of the end.

        Raises:
            ClosedError: The topic has ended before. ProducerFencedError: Records are chained, and the last record
                stored is not the last one sent: that was refused, or another client has published. And as `flush`, and
                those of any publish.

        No record can be published after the call. Cancelled or not answered: it is unknown whether the topic has ended;
        call it again to make sure.
        """
        return await self._end(Kind.FINISH, completion)

    async def fail(self, reason: str) -> Position:
        """Store all records sent, and end the topic with the reason of a failure. Otherwise as `finish`."""
        if not isinstance(reason, str):
            raise ConfigError(f"reason is {type(reason).__name__}: a str is needed, such as str(error)")
        return await self._end(Kind.FAIL, reason.encode())

    async def _end(self, kind: Kind, data: bytes) -> Position:
        async with self._at_end:
            if self._ended:
                raise ClosedError(f"the topic {self.subject!r} has ended: no record can follow")
            self._ending = True
            try:
                await self._publisher.acks.idle()  # including those that wait for room
                await self.flush()
                position = await self._append_end(kind, data)
            finally:
                self._ending = bool(self._end_id)
            self._ended = True
            return position

    async def _append_end(self, kind: Kind, data: bytes) -> Position:
        while True:
            last = await self._log.last()
            if last is not None and last.is_last:
                if last.headers.get(MSG_ID) == self._end_id:
                    return (await self._log.extent()).end.at(last.seq, last.time_ns)
                self._ended = True
                raise ClosedError(
                    f"the topic {self.subject!r} was ended by another client: no record can follow"
                )
            if not self._may_follow(last):
                raise ProducerFencedError(self.subject)
            self._end_id = self._end_id or secrets.token_hex(11)
            try:
                return await self._log.append(
                    data, kind=kind, expected=0 if last is None else last.seq, msg_id=self._end_id
                )
            except WrongLastSequenceError:
                continue  # another client has published since: the end follows that record
            except MaxPayloadError:
                self._end_id = ""
                raise

    def _may_follow(self, last: Record | None) -> bool:
        """Whether the end may follow this record. Chained: only if it is the last one sent."""
        if self._chain is None or last is None:
            return True
        return self._chain.may_follow(last.seq, last.headers.get(MSG_ID))

    def _fenced(self, error: PublishesFailedError) -> ProducerFencedError | None:
        if self._chain is None or not (error.failures or error.told):
            return None
        first = error.failures[0][1] if error.failures else None
        refused = isinstance(first, WrongLastSequenceError) or (
            isinstance(first, ApiError) and first.err_code == _WRONG_LAST_MSG_ID
        )
        return ProducerFencedError(self.subject) if refused or self._chain.is_fenced else None

    async def close(self) -> None:
        """Close the publisher, but not the topic. Records in flight fail with `ClosedError`; use `flush` before."""
        await self._publisher.close()

    async def __aenter__(self) -> Self:
        await self._publisher.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._publisher.__aexit__(kind, error, trace)
        except PublishesFailedError as failed:
            raise self._fenced(failed) or failed from failed
