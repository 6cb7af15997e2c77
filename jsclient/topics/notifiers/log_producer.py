"""The producer of an iteration whose members are stored as records of a log."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from ..._runtime.retry import Retry
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
from ...protocol.publishing.in_flight import ATTEMPT
from ...protocol.topics.record import Kind
from ...protocol.topics.record_codec import KIT_IDS, kit_id
from ...protocol.topics.value_codec import Codec
from ...protocol.wire.checks import check_count
from ..log import Log
from .log_iteration import Newest, newest_own, passable_reason

__all__ = ["LogProducer"]

# If the server refuses this many appends in a row with the same expected sequence, assume that another producer has
# taken over.
_MISMATCHES: Final = 3

_LAST_WORDS: Final = 2.0  # seconds that closing the connection waits for members in flight


class _AppendFailure(NamedTuple):
    """Members that could not be stored, and the error."""

    error: JetStreamError
    members: list[_PendingMember]


@dataclass(slots=True, eq=False)
class _PendingMember:
    """A member that waits to be stored. Awaiting it returns its number, or raises the error of its append.

    Attributes:
        deadline: The time at which its append fails, or 0 before it is sent.
        outcome: Its number, or the error of its append. None while the outcome is unknown.
    """

    producer: LogProducer
    kind: Kind
    data: bytes
    id: str
    deadline: float = 0.0
    outcome: int | JetStreamError | None = None
    awaited: bool = False
    failure: _AppendFailure | None = None
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def __await__(self) -> Generator[Any, None, int]:
        self.awaited = True
        self.producer.note_awaited(self)
        try:
            yield from self.done().__await__()
        except asyncio.CancelledError:
            self.awaited = False
            self.producer.is_abandoned(self)
            raise
        if isinstance(self.outcome, JetStreamError):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    async def done(self) -> None:
        """Wait until the outcome is known. Each call has a separate future, since a cancellation ends the future."""
        if self.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter.cancelled():
                    self.waiters.remove(waiter)

    def settle(self, outcome: int | JetStreamError) -> None:
        if self.outcome is None:
            self.outcome = outcome
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)


class LogProducer:
    """Appends the members of an iteration to a log, one after the other, in the background.

    Args:
        log: A log of one subject.
        last: The newest record of the log.
        codec: Encodes the values.
        timeout: How long to try to store a member before it fails, in seconds, including restarts of servers. The time
            starts when all earlier members have been stored or have failed.
        max_pending, max_pending_bytes: The number and size of the members that may wait to be stored.
    """

    def __init__(
        self,
        log: Log,
        last: Newest,
        codec: Codec,
        *,
        timeout: float = 60.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        if not timeout > 0:
            raise ConfigError(f"timeout is {timeout!r:.40}: seconds > 0 are needed")
        self._log = log
        self._codec = codec
        self._timeout = timeout
        self._max_pending = check_count("max_pending", max_pending)
        self._max_pending_bytes = check_count("max_pending_bytes", max_pending_bytes)
        self._name = f"{KIT_IDS}{secrets.token_hex(8)}"
        self._count = 0
        self._last = last.last_seq
        # True while it is uncertain whether `_last` is the last record, or whether the last member was stored.
        self._unconfirmed = False
        self._is_over = self._ended = last.record is not None and last.record.is_last
        self._waiting: deque[_PendingMember] = deque()
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_sending = False  # True while the first member is in flight or the task runs
        self._unreported: _AppendFailure | None = None
        self._closed = False

    def _over(self) -> ClosedError:
        return ClosedError(
            f"the iteration on {self._log.subject!r} has ended: no value can follow; create a kit on another subject"
        )

    def publish(self, kind: Kind, value: Any) -> _PendingMember:
        """Start to append a member.

        May raise any error of `Producer`. If earlier members have failed and no call awaited them, their error is
        raised once.
        """
        if self._unreported is not None:
            failure, self._unreported = self._unreported, None
            raise failure.error
        if self._ended:
            raise self._over()
        if self._closed:
            raise ClosedError("the connection is closed: no value can be stored")
        asyncio.get_running_loop()  # in a thread without an event loop, fail before anything is recorded
        data = self._codec.encode(passable_reason(value) if kind is Kind.FAIL else value)
        if self._waiting and (
            len(self._waiting) >= self._max_pending or self._bytes + len(data) > self._max_pending_bytes
        ):
            raise TooManyInFlightError(f"{len(self._waiting)} values wait to be stored: await some of them")
        self._count += 1
        member = _PendingMember(self, kind, data, f"{self._name}:{self._count}")
        self._waiting.append(member)
        self._bytes += len(data)
        self._ended = kind is not Kind.VALUE
        if not self._is_sending:
            self._log.open.add(self)
            self._send_first()
        return member

    def note_awaited(self, member: _PendingMember) -> None:
        """Record that a member is awaited. Awaiting it raises its error, so the next call of `publish` doesn't."""
        if self._unreported is not None and self._unreported is member.failure:
            self._unreported = None

    def is_abandoned(self, member: _PendingMember) -> None:
        """Record that the wait for a member was cancelled."""
        if member.failure is not None:
            self._report(member.failure)

    async def abandon(self) -> None:
        """Wait briefly for members in flight, because the connection is being closed."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                while self._waiting:
                    await self._waiting[-1].done()
        self._fail_members(ClosedError("closed before the value was stored"))

    def _send_first(self) -> None:
        """Send the first waiting member immediately if the log can do that, otherwise in a task."""
        member, now = self._waiting[0], asyncio.get_running_loop().time()
        member.deadline, self._is_sending = now + self._timeout, True
        if (
            self._unconfirmed
            or member.kind is not Kind.VALUE
            or not self._log.append_now(
                member.data,
                expected=self._last,
                msg_id=member.id,
                timeout=min(self._timeout, ATTEMPT),
                stored=partial(self._answered, member),
            )
        ):
            self._start_task()

    def _start_task(self) -> None:
        self._sending = self._log.tasks.start(self._send_members(), f"producer of {self._log.subject}")

    def _answered(self, member: _PendingMember, answer: int | JetStreamError) -> None:
        """Handle the answer to a member that was sent immediately.

        After an error, a task checks whether the member was stored.
        """
        if not self._waiting or self._waiting[0] is not member:
            return  # the member has failed in the meantime, because the connection is being closed
        if isinstance(answer, JetStreamError):
            self._unconfirmed = True
            self._start_task()
            return
        self._last = answer
        self._settle_first(answer)
        if self._waiting:
            self._send_first()
        else:
            self._is_sending = False
            self._log.open.discard(self)

    def _settle_first(self, seq: int) -> None:
        member = self._waiting.popleft()
        self._bytes -= len(member.data)
        member.settle(seq)

    async def _send_members(self) -> None:
        try:
            while self._waiting:
                member = self._waiting[0]
                seq = await self._store(member)
                if self._waiting and self._waiting[0] is member:
                    self._settle_first(seq)
        except JetStreamError as error:
            self._fail_members(error)
        except BaseException:  # for example a cancellation, after which the next `publish` continues
            self._unconfirmed = True
            raise
        finally:
            self._sending, self._is_sending = None, False
            self._log.open.discard(self)

    async def _store(self, member: _PendingMember) -> int:
        """Append a member, and retry while the server is unavailable.

        The timeout starts when the member is first sent. The time that earlier members take does not count.
        """
        deadline = member.deadline or asyncio.get_running_loop().time() + self._timeout
        tries, mismatches, refused = Retry(), 0, -1
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._log.wait_ready()
                    # Look for the member first, because an earlier attempt that failed or got no reply may still have
                    # stored it.
                    if self._unconfirmed and (seq := await self._look(member)):
                        return seq
                    position = await self._log.append(
                        member.data, kind=member.kind, expected=self._last, msg_id=member.id
                    )
                    self._last = position.seq
                    return position.seq
            except WrongLastSequenceError as error:
                self._unconfirmed = True
                mismatches, refused = mismatches + 1 if self._last == refused else 1, self._last
                if mismatches >= _MISMATCHES:
                    raise ProducerFencedError(self._log.subject, self._last) from error
            except JetStreamError as error:
                self._unconfirmed = True
                if not await tries.again(error):
                    raise
            except TimeoutError as error:
                self._unconfirmed = True
                text = f"a value of {self._log.subject!r}: whether it was stored is unknown"
                raise RequestTimeoutError(text, self._timeout, self._log.problem) from error

    async def _look(self, member: _PendingMember) -> int:
        """Read the newest record to find out whether the member was stored. Return its sequence, or 0 if it wasn't.

        Raises:
            ClosedError: The newest record ends the iteration.
            ProducerFencedError: Another producer has written the newest record.
        """
        newest = await newest_own(self._log)
        record, expected, self._last = newest.record, self._last, newest.last_seq
        self._unconfirmed = False
        if record is None or record.seq <= expected:
            # Either the records were removed, or all records stored since are messages of other clients. In both cases,
            # the member isn't stored.
            return 0
        sent = kit_id(record.headers)
        if sent == member.id:
            return record.seq
        if record.is_last:
            self._is_over = True
            raise self._over()
        if not sent.startswith(f"{self._name}:"):
            self._last, self._unconfirmed = expected, True
            raise ProducerFencedError(self._log.subject, expected, record.seq)
        return 0  # the newest record is an earlier member, which was stored although its append failed

    def _fail_members(self, error: JetStreamError) -> None:
        members = [*self._waiting]
        self._waiting.clear()
        self._bytes = 0
        if not members:
            return
        self._ended = self._is_over  # none of the failed members has ended the log
        failure = _AppendFailure(error, members)
        for member in members:
            member.failure = failure
            member.settle(error)
        self._report(failure)

    def _report(self, failure: _AppendFailure) -> None:
        """Report a failure unless one of its members is awaited."""
        error, members = failure
        if any(member.awaited for member in members):
            return
        self._unreported = failure
        log = self._log
        log.emit(PublishFailed(stream=log.stream, subject=log.subject, error=error, count=len(members)))
