"""`Context`: the connection, the API subjects and the requests that all handles of a `JetStream` share.

All requests share a wildcard inbox. A token in the reply subject identifies each request.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Hashable
from typing import Any, Protocol

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
from ..protocol.consumers.check_budget import CheckBudget
from ..protocol.events import ErrorRaised, Event
from ..protocol.publishing.in_flight import AnsweredSubjects
from ..protocol.wire import codec
from ..protocol.wire.api import Api, is_question, read_response
from ..protocol.wire.frames import Frame
from ..protocol.wire.headers import inline_status
from .connection.connection import CLOSED, Connection, Inbox, Lifecycle, Listener, OnDenied
from .tasks import Tasks, Timer

__all__ = ["Closable", "Context", "Requests", "as_reported"]


class _Taker:
    """Receives the reply to a request in place of a future, and passes it on at once, without a turn of the loop.

    An error is passed on in the next turn, because it may fail many requests together.
    """

    __slots__ = ("_is_done", "_loop", "_take")

    def __init__(
        self, take: Callable[[Frame | JetStreamError], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._take = take
        self._loop = loop
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, frame: Frame) -> None:
        self._is_done = True
        self._take(frame)

    def set_exception(self, error: JetStreamError) -> None:
        self._is_done = True
        self._loop.call_soon(self._take, error)


class _PendingRequest(msgspec.Struct):
    """A request that waits for its reply."""

    subject: str
    future: asyncio.Future[Frame] | _Taker
    deadline: float  # monotonic seconds of the loop
    what: str
    timeout: float

    def too_late(self, why: str) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"{self.what or self.subject}: no answer from the server", self.timeout, why
        )


EXPLAINED = frozenset({10026, 10028, 10047, 10099, 10100})  # error codes that `refusals.explained` explains
_LEAST_PAUSE = 1.0  # minimum number of seconds before a request is sent again
_OF_STORED = b"\r\nNats-Sequence: "  # a header that the server adds to a stored message


class _Repeat(msgspec.Struct, gc=False):
    """A request that is sent again until it is answered or overdue, even after reconnects."""

    due: float  # monotonic seconds of the loop
    pause: float
    payload: bytes
    header: bytes


class Requests:
    """Sends requests and matches their replies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prefix, self._key_prefix = "", b""
        self._inbox: Inbox | None = None
        self._opening = asyncio.Lock()
        self._tokens = itertools.count()
        self._waiting: dict[bytes, _PendingRequest] = {}
        self._repeated: dict[bytes, _Repeat] = {}
        self._timer: Timer | None = None  # one timer for all requests
        self._closed = False
        connection.add_listener(self._settle_requests, self._fail_denied)

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

        The timeout includes waiting for a connection. A request is never sent without a connection.

        If ``again`` is True, the request changes nothing on the server. It is then repeated after each quarter of the
        timeout and after a reconnect, because the first answer may be lost with a leader or the connection.

        Raises:
            RequestTimeoutError: No reply arrived within ``timeout`` seconds.
            NoRespondersError: ``subject`` has no subscriber.
            DisconnectedError: The connection was lost after sending, without ``again``. It is unknown whether the
                server carried out the request.
            PermissionDeniedError: This user may not publish to ``subject``.
            ClosedError: The connection is closed.

        If the call is cancelled, a reply that arrives later is dropped.
        """
        connection = self._connection
        loop = connection.running_loop()
        if connection.loop is not loop:
            connection.enter()
        deadline = loop.time() + timeout
        if not connection.is_connected or self._inbox is None or self._inbox.denied is not None:
            await self._ready(deadline, what or subject, timeout)
        if self._closed:  # while closing, the connection still exists, but no reply will arrive
            raise ClosedError(CLOSED)
        if self._timer is None:
            self._timer = Timer(self._fail_overdue)
        key = b"%b%d" % (self._key_prefix, next(self._tokens))
        future: asyncio.Future[Frame] = loop.create_future()
        self._waiting[key] = pending = _PendingRequest(subject, future, deadline, what, timeout)
        self._timer.set(deadline)
        if again:
            self._repeat(key, payload, header, timeout)
        try:
            if not connection.request_at_once(subject, key, header, payload):
                await self._publish(pending, payload, key.decode(), header)
            frame = await future
        except BaseException:
            if len(self._waiting) == 1:
                self._timer.cancel()  # no other request is waiting
            if future.done() and not future.cancelled():
                future.exception()  # mark its error as retrieved, because the error of sending is raised instead
            raise
        finally:
            del self._waiting[key]
            if self._repeated:
                self._repeated.pop(key, None)
            # These variables refer to the error that is raised, and its traceback refers to this frame. Delete them to
            # break the reference cycle.
            del pending, future
        return _checked(subject, frame) if frame[2] else frame

    def ask_now(
        self,
        subject: str,
        payload: bytes,
        *,
        header: bytes,
        timeout: float,
        what: str,
        answered: Callable[[Frame | JetStreamError], None],
        urgent: bool = True,
    ) -> bool:
        """Send a request if that is possible without waiting.

        Call ``answered`` with its reply, or with an error of `ask`.

        If ``urgent`` is True, the request is written at once. See `Connection.publish`. If the result is False,
        nothing was sent, and ``answered`` is never called. Use `ask` instead.
        """
        connection, inbox = self._connection, self._inbox
        out = connection.outbox
        # If one of the following conditions is true, the call must wait or raise an error, so leave it to `ask`.
        if (
            (out is None or out.is_full or inbox is None or inbox.denied is not None)
            or (self._closed or self._timer is None or not connection.is_connected)
            or len(header) + len(payload) > connection.max_payload
        ):
            return False
        loop = connection.running_loop()
        if connection.loop is not loop:
            return False
        key = b"%b%d" % (self._key_prefix, next(self._tokens))
        deadline = loop.time() + timeout

        def take(answer: Frame | JetStreamError) -> None:
            self._waiting.pop(key, None)
            if not self._waiting and self._timer is not None:
                self._timer.cancel()
            if not isinstance(answer, JetStreamError):
                try:
                    answer = _checked(subject, answer)
                except JetStreamError as error:
                    answer = error
            answered(answer)

        self._waiting[key] = _PendingRequest(subject, _Taker(take, loop), deadline, what, timeout)
        self._timer.set(deadline)
        connection.send(subject, payload, reply=key.decode(), header=header, urgent=urgent)
        return True

    async def _ready(self, deadline: float, what: str, timeout: float) -> None:
        """Wait for the connection, and subscribe to the answers.

        Raises `RequestTimeoutError` if the deadline passes.
        """
        try:
            await self._connection.wait_connected(deadline)
        except DisconnectedError:
            why = self._connection.problem
            raise RequestTimeoutError(f"{what}: not connected to a server", timeout, why) from None
        if self._inbox is None or self._inbox.denied is not None:
            await self._open_inbox()

    async def _publish(self, pending: _PendingRequest, payload: bytes, reply: str, header: bytes) -> None:
        """Publish, waiting while the write buffer is full."""
        try:
            async with asyncio.timeout_at(pending.deadline):
                await self._connection.publish(
                    pending.subject, payload, reply=reply, header=header, urgent=True
                )
        except TimeoutError:
            if not pending.future.done():  # if it is done, the reply arrived at the last moment
                raise pending.too_late(self._connection.problem) from None

    def _fail_overdue(self) -> None:
        """Fail the requests whose deadline has passed, and send requests again that are due."""
        now = self._connection.now()
        for pending in self._waiting.values():
            if pending.deadline <= now:
                _fail(pending.future, pending.too_late(self._connection.problem))
        for key, repeat in self._repeated.items():
            if repeat.due <= now:
                repeat.due = now + repeat.pause
                self._send_again(self._waiting[key], key, repeat)
        moments = [pending.deadline for pending in self._waiting.values() if pending.deadline > now]
        moments += [repeat.due for repeat in self._repeated.values()]
        if moments and self._timer is not None:
            self._timer.set(min(moments))

    def _repeat(self, key: bytes, payload: bytes, header: bytes, timeout: float) -> None:
        pause = max(timeout / 4, _LEAST_PAUSE)
        due = self._connection.now() + pause
        self._repeated[key] = _Repeat(due, pause, payload, header)
        assert self._timer is not None
        self._timer.set(due)

    def _send_again(self, pending: _PendingRequest, key: bytes, repeat: _Repeat) -> None:
        if not pending.future.done():
            try:
                self._connection.send(
                    pending.subject, repeat.payload, reply=key.decode(), header=repeat.header
                )
            except JetStreamError:
                pass  # not connected: the request is sent again after the reconnect, or fails at its deadline

    async def _open_inbox(self) -> None:
        if self._inbox is not None and self._inbox.denied is not None:
            # Subscribe again, because the user's permissions may have changed. If the permission is still missing, the
            # server reports that again, and the request fails.
            denied, self._inbox = self._inbox, None
            await self._connection.unsubscribe(denied)
        async with self._opening:
            if self._inbox is None:
                self._prefix = f"{self._connection.new_inbox()}."
                self._key_prefix = self._prefix.encode()
                self._inbox = await self._connection.subscribe(f"{self._prefix}*", self._receive_replies)
                self._connection.expect_large(self._inbox)

    def _receive_replies(self, frames: list[Frame]) -> None:
        for frame in frames:
            pending = self._waiting.get(frame[0])
            if pending is not None and not pending.future.done():
                pending.future.set_result(frame)

    def _fail_denied(self, error: PermissionDeniedError) -> None:
        for pending in self._waiting.values():
            if pending.subject == error.subject or (
                error.operation == "subscribe" and error.subject.startswith(self._prefix)
            ):
                _fail(pending.future, error)

    def _settle_requests(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            for key, repeat in self._repeated.items():
                self._send_again(self._waiting[key], key, repeat)
            return
        for key, pending in self._waiting.items():
            if what is Lifecycle.DISCONNECTED and key in self._repeated:
                continue  # sent again after the reconnect
            waited = f"while waiting for the answer to {pending.subject}"
            if what is Lifecycle.CLOSED:
                _fail(pending.future, ClosedError(f"the connection was closed {waited}"))
            else:
                _fail(pending.future, DisconnectedError(f"the connection was lost {waited}"))

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their replies."""
        return len(self._waiting)

    async def close(self) -> None:
        """Unsubscribe the inbox and fail the waiting requests."""
        self._closed = True
        for pending in self._waiting.values():
            _fail(pending.future, ClosedError(f"closed while waiting for the answer to {pending.subject}"))
        if self._timer is not None:
            self._timer.cancel()
        self._connection.remove_listener(self._settle_requests, self._fail_denied)
        if self._inbox is not None:
            await self._connection.unsubscribe(self._inbox)
            self._inbox = None


