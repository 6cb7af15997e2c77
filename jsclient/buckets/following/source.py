"""The consumer that watches of a connection with equal filters share, and the window that keeps its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from typing import Any, Final, NamedTuple

from ..._runtime.context import Context
from ..._runtime.event_hub import EventLog
from ...consumers.ordered.puller import OrderedPuller
from ...consumers.ordered.shared import SharedMessages
from ...errors import ClosedError, JetStreamError
from ...protocol.buckets.window import Follower, Window, WindowMessage
from ...protocol.consumers.ack import sequences
from ...protocol.events import Event, StreamReset
from ...protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ...protocol.wire.frames import Frame
from ..reading import BucketReader, numbers_of, open_puller

__all__ = ["Alone", "SharedSource", "SourceMember"]

_RUN: Final = 500  # maximum number of messages that a follower takes at once


class Alone(NamedTuple):
    """Messages that are not shared, because there is one member."""

    frames: list[Frame]


class SourceMember:
    """The state of a watch in its `SharedSource`.

    Attributes:
        follower: The position of the watch in the window.
        events: The log of the watch's events.
        follows: Whether the watch currently reads from the window.
        is_closed: Whether the watch was closed.
    """

    __slots__ = ("events", "follower", "follows", "is_closed")

    def __init__(self) -> None:
        self.follower: Follower = Follower()
        self.events: EventLog = EventLog()
        self.follows: bool = False
        self.is_closed: bool = False


class _MemberLogs(EventLog):
    """Passes the events of the shared consumer to the members that follow it."""

    def __init__(self, source: SharedSource) -> None:
        self._source = source

    def add_event(self, event: Event) -> None:
        if isinstance(event, StreamReset):
            self._source.begin_era(event)
        for member in self._source.members:
            if member.follows:
                member.events.add_event(event)

    def close(self) -> None:
        for member in self._source.members:
            if member.follows:
                member.events.close()

    def read_events(self) -> AsyncIterator[Event]:
        raise NotImplementedError  # never called, because each member reads its own events


class SharedSource:
    """Follows a bucket for all members, from the time when the first needs it until the last member leaves.

    Attributes:
        members: The open watches.
        window: The messages that the members read, or None before a consumer exists.
        reset: The latest event that reported that the stream was replaced or restored, or None.
    """

    def __init__(self, context: Context, key: Hashable, stream: str, config: ConsumerConfig) -> None:
        self._context, self._key, self._stream = context, key, stream
        self._config = config
        self._opening = asyncio.Lock()
        self._puller: OrderedPuller | None = None
        self._messages: SharedMessages | None = None
        self._error: JetStreamError | None = None
        self.members: set[SourceMember] = set()
        self.window: Window | None = None
        self.reset: StreamReset | None = None

    @classmethod
    def source_for(
        cls, context: Context, stream: str, config: ConsumerConfig, member: SourceMember
    ) -> SharedSource:
        """Return the source of the members with equal filters, and make this watch a member."""
        key = (SharedSource, context.api.prefix, stream, *sorted(config.filters), bool(config.headers_only))
        source: SharedSource | None = context.shared.get(key)
        if source is None or source.is_over:
            source = context.shared[key] = cls(context, key, stream, config)
        source.members.add(member)
        return source

    @property
    def is_over(self) -> bool:
        """True if no more messages will arrive, because the bucket was deleted or the connection was closed."""
        return self._error is not None or (self._puller is not None and self._puller.nothing_comes)

    @property
    def incarnation(self) -> str:
        """The creation time of the stream that the window belongs to, or "" if it is unknown."""
        return "" if self._puller is None else self._puller.recreator.incarnation

    @property
    def era(self) -> int:
        """How often it was found that the stream had been replaced or restored, since there is a window."""
        return 0 if self.window is None else self.window.era

    # --- the consumer ------------------------------------------------------------------------------------

    async def open_source(self, create: str) -> Window:
        """Create the consumer unless it exists. Raises `BucketNotFoundError`, or any error common to API requests.

        ``create`` is the name of the method that creates such a bucket.
        """
        async with self._opening:
            if self.window is None:
                config = self._config.replace(deliver_policy=DeliverPolicy.NEW, opt_start_seq=None)
                puller = await open_puller(self._context, self._stream, config, create)
                self._use(puller, puller.tracker.position)
                if not self.members:
                    await self._end_consumer()
                    raise ClosedError("the watch is closed")
            assert self.window is not None
            return self.window

    def adopt(self, member: SourceMember, reader: BucketReader[Any]) -> bool:
        """Take over the consumer of a member that has read everything that arrived.

        Return False if that is impossible.
        """
        puller = reader.puller
        if self.window is not None or puller is None or self._opening.locked():
            return False
        # Unread messages may be from before the stream was recreated. In the window, they couldn't be told apart from
        # the messages of the new stream.
        if reader.has_unread:
            return False
        reader.give_up_consumer()
        position = puller.tracker.position
        member.follows = self._use(puller, position).join_after(member.follower, position)
        return True

    def _use(self, puller: OrderedPuller, position: int) -> Window:
        cursor = puller.tracker.cursor
        if not cursor.resume_stream_seq:
            # No entry existed when the consumer was created. If it is replaced, the new consumer must deliver every
            # message stored since then, not only the newest of each key.
            cursor.first_stream_seq = 1
        self._puller, self._messages = puller, SharedMessages(puller)
        puller.log = _MemberLogs(self)
        self.window = Window(position)
        return self.window

    async def settled(self) -> None:
        """Wait until a consumer that is being created exists, and the creation time of its stream is known."""
        async with self._opening:
            pass
        await self.incarnation_known()

    async def incarnation_known(self) -> str:
        """Wait until the creation time of the stream is known or cannot be found out. Return `incarnation`."""
        return "" if self._puller is None else await self._puller.recreator.incarnation_known()

    def begin_era(self, reset: StreamReset) -> None:
        """Record that the stream was recreated. Messages that have already arrived belong to the earlier stream."""
        self.reset = reset
        assert self._puller is not None
        assert self.window is not None
        if frames := self._puller.take_frames(len(self._puller.front)):
            self.window.add_frames(frames, zip(*numbers_of(frames), strict=True))
        self.window.begin_era()

    # --- the members -------------------------------------------------------------------------------------

    def floor(self, incarnation: str) -> int | None:
        """Return the sequence after which a member of this incarnation can join, or None if it can't."""
        if self.window is None or self.is_over or not incarnation or incarnation != self.incarnation:
            return None
        return self.window.floor

    def place(self, member: SourceMember) -> int:
        """Return the sequence up to which a member has read the current stream."""
        assert self.window is not None
        return member.follower.position if member.follower.era == self.window.era else 0

    def join_window(self, member: SourceMember, position: int, incarnation: str) -> bool:
        """Let a member read from the window after a position. Return False if messages would be missing."""
        if self.window is None or self.floor(incarnation) is None:
            return False
        member.follows = self.window.join_after(member.follower, position)
        return member.follows

    async def next_run(self, member: SourceMember) -> list[WindowMessage] | Alone | None:
        """Wait for the next messages, or return None if this member has fallen behind.

        May raise any error of `OrderedConsumer.next`. If the call is cancelled, no message is lost.
        """
        window, messages, follower = self.window, self._messages, member.follower
        assert window is not None
        assert messages is not None
        while True:
            if member.is_closed:
                raise ClosedError("the watch is closed")
            shared = window.take(follower, _RUN)
            if shared is None or shared:
                return shared
            if frames := self._take_run(messages):
                revisions = sequences(frames[0][1])[0], sequences(frames[-1][1])[0]
                # If no other member needs the messages, return them directly instead of adding them to the window.
                if window.pass_by(follower, revisions, len(frames)):
                    return Alone(frames)
                window.add_frames(frames, zip(*numbers_of(frames), strict=True))
            else:
                await messages.wait_change()

    def _take_run(self, messages: SharedMessages) -> list[Frame]:
        if self._error is not None:
            raise self._error
        try:
            return messages.take_run(_RUN)
        except JetStreamError as error:
            self._error = error
            raise

    def wake_members(self) -> None:
        """Wake up waiting members, so that they notice that they were closed."""
        if self._puller is not None:
            self._puller.changed.set()

    async def leave(self, member: SourceMember) -> None:
        """Remove a member. The last member deletes the consumer."""
        self.members.discard(member)
        if self.window is not None:
            self.window.remove_follower(member.follower)
        if not self.members:
            if self._context.shared.get(self._key) is self:
                del self._context.shared[self._key]
            await self._end_consumer()

    async def _end_consumer(self) -> None:
        if self._puller is not None:
            await self._puller.stop_reading()
