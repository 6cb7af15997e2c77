"""Fetching: one call, one or more pull requests. Source: ADR-37 §Fetch, ADR-13."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import overload

from ...errors import ClosedError, DisconnectedError, JetStreamError
from ...protocol.consumers.fetch import MARGIN, Pull, check_pull, default_heartbeat, not_answered
from ...protocol.consumers.priority import GroupRequest
from ...protocol.consumers.status import ORDINARY, Ending
from ...protocol.wire.frames import Frame, frame_size
from ..message import AckChannel, Message
from .puller import Puller, Slot

__all__ = ["Batch", "Collection", "collection", "fetch"]

_GRACE = 0.8  # seconds that a fetch waits for a lost connection to return
_MOVES = 3  # requests that a fetch repeats because the consumer moves
_MOVE_PAUSE = 0.1  # seconds before each
_SAME_TIME = 0.01  # seconds after its start in which a fetch still requests its whole time
_ASK_AGAIN = frozenset({Ending.FULL, Ending.DISCONNECTED})


class Batch(Sequence[Message]):
    """The messages of a fetch, in the order of delivery.

    Attributes:
        ending: Why it ended.
        error: The error of an ending that is not ordinary, else None. If no message came at all,
            `PullSubscription.fetch` raises it instead.
    """

    __slots__ = ("_messages", "ending", "error")

    def __init__(self, messages: list[Message], ending: Ending, error: JetStreamError | None = None) -> None:
        self._messages = messages
        self.ending: Ending = ending
        self.error: JetStreamError | None = error

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


class Collection:
    """What one fetch has collected, and its requests for the rest. Common to plain and ordered consumers.

    Attributes:
        pull: The request for everything.
        frames: The messages collected.
        expires, deadline: Seconds for the whole fetch; monotonic seconds of its end.
    """

    def __init__(self, pull: Pull, expires: float, now: float) -> None:
        self.pull = pull
        self.frames: list[Frame] = []
        self.expires: float = expires
        self.deadline: float = now + expires
        self._size = 0  # bytes of the frames, if they are bounded

    def collect(self, source: deque[Frame]) -> bool:
        """Move messages from ``source``. False: the next one would exceed ``max_bytes``."""
        frames, pull = self.frames, self.pull
        if pull.max_bytes is None and len(frames) + len(source) <= pull.batch:
            frames.extend(source)
            source.clear()
            return True
        while source and len(frames) < pull.batch:
            size = frame_size(source[0])
            if pull.max_bytes is not None and self._size + size > pull.max_bytes:
                return False
            self._size += size
            frames.append(source.popleft())
        return True

    def request(self, missing: int, now: float) -> Pull:
        """A request for ``missing`` messages in the time that is left."""
        pull, left = self.pull, self.deadline - now
        if missing == pull.batch and (pull.no_wait or left > self.expires - _SAME_TIME):
            # Equal requests are encoded once. The fetch ends with this one, not a moment before its status is due.
            self.deadline = now + self.expires
            return pull
        room = None if pull.max_bytes is None else pull.max_bytes - self._size
        if pull.no_wait:
            return Pull(missing, None, room, no_wait=True, group=pull.group)
        heartbeat = pull.idle_heartbeat
        if heartbeat is not None and heartbeat > left / 2:
            heartbeat = None  # the server would refuse it
        return Pull(missing, max(left, 0.001), room, idle_heartbeat=heartbeat, group=pull.group)

    def batch(self, channel: AckChannel, ending: Ending, error: JetStreamError | None) -> Batch:
        """The result. Raises ``error`` if it has no messages to return with it."""
        if error is not None and not self.frames:
            raise error
        return Batch([Message(frame, channel) for frame in self.frames], ending, error)


def collection(
    now: float,
    batch: int,
    *,
    expires: float,
    max_bytes: int | None,
    no_wait: bool,
    idle_heartbeat: float | None,
    group: GroupRequest | None = None,
) -> Collection:
    """Check the arguments of a fetch. Raises `ConfigError` for a value that the server would refuse."""
    if no_wait:
        check_pull(batch, expires, max_bytes, None)
        return Collection(Pull(batch, None, max_bytes, no_wait=True, group=group), expires, now)
    check_pull(batch, expires, max_bytes, idle_heartbeat)
    if idle_heartbeat is None:
        idle_heartbeat = default_heartbeat(expires)
    pull = Pull(batch, expires, max_bytes, idle_heartbeat=idle_heartbeat, group=group)
    return Collection(pull, expires, now)


async def fetch(puller: Puller, wanted: Collection) -> Batch:
    """See `PullSubscription.fetch`."""
    one = _Fetch(puller, wanted)
    try:
        ending, error = await one.run()
    except BaseException:
        puller.leftover.extendleft(reversed(wanted.frames))
        puller.changed.set()
        raise
    finally:
        one.release()
    return wanted.batch(puller.channel, ending, error)


class _Fetch:
    """One call of `fetch`: collects messages, and sends requests until it has all it wants.

    It usually sends one request. It sends another when a request ends early for a reason that concerns only that
    request: the connection or the pin was lost, the consumer moved, or the request was adopted from a cancelled call
    and was smaller or shorter.
    """

    def __init__(self, puller: Puller, wanted: Collection) -> None:
        self._puller = puller
        self._wanted = wanted
        self._slots: list[Slot] = []
        self._own: Slot | None = None  # the request that this fetch sent last
        self._offline_since: float | None = None
        self._ask_after = 0.0  # monotonic seconds
        self._moves = 0

    async def run(self) -> tuple[Ending, JetStreamError | None]:
        puller, connection = self._puller, self._puller.context.connection
        wanted, pull = self._wanted, self._wanted.pull
        if not pull.no_wait and pull.max_bytes is None:
            self._slots = puller.adopt(pull.batch, pull.group)
        while True:
            if (full := self._collect()) is not None:
                return full, None
            if (outcome := self._outcome()) is not None:
                return outcome
            now = puller.now()
            if connection.is_connected:
                self._offline_since = None
                missing = self._missing()
                if missing > 0 and self._ask_after <= now < wanted.deadline:
                    await self._ask(wanted.request(missing, now))
                    continue  # messages may have arrived while the request was being sent
            else:
                self._offline_since = self._offline_since or now
                if now >= min(self._offline_since + _GRACE, wanted.deadline):
                    return Ending.DISCONNECTED, DisconnectedError("not connected to a server")
            if not await puller.changed.wait_until(self._wake_at(now)):
                self._tick(puller.now())
                if puller.now() >= wanted.deadline + MARGIN:
                    # Late by a margin: neither the messages nor the server's status that ends the request came.
                    if pull.no_wait:
                        return Ending.SILENT, not_answered(wanted.expires)
                    return Ending.EXPIRED, None

    def _collect(self) -> Ending | None:
        """Take what has arrived; older messages of cancelled calls first. Returns the ending if it is full."""
        wanted, leftover = self._wanted, self._puller.leftover
        if leftover and not wanted.collect(leftover):
            return Ending.MAX_BYTES
        for slot in self._slots:
            if slot.frames and not wanted.collect(slot.frames):
                return Ending.MAX_BYTES
        return Ending.FULL if len(wanted.frames) >= wanted.pull.batch else None

    def _missing(self) -> int:
        """Messages wanted that no request in flight owes."""
        missing = self._wanted.pull.batch - len(self._wanted.frames)
        for slot in self._slots:
            if slot.request is not None and slot.request.ending is None:
                missing -= slot.request.owed
        return missing

    def _outcome(self) -> tuple[Ending, JetStreamError | None] | None:
        """How this fetch ends, if the end of one of its requests ends it."""
        puller = self._puller
        if puller.closed or puller.context.connection.is_closed:
            return Ending.CLOSED, ClosedError("the subscription was closed while a fetch was in flight")
        for slot in list(self._slots):
            request = slot.request
            if request is None or request.ending is None:
                continue
            ending = request.ending
            adopted = slot is not self._own
            moved = ending is Ending.MOVED and self._moves < _MOVES
            if moved:
                # Another leader, or a server that shuts down: the same request will be accepted in a moment.
                self._moves += 1
                self._ask_after = puller.now() + _MOVE_PAUSE
            if moved or ending in _ASK_AGAIN or request.is_unpinned or (adopted and ending in ORDINARY):
                # The connection or the pin was lost, or only the time of another call has ended: request the rest.
                self._slots.remove(slot)
                puller.abandon(slot)
                continue
            return ending, request.error
        return None

    async def _ask(self, pull: Pull) -> None:
        try:
            self._own = await self._puller.request(pull)
        except DisconnectedError:
            return  # noticed by the loop
        self._slots.append(self._own)

    def _wake_at(self, now: float) -> float:
        at = self._wanted.deadline + MARGIN
        for slot in self._slots:
            if slot.request is not None and (deadline := slot.request.deadline) is not None and deadline < at:
                at = deadline
        if self._ask_after > now:
            at = min(at, self._ask_after)
        if self._offline_since is not None:
            at = min(at, self._offline_since + _GRACE, self._wanted.deadline)
        return at

    def _tick(self, now: float) -> None:
        for slot in self._slots:
            if (
                slot.request is not None
                and (deadline := slot.request.deadline) is not None
                and now >= deadline
            ):
                slot.request.tick(now)

    def release(self) -> None:
        """End. Requests that are still served continue without a caller."""
        for slot in self._slots:
            self._puller.abandon(slot)
        self._slots = []