def _checked(subject: str, frame: Frame) -> Frame:
    """Return the reply. Raises `NoRespondersError` if the server reports that the subject has no subscribers."""
    # A 503 isn't always an error. Servers before 2.14 return a stored message with its own status line.
    if frame[2] and not frame[3] and inline_status(frame[2]) == 503 and _OF_STORED not in frame[2]:
        raise NoRespondersError(503, f"no responders on {subject!r}")
    return frame


def _fail(future: asyncio.Future[Frame] | _Taker, error: JetStreamError) -> None:
    if not future.done():
        future.set_exception(error)


class Closable(Protocol):
    """A handle that is closed together with its connection."""

    async def abandon(self) -> None: ...


def as_reported(error: BaseException) -> JetStreamError:
    """Return the error for an event. An error that is not a `JetStreamError` becomes the cause of a new error."""
    if isinstance(error, JetStreamError):
        return error
    wrapped = ProtocolError(f"a background task failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


class Context:
    """The objects that all handles of one `JetStream` share."""

    __slots__ = (
        "answered",
        "api",
        "closer",
        "connection",
        "looks",
        "open",
        "requests",
        "shared",
        "stall_after",
        "takes_batches",
        "tasks",
        "timeout",
    )

    def __init__(
        self, connection: Connection, api: Api, timeout: float, stall_after: float | None = None
    ) -> None:
        """Create the context.

        ``timeout`` is the default timeout of API requests in seconds. ``stall_after`` is the number of seconds
        without a message after which a reader checks the reason.
        """
        self.connection: Connection = connection
        self.api: Api = api
        self.timeout: float = timeout
        self.stall_after: float | None = stall_after
        self.looks: CheckBudget = CheckBudget()  # limits how often all readers together check their consumers
        self.requests: Requests = Requests(connection)
        self.tasks: Tasks = Tasks(self.report)
        self.open: set[Closable] = set()
        self.shared: dict[Hashable, Any] = {}  # objects used by several readers, such as a common feed
        self.answered: AnsweredSubjects = AnsweredSubjects()
        self.takes_batches: AnsweredSubjects = AnsweredSubjects()
        # The task that runs `JetStream.close`. If that task is a handler, closing must not wait for the handler.
        self.closer: asyncio.Task[object] | None = None

    def reaching(self, prefix: str) -> Context:
        """Return a copy for streams under another API prefix."""
        if prefix == self.api.prefix:
            return self
        other = copy.copy(self)
        other.api = Api(prefix)
        return other

    def without_stall_watches(self) -> Context:
        """Return a copy for handles whose owner watches them together."""
        other = copy.copy(self)
        other.stall_after = None
        return other

    def attach(
        self, handle: Closable, listener: Listener | None = None, denied: OnDenied | None = None
    ) -> None:
        """Register a handle until `detach`.

        Its callbacks are called, and it is abandoned when the connection closes.
        """
        self.open.add(handle)
        if listener is not None:
            self.connection.add_listener(listener, denied)

    def detach(
        self, handle: Closable, listener: Listener | None = None, denied: OnDenied | None = None
    ) -> None:
        """Undo `attach`. Does nothing if the handle is not registered."""
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
        """Send one request to the JetStream API, and return the answer.

        Args:
            subject: The full API subject.
            body: The body, which is sent as JSON. With None, the request is empty.
            timeout: How long to wait for the answer, in seconds. Defaults to the timeout of the context.
            what: A description of the operation, for error texts.
            optional: The caller can continue without the answer, so a denial is raised but not reported as an event.

        Raises:
            ApiError: The server answered with an error.
            RequestTimeoutError, NoRespondersError, DisconnectedError, ClosedError, PermissionDeniedError: See
                `Requests.ask`.
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
        from .refusals import explained  # imported here, because it is seldom needed and imports all models

        raise await explained(self, refused, body)
