"""Reads the entries of a bucket for a watch, from a consumer that all watches with equal filters share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ...errors import (
    AnswerLostError,
    ClosedError,
    ConsumerLimitError,
    DisconnectedError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from ...protocol.buckets.window import WindowMessage
from ...protocol.consumers.ack_numbers import AckNumbers
from ...protocol.events import Event
from ...protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..bucket_handle import no_bucket
from ..reading import BucketReader, decoded
from .source import Alone, SharedSource, SourceMember

if TYPE_CHECKING:
    from ..log_entries import LogEntries

__all__ = ["SharedReader"]

EntryT = TypeVar("EntryT")

_UNREADABLE: Final = (
    AnswerLostError,
    DisconnectedError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
"""Errors of direct gets after which a consumer may still be able to read."""


class SharedReader(Generic[EntryT]):
    """Reads the existing entries of a watch, and then shares the delivery of each change with other watches.

    The first watch reads the existing entries with a consumer, which then serves the watches that are opened later.
    Later watches read the existing entries by direct gets if possible. If not, they use a separate consumer until
    they have read them. A watch that is too slow for the others reads by direct gets until it has caught up.

    Attributes:
        is_current: Whether all entries that existed at the opening were returned.
    """

    def __init__(self, reader: BucketReader[EntryT]) -> None:
        """Prepare to read the same entries as ``reader``, which must not have been opened."""
        query = reader.query
        self._context, self._stream, self._config = query.context, query.stream, query.config
        self._decode, self._create = query.decode, query.create
        self._member = SourceMember()
        self._source: SharedSource | None = None
        # Until this reader joins the shared source, one of these two reads for it alone.
        self._own: BucketReader[EntryT] | None = None
        self._log: LogEntries | None = None
        self._era = 0  # the era of the window when `_own` or `_log` was opened
        self._turn = asyncio.Lock()  # only one task may read until the reader has joined the shared source
        self.is_current: bool = False

    # --- opening -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin to read. Raises `BucketNotFoundError`, or any error common to API requests."""
        source = SharedSource.source_for(self._context, self._stream, self._config, self._member)
        self._source, is_first = source, len(source.members) == 1
        try:
            if is_first or not await self._open_late(source):
                await self._open_own(self._config)
        except BaseException:
            was_closed = self._member.is_closed
            await self.close()
            if not was_closed:  # allow the reader to be opened again
                self._member, self._own, self._log, self._source = SourceMember(), None, None, None
            raise
        opened = self._own or self._log
        assert opened is not None
        self.is_current = opened.is_current
        self._join_now(source)

    async def _open_own(self, config: ConsumerConfig) -> BucketReader[EntryT]:
        """Read with a separate consumer of this watch. If the call fails or is cancelled, nothing changes."""
        era = self._current_era
        own = BucketReader(
            self._context, self._stream, config, self._decode, self._create, events=self._member.events
        )
        await own.open()
        self._own, self._era = own, era
        if self._member.is_closed:
            await own.close()
        self._check_open()
        return own

    async def _open_late(self, source: SharedSource) -> bool:
        """Read existing entries by direct gets, because other watches have a consumer.

        Return False if that is impossible.
        """
        try:
            window = await source.open_source(self._create)
        except ConsumerLimitError:
            return False
        # Registering makes the window keep all messages from now on. This reader joins the window after it has read the
        # earlier messages.
        window.register(self._member.follower)
        if len(self._config.filters) != 1 or self._config.headers_only:
            return False  # direct gets would return messages or values that are not needed
        log = self._new_log()
        try:
            if not await log.begin_entries(without_consumer=True):
                return False
        except _UNREADABLE:
            return False  # `open` then creates a consumer, which waits for the connection
        except StreamNotFoundError as error:
            raise no_bucket(error, self._create) from None
        self._log, self._era = log, window.era
        return True

    def _new_log(self) -> LogEntries:
        # Import the topic readers lazily, because a bucket with one watch seldom needs them.
        from ..log_entries import LogEntries

        return LogEntries(self._context, self._stream, self._config, self._member.events, push=None)

    def entry_events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the open reader."""
        return self._member.events.read_events()

    # --- reading -----------------------------------------------------------------------------------------

    async def next_run(self) -> list[EntryT]:
        """Wait for entries. See `BucketReader.next_run`."""
        member, source = self._member, self._source
        assert source is not None
        try:
            while not member.follows:
                async with self._turn:
                    self._check_open()
                    if not member.follows and not await self._join(source):
                        return await self._next_alone(source)
            run = await source.next_run(member)
        except StreamNotFoundError as error:
            raise no_bucket(error, self._create) from None
        if run is None:
            member.follows = False  # messages that this watch hasn't read have left the window
            return []
        if isinstance(run, Alone):
            return decoded(self._decode, run.frames, is_initial=False)
        return self._changes(run)

    def _changes(self, run: list[WindowMessage]) -> list[EntryT]:
        numbers = AckNumbers(
            [one.revision for one in run], [one.time_ns for one in run], [one.pending for one in run]
        )
        return self._decode([one.frame for one in run], numbers, is_initial=False)

    async def _next_alone(self, source: SharedSource) -> list[EntryT]:
        """Read entries without the shared window."""
        if self._own is not None:
            entries = await self._own.next_run()
            self.is_current = self._own.is_current
            self._join_now(source)
            return entries
        log = self._log
        assert log is not None
        is_initial = not log.is_current
        up_to = None if is_initial else source.floor(log.incarnation)
        if up_to is None and not is_initial:
            log.follow_pushes()  # no other watch can be joined, so this reader needs the pushes itself
        try:
            frames = await log.next_frames(up_to, gives_up=True)
        except _UNREADABLE:
            await self._read_on(log, is_initial=is_initial)
            return []
        self.is_current = log.is_current
        entries = decoded(self._decode, frames, is_initial=is_initial)
        self._join_now(source)
        return entries

    # --- joining the others ------------------------------------------------------------------------------

    @property
    def _current_era(self) -> int:
        """The era of the window to which the position of this reader belongs."""
        alone = self._own or self._log
        if alone is not None:
            return self._era + alone.restarts
        return 0 if self._source is None else self._source.era

    async def _join(self, source: SharedSource) -> bool:
        """Join the others if no entry would be missed. Return whether the reader has joined."""
        if self._current_era < source.era:
            self._begin_again(source)
        if self._own is None and self._log is None:
            await self._fall_behind(source)
        elif self.is_current:
            puller = None if self._own is None else self._own.puller
            await source.settled()
            if puller is not None:
                await puller.recreator.incarnation_known()
            return self._join_now(source)
        return False

    def _join_now(self, source: SharedSource) -> bool:
        """Join the others, if that is possible without waiting."""
        own, log, member = self._own, self._log, self._member
        if not self.is_current or member.is_closed or self._current_era < source.era:
            return False
        if own is not None:
            if source.adopt(member, own):
                self._own = None
            elif (place := own.place) is not None and source.join_window(member, *place):
                self._own = None
                # Delete the separate consumer in the background. Ignore its events from now on, because the watch no
                # longer uses it.
                own.silence()
                self._end_later(own.close())
        elif log is not None and source.join_window(member, log.position, log.incarnation):
            self._log = None
            self._end_later(log.end_entries())
        return member.follows

    def _begin_again(self, source: SharedSource) -> None:
        """Read the stream from its start as changes, because another reader detected that it was replaced or restored.

        This reader may not detect it, because the stream may have grown past its position again.
        """
        own, log = self._own, self._log
        if own is not None:
            own.silence()
            self._end_later(own.close())
        if log is not None:
            self._end_later(log.end_entries())
        self._own = self._log = None
        if source.reset is not None:
            self._member.events.add_event(source.reset)
        self.is_current = True

    async def _fall_behind(self, source: SharedSource) -> None:
        """Read messages that have left the window, by direct gets or with a consumer."""
        incarnation = await source.incarnation_known()
        # Don't await anything between reading the incarnation and the position. Otherwise, the stream could be
        # recreated in between, and the position wouldn't belong to the incarnation.
        position = source.place(self._member)
        if incarnation:
            self._log, self._era = self._new_log(), source.era
            self._log.continue_after(incarnation, position)
            return
        await self._open_after(position)

    async def _read_on(self, log: LogEntries, *, is_initial: bool) -> None:
        """Read with a consumer from now on, because direct gets fail. If its creation fails too, both are repeated."""
        with suppress(DisconnectedError, NoRespondersError, RequestTimeoutError):
            await self._open_after(log.position, is_initial=is_initial)
            self._log = None
            self._end_later(log.end_entries())

    async def _open_after(self, position: int, *, is_initial: bool = False) -> None:
        """Read the messages after a position with a consumer. Unless ``is_initial`` is True, they are changes."""
        config = self._config.replace(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=position + 1
        )
        own = await self._open_own(config)
        if not is_initial:
            own.skip_initial()
        self.is_current = own.is_current

    def _end_later(self, end: Coroutine[Any, Any, None]) -> None:
        self._context.tasks.start(end, "end of the reader of a watch")

    def _check_open(self) -> None:
        if self._member.is_closed:
            raise ClosedError("the watch is closed")

    async def close(self) -> None:
        """Leave the others, and release the resources on the server."""
        member, source = self._member, self._source
        member.is_closed, member.follows = True, False
        member.events.close()
        # Each part ends in its own task, which continues even if this call is cancelled.
        parts = [
            part for part in (self._own and self._own.close(), self._log and self._log.end_entries()) if part
        ]
        if source is not None:
            source.wake_members()
            parts.append(source.leave(member))
        tasks = [self._context.tasks.start(part, "end of a watch") for part in parts]
        if tasks:
            await asyncio.wait(tasks)
