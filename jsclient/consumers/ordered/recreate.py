"""Replaces the consumer of an ordered reader when it is lost. Source: ADR-17, ADR-15 §Ordered Consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..._runtime.context import Context
from ..._runtime.tasks import Signal
from ...errors import (
    ApiError,
    ClosedError,
    ConsumerLimitError,
    ConsumerNotFoundError,
    DisconnectedError,
    JetStreamError,
    MessageNotFoundError,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from ...protocol.consumers.ordered import (
    MessageMark,
    OrderedCursor,
    Recreate,
    Restart,
    RestartCheck,
    create_timeout,
    restart_config,
)
from ...protocol.events import ConsumerRefused, ConsumerReset, ErrorRaised, Event
from ...protocol.models.back_doubt import ReportedEnd
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.models.message import read_stored_message
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.codec import from_wire

__all__ = ["ConsumerRecreator", "Ordered", "ReaderOperations"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between attempts to create a consumer
# How long a stream must be missing, on a healthy connection, before the reader fails, in seconds.
_GONE_AFTER = 5.0
_MOST_FAILURES = 20  # after this many failed requests, the comparison with a stored message is abandoned
_RECHECK = 0.5  # seconds after which a stream whose last sequence has decreased is checked again
_NO_CONSUMER = (
    "this ordered reader gets nothing new, since its consumer is gone; it tries again about every second, and then "
    "reads on after the last message that it had"
)
# If a consumer is lost within this many seconds, the next attempt to create one is delayed.
_SHORT_LIVED = 1.0


class Ordered(Protocol):
    """The interface of the trackers of ordered readers, which differ between push and pull."""

    stream: str
    consumer: str
    cursor: OrderedCursor

    @property
    def may_recreate(self) -> bool:
        """True if the buffer has enough capacity for the messages of a new consumer."""


@dataclass(frozen=True, slots=True)
class ReaderOperations:
    """Functions that a reader provides to its `ConsumerRecreator`, because they differ between push and pull.

    Attributes:
        is_open: Returns True unless the reader has ended.
        let_go: Unsubscribes from the old consumer.
        create: Creates a consumer within a number of seconds and subscribes to it. Its messages are retained until
            ``use`` is called. If it fails, it unsubscribes again.
        discard: Unsubscribes from the consumer that ``create`` has created. The caller deletes that consumer.
        use: Starts to read from the consumer that ``create`` has created.
        reset: Called when the cursor requires a new consumer. It calls `ConsumerRecreator.recreate_if_needed`.
        fail: Ends the reader with an error, which is raised once its buffered messages have been read.
        emit: Reports an event to the user.
    """

    is_open: Callable[[], bool]
    let_go: Callable[[], Awaitable[None]]
    create: Callable[[ConsumerConfig, float], Awaitable[ConsumerInfo]]
    discard: Callable[[], Awaitable[None]]
    use: Callable[[ConsumerInfo], None]
    reset: Callable[[], None]
    fail: Callable[[JetStreamError], Awaitable[None]]
    emit: Callable[[Event], None]


class ConsumerRecreator:
    """Creates a new consumer whenever an ordered reader has lost its consumer or a delivery is missing.

    It deletes the old consumer in the background, and pauses between failed attempts. If the stream is missing for some
    time, it ends the reader with an error. It also detects that the stream was deleted and created again under the same
    name, in which case the new stream is read from its start.

    Attributes:
        capacity: Signal that the reader sets when its buffer has free capacity again.
        error: The error of the last attempt, or None if it succeeded.
        leftover: Names of consumers that may still exist. They are deleted when the next consumer is created.
        restarts: How often it was found that the stream had been replaced or restored.
    """

    def __init__(
        self,
        context: Context,
        tracker: Ordered,
        config: ConsumerConfig,
        reader: ReaderOperations,
        *,
        max_attempts: int | None = None,
    ) -> None:
        self._context = context
        self._tracker = tracker
        self._config = config  # the configuration of the first consumer
        self._reader = reader
        self._max_attempts = max_attempts
        self.capacity: Signal = Signal()
        self.error: JetStreamError | None = None
        self.leftover: set[str] = set()
        self.restarts: int = 0
        self._task: asyncio.Task[None] | None = None
        self._creating = False
        self._over = False
        # Types of the errors reported since the last success. An error of each type is reported only once.
        self._reported: set[type[JetStreamError]] = set()
        self._deleted = ""  # the last consumer whose deletion was requested
        self._incarnation = ""  # the creation time of the stream, or "" if the time is unknown
        self._remembering: asyncio.Task[None] | None = None
        self._answer_lost = False  # whether the creation time was requested without an answer
        self._is_repeated = False  # whether `_remembering` repeats a request whose answer was lost
        self._first_created: datetime | None = None  # when the first consumer was created, if that is known
        self._doubting: asyncio.Task[None] | None = None
        # The last message that was read before the stream may have been replaced. If the stream no longer stores that
        # message, the stream was replaced. None if there is nothing to compare.
        self._mark: MessageMark | None = None
        self._compared = False  # False if the stream may have been replaced since the last comparison
        # When the current consumer was created: the time in monotonic seconds, and the position of the reader.
        self._created_at, self._created_after = float("-inf"), 0
        self._next_pause = 0.0  # pause before the next attempt, in seconds

    def recreate_if_needed(self) -> None:
        """Start to recreate the consumer in the background, if it is lost and no attempt is already running."""
        if (
            self._tracker.cursor.wants is not None
            and self._task is None
            and self._reader.is_open()
            and not self._over
        ):
            self._task = self._context.tasks.start(
                self._run_attempts(), f"reset of the ordered reader of {self._tracker.stream}"
            )

    def remember_stream(
        self, on_info: Callable[[StreamInfo], None] | None = None, *, created: datetime | None = None
    ) -> None:
        """Request the creation time of the stream in the background, to detect later that the stream was replaced.

        ``on_info`` is called with the info of the stream, if the user has the permission to request it. ``created`` is
        the time at which the first consumer was created. It is needed to repeat the request if the answer is lost.
        """
        self._first_created = created
        self._remembering = self._context.tasks.start(
            self._remember_stream(on_info), "creation time of the stream"
        )

    @property
    def incarnation(self) -> str:
        """The creation time of the stream that is read, or "" if it is unknown."""
        return self._incarnation

    async def incarnation_known(self) -> str:
        """Wait for the answer to the request of `remember_stream`, and return `incarnation`.

        If the answer was lost, the request is repeated in the background, and the result is returned by a later call.
        """
        if self._remembering is not None and not self._remembering.done() and not self._is_repeated:
            await asyncio.wait({self._remembering})
        if self._answer_lost and self._first_created is not None and self._needed:
            self._answer_lost, self._is_repeated = False, True
            self._remembering = self._context.tasks.start(
                self._remember_stream(None), "creation time of the stream"
            )
        return self._incarnation

    def stop_recreating(self) -> None:
        """Stop creating consumers. If a consumer is being created at the moment, it is deleted again."""
        self._over = True
        self.capacity.set()
        if self._doubting is not None:
            self._doubting.cancel()
        if self._task is not None and not self._creating and self._task is not asyncio.current_task():
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait until the current attempt has ended. Call `stop_recreating` first."""
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait({self._task})

    async def _run_attempts(self) -> None:
        try:
            await self._try_until_created()
        finally:
            self._task = None
        self.recreate_if_needed()

    async def _try_until_created(self) -> None:
        pause, failures = _FIRST_PAUSE, 0
        missing_since: float | None = None
        cursor, now = self._tracker.cursor, self._context.connection.now
        while cursor.wants is not None and await self._may_create():
            self._creating = True
            try:
                await self._replace(cursor.wants, create_timeout(failures, self._context.timeout))
            except ClosedError:
                self._over = True
            except DisconnectedError:
                # The next attempt waits for the connection. Start measuring again, because a stream may seem to be
                # missing while the servers of a cluster restart.
                missing_since = None
            except JetStreamError as error:
                failures += 1
                missing = isinstance(error, StreamNotFoundError)
                missing_since = (missing_since or now()) if missing else None
                gone = missing_since is not None and now() - missing_since >= _GONE_AFTER
                self._note_failure(error)
                if gone or (self._max_attempts is not None and failures >= self._max_attempts):
                    await self._reader.fail(error)
                    return
                self._creating = False
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause, failures, missing_since = _FIRST_PAUSE, 0, None
                self.error = None
                self._reported.clear()
            finally:
                self._creating = False

    async def _may_create(self) -> bool:
        """Wait until a consumer can be created, or return False if the reader has ended in the meantime."""
        while not self._tracker.may_recreate and self._needed:
            await self.capacity.wait()
        if self._needed:
            await self._pause_between()
            try:
                await self._context.connection.wait_connected(None)
            except ClosedError:
                self._over = True
        return self._needed

    @property
    def _needed(self) -> bool:
        return self._reader.is_open() and not self._over

    async def _pause_between(self) -> None:
        """Pause if the last consumer was lost soon after its creation, without having delivered a message.

        The next consumer may be lost just as quickly. Without a pause, this would be repeated as fast as the server
        can create consumers.
        """
        last = self._tracker.cursor.last_stream_seq
        if last != self._created_after or self._context.connection.now() - self._created_at > _SHORT_LIVED:
            self._next_pause = 0.0
            return
        await asyncio.sleep(self._next_pause)
        self._next_pause = min(max(self._next_pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)

    def _note_failure(self, error: JetStreamError) -> None:
        self.error = error
        if type(error) in self._reported:
            return
        self._reported.add(type(error))
        tracker = self._tracker
        event: Event = ErrorRaised(stream=tracker.stream, consumer=tracker.consumer, error=error)
        if isinstance(error, ConsumerLimitError):
            event = ConsumerRefused(
                stream=tracker.stream, consumer=tracker.consumer, error=error, meanwhile=_NO_CONSUMER
            )
        self._reader.emit(event)

    async def _replace(self, why: Recreate, timeout: float) -> None:
        context, tracker, cursor = self._context, self._tracker, self._tracker.cursor
        await self._reader.let_go()
        if tracker.consumer != self._deleted:
            self._deleted = tracker.consumer
            self.leftover.add(tracker.consumer)
        if not why.planned:
            self._delete_leftover()
        unconfirmed = cursor.wants is not None and cursor.wants.unconfirmed
        resume = cursor.resume_stream_seq
        info = await self._create_next(restart_config(self._config, resume), timeout)
        try:
            began_again = await self._began_again(info, unconfirmed=unconfirmed)
        except BaseException:
            await self._reader.discard()
            raise
        if began_again or not self._needed:
            await self._reader.discard()
            await self._delete(info.name)
            return
        # Emit the event first, so that the application learns of the reset before a message of the new consumer.
        self._reader.emit(
            ConsumerReset(
                stream=tracker.stream,
                consumer=info.name,
                reason=why.reason,
                resume_stream_seq=resume,
                planned=why.planned,
            )
        )
        self._created_at, self._created_after = context.connection.now(), cursor.last_stream_seq
        self._reader.use(info)
        self._delete_leftover()

    def _delete_leftover(self) -> asyncio.Task[None] | None:
        if not self.leftover:
            return None
        leftover = [*self.leftover]
        self.leftover.clear()
        return self._context.tasks.start(self._delete(*leftover), "delete the old ordered consumer")

    async def _create_next(self, config: ConsumerConfig, timeout: float) -> ConsumerInfo:
        """Create the next consumer. If the server refuses, try again after deleting the leftover consumers.

        The leftover consumers may be the reason for the refusal, because the number of consumers can be limited.
        """
        try:
            return await self._reader.create(config, timeout)
        except ApiError:
            if (deleting := self._delete_leftover()) is None:
                raise
            await asyncio.wait({deleting})
        return await self._reader.create(config, timeout)

    async def _began_again(self, info: ConsumerInfo, *, unconfirmed: bool) -> bool:
        """Return True if the stream was replaced by another stream of the same name, which is read from the start.

        The stream may have been replaced after silence or a reconnect, or if the new consumer starts before the
        position
        of the reader. A consumer created on a replica that lags behind also starts too early. In that case, the
        cursor
        skips the messages that were already read.

        Call this only after the consumer was created. If the stream were checked earlier, it could still be replaced
        before the consumer is created.
        """
        cursor = self._tracker.cursor
        if not unconfirmed and cursor.is_in_place(info.delivered.stream_seq):
            return False
        stream = await self._stream_info()
        if stream is None:
            return False
        doubt = RestartCheck(cursor.last_stream_seq)
        verdict = self._judge(doubt, stream)
        if verdict == "read from the start":
            self._begin_again(stream)
            return True
        # Don't block the reader. A background task finds out whether the stream was replaced, and restarts the reading
        # if it was.
        self._mark, self._compared = self._mark or cursor.mark, False
        if self._doubting is None:
            settling = self._settle(doubt, verdict)
            self._doubting = self._context.tasks.start(settling, f"the end of stream {self._tracker.stream}")
        return False

    def _judge(self, restart_check: RestartCheck, stream: StreamInfo) -> Restart:
        connection = self._context.connection
        replicas = stream.config.num_replicas or 1
        end = ReportedEnd(str(stream.created), stream.state.last_seq, replicas, connection.connects)
        position = self._tracker.cursor.last_stream_seq
        return restart_check.check_end(position, end, connection.now(), incarnation=self._incarnation)

    async def _settle(self, doubt: RestartCheck, verdict: Restart) -> None:
        """Find out in the background whether the stream was replaced.

        Messages of the new consumer are read in the meantime.
        """
        try:
            while verdict == "ask again" and self._needed:
                await asyncio.sleep(_RECHECK)
                stream = await self._stream_info()
                if stream is None:
                    doubt.interrupted()
                elif not await self._is_busy():
                    verdict = self._judge(doubt, stream)
                    if verdict == "read from the start":
                        self._read_from_start(stream)
            if verdict == "read on":
                await self._compare()
        finally:
            self._doubting = None

    async def _compare(self) -> None:
        """Read the stream from the start if the last message read is no longer stored at its sequence.

        This detects a stream that was restored from a backup and has since grown past the position of the reader.
        """
        differed, failures = False, 0
        while self._needed and self._mark is not None and failures < _MOST_FAILURES:
            self._compared = True
            try:
                time_ns = await self._stored_at(self._mark.seq)
            except (MessageNotFoundError, PermissionDeniedError):
                # There is nothing to compare with. Assume that the stream is the same, because reading from the start
                # would return all messages again.
                time_ns = self._mark.time_ns
            except (DisconnectedError, ClosedError):
                return  # a new consumer is created after the reconnect, and starts another comparison
            except JetStreamError:
                failures += 1
                await asyncio.sleep(_RECHECK)
                continue
            if time_ns == self._mark.time_ns:
                # If `_compared` was reset during the request, the stream may have been replaced since. Keep the mark in
                # that case, and compare again.
                if self._compared:
                    self._mark = None
                continue
            if not differed or await self._is_busy():
                differed = True
                # The answer may come from a replica that lags behind, so compare again.
                await asyncio.sleep(_RECHECK)
            elif (stream := await self._stream_info()) is not None:
                self._read_from_start(stream)

    async def _is_busy(self) -> bool:
        """Wait while a consumer is being created, because the cursor must not change then.

        Returns True if there was a wait. Information that was requested before may be outdated in that case.
        """
        if self._task is None:
            return False
        await asyncio.wait({self._task})
        return True

    def _read_from_start(self, stream: StreamInfo) -> None:
        if self._needed:
            self._begin_again(stream)
            self._reader.reset()

    def _begin_again(self, stream: StreamInfo) -> None:
        tracker = self._tracker
        self._incarnation, self._mark = str(stream.created), None
        self.restarts += 1
        self._reader.emit(
            tracker.cursor.stream_began_again(tracker.stream, tracker.consumer, stream.state.last_seq)
        )

    async def _stream_info(self) -> StreamInfo | None:
        try:
            return await self._request_stream_info()
        except JetStreamError:
            return None  # reading works without this check, so a missing permission or an error is ignored

    async def _request_stream_info(self) -> StreamInfo:
        api = self._context.api
        return from_wire(StreamInfo, await self._context.call(api.stream_info(self._tracker.stream)))

    async def _stored_at(self, seq: int) -> int:
        """Return the time at which the message with this sequence was stored, in nanoseconds."""
        subject = self._context.api.stream_msg_get(self._tracker.stream)
        answer = await self._context.call(subject, {"seq": seq}, what="get message", optional=True)
        return read_stored_message(answer).time_ns

    async def _remember_stream(self, on_info: Callable[[StreamInfo], None] | None) -> None:
        try:
            info = await self._request_stream_info()
        except JetStreamError as error:
            self._answer_lost = isinstance(error, RequestTimeoutError | DisconnectedError)
            return
        if on_info is not None:
            on_info(info)
        if not self._incarnation and (not self._is_repeated or self._is_first_stream(info)):
            self._incarnation = str(info.created)

    def _is_first_stream(self, stream: StreamInfo) -> bool:
        """Return whether the stream existed before the first consumer, so it has not been replaced since then."""
        first = self._first_created
        return stream.created is not None and first is not None and stream.created <= first

    async def _delete(self, *consumers: str) -> None:
        stream = self._tracker.stream
        for consumer in consumers:
            try:
                await self._context.call(self._context.api.consumer_delete(stream, consumer))
            except (ConsumerNotFoundError, StreamNotFoundError):
                pass
            except (DisconnectedError, RequestTimeoutError, ClosedError):
                self.leftover.add(consumer)
            except ApiError as error:
                self._reader.emit(ErrorRaised(stream=stream, consumer=consumer, error=error))
