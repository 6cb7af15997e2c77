"""What drives a `PublishWindow`: the inbox of the answers, the futures, one timer for all of them, and the connection's
ups and downs."""

from __future__ import annotations

import asyncio

from .._runtime.context import Context
from .._runtime.nats.connection import Inbox, Lifecycle
from ..errors import ClosedError, DisconnectedError, JetStreamError, PermissionDeniedError
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import unknown
from ..protocol.publishing.publish_window import NEVER, Failures, Sends
from ..protocol.wire.frames import Frame
from .admission import Entry, Room
from .unretrieved import UnseenFailures

__all__ = ["Window"]

_KEPT = 1000  # failures that nobody looked at, kept to be raised, at least
_GRACE = 2.0  # seconds that closing the connection waits for what is under way
_SMALL = 1024  # bytes; only what is larger is compared with what the server takes
_EARLY = 0.001  # seconds
_TURNS = 3  # of the loop, in which whoever waited for a future does what it does next


class Window(Room):
    """Publishes under way on one connection."""

    __slots__ = (
        "_begun",
        "_denials",
        "_ended",
        "_failed",
        "_inbox",
        "_number",
        "_opening",
        "_prefix",
        "_refused_inbox",
        "_small",
        "_unseen",
        "_unsent",
    )

    def __init__(self, context: Context, max_in_flight: int, max_bytes: float, room_timeout: float) -> None:
        super().__init__(context, max_in_flight, max_bytes, room_timeout)
        self._unseen = UnseenFailures(context.emit, max(_KEPT, max_in_flight))
        self._inbox: Inbox | None = None
        self._refused_inbox: Inbox | None = None
        self._prefix = b""  # of reply subjects
        self._opening: asyncio.Task[None] | None = None
        self._small = 0  # bytes that the server takes for certain
        self._number = 0  # of the last publish sent
        self._unsent = 0  # of these, those that could not be sent after all
        self._failed = 0
        self._denials: dict[str, PermissionDeniedError] = {}
        self._begun = self._ended = False

    # --- the inbox -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Listen to the connection, and for answers, from the first publish on."""
        if not self._begun:
            self._begun = True
            self._small = min(_SMALL, self._connection.max_payload)
            self._connection.add_listener(self._lifecycle)
            self._connection.denied.append(self._on_denied)
            self._context.open.add(self)
        if self._inbox is None and self._opening is None:
            self._opening = self._context.tasks.start(self._open(), "publisher: inbox")

    async def _open(self) -> None:
        connection = self._connection
        try:
            if self._refused_inbox is not None:
                refused, self._refused_inbox = self._refused_inbox, None
                await connection.unsubscribe(refused)
            prefix = f"{connection.new_inbox()}."
            inbox = await connection.subscribe(f"{prefix}*", self._receive)
            if self._closed:
                await connection.unsubscribe(inbox)
            else:
                self._inbox, self._prefix = inbox, prefix.encode()
        except JetStreamError as error:
            reason = error
            self._gate.refuse(lambda _: reason)
        finally:
            self._opening = None
            self._after()

    def _on_denied(self, error: PermissionDeniedError) -> None:
        if error.operation == "publish":
            if not self._denials:
                self._loop.call_soon(self._deny)  # there is an error for each message; look through all once
            self._denials[error.subject] = error
        elif self._inbox is not None and self._inbox.subject == error.subject:
            # Rights may change: the next publish asks for a new inbox, and is refused by name.
            self._refused_inbox, self._inbox = self._inbox, None
            self._fail(self._window.fail(lambda _: error))

    def _deny(self) -> None:
        denials, self._denials = self._denials, {}

        def why(entry: Entry) -> JetStreamError | None:
            denied = denials.get(entry.to)
            if denied is None or entry.waits:
                return None
            return unknown(entry) if entry.in_doubt else denied

        self._fail(self._window.fail(why))

    # --- what happens --------------------------------------------------------------------------------------

    def _receive(self, frames: list[Frame]) -> None:
        if failures := self._window.answers(frames, self._loop.time()):
            self._fail(failures)
        if self._gate.busy:
            self._gate.admit()
        self._changed.set()
        if self._window.look_at < NEVER and not self._ended:
            self._timer.set(self._window.look_at)

    def _fail(self, failures: Failures[asyncio.Future[PubAck]]) -> None:
        now = self._loop.time()
        for entry, error in failures:
            self._failed += 1
            self._unseen.add(entry.to, entry.ticket, error, now)
        self._after()

    def _look_at(self, moment: float) -> None:
        """A publish is due at this moment, or earlier."""
        self._window.look_at = min(self._window.look_at, moment)
        self._timer.set(self._window.look_at)

    def _after(self) -> None:
        """Something changed."""
        self._ready = self._is_ready()
        self._recheck()
        self._changed.set()
        moment = min(self._window.look_at, self._gate.look_at(connected=self._ready), self._unseen.look_at)
        if moment < NEVER and not self._ended:
            self._timer.set(moment)

    def _is_ready(self) -> bool:
        return self._connection.is_connected and self._inbox is not None and not self._closed

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            self._small = min(_SMALL, self._connection.max_payload)
            self._send_again(self._window.connected(self._loop.time()))
        elif what is Lifecycle.DISCONNECTED:
            self._ready = self._clear = False
            self._fail(self._window.disconnected())
        else:
            self._stop("the connection was closed")
        self._after()

    def _tick(self) -> None:
        if self._ended:
            return
        # The event loop's timers may be early by as much as its clock cannot tell apart.
        now = self._loop.time() + _EARLY
        if now >= self._window.look_at:
            failures, sends = self._window.tick(now)
            self._send_again(sends)
            self._fail(failures)
        self._gate.refuse(lambda waiter: self._out_of_patience(waiter, now))
        if now >= self._unseen.look_at:
            self._unseen.tick(now)
        self._after()

    def _send_again(self, sends: Sends[asyncio.Future[PubAck]]) -> None:
        for reply, entry in sends:
            try:
                self._connection.send(entry.to, entry.payload, reply=reply.decode(), header=entry.header)
            except (DisconnectedError, ClosedError):
                self._window.not_sent(entry)
            except JetStreamError as error:  # another server, which takes less
                self._window.remove(reply)
                self._fail([(entry, unknown(entry) if entry.in_doubt else error)])

    async def _send_slowly(self, key: bytes, entry: Entry) -> asyncio.Future[PubAck]:
        """Over a connection that may keep the caller waiting. Its future."""
        self._window.add(key, entry)
        self._timer.set(self._window.look_at)
        try:
            await self._connection.publish(entry.to, entry.payload, reply=key.decode(), header=entry.header)
        except JetStreamError:
            self._window.remove(key)
            self._unsent += 1
            self._after()
            raise
        except asyncio.CancelledError:
            entry.ticket.cancel()
            raise
        return entry.ticket

    # --- the end -------------------------------------------------------------------------------------------

    async def abandon(self) -> None:
        """The connection is being closed: take nothing more, give what is under way a moment, and end."""
        self._refuse_more("the publisher was closed")
        try:
            if self._connection.is_connected:
                async with asyncio.timeout(_GRACE):
                    await self._settled()
        except TimeoutError:
            pass
        finally:
            await self._end()

    async def _settled(self) -> None:
        """Wait for the outcome of all that was sent so far."""
        number = self._number
        while self._window.has_older(number):
            await self._changed.wait()
        await _turns()

    async def _idle(self) -> None:
        """Wait until nothing is under way and nobody waits, also after those who waited for futures have gone on."""
        while True:
            while self._window.in_flight or self._gate.busy:
                await self._changed.wait()
            await _turns()
            if not self._window.in_flight and not self._gate.busy:
                return

    def _stop(self, why: str) -> None:
        """Take nothing more, and end all that is under way."""
        self._refuse_more(why)

        def closed(entry: Entry) -> JetStreamError:
            text = f"{why} while publishing to {entry.to!r}"
            return ClosedError(f"{text}: whether it was stored is unknown")

        self._fail(self._window.fail(closed))

    async def _end(self) -> None:
        """Let go of the connection."""
        if self._ended:
            return
        self._ended = True
        self._stop("the publisher was closed")
        self._timer.cancel()
        self._context.open.discard(self)
        self._connection.remove_listener(self._lifecycle)
        if self._on_denied in self._connection.denied:
            self._connection.denied.remove(self._on_denied)
        try:
            for inbox in (self._inbox, self._refused_inbox):
                if inbox is not None:
                    await self._connection.unsubscribe(inbox)
            await _turns()
        finally:
            self._inbox = self._refused_inbox = None
            self._unseen.tell()


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
