"""Performs the I/O for a `PublishWindow`, which keeps track of the messages in flight."""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import Callable
from typing import Generic

from .._runtime.connection.connection import Connection, Inbox, Lifecycle
from .._runtime.context import Context
from .._runtime.tasks import Signal, Timer
from ..errors import ClosedError, DisconnectedError, JetStreamError, PermissionDeniedError
from ..protocol.publishing.in_flight import InFlight, TicketT, unknown
from ..protocol.publishing.publish_window import NEVER, Failures, PublishWindow, Sends
from ..protocol.wire.frames import Frame
from .admission import Admission, Limits

__all__ = ["AckWindow", "FailureSink"]

_GRACE = 2.0  # how long to wait for acknowledgements when the connection is closed, in seconds
_SMALL = 1024  # messages up to this size in bytes aren't checked, because every server accepts them
_EARLY = 0.001  # event loop timers may fire up to this many seconds early
# How many iterations of the event loop to wait before closing. In this time, tasks woken by an acknowledgement, and the
# tasks that they start, can retrieve failures that would otherwise be reported.
_TURNS = 3


class FailureSink(abc.ABC, Generic[TicketT]):
    """The interface of an object to which an `AckWindow` reports failed messages."""

    @abc.abstractmethod
    def add_failure(self, entry: InFlight[TicketT], error: JetStreamError, now: float) -> None: ...

    @property
    def next_check(self) -> float:
        """Time at which `report_overdue` must be called."""
        return NEVER

    def report_overdue(self, now: float) -> None:
        pass

    def close(self) -> None:
        pass


