"""The producer of an iteration whose members are records of a log.

Each record is appended if the one before it is still the last of its subject: members lie in the order of the calls,
nothing follows the end, and of two producers one is refused. A record whose append was not answered is known again by
its message id, so it is appended once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from ..._runtime.retry import Tries
from ...errors import (
    ClosedError,
    ConfigError,
    JetStreamError,
    ProducerFencedError,
    RequestTimeoutError,
    TooManyInFlightError,
    WrongLastSequenceError,
)
from ...protocol.events import PublishFailed
from ...protocol.topics.record import Kind, Record
from ...protocol.topics.value_codec import Codec
from ...protocol.wire.header_names import MSG_ID
from ..log import Log
from .entries import encode_entry

__all__ = ["LogProducer"]

_MISMATCHES: Final = 3  # times that another one was the last, and was not when looked for
_LAST_WORDS: Final = 2.0  # seconds that the end of the connection waits for what is under way


class _Failure(NamedTuple):
    """What could not be stored, and why."""

    error: JetStreamError
    members: list[_Member]


class _Member:
    """A member of the iteration on its way to the log. Awaited it gives its number, or raises why it has none."""

    __slots__ = ("awaited", "data", "failure", "future", "id", "kind", "producer", "since")

    def __init__(self, producer: LogProducer, kind: Kind, data: bytes, id: str) -> None:
        loop = asyncio.get_running_loop()
        self.producer = producer
        self.kind = kind
        self.data = data
        self.id = id
        self.since = loop.time()
        self.future: asyncio.Future[int] = loop.create_future()
        self.awaited = False
        self.failure: _Failure | None = None

    def __await__(self) -> Generator[Any, None, int]:
        self.awaited = True
        self.producer.is_awaited(self)
        try:
            return (yield from asyncio.shield(self.future).__await__())
        except asyncio.CancelledError:
            self.awaited = False
            self.producer.is_abandoned(self)
            raise


class LogProducer:
    """Appends the members of an iteration to a log, one after the other, without anybody waiting for it.

    Args:
        log: Of one subject.
        last: Its last record, None if there is none.
        codec: How values travel.
        timeout: Seconds after which a member that could not be stored has failed; a restart of the server passes.
        max_pending, max_pending_bytes: Members that may wait to be stored.
    """

    def __init__(
        self,
        log: Log,
        last: Record | None,
        codec: Codec,
        *,
        timeout: float = 60.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        if not timeout > 0:
            raise ConfigError(f"timeout is {timeout!r:.40} s: it must be over 0")
        if max_pending < 1 or max_pending_bytes < 1:
            raise ConfigError("max_pending and max_pending_bytes must be 1 or more")
        self._log = log
        self._codec = codec
        self._timeout = timeout
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._name = f"jsc-{secrets.token_hex(8)}"
        self._count = 0
        self._last = 0 if last is None else last.seq
        self._in_doubt = False  # whether that is the last one still, or what was last sent
        self._is_over = self._ended = last is not None and last.is_last
        self._waiting: deque[_Member] = deque()
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._untold: _Failure | None = None
        self._closed = False

    def publish(self, kind: Kind, value: Any) -> _Member:
        """Start to append a member. Raises as `Producer` says, and what the ones before it failed with, once."""
        if self._untold is not None:
            failure, self._untold = self._untold, None
            raise failure.error
        if self._ended:
            raise ClosedError("the iteration has ended: nothing can follow")
        if self._closed:
            raise ClosedError("the connection is closed")
        data = encode_entry(kind, value, self._codec)
        if self._waiting and (
            len(self._waiting) >= self._max_pending or self._bytes + len(data) > self._max_pending_bytes
        ):
            raise TooManyInFlightError(f"{len(self._waiting)} values wait to be stored: await some of them")
        self._count += 1
        member = _Member(self, kind, data, f"{self._name}:{self._count}")
        self._waiting.append(member)
        self._bytes += len(data)
        self._ended = kind is not Kind.VALUE
        if self._sending is None:
            self._log.open.add(self)
            self._sending = self._log.tasks.start(self._send(), f"producer of {self._log.subject}")
        return member

    def is_awaited(self, member: _Member) -> None:
        """Somebody awaits it, and is told what it failed with: the next call need not be."""
        if self._untold is not None and self._untold is member.failure:
            self._untold = None

    def is_abandoned(self, member: _Member) -> None:
        """Nobody awaits it any more."""
        if member.failure is not None:
            self._tell(member.failure)

    async def abandon(self) -> None:
        """The connection is being closed: what is under way is stored, if that goes soon."""
        self._closed = True
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=_LAST_WORDS)
        self._fail(ClosedError("closed before the value was stored"))

    # --- storing ---------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        try:
            while self._waiting:
                member = self._waiting[0]
                seq = await self._store(member)
                if self._waiting and self._waiting[0] is member:
                    self._waiting.popleft()
                    self._bytes -= len(member.data)
                    member.future.set_result(seq)
        except JetStreamError as error:
            self._fail(error)
        finally:
            self._sending = None
            self._log.open.discard(self)

    async def _store(self, member: _Member) -> int:
        """Append it, and go on trying while the server is away."""
        deadline = member.since + self._timeout
        tries, mismatches = Tries(), 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._log.wait_ready()
                    if self._in_doubt and (seq := await self._look(member)):
                        return seq
                    position = await self._log.append(
                        member.data, kind=member.kind, expected=self._last, msg_id=member.id
                    )
                    self._last = position.seq
                    return position.seq
            except WrongLastSequenceError as error:
                self._in_doubt = True
                mismatches += 1
                if mismatches >= _MISMATCHES:
                    raise ProducerFencedError(self._log.subject, self._last) from error
            except JetStreamError as error:
                self._in_doubt = True
                if not await tries.again(error):
                    raise
            except TimeoutError as error:
                self._in_doubt = True
                raise _unknown(self._log.subject, self._timeout) from error

    async def _look(self, member: _Member) -> int:
        """Which record is the last one now. If it is the member itself: its sequence.

        Raises:
            ClosedError: It is an end. ProducerFencedError: It is somebody else's.
        """
        record = await self._log.last()
        expected, self._last = self._last, 0 if record is None else record.seq
        self._in_doubt = False
        if record is None or record.seq == expected:
            return 0  # none: what was there was removed
        sent = record.headers.get(MSG_ID, "")
        if sent == member.id:
            return record.seq
        if record.is_last:
            self._is_over = True
            raise ClosedError("the iteration has ended: nothing can follow")
        if not sent.startswith(f"{self._name}:"):
            self._last, self._in_doubt = expected, True
            raise ProducerFencedError(self._log.subject, expected, record.seq)
        return 0  # it was given up, and was stored nevertheless

    def _fail(self, error: JetStreamError) -> None:
        """What waits has failed: it, and what was to follow it."""
        members = [*self._waiting]
        self._waiting.clear()
        self._bytes = 0
        if not members:
            return
        self._ended = self._is_over  # by none of these
        failure = _Failure(error, members)
        for member in members:
            member.failure = failure
            if not member.future.done():
                member.future.set_exception(error)
                member.future.exception()  # it is told below
        self._tell(failure)

    def _tell(self, failure: _Failure) -> None:
        """Tell it here if nobody is told by awaiting."""
        error, members = failure
        if any(member.awaited for member in members):
            return
        self._untold = failure
        log = self._log
        log.emit(PublishFailed(stream=log.stream, subject=log.subject, error=error, count=len(members)))


def _unknown(subject: str, timeout: float) -> RequestTimeoutError:
    return RequestTimeoutError(f"a value of {subject!r}: whether it was stored is unknown", timeout)
