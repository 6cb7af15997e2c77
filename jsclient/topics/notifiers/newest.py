"""Reads the newest record of a subject, by requests and by pushes of a single newer record at a time.

To wait for a newer record, a client subscribes to the republished subject, and the server ends this subscription
after one message. Records that are not read are not sent, and waiting needs no state on the server. If a stream does
not republish, one consumer serves all waiters of this process, and one message at a time is pulled while any of them
waits.
"""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from ..._runtime.calls import delete_consumer
from ..._runtime.connection.connection import Inbox
from ..._runtime.context import Context
from ..._runtime.retry import Retry
from ..._runtime.tasks import Timer
from ...consumers.message import Message, frames_of
from ...consumers.pull.consumer import Consumer
from ...errors import (
    ConsumerDeletedError,
    HeartbeatError,
    JetStreamError,
    MessageNotFoundError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ...protocol.consumers.ordered import ephemeral_config
from ...protocol.events import Event
from ...protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ...protocol.models.message import read_stored_message
from ...protocol.streams.direct_get import read_direct_answer
from ...protocol.topics.position import Extent, Position
from ...protocol.topics.record import Record
from ...protocol.topics.record_codec import DeliveredRecords, RepublishedRecords, stored_record
from ...protocol.wire.frames import Frame
from ..stream_log import find_stream, read_extent
from .descriptors import NotifierDescriptor

__all__ = ["Arrived", "NewestLog", "newest_log"]

Arrived: TypeAlias = Callable[[Record | JetStreamError | None], None]
"""A function that receives a newer record, None if it must be requested, or the error that ends the pushes."""

_LINGER: Final = 2.0  # seconds that the consumer is kept while no call waits
_INACTIVE: Final = 30.0  # seconds after which the server removes the consumer of a process that has ended


class NewestLog(abc.ABC):
    """Reads the newest record of a subject, by requests and by pushes of a single newer record.

    Args:
        context: The context of the handle.
        at: The descriptor of the stream and subject.
        quiet: After waiting for this many seconds, request the newest record again.
        origin: See `Record`.
    """

    def __init__(
        self, context: Context, at: NotifierDescriptor, quiet: float, origin: Position | None = None
    ) -> None:
        self._origin = origin
        self.context = context
        self.at = at
        self._quiet = quiet
        self._arrived: Arrived | None = None
        self.stream: str = at.stream
        self.emit: Callable[[Event], None] = context.emit

    @abc.abstractmethod
    async def open_pushes(self, arrived: Arrived) -> None:
        """Start to receive pushes. Call this method before requesting the newest record."""

    @abc.abstractmethod
    def wait_for_newer(self, seq: int) -> None:
        """Wait for a record after this sequence. 0 means that no record exists yet."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop receiving pushes."""

    async def read_newest(self) -> Record | None:
        """Return the newest record of a replica, or None if it has no record. May raise any error of a request."""
        if not self.at.direct:
            return await self.read_leader()
        context, at = self.context, self.at
        subject = context.api.direct_get_last(at.stream, at.subject)
        try:
            frame = await context.requests.ask(
                subject, timeout=context.timeout, what="the newest value", again=True
            )
            return stored_record(read_direct_answer(frame), linked=False, origin=self._origin)
        except MessageNotFoundError:
            return None
        except (NoRespondersError, RequestTimeoutError) as error:
            # Either the stream has no leader, or it was deleted. Ask the leader, because API requests are answered in
            # both cases.
            try:
                return await self.read_leader()
            except PermissionDeniedError:
                raise error from None

    async def read_leader(self) -> Record | None:
        """Return the newest record that the stream's leader has, or None. May raise any error of a request."""
        context, at = self.context, self.at
        subject = context.api.stream_msg_get(at.stream)
        try:
            answer = await context.call(subject, {"last_by_subj": at.subject}, what="the newest value")
        except MessageNotFoundError:
            return None
        return stored_record(read_stored_message(answer), linked=False, origin=self._origin)

    @property
    def incarnation(self) -> str:
        """The incarnation of the stream whose records are read, or "" if it is unknown. See `Position`."""
        return "" if self._origin is None else self._origin.incarnation

    async def extent(self) -> Extent | None:
        """Return the extent of the stream, or None if the user may not request it. May raise any error of a request."""
        context = self.context
        try:
            answer = await context.call(context.api.stream_info(self.stream), what="stream info")
        except PermissionDeniedError:
            return None
        return read_extent(self.stream, answer, context.connection.connects)

    async def placed_again(self, record: Record) -> Record:
        """Return the record with a position in the current stream, because the stream may have been recreated.

        May raise any error of a request.
        """
        if self._origin is None:
            return record
        info = self.context.api.stream_info(self.stream)
        answer = await self.context.call(info, what="stream info")
        self._origin = origin = Position(self.stream, str(answer.get("created", "")), 0)
        return msgspec.structs.replace(record, origin=origin)


def newest_log(
    context: Context, at: NotifierDescriptor, *, quiet: float, origin: Position | None = None
) -> NewestLog:
    """Return the log for a descriptor.

    It receives pushes from the republished subject, if one exists, or from a consumer.
    """
    return (_Republished if at.republished else _Pulled)(context, at, quiet, origin)


class _Republished(NewestLog):
    """Receives each push with a NATS subscription that ends after one message."""

    _inbox: Inbox | None = None
    _known: int | None = None  # the sequence of the newest record, None while it is requested
    _early: Record | None = None  # the record that was pushed before the newest record was known

    def __init__(
        self, context: Context, at: NotifierDescriptor, quiet: float, origin: Position | None = None
    ) -> None:
        super().__init__(context, at, quiet, origin)
        self._reading = RepublishedRecords(at.stream)

    async def open_pushes(self, arrived: Arrived) -> None:
        self._arrived, self._known, self._early = arrived, None, None
        self._inbox = await self.context.connection.subscribe(
            self.at.republished, self._receive_record, limit=1
        )

    def wait_for_newer(self, seq: int) -> None:
        self._known, early, self._early = seq, self._early, None
        if early is not None and self._arrived is not None:
            self._arrived(self._checked(early, seq))
        # If the server denied the subscription, its error arrived before the answer to this request. Report it now,
        # because no push will ever arrive.
        if self._inbox is not None and self._inbox.denied is not None and self._arrived is not None:
            self._arrived(self._inbox.denied)

    async def close(self) -> None:
        self._arrived = None
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await self.context.connection.unsubscribe(inbox)

    def _receive_record(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self._arrived is None:
                return
            self._reading.origin = self._origin
            for record in self._reading.read_frames((frame,), self._foreign):
                if self._known is None:
                    self._early = record
                else:
                    self._arrived(self._checked(record, self._known))

    def _foreign(self, _: Frame) -> None:
        if self._arrived is not None:
            # A message of another client has used up the subscription, which ends after one message.
            self._arrived(None)

    def _checked(self, record: Record, known: int) -> Record | None:
        """Return the record if it directly follows the newest known record, otherwise None.

        Any other record may be forged. With None, the newest record is requested instead.
        """
        follows = record.seq == known + 1 and record.subject == self.at.subject
        # If the stream was recreated in the meantime, the record has a different origin and isn't the successor.
        return record if follows and record.origin is self._origin else None


class _Pulled(NewestLog):
    """Receives pushes with a consumer without acks, from which one message at a time is pulled."""

    def __init__(
        self, context: Context, at: NotifierDescriptor, quiet: float, origin: Position | None = None
    ) -> None:
        super().__init__(context, at, quiet, origin)
        self._consumer: Consumer | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._timer = Timer(self._drop_unused)

    async def open_pushes(self, arrived: Arrived) -> None:
        self._timer.cancel()
        self._arrived = arrived

    def wait_for_newer(self, seq: int) -> None:
        if self._pulling is None or self._pulling.done():
            self._pulling = self.context.tasks.start(self._pull(seq), "pull for a notifier")

    async def close(self) -> None:
        self._arrived = None
        pulling, self._pulling = self._pulling, None
        if pulling is not None and not pulling.done():
            pulling.cancel()
            await asyncio.wait({pulling})
        if self._consumer is None:
            self.context.open.discard(self)  # no consumer to delete, because its creation was cancelled
        else:
            self._timer.set(self.context.connection.now() + _LINGER)

    async def abandon(self) -> None:
        """Stop and delete the consumer, because the connection is being closed."""
        await self.close()
        self._timer.cancel()
        await self._drop()

    def _drop_unused(self) -> None:
        if self._arrived is None:
            self.context.tasks.start(self._drop(), "end of a notifier's consumer")

    async def _pull(self, seq: int) -> None:
        tries = Retry()
        while True:
            try:
                message = await self._next(seq)
            except JetStreamError as error:
                if isinstance(error, ConsumerDeletedError | HeartbeatError | NoRespondersError):
                    await self._drop()  # the consumer was deleted, or its server was restarted
                if isinstance(error, ConsumerDeletedError | HeartbeatError) or await tries.again(error):
                    continue
                self._report(error)
                return
            if message is not None:
                newest = not message.metadata.num_pending
                read = DeliveredRecords(linked=False, origin=self._origin).read_frames
                self._report(read(frames_of([message]))[0] if newest else None)
                return

    async def _next(self, seq: int) -> Message | None:
        """Return a message after this sequence, or None if none arrives soon."""
        if self._consumer is None:
            self._consumer = await self._create(seq)
        try:
            message = await self._consumer.next(timeout=self._quiet)
        except RequestTimeoutError:
            return None
        if message.metadata.stream_seq > seq:
            return message
        if message.metadata.num_pending:
            await self._drop()  # the consumer lags behind, so the next one starts after the known record
        return None

    async def _create(self, seq: int) -> Consumer:
        stream = await find_stream(self.context, self.at.stream)
        self.context.open.add(self)
        config = ConsumerConfig(
            name=f"jsc-{secrets.token_hex(8)}",  # a fixed prefix, which permissions can allow together with the filter
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=seq + 1,
            filter_subject=self.at.subject,
        )
        config = ephemeral_config(config, max(_INACTIVE, 2 * self._quiet))
        try:
            return await stream.create_consumer(config)
        except asyncio.CancelledError:
            self.context.tasks.start(self._delete(config.name or ""), "end of a notifier's consumer")
            raise

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        self.context.open.discard(self)
        if consumer is None:
            return
        await consumer.close()
        await self._delete(consumer.name)

    async def _delete(self, name: str) -> None:
        if self.context.connection.is_connected:
            with suppress(JetStreamError):  # the server removes the consumer after its inactive threshold
                await delete_consumer(self.context, self.at.stream, name)

    def _report(self, what: Record | JetStreamError | None) -> None:
        if self._arrived is not None:
            self._arrived(what)