class AckWindow(Generic[TicketT]):
    """Receives the acknowledgements of published messages, and handles timeouts and reconnects.

    All messages share one inbox and one timer.
    """

    def __init__(
        self,
        context: Context,
        failures: FailureSink[TicketT],
        limits: Limits,
        *,
        window: PublishWindow[TicketT] | None = None,
        after_event: Callable[[], None] | None = None,
    ) -> None:
        """Create the window.

        ``after_event`` is called after each acknowledgement, timeout or reconnect, and at the end.
        """
        self.window: PublishWindow[TicketT] = window or PublishWindow(secrets.token_hex(11), context.answered)
        self.admission: Admission = Admission(context, self.window, limits)
        self.connection: Connection = context.connection
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        # Set when messages are no longer in flight, or when callers are no longer waiting.
        self.changed: Signal = Signal()
        self.prefix: bytes = b""  # prefix of the reply subjects, which is followed by a number
        self.small: int = 0  # size in bytes above which the size of a message must be checked
        self.number = 0  # number of the last message
        self.unsent: int = 0  # number of messages that got a number but could not be sent
        self.failed: int = 0
        self.is_ended: bool = False
        self._context, self._failures, self._after_event = context, failures, after_event
        self._timer = Timer(self._check_window)
        self._inbox: Inbox | None = None
        self._opening: asyncio.Task[None] | None = None
        self._denials: dict[str, PermissionDeniedError] = {}
        self._attached = False

    def check_open(self) -> None:
        if self.admission.closed:
            raise ClosedError("the publisher is closed")
        self.connection.check_open()

    async def enter(self, subject: str, size: int, timeout: float, room_timeout: float | None = None) -> None:
        """Wait until a message may be sent. The caller must then send it before awaiting anything else."""
        self.check_open()
        self._begin_window()
        try:
            await self.admission.enter(subject, size, timeout, self._timer, room_timeout)
        finally:
            self.changed.set()

    def enter_now(self, subject: str, size: int) -> None:
        """Like `enter`, but raise an error instead of waiting."""
        self.check_open()
        self._begin_window()
        self.admission.enter_now(subject, size)

    def _begin_window(self) -> None:
        """Subscribe to the acknowledgements, before the first message and whenever the inbox was lost."""
        if not self._attached:
            self._attached = True
            self.small = min(_SMALL, self.connection.max_payload)
            self._context.attach(self, self._recover_publishes, self._on_denied)
        if self._inbox is None and self._opening is None:
            prefix = f"{self.connection.new_inbox()}."
            if self.connection.outbox is not None:
                self._opened(prefix, self.connection.subscribe_now(f"{prefix}*", self._receive_acks))
            else:
                self._opening = self._context.tasks.start(self._open_inbox(prefix), "publisher: inbox")

    def _opened(self, prefix: str, inbox: Inbox) -> None:
        self._inbox, self.prefix = inbox, prefix.encode()
        self.adapt()

    async def _open_inbox(self, prefix: str) -> None:
        connection = self.connection
        try:
            inbox = await connection.subscribe(f"{prefix}*", self._receive_acks)
            if self.admission.closed:
                await connection.unsubscribe(inbox)
            else:
                self._opened(prefix, inbox)
        except JetStreamError as error:
            reason = error
            self.admission.gate.refuse(lambda _: reason)
        finally:
            self._opening = None
            self.adapt()

    def _on_denied(self, error: PermissionDeniedError) -> None:
        if error.operation == "publish":
            if not self._denials:
                # The server sends an error for each message. Collect the errors, so that the window is searched only
                # once.
                self.loop.call_soon(self._deny)
            self._denials[error.subject] = error
        elif self._inbox is not None and self._inbox.subject == error.subject:
            # Forget the inbox, so that the next message subscribes again. Permissions may have changed by then.
            refused, self._inbox = self._inbox, None
            self._context.tasks.start(self.connection.unsubscribe(refused), "publisher: refused inbox")
            self.fail_publishes(self.window.fail_publishes(lambda _: error))

    def _deny(self) -> None:
        denials, self._denials = self._denials, {}

        def why(entry: InFlight[TicketT]) -> JetStreamError | None:
            denied = denials.get(entry.to)
            if denied is None or entry.waits:
                return None
            return unknown(entry) if entry.unconfirmed else denied

        self.fail_publishes(self.window.fail_publishes(why))

    def _receive_acks(self, frames: list[Frame]) -> None:
        if failures := self.window.answers(frames, self.loop.time()):
            self.fail_publishes(failures)
        if self.admission.gate.busy:
            self.admission.gate.admit()
        self.changed.set()
        if self.window.next_check < NEVER and not self.is_ended:
            self._timer.set(self.window.next_check)
        if self._after_event is not None:
            self._after_event()

    def fail_publishes(self, failures: Failures[TicketT]) -> None:
        """Count failures and report them."""
        now = self.loop.time()
        for entry, error in failures:
            self.failed += 1
            self._failures.add_failure(entry, error, now)
        self.adapt()

    def next_check(self, moment: float) -> None:
        """Make sure that the timer fires no later than ``moment``, when a message expires or must be sent again."""
        self.window.next_check = min(self.window.next_check, moment)
        self._timer.set(self.window.next_check)

    def adapt(self) -> None:
        """Update the admission and the timer after something has changed."""
        admission = self.admission
        admission.ready = (
            self.connection.is_connected
            and self._inbox is not None
            and not admission.closed
            and not self.window.is_broken
        )
        admission.recheck()
        self.changed.set()
        waiters = admission.gate.next_check(connected=admission.ready)
        moment = min(self.window.next_check, waiters, self._failures.next_check)
        if moment < NEVER and not self.is_ended:
            self._timer.set(moment)

    def _recover_publishes(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            self.small = min(_SMALL, self.connection.max_payload)
            self.send_again(self.window.connected(self.loop.time()))
        elif what is Lifecycle.DISCONNECTED:
            self.admission.ready = self.admission.clear = False
            self.fail_publishes(self.window.disconnected())
        else:
            self._stop("the connection was closed")
        self.adapt()
        if self._after_event is not None:
            self._after_event()

    def _check_window(self) -> None:
        if self.is_ended:
            return
        now = self.loop.time() + _EARLY
        if now >= self.window.next_check:
            failures, sends = self.window.check_publishes(now)
            self.send_again(sends)
            self.fail_publishes(failures)
        self.admission.expire(now)
        if now >= self._failures.next_check:
            self._failures.report_overdue(now)
        self.adapt()
        if self._after_event is not None:
            self._after_event()

    def send_again(self, sends: Sends[TicketT]) -> None:
        for reply, entry in sends:
            try:
                self.connection.send(entry.to, entry.payload, reply=reply.decode(), header=entry.header)
            except (DisconnectedError, ClosedError):
                self.window.not_sent(entry)
            except JetStreamError as error:  # the client has reconnected to a server with a lower size limit
                self.window.remove(reply)
                self.fail_publishes([(entry, unknown(entry) if entry.unconfirmed else error)])

    async def send_slowly(self) -> None:
        """Send the message that was added last over a nats-py connection, which may make the caller wait."""
        reply, entry = next(reversed(self.window.in_flight.items()))
        self._timer.set(self.window.next_check)
        try:
            await self.connection.publish(entry.to, entry.payload, reply=reply.decode(), header=entry.header)
        except JetStreamError:
            self.window.unsent(reply)
            self.unsent += 1
            self.adapt()
            raise

    async def abandon(self) -> None:
        """Close the window because the connection is closing. Wait up to `_GRACE` seconds for acknowledgements."""
        self.admission.close("the publisher was closed")
        try:
            if self.connection.is_connected:
                async with asyncio.timeout(_GRACE):
                    await self.settled()
        except TimeoutError:
            pass
        finally:
            await self.end_window()

    async def settled(self) -> None:
        """Wait until all messages sent so far have been acknowledged or have failed."""
        number = self.number
        while self.window.has_older(number):
            await self.changed.wait()
        await _turns()

    async def idle(self) -> None:
        """Wait until no message is in flight and no caller is waiting.

        A task that awaits the future of a message may then publish another message, so check again after such tasks
        have run.
        """
        while True:
            while self.window.count or self.admission.gate.busy:
                await self.changed.wait()
            await _turns()
            if not self.window.count and not self.admission.gate.busy:
                return

    def _stop(self, why: str) -> None:
        """Admit no more messages. The messages in flight fail with `ClosedError`."""
        self.admission.close(why)

        def closed(entry: InFlight[TicketT]) -> JetStreamError:
            text = f"{why} while publishing to {entry.to!r}"
            return ClosedError(f"{text}: whether it was stored is unknown")

        self.fail_publishes(self.window.fail_publishes(closed))

    async def end_window(self) -> None:
        """Close the window and unsubscribe from the acknowledgements. Messages in flight fail with `ClosedError`."""
        if self.is_ended:
            return
        self.is_ended = True
        self._stop("the publisher was closed")
        self._timer.cancel()
        self._context.detach(self, self._recover_publishes, self._on_denied)
        try:
            if self._inbox is not None:
                await self.connection.unsubscribe(self._inbox)
            await _turns()
        finally:
            self._inbox = None
            self._failures.close()
            if self._after_event is not None:
                self._after_event()


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
