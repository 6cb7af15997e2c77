"""Pulling messages one request at a time: what stands behind ``fetch`` and ``next``. Source: ADR-37 §Fetch, ADR-13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from ..._runtime.context import Context
from ...errors import ClosedError, DisconnectedError, JetStreamError, RequestTimeoutError
from ...protocol.consumers.fetch import MARGIN, Pull, check_pull, default_heartbeat, not_answered
from ...protocol.consumers.priority import GroupRequest, group_request
from ...protocol.consumers.status import ORDINARY, Ending
from ...protocol.events import Event
from ...protocol.models.consumer import ConsumerConfig
from ...protocol.wire.frames import Frame, frame_size
from ...protocol.wire.version import check_server
from ..message import AckChannel, Message
from .requests import PullInboxes, Slot

__all__ = ["Batch", "Puller"]

_GRACE = 0.8  # seconds that a fetch waits for a lost connection to come back
_MOVES = 3  # times that a fetch asks again when the consumer moves
_MOVE_PAUSE = 0.1  # seconds before it does
_ASK_AGAIN = frozenset({Ending.FULL, Ending.DISCONNECTED})


class Batch(Sequence[Message]):
    """What a fetch brought, in the order of delivery.

    Attributes:
        ending: Why it ended.
        error: The error behind an ending that is not ordinary, else None. Where no message came at all,
            `PullSubscription.fetch` raises it instead.
    """

    __slots__ = ("_messages", "ending", "error")

    def __init__(self, messages: list[Message], ending: Ending, error: JetStreamError | None = None) -> None:
        self._messages = messages
        self.ending = ending
        self.error = error

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __repr__(self) -> str:
        error = "" if self.error is None else f", {self.error!r}"
        return f"<Batch of {len(self)}, {self.ending.value}{error}>"


class Puller(PullInboxes):
    """Fetches from one consumer."""

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        *,
        silent: bool,
        config: ConsumerConfig | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(context, stream, consumer, silent=silent, listener=listener)
        self.config = config
        self.channel = AckChannel(context.connection, context.requests, context.timeout, silent)

    def group(self, group: str | None, **options: int | None) -> GroupRequest | None:
        """What requests are to say of their priority group. Raises `ConfigError` where it cannot work."""
        request = group_request(self.config, group, **options)
        if request is not None and self.config is None:
            # A server that does not know groups would overlook them.
            least = (2, 11) if request.priority is None else (2, 12)
            check_server(self.context.connection.server_version, least, "a priority group")
        return request

    async def next(self, timeout: float, group: GroupRequest | None = None) -> Message:
        """One message. Raises `RequestTimeoutError` when none comes in ``timeout`` seconds; else as `fetch`."""
        batch = await self.fetch(1, expires=timeout, group=group)
        if not batch:
            raise RequestTimeoutError("no message", timeout)
        return batch[0]

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: GroupRequest | None = None,
    ) -> Batch:
        """See `PullSubscription.fetch`."""
        if idle_heartbeat is None and not no_wait and isinstance(expires, int | float):
            idle_heartbeat = default_heartbeat(expires)
        check_pull(batch, expires, max_bytes, None if no_wait else idle_heartbeat)
        self.check_open()
        pull = Pull(batch, expires, max_bytes, no_wait, idle_heartbeat, group)
        fetch = _Fetch(self, pull, expires)
        try:
            ending, error = await fetch.run()
        except BaseException:
            self.leftover.extendleft(reversed(fetch.frames))
            self.changed.set()
            raise
        finally:
            fetch.release()
        if error is not None and not fetch.frames:
            raise error
        return Batch([Message(frame, self.channel) for frame in fetch.frames], ending, error)


class _Fetch:
    """One call of `Puller.fetch`: what it has, what it waits for."""

    def __init__(self, puller: Puller, pull: Pull, expires: float) -> None:
        self.frames: list[Frame] = []
        self._puller = puller
        self._pull = pull  # all that is wanted
        self._batch = pull.batch
        self._max_bytes = pull.max_bytes
        self._expires = expires
        self._deadline = puller.context.connection.now() + expires
        self._size = 0
        self._slots: list[Slot] = []
        self._own: Slot | None = None  # the request that this fetch sent last
        self._offline_since: float | None = None
        self._ask_after = 0.0  # monotonic seconds
        self._moves = 0

    async def run(self) -> tuple[Ending, JetStreamError | None]:
        puller, connection = self._puller, self._puller.context.connection
        if not self._pull.no_wait and self._max_bytes is None:
            self._slots = puller.adopt(self._batch, self._pull.group)
        while True:
            if not self._collect():
                return Ending.MAX_BYTES, None
            if len(self.frames) >= self._batch:
                return Ending.FULL, None
            if (outcome := self._outcome()) is not None:
                return outcome
            now = connection.now()
            if connection.is_connected:
                self._offline_since = None
                owed = sum(
                    slot.request.owed for slot in self._slots if slot.request and not slot.request.ended
                )
                missing = self._batch - len(self.frames) - owed
                if missing > 0 and self._ask_after <= now < self._deadline:
                    await self._ask(missing, now)
                    continue
            else:
                self._offline_since = self._offline_since or now
                if now >= min(self._offline_since + _GRACE, self._deadline):
                    return Ending.DISCONNECTED, DisconnectedError("not connected to a server")
            if not await puller.changed.wait_until(self._wake_at()):
                self._tick(connection.now())
                if connection.now() >= self._deadline + MARGIN:
                    if self._pull.no_wait:
                        return Ending.SILENT, not_answered(self._expires)
                    return Ending.EXPIRED, None

    def _collect(self) -> bool:
        """Take what arrived. False: the next message would pass ``max_bytes``."""
        puller = self._puller
        for source in (puller.leftover, *(slot.frames for slot in self._slots if slot.frames is not None)):
            if self._max_bytes is None and len(self.frames) + len(source) <= self._batch:
                self.frames.extend(source)
                source.clear()
                continue
            while source and len(self.frames) < self._batch:
                size = frame_size(source[0])
                if self._max_bytes is not None and self._size + size > self._max_bytes:
                    return False
                self._size += size
                self.frames.append(source.popleft())
        return True

    def _outcome(self) -> tuple[Ending, JetStreamError | None] | None:
        """How this fetch ends, if one of its requests has ended in a way that ends it."""
        puller = self._puller
        if puller.is_closed:
            return Ending.CLOSED, ClosedError("the subscription was closed while a fetch was under way")
        for slot in list(self._slots):
            request = slot.request
            if request is None or not request.ended:
                continue
            ending = request.ending
            assert ending is not None
            adopted = slot is not self._own
            moved = ending is Ending.MOVED and self._moves < _MOVES
            if moved:
                # Another leader, or a server that shuts down: the same request will be taken in a moment.
                self._moves += 1
                self._ask_after = puller.context.connection.now() + _MOVE_PAUSE
            if moved or ending in _ASK_AGAIN or request.is_unpinned or (adopted and ending in ORDINARY):
                # Lost with the connection or the pin, or only somebody else's time was over: ask again for the rest.
                self._slots.remove(slot)
                puller.give_up(slot)
                continue
            return ending, request.error
        return None

    async def _ask(self, missing: int, now: float) -> None:
        room = None if self._max_bytes is None else self._max_bytes - self._size
        group = self._pull.group
        if self._pull.no_wait:
            pull = Pull(missing, None, room, no_wait=True, group=group)
        else:
            left = self._deadline - now
            heartbeat = self._pull.idle_heartbeat
            if heartbeat is not None and heartbeat > left / 2:
                heartbeat = None
            pull = Pull(missing, max(left, 0.001), room, idle_heartbeat=heartbeat, group=group)
        try:
            self._own = await self._puller.request(pull)
        except DisconnectedError:
            return  # noticed by the loop
        self._slots.append(self._own)

    def _wake_at(self) -> float:
        deadlines = [slot.request.deadline for slot in self._slots if slot.request is not None]
        moments = [moment for moment in deadlines if moment is not None]
        if self._ask_after > self._puller.context.connection.now():
            moments.append(self._ask_after)
        if self._offline_since is not None:
            moments.append(min(self._offline_since + _GRACE, self._deadline))
        return min([*moments, self._deadline + MARGIN])

    def _tick(self, now: float) -> None:
        for slot in self._slots:
            if (
                slot.request is not None
                and (deadline := slot.request.deadline) is not None
                and now >= deadline
            ):
                slot.request.tick(now)

    def release(self) -> None:
        """This fetch is over; requests that live go on without a caller."""
        for slot in self._slots:
            self._puller.give_up(slot)
        self._slots = []
