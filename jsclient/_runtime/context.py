"""`Context`: the connection, the API subjects and the requests, shared by all handles of a `JetStream`.

All requests share a wildcard inbox; a token in the subject identifies each.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from ..errors import (
    ApiError,
    ClosedError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
)
from ..protocol.consumers.stall import LookBudget
from ..protocol.events import ErrorRaised, Event
from ..protocol.publishing.in_flight import AnsweredSubjects
from ..protocol.wire import codec
from ..protocol.wire.api import Api, is_question, read_response
from ..protocol.wire.frames import Frame
from ..protocol.wire.headers import inline_status
from .nats.connection import Connection, Inbox, Lifecycle, Listener, OnDenied
from .tasks import Tasks, Timer

__all__ = ["Closable", "Context", "Requests", "as_reported"]


class _Asked(NamedTuple):
    """A request that waits for its reply."""

    subject: str
    future: asyncio.Future[Frame]
    deadline: float  # monotonic seconds of the loop
    what: str
    timeout: float

    def too_late(self, why: str) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"{self.what or self.subject}: no answer from the server", self.timeout, why
        )


EXPLAINED = frozenset({10026, 10028, 10047, 10099, 10100})  # the error codes that `refusals.explained` knows
_LEAST_PAUSE = 1.0  # seconds before a request is repeated
_OF_STORED = b"\r\nNats-Sequence: "  # added by the server to a stored message


class _Repeat(msgspec.Struct, gc=False):
    """A request that is sent again as long as it waits, over reconnects too."""

    due: float  # monotonic seconds of the loop
    pause: float
    payload: bytes
    header: bytes


class Requests:
    """Sends requests and matches their replies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prefix = ""
        self._inbox: Inbox | None = None
        self._opening = asyncio.Lock()
        self._tokens = itertools.count()
        self._waiting: dict[bytes, _Asked] = {}
        self._repeated: dict[bytes, _Repeat] = {}
        self._timer: Timer | None = None  # one for all: a request costs none
        self._closed = False
        connection.add_listener(self._lifecycle, self._denied)

    async def ask(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        header: bytes = b"",
        timeout: float,
        what: str = "",
        again: bool = False,
    ) -> Frame:
        """Send a request and wait for its reply.

        The timeout includes waiting for a connection. A request is sent while connected or not at all.

        ``again``: the request changes nothing on the server, and is repeated each quarter of the timeout and after a
        reconnect, because the first answer may be lost with a leader or with the connection.

        Raises:
            RequestTimeoutError: No reply in ``timeout`` seconds.
            NoRespondersError: ``subject`` has no subscriber.
            DisconnectedError: The connection was lost after sending, without ``again``: whether the request was carried
                out is unknown.
            PermissionDeniedError: This user may not publish to ``subject``.
            ClosedError: The connection is closed.

        Cancelled: the reply, if one comes, is dropped.
        """
        connection = self._connection
        loop = connection.running_loop()
        if connection.loop is not loop:
            connection.enter()
        deadline = loop.time() + timeout
        if not connection.is_connected or self._inbox is None or self._inbox.denied is not None:
            await self._ready(deadline, what or subject, timeout)
        if self._closed:  # while closing, the connection still exists, but no reply will arrive
            raise ClosedError("the connection is closed")
        if self._timer is None:
            self._timer = Timer(self._tick)
        reply = f"{self._prefix}{next(self._tokens)}"
        key = reply.encode()
        future: asyncio.Future[Frame] = loop.create_future()
        self._waiting[key] = asked = _Asked(subject, future, deadline, what, timeout)
        self._timer.set(deadline)
        if again:
            self._repeat(key, payload, header, timeout)
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
            self._repeated.pop(key, None)
            if future.done() and not future.cancelled():
                future.exception()  # mark as retrieved: a failed publish is raised instead
        # Servers before 2.14 return a stored message with its own status line.
        if frame[2] and not frame[3] and inline_status(frame[2]) == 503 and _OF_STORED not in frame[2]:
            raise NoRespondersError(503, f"no responders on {subject!r}")
        return frame

    async def _ready(self, deadline: float, what: str, timeout: float) -> None:
        """Wait for the connection, and subscribe to the answers. Raises `RequestTimeoutError`."""
        try:
            await self._connection.wait_connected(deadline)
        except DisconnectedError:
            why = self._connection.trouble
            raise RequestTimeoutError(f"{what}: not connected to a server", timeout, why) from None
        if self._inbox is None or self._inbox.denied is not None:
            await self._open()

    async def _publish(self, asked: _Asked, payload: bytes, reply: str, header: bytes) -> None:
        """Publish, waiting for room in the buffer."""
        try:
            async with asyncio.timeout_at(asked.deadline):
                await self._connection.publish(
                    asked.subject, payload, reply=reply, header=header, urgent=True
                )
        except TimeoutError:
            if not asked.future.done():  # else the reply arrived at the last moment
                raise asked.too_late(self._connection.trouble) from None

    def _tick(self) -> None:
        """Fail the requests whose deadline has passed."""
        now = self._connection.now()
        for asked in self._waiting.values():
            if asked.deadline <= now:
                _fail(asked.future, asked.too_late(self._connection.trouble))
        for key, repeat in self._repeated.items():
            if repeat.due <= now:
                repeat.due = now + repeat.pause
                self._send_again(self._waiting[key], key, repeat)
        open_ones = [asked.deadline for asked in self._waiting.values() if asked.deadline > now]
        open_ones += [repeat.due for repeat in self._repeated.values()]
        if open_ones and self._timer is not None:
            self._timer.set(min(open_ones))

    def _repeat(self, key: bytes, payload: bytes, header: bytes, timeout: float) -> None:
        pause = max(timeout / 4, _LEAST_PAUSE)
        due = self._connection.now() + pause
        self._repeated[key] = _Repeat(due, pause, payload, header)
        assert self._timer is not None
        self._timer.set(due)

    def _send_again(self, asked: _Asked, key: bytes, repeat: _Repeat) -> None:
        if not asked.future.done():
            try:
                self._connection.send(asked.subject, repeat.payload, reply=key.decode(), header=repeat.header)
            except JetStreamError:
                pass  # not connected: sent again after the reconnect, or ended by its deadline

    async def _open(self) -> None:
        if self._inbox is not None and self._inbox.denied is not None:
            # Permissions may change: subscribe again; the request fails with the name of the subject.
            denied, self._inbox = self._inbox, None
            await self._connection.unsubscribe(denied)
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
        if what is Lifecycle.CONNECTED:
            for key, repeat in self._repeated.items():
                self._send_again(self._waiting[key], key, repeat)
            return
        for key, asked in self._waiting.items():
            if what is Lifecycle.DISCONNECTED and key in self._repeated:
                continue  # sent again after the reconnect
            waited = f"while waiting for the answer to {asked.subject}"
            if what is Lifecycle.CLOSED:
                _fail(asked.future, ClosedError(f"the connection was closed {waited}"))
            else:
                _fail(asked.future, DisconnectedError(f"the connection was lost {waited}"))

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


