"""Recreating the consumer of an ordered reader. Source: ADR-17, ADR-15 §Ordered Consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
    RequestTimeoutError,
    StreamNotFoundError,
)
from ...protocol.consumers.ordered import (
    OrderedCursor,
    Recreate,
    Restart,
    RestartDoubt,
    create_timeout,
    restart_config,
)
from ...protocol.events import ConsumerRefused, ConsumerReset, ErrorRaised, Event
from ...protocol.models.back_doubt import ReportedEnd
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.codec import from_wire

__all__ = ["Ordered", "Reader", "Remaker"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between attempts to create a consumer
_GONE_AFTER = 5.0  # seconds of "not found" on a healthy connection before the reader fails
_RECHECK = 0.5  # seconds until the end of a stream that seems to have gone back is requested again
_NO_CONSUMER = (
    "this ordered reader gets nothing new, since its consumer is gone; it tries again about every second, and then "
    "reads on after the last message that it had"
)
_SHORT_LIVED = 1.0  # seconds: after a consumer lost sooner, without a message, the next one waits


class Ordered(Protocol):
    """The tracker of an ordered reader."""

    stream: str
    consumer: str
    cursor: OrderedCursor

    @property
    def may_recreate(self) -> bool:
        """Whether there is capacity to resume."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The operations of a reader that differ between push and pull, for its `Remaker`.

    Attributes:
        is_open: Whether it is still reading.
        let_go: Unsubscribe from the old consumer.
        create: Create a consumer within these seconds and subscribe to it; arrivals are held for ``use``. After an
            error nothing is subscribed.
        discard: Unsubscribe from the consumer of ``create``, which is deleted elsewhere.
        use: Read from the consumer of ``create``.
        reset: Call `Remaker.look`: the cursor wants a new consumer.
        fail: End the reader with an error, raised after its buffered messages.
        emit: Report an event to the user.
    """

    is_open: Callable[[], bool]
    let_go: Callable[[], Awaitable[None]]
    create: Callable[[ConsumerConfig, float], Awaitable[ConsumerInfo]]
    discard: Callable[[], Awaitable[None]]
    use: Callable[[ConsumerInfo], None]
    reset: Callable[[], None]
    fail: Callable[[JetStreamError], Awaitable[None]]
    emit: Callable[[Event], None]


class Remaker:
    """Creates a new consumer whenever the cursor of an ordered reader wants one.

    It checks whether the stream was replaced, deletes the old consumer in the background, pauses between failed
    attempts, and fails when the stream stays missing.

    Attributes:
        room: To be set when there is capacity again.
        trouble: Why the last attempt failed; None: it succeeded.
        left: Consumers of ours that may still exist; they are deleted with the next reset.
    """

    def __init__(
        self,
        context: Context,
        tracker: Ordered,
        config: ConsumerConfig,
        reader: Reader,
        *,
        max_attempts: int | None = None,
    ) -> None:
        self._context = context
        self._tracker = tracker
        self._config = config  # of the first consumer
        self._reader = reader
        self._max_attempts = max_attempts
        self.room: Signal = Signal()
        self.trouble: JetStreamError | None = None
        self.left: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._making = False
        self._over = False
        self._reported: set[type[JetStreamError]] = set()  # of the current trouble
        self._deleted = ""  # the last consumer whose deletion was requested
        self._incarnation = ""  # the creation time of the stream; "": unknown
        self._doubting: asyncio.Task[None] | None = None
        self._made_at, self._made_after = float("-inf"), 0  # monotonic seconds, stream sequence
        self._rest = 0.0  # seconds

    def look(self) -> None:
        """Recreate the consumer, in the background, if the cursor wants that."""
        if (
            self._tracker.cursor.wants is not None
            and self._task is None
            and self._reader.is_open()
            and not self._over
        ):
            self._task = self._context.tasks.start(
                self._run(), f"reset of the ordered reader of {self._tracker.stream}"
            )

    def remember_stream(self, found: Callable[[StreamInfo], None] | None = None) -> None:
        """Record the creation time of the stream, in the background, to detect a later replacement.

        ``found`` is called with its state, unless that cannot be read.
        """
        self._context.tasks.start(self._remember_stream(found), "creation time of the stream")

    def stop(self) -> None:
        """Stop creating consumers. One that is being created is deleted again."""
        self._over = True
        self.room.set()
        if self._doubting is not None:
            self._doubting.cancel()
        if self._task is not None and not self._making and self._task is not asyncio.current_task():
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait for the end of a running attempt, after `stop`."""
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._try_until_made()
        finally:
            self._task = None
        self.look()

    async def _try_until_made(self) -> None:
        pause, failures = _FIRST_PAUSE, 0
        missing_since: float | None = None
        cursor, now = self._tracker.cursor, self._context.connection.now
        while cursor.wants is not None and await self._may_make():
            self._making = True
            try:
                await self._make_new(cursor.wants, create_timeout(failures, self._context.timeout))
            except ClosedError:
                self._over = True
            except DisconnectedError:
                missing_since = None
            except JetStreamError as error:
                failures += 1
                missing = isinstance(error, StreamNotFoundError)
                missing_since = (missing_since or now()) if missing else None
                gone = missing_since is not None and now() - missing_since >= _GONE_AFTER
                self._failed(error)
                if gone or (self._max_attempts is not None and failures >= self._max_attempts):
                    await self._reader.fail(error)
                    return
                self._making = False
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause, failures, missing_since = _FIRST_PAUSE, 0, None
                self.trouble = None
                self._reported.clear()
            finally:
                self._making = False

    async def _may_make(self) -> bool:
        """Wait until a consumer can be created. False: the reader no longer wants one."""
        while not self._tracker.may_recreate and self._wanted:
            await self.room.wait()
        if self._wanted:
            await self._rest_between()
            try:
                await self._context.connection.wait_connected(None)
            except ClosedError:
                self._over = True
        return self._wanted

    @property
    def _wanted(self) -> bool:
        return self._reader.is_open() and not self._over

    async def _rest_between(self) -> None:
        """Pause after a consumer that was lost at once, without a message: the next ones may be lost as fast."""
        last = self._tracker.cursor.last_stream_seq
        if last != self._made_after or self._context.connection.now() - self._made_at > _SHORT_LIVED:
            self._rest = 0.0
            return
        await asyncio.sleep(self._rest)
        self._rest = min(max(self._rest * 2, _FIRST_PAUSE), _LONGEST_PAUSE)

    def _failed(self, error: JetStreamError) -> None:
        self.trouble = error
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

    async def _make_new(self, why: Recreate, timeout: float) -> None:
        context, tracker, cursor = self._context, self._tracker, self._tracker.cursor
        await self._reader.let_go()
        if tracker.consumer != self._deleted:
            self._deleted = tracker.consumer
            self.left.add(tracker.consumer)
        if not why.planned:
            self._delete_left()
        doubtful = cursor.wants is not None and cursor.wants.doubtful
        resume = cursor.resume_stream_seq
        info = await self._create(restart_config(self._config, resume), timeout)
        try:
            began_again = await self._began_again(info, doubtful=doubtful)
        except BaseException:
            await self._reader.discard()
            raise
        if began_again or not self._wanted:
            await self._reader.discard()
            await self._delete(info.name)
            return
        # Reported before the messages of the new consumer.
        self._reader.emit(
            ConsumerReset(
                stream=tracker.stream,
                consumer=info.name,
                reason=why.reason,
                resume_stream_seq=resume,
                planned=why.planned,
            )
        )
        self._made_at, self._made_after = context.connection.now(), cursor.last_stream_seq
        self._reader.use(info)
        self._delete_left()

    def _delete_left(self) -> asyncio.Task[None] | None:
        if not self.left:
            return None
        left = [*self.left]
        self.left.clear()
        return self._context.tasks.start(self._delete(*left), "delete the old ordered consumer")

    async def _create(self, config: ConsumerConfig, timeout: float) -> ConsumerInfo:
        """Create the next consumer: while the old one exists, if that was not lost and no limit forbids it."""
        try:
            return await self._reader.create(config, timeout)
        except ApiError:
            if (deleting := self._delete_left()) is None:
                raise
            await asyncio.wait({deleting})
        return await self._reader.create(config, timeout)

    async def _began_again(self, info: ConsumerInfo, *, doubtful: bool) -> bool:
        """Whether the stream was replaced by another one of the same name, which must be read from its start.

        Checked after the consumer was created: before that, the answer could describe the old stream. It is in doubt
        after silence and reconnects, and when the new consumer starts before our position; the latter may also be a
        lagging replica, whose earlier messages the cursor skips.
        """
        cursor = self._tracker.cursor
        if not doubtful and cursor.is_in_place(info.delivered.stream_seq):
            return False
        stream = await self._stream_info()
        if stream is None:
            return False
        doubt = RestartDoubt(cursor.last_stream_seq)
        verdict = self._judge(doubt, stream)
        if verdict == "ask again" and self._doubting is None:
            asking = self._ask_again(doubt)
            self._doubting = self._context.tasks.start(asking, f"the end of stream {self._tracker.stream}")
        if verdict != "read from the start":
            return False
        self._begin_again(stream)
        return True

    def _judge(self, doubt: RestartDoubt, stream: StreamInfo) -> Restart:
        connection = self._context.connection
        replicas = stream.config.num_replicas or 1
        end = ReportedEnd(str(stream.created), stream.state.last_seq, replicas, connection.connects)
        position = self._tracker.cursor.last_stream_seq
        return doubt.check(position, end, connection.now(), incarnation=self._incarnation)

    async def _ask_again(self, doubt: RestartDoubt) -> None:
        """Request the end of the stream until it is certain, while the new consumer is read."""
        try:
            while self._wanted:
                await asyncio.sleep(_RECHECK)
                stream = await self._stream_info()
                if stream is None:
                    doubt.interrupted()
                    continue
                if self._task is not None:
                    await asyncio.wait({self._task})  # the cursor must not change while it creates a consumer
                    continue
                verdict = self._judge(doubt, stream)
                if verdict == "read from the start" and self._wanted:
                    self._begin_again(stream)
                    self._reader.reset()
                if verdict != "ask again":
                    return
        finally:
            self._doubting = None

    def _begin_again(self, stream: StreamInfo) -> None:
        tracker = self._tracker
        self._incarnation = str(stream.created)
        self._reader.emit(
            tracker.cursor.stream_began_again(tracker.stream, tracker.consumer, stream.state.last_seq)
        )

    async def _stream_info(self) -> StreamInfo | None:
        api = self._context.api
        try:
            return from_wire(StreamInfo, await self._context.call(api.stream_info(self._tracker.stream)))
        except JetStreamError:
            return None  # no permission, or a temporary error: the check is optional

    async def _remember_stream(self, found: Callable[[StreamInfo], None] | None) -> None:
        info = await self._stream_info()
        if info is not None and found is not None:
            found(info)
        if info is not None and not self._incarnation:
            self._incarnation = str(info.created)

    async def _delete(self, *consumers: str) -> None:
        stream = self._tracker.stream
        for consumer in consumers:
            try:
                await self._context.call(self._context.api.consumer_delete(stream, consumer))
            except (ConsumerNotFoundError, StreamNotFoundError):
                pass
            except (DisconnectedError, RequestTimeoutError, ClosedError):
                self.left.add(consumer)
            except ApiError as error:
                self._reader.emit(ErrorRaised(stream=stream, consumer=consumer, error=error))
