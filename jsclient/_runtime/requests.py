"""Request and reply: one wildcard inbox for all requests of a connection, a token in the subject tells them apart."""

from __future__ import annotations

import asyncio
import itertools

from ..errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ..protocol.frames import Frame
from ..protocol.headers import inline_status
from .connection import Connection, Inbox, Lifecycle

__all__ = ["Requests"]


class Requests:
    """Sends requests and finds their replies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prefix = ""
        self._inbox: Inbox | None = None
        self._opening = asyncio.Lock()
        self._tokens = itertools.count()
        self._waiting: dict[bytes, tuple[str, asyncio.Future[Frame]]] = {}
        connection.add_listener(self._lifecycle)
        connection.denied.append(self._denied)

    async def request(
        self, subject: str, payload: bytes = b"", *, header: bytes = b"", timeout: float, what: str = ""
    ) -> bytes:
        """Send a request and wait for its reply's payload.

        Waits for a connection inside ``timeout`` too, and sends only while there is one: nothing is sent later.

        Raises:
            RequestTimeoutError: No reply in ``timeout`` seconds.
            NoRespondersError: Nobody listens on ``subject``.
            DisconnectedError: The connection was lost after it was sent: whether it was carried out is unknown.
            PermissionDeniedError: This user may not publish to ``subject``.
            ClosedError: The connection is closed.

        Cancelled: the reply, if one comes, is dropped.
        """
        connection, loop = self._connection, asyncio.get_running_loop()
        deadline = loop.time() + timeout
        described = f"{what or subject}: no answer from the server"
        try:
            await connection.wait_connected(deadline)
        except DisconnectedError:
            raise RequestTimeoutError(f"{what or subject}: not connected to a server", timeout) from None
        if self._inbox is not None and self._inbox.denied is not None:
            # Rights may change: ask for a new one, and be refused by name.
            denied, self._inbox = self._inbox, None
            await connection.unsubscribe(denied)
        if self._inbox is None:
            await self._open()
        token = str(next(self._tokens))
        reply = self._prefix + token
        key = reply.encode()
        future: asyncio.Future[Frame] = loop.create_future()
        self._waiting[key] = subject, future
        try:
            async with asyncio.timeout_at(deadline):
                await connection.publish(
                    subject, payload, reply=reply, header=header, urgent=True
                )  # it may wait for room
                frame = await future
        except TimeoutError:
            if not future.done() or future.cancelled():
                raise RequestTimeoutError(described, timeout) from None
            frame = future.result()  # it came at the last moment
        finally:
            del self._waiting[key]
            if future.done() and not future.cancelled():
                future.exception()  # where the publish failed as well, one of them is told
        if frame[2] and not frame[3] and inline_status(frame[2]) == 503:
            raise NoRespondersError(503, f"no responders on {subject!r}")
        return frame[3]

    async def _open(self) -> None:
        async with self._opening:
            if self._inbox is None:
                self._prefix = f"{self._connection.new_inbox()}."
                self._inbox = await self._connection.subscribe(f"{self._prefix}*", self._receive)

    def _receive(self, frames: list[Frame]) -> None:
        for frame in frames:
            entry = self._waiting.get(frame[0])
            if entry is not None and not entry[1].done():
                entry[1].set_result(frame)

    def _denied(self, error: PermissionDeniedError) -> None:
        for subject, future in self._waiting.values():
            if subject == error.subject or (
                error.operation == "subscribe" and error.subject.startswith(self._prefix)
            ):
                _fail(future, error)

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is not Lifecycle.CONNECTED:
            for subject, future in self._waiting.values():
                error = DisconnectedError(
                    f"the connection was lost while waiting for the answer to {subject}"
                )
                _fail(future, error)

    async def close(self) -> None:
        """End the inbox, and whatever waits for an answer."""
        for subject, future in self._waiting.values():
            _fail(future, ClosedError(f"closed while waiting for the answer to {subject}"))
        self._connection.remove_listener(self._lifecycle)
        if self._denied in self._connection.denied:
            self._connection.denied.remove(self._denied)
        if self._inbox is not None:
            await self._connection.unsubscribe(self._inbox)
            self._inbox = None


def _fail(future: asyncio.Future[Frame], error: JetStreamError) -> None:
    if not future.done():
        future.set_exception(error)
