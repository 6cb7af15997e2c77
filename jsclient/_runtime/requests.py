"""Request and reply: all requests of a connection share a wildcard inbox; a token in the subject identifies each."""

from __future__ import annotations

import asyncio
import itertools
from typing import NamedTuple

from ..errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ..protocol.wire.frames import Frame
from ..protocol.wire.headers import inline_status
from .nats.connection import Connection, Inbox, Lifecycle
from .tasks import Timer

__all__ = ["Requests"]


class _Asked(NamedTuple):
    """A request that waits for its reply."""

    subject: str
    future: asyncio.Future[Frame]
    deadline: float  # monotonic seconds of the loop
    what: str
    timeout: float

    def too_late(self) -> RequestTimeoutError:
        return RequestTimeoutError(f"{self.what or self.subject}: no answer from the server", self.timeout)


class Requests:
    """Sends requests and matches their replies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prefix = ""
        self._inbox: Inbox | None = None
        self._opening = asyncio.Lock()
        self._tokens = itertools.count()
        self._waiting: dict[bytes, _Asked] = {}
        self._timer: Timer | None = None  # one for all: a request costs none
        self._closed = False
        connection.add_listener(self._lifecycle, self._denied)

    async def request(
        self, subject: str, payload: bytes = b"", *, header: bytes = b"", timeout: float, what: str = ""
    ) -> bytes:
        """Return the payload of the reply; raises as `ask`."""
        return (await self.ask(subject, payload, header=header, timeout=timeout, what=what))[3]

    async def ask(
        self, subject: str, payload: bytes = b"", *, header: bytes = b"", timeout: float, what: str = ""
    ) -> Frame:
        """Send a request and wait for its reply.

        The timeout includes waiting for a connection. A request is sent while connected or not at all.

        Raises:
            RequestTimeoutError: No reply in ``timeout`` seconds.
            NoRespondersError: ``subject`` has no subscriber.
            DisconnectedError: The connection was lost after sending: whether the request was carried out is unknown.
            PermissionDeniedError: This user may not publish to ``subject``.
            ClosedError: The connection is closed.

        Cancelled: the reply, if one comes, is dropped.
        """
        connection, loop = self._connection, asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if not connection.is_connected:
            try:
                await connection.wait_connected(deadline)
            except DisconnectedError:
                raise RequestTimeoutError(f"{what or subject}: not connected to a server", timeout) from None
        if self._inbox is not None and self._inbox.denied is not None:
            # Permissions may change: subscribe again; the request fails with the name of the subject.
            denied, self._inbox = self._inbox, None
            await connection.unsubscribe(denied)
        if self._inbox is None:
            await self._open()
        if self._closed:  # while closing, the connection still exists, but no reply will arrive
            raise ClosedError("the connection is closed")
        if self._timer is None:
            self._timer = Timer(self._tick)
        reply = f"{self._prefix}{next(self._tokens)}"
        key = reply.encode()
        future: asyncio.Future[Frame] = loop.create_future()
        self._waiting[key] = asked = _Asked(subject, future, deadline, what, timeout)
        self._timer.set(deadline)
        try:
            if connection.outbox is not None and not connection.outbox.is_full:
                await connection.publish(subject, payload, reply=reply, header=header, urgent=True)
            else:
                await self._publish(asked, payload, reply, header)
            frame = await future
        except BaseException:
            if len(self._waiting) == 1:
                self._timer.cancel()  # no other request waits
            raise
        finally:
            del self._waiting[key]
            if future.done() and not future.cancelled():
                future.exception()  # mark as retrieved: a failed publish is raised instead
        if frame[2] and not frame[3] and inline_status(frame[2]) == 503:
            raise NoRespondersError(503, f"no responders on {subject!r}")
        return frame

    async def _publish(self, asked: _Asked, payload: bytes, reply: str, header: bytes) -> None:
        """Publish, waiting for room in the buffer."""
        try:
            async with asyncio.timeout_at(asked.deadline):
                await self._connection.publish(
                    asked.subject, payload, reply=reply, header=header, urgent=True
                )
        except TimeoutError:
            if not asked.future.done():  # else the reply arrived at the last moment
                raise asked.too_late() from None

    def _tick(self) -> None:
        """Fail the requests whose deadline has passed."""
        now = self._connection.now()
        for asked in self._waiting.values():
            if asked.deadline <= now:
                _fail(asked.future, asked.too_late())
        open_ones = [asked.deadline for asked in self._waiting.values() if asked.deadline > now]
        if open_ones and self._timer is not None:
            self._timer.set(min(open_ones))

    async def _open(self) -> None:
        async with self._opening:
            if self._inbox is None:
                self._prefix = f"{self._connection.new_inbox()}."
                self._inbox = await self._connection.subscribe(f"{self._prefix}*", self._receive)
                self._connection.expect_large(self._inbox)

    def _receive(self, frames: list[Frame]) -> None:
        for frame in frames:
            asked = self._waiting.get(frame[0])
            if asked is not None and not asked.future.done():
                asked.future.set_result(frame)

    def _denied(self, error: PermissionDeniedError) -> None:
        for asked in self._waiting.values():
            if asked.subject == error.subject or (
                error.operation == "subscribe" and error.subject.startswith(self._prefix)
            ):
                _fail(asked.future, error)

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is not Lifecycle.CONNECTED:
            for asked in self._waiting.values():
                text = f"the connection was lost while waiting for the answer to {asked.subject}"
                _fail(asked.future, DisconnectedError(text))

    async def close(self) -> None:
        """Unsubscribe the inbox and fail the waiting requests."""
        self._closed = True
        for asked in self._waiting.values():
            _fail(asked.future, ClosedError(f"closed while waiting for the answer to {asked.subject}"))
        if self._timer is not None:
            self._timer.cancel()
        self._connection.remove_listener(self._lifecycle, self._denied)
        if self._inbox is not None:
            await self._connection.unsubscribe(self._inbox)
            self._inbox = None


def _fail(future: asyncio.Future[Frame], error: JetStreamError) -> None:
    if not future.done():
        future.set_exception(error)
