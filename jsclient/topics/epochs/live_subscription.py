"""A subscriber of a live topic, which connects to the publisher of each partition and detects lost messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..._runtime.connection.connection import Inbox, Lifecycle
from ..._runtime.context import Context
from ..._runtime.handle import State
from ..._runtime.tasks import Signal
from ...errors import (
    ClosedError,
    EpochsLostError,
    JetStreamError,
    ProtocolError,
    RequestTimeoutError,
    TopicMismatchError,
    TopicNotFoundError,
)
from ...protocol.consumers.monitors import HeartbeatMonitor
from ...protocol.epochs.frontier import Order
from ...protocol.epochs.live import LiveMessage, LiveRequest, Verb, beat_monitor, live_subject, read_live
from ...protocol.epochs.records import Message, order_name
from ...protocol.epochs.trackers import Epoch
from ...protocol.topics.value_codec import Codec, codec_name
from ...protocol.wire.frames import Frame
from ...protocol.wire.headers import inline_status
from .events import EpochEvents, Filter
from .history import Wait

__all__ = ["LiveSubscription"]

T = TypeVar("T", bound=Hashable)

_MAX_PENDING: Final = 100_000  # maximum number of messages that haven't been read
_PAUSE: Final = 0.1  # seconds between two attempts to connect


@dataclass(slots=True)
class _Channel:
    """The connection to one publisher."""

    silence: HeartbeatMonitor
    token: str = ""  # the inbox token of this attempt to connect, which identifies late answers
    number: int = 0  # number of the last message, 0 if not connected
    requested_at: float = 0.0


class LiveSubscription(EpochEvents[T]):
    """Reads epochs from live publishers, which store nothing. Opened by `EpochTopic.live_subscribe`.

    Read whole epochs with `completed`, or iterate over the subscription to get individual `Data` and `FrontierUpdate`
    events. With the default ``filter``, "atomic", an epoch is skipped if some of its data was sent before the
    subscription connected. Iteration ends when all partitions have ended.

    If a message is lost or a publisher is replaced, the next read raises `EpochsLostError` once. The remaining data of
    the epochs named in the error won't arrive, so discard what you have received of these epochs. Further reads wait
    until all partitions are connected again.
    """

    def __init__(
        self,
        context: Context,
        topic: str,
        order: Order[T],
        partitions: tuple[int, ...],
        codec: Codec,
        *,
        filter: Filter,
        beat: float,
    ) -> None:
        super().__init__(topic, order, partitions, codec, filter)
        self._context, self._connection, self._beat = context, context.connection, beat
        self._prefix = f"{self._connection.new_inbox()}."
        self._channels = {partition: _Channel(beat_monitor(beat, 0.0)) for partition in partitions}
        self._by_token: dict[str, int] = {}
        self._tries = self._skipped = 0
        self._queue: deque[tuple[int, Message[T]]] = deque()
        self._missing: set[int] = set()  # partitions without a publisher
        self._may_fail = False  # true while opening waits for publishers only because of ``wait=True``
        self._arrived = Signal()
        self._inbox: Inbox | None = None
        self._tending: asyncio.Task[None] | None = None

    async def begin_reading(self, *, wait: bool) -> None:
        """Connect, and wait until all partitions have a publisher. For internal use by `EpochTopic.live_subscribe`.

        Raises:
            TopicNotFoundError: Some partitions have no publisher, and ``wait`` is false.
            TopicMismatchError: A publisher uses a different order or codec.

        May also raise any error that subscribing can raise.
        """
        self._context.attach(self, self._notice_loss)
        self._may_fail = wait
        try:
            self._inbox = await self._connection.subscribe(f"{self._prefix}*", self._receive_messages)
            self._tending = self._context.tasks.start(self._tend(), "live subscription")
            # The subscription is ready when each partition has sent its snapshot.
            while not self._core.is_ready:
                if self._error is not None:
                    raise self._error
                if self._missing and not wait:
                    raise TopicNotFoundError(self._topic, sorted(self._missing))
                await self._more(None, 0.0)
            self._may_fail = False
        except BaseException:
            await self.close()
            raise

    @property
    def skipped(self) -> int:
        """The number of invalid messages skipped since the opening.

        The event `ErrorRaised` reports the 1st, 2nd, 4th, 8th message and so on.
        """
        return self._skipped

    async def _more(self, deadline: float | None, timeout: float) -> None:
        if self._queue:
            partition, message = self._queue.popleft()
            try:
                self._events.extend(self._core.receive_message(partition, message))
            except EpochsLostError as error:
                self._lost(error.reason)
            except ProtocolError as error:
                self._report_invalid(error)
        elif not await self._arrived.wait_until(deadline) and not self._queue:
            raise RequestTimeoutError("the next event of a topic", timeout, self._connection.problem)

    async def _read_again(self, epoch: Epoch[T], owners: dict[int, str]) -> AsyncIterator[Any]:
        raise EpochsLostError(
            (epoch.time,), "it was too large to be kept here, and a live topic keeps nothing"
        )
        yield

    def _lost(self, reason: str) -> None:
        """Discard the events and connect to all publishers again, because messages are missing."""
        if self._error is not None or self.is_closed:
            return
        was_ready, error = self._core.is_ready, self._core.messages_lost(reason)
        self._queue.clear()
        self._events.clear()
        if was_ready:
            self._error = error
        for partition in self._channels:
            self._leave(partition)
        self._arrived.set()

    def _receive_messages(self, frames: list[Frame]) -> None:
        for subject, _, block, payload in frames:
            partition = self._by_token.get(subject.decode(errors="replace")[len(self._prefix) :])
            if partition is None:
                continue  # this message answers an earlier attempt to connect
            if inline_status(block):
                self._missing.add(partition)
                if self._channels[partition].number:
                    self._lost("its publisher is gone")
                continue
            try:
                self._handle_message(partition, read_live(block, payload, self._order))
            except ProtocolError as error:
                self._report_invalid(error)
        self._arrived.set()

    def _report_invalid(self, error: ProtocolError) -> None:
        """Report the first invalid message, then each time the count has doubled.

        Messages that are missing as a result are noticed by a gap in the message numbers.
        """
        self._skipped += 1
        if self._skipped & (self._skipped - 1) == 0:
            self._context.report(error)

    def _handle_message(self, partition: int, live: LiveMessage[T]) -> None:
        channel = self._channels[partition]
        channel.silence.heard(asyncio.get_running_loop().time())
        self._missing.discard(partition)
        # A gap in the numbers means that a message was lost. Heartbeats contain the last number too, so even the loss
        # of the last message is noticed.
        if live.what == "mismatch":
            own_types = f"order {order_name(self._order)}, codec {codec_name(self._codec)}"
            self._error = TopicMismatchError(self._topic, [("types", own_types, live.text)])
        elif live.what == "unknown":
            self._lost("its publisher no longer knows this subscriber")
        elif live.what == "there":
            if live.number != channel.number:
                self._lost(f"message {channel.number + 1} of partition {partition} did not come")
        elif live.number != channel.number + 1:
            self._lost(f"message {live.number} of partition {partition} came after {channel.number}")
        elif len(self._queue) >= _MAX_PENDING:
            self._lost(f"{_MAX_PENDING} messages were not read")
        else:
            channel.number = live.number
            assert live.message is not None
            self._queue.append((partition, live.message))

    async def _tend(self) -> None:
        """Connect to the publishers, send heartbeats, and detect silent publishers."""
        wait = Wait(self._context.emit, self._topic)
        before: set[int] = set()  # partitions that were missing at the last check
        while not self.is_closed:
            now = asyncio.get_running_loop().time()
            absent = [partition for partition, channel in self._channels.items() if not channel.number]
            if not before.issuperset(absent):
                wait = Wait(self._context.emit, self._topic)
            before = set(absent)
            if absent:
                wait.report_wait(self._reason, absent, may_fail=self._may_fail)
            for partition, channel in self._channels.items():
                if not channel.number:
                    if now >= channel.requested_at + (_PAUSE if partition in self._missing else self._beat):
                        self._connect(partition, now)
                elif channel.silence.check_silence(now) is not None:
                    self._lost(f"the publisher of partition {partition} is silent")
                elif now >= channel.requested_at + self._beat:
                    channel.requested_at = now
                    self._send_verb(partition, "alive")
            await asyncio.sleep(min(_PAUSE, self._beat))

    @property
    def _reason(self) -> str:
        """Why some partitions are not connected."""
        if isinstance(self._error, TopicMismatchError):
            return "a live publisher uses another order or codec"
        return "no live publisher answers" if self._connection.is_connected else str(self._connection.away())

    def _connect(self, partition: int, now: float) -> None:
        self._leave(partition)
        self._tries += 1
        token = f"{self._tries}"
        self._channels[partition] = _Channel(beat_monitor(self._beat, now), token, 0, now)
        self._by_token[token] = partition
        self._send_verb(partition, "connect")

    def _leave(self, partition: int) -> None:
        channel = self._channels[partition]
        if channel.token:
            self._send_verb(partition, "leave")
            self._by_token.pop(channel.token, None)
            self._channels[partition] = _Channel(channel.silence)

    def _send_verb(self, partition: int, verb: Verb) -> None:
        request = LiveRequest(1, verb, order_name(self._order), codec_name(self._codec))
        reply = f"{self._prefix}{self._channels[partition].token}"
        try:
            self._connection.send(live_subject(self._topic, partition), request.to_json(), reply=reply)
        except JetStreamError:
            pass  # the request is sent again after the reconnect

    def _notice_loss(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._error = self._error or ClosedError("the connection was closed")
            self._arrived.set()
        elif what is Lifecycle.DISCONNECTED:
            self._lost("the connection was lost")

    async def close(self) -> None:
        if self.is_closed:
            return
        for partition in self._channels:
            self._leave(partition)
        self._state = State.CLOSED
        self._context.detach(self, self._notice_loss)
        self._arrived.set()
        if self._tending is not None:
            self._tending.cancel()
        if self._inbox is not None:
            await self._connection.unsubscribe(self._inbox)

    async def abandon(self) -> None:
        """Close the subscription because its connection is being closed. For internal use."""
        await self.close()