class Closable(Protocol):
    """A handle that ends with the connection."""

    async def abandon(self) -> None: ...


def as_reported(error: BaseException) -> JetStreamError:
    """The error as events carry it: one that is not a `JetStreamError` is the cause of one."""
    if isinstance(error, JetStreamError):
        return error
    wrapped = ProtocolError(f"a background task failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


@dataclass(slots=True)
class Context:
    """Shared by all handles of one `JetStream`."""

    connection: Connection
    api: Api
    timeout: float  # seconds, of API requests
    stall_after: float | None = None  # seconds until a reader that gets nothing looks why; None: never
    looks: LookBudget = field(default_factory=LookBudget)  # of all its readers
    requests: Requests = field(init=False)
    tasks: Tasks = field(init=False)
    open: set[Closable] = field(default_factory=set)
    shared: dict[Hashable, Any] = field(default_factory=dict)  # what readers share, by what must be equal
    answered: AnsweredSubjects = field(default_factory=AnsweredSubjects)
    closer: asyncio.Task[object] | None = (
        None  # runs `JetStream.close`; not awaited, since it may be a handler
    )

    def __post_init__(self) -> None:
        self.requests = Requests(self.connection)
        self.tasks = Tasks(self.report)

    def reaching(self, prefix: str) -> Context:
        """A copy for streams under another API prefix."""
        if prefix == self.api.prefix:
            return self
        other = copy.copy(self)
        other.api = Api(prefix)
        return other

    def without_stall_watches(self) -> Context:
        """A copy for handles that others watch as a whole."""
        other = copy.copy(self)
        other.stall_after = None
        return other

    def attach(
        self, handle: Closable, listener: Listener | None = None, denied: OnDenied | None = None
    ) -> None:
        """Register a handle: it is abandoned when the connection closes, and its hooks are called until `detach`."""
        self.open.add(handle)
        if listener is not None:
            self.connection.add_listener(listener, denied)

    def detach(
        self, handle: Closable, listener: Listener | None = None, denied: OnDenied | None = None
    ) -> None:
        """Undo `attach`; a no-op if not registered."""
        self.open.discard(handle)
        if listener is not None:
            self.connection.remove_listener(listener, denied)

    def emit(self, event: Event) -> None:
        """Report an event to the user."""
        self.connection.hub.emit(event)

    def report(self, error: BaseException) -> None:
        """Report the error of a background task."""
        self.emit(ErrorRaised(error=as_reported(error)))

    async def call(
        self,
        subject: str,
        body: Any = None,
        *,
        timeout: float | None = None,
        what: str = "",
        optional: bool = False,
    ) -> dict[str, Any]:
        """Send one request to the JetStream API.

        Args:
            subject: The full API subject.
            body: Sent as JSON; None: an empty request.
            timeout: Seconds; None: the default.
            what: The operation, for error texts.
            optional: The caller can do without the answer: a denial is raised, but not reported as an event.

        Raises:
            ApiError: The server answered with an error.
            RequestTimeoutError, NoRespondersError, DisconnectedError, ClosedError, PermissionDeniedError.
        """
        if optional:
            self.connection.optional.add(subject)
        payload = b"" if body is None else codec.encode(body)
        seconds = self.timeout if timeout is None else timeout
        try:
            answer = await self.requests.ask(
                subject, payload, timeout=seconds, what=what, again=is_question(self.api, subject)
            )
        except NoRespondersError:
            raise NoRespondersError.of_api(subject) from None
        try:
            return read_response(answer[3], subject)
        except ApiError as error:
            if error.err_code not in EXPLAINED:
                raise
            refused = error
        from .refusals import explained  # seldom needed, and it knows the models

        raise await explained(self, refused, body)
