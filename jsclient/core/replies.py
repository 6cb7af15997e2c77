"""The iterator over replies that `Core.request_many` returns. Source: ADR-47."""

from __future__ import annotations

from collections.abc import Callable

from .._runtime.connection.connection import Inbox, Lifecycle
from .._runtime.context import Context
from .._runtime.handle import ReadHandle, State
from .._runtime.tasks import Signal, Timer
from ..errors import ClosedError, DisconnectedError, PermissionDeniedError
from ..protocol.core.replies import ReplyTracker
from ..protocol.wire.frames import Frame
from .message import CoreMessage, ReplyChannel

__all__ = ["Replies"]


class Replies(ReadHandle[CoreMessage]):
    """An asynchronous iterator over the replies to a request. Created by `Core.request_many`.

    The request is sent when you read the first reply.

    Use ``async with``, or call `close` if you leave the loop early. Otherwise, the client keeps receiving replies until
    the timeout expires.
    """

    _state = State.NEW

    def __init__(
        self,
        context: Context,
        subject: str,
        payload: bytes,
        header: bytes,
        *,
        timeout: float,
        stall: float | None,
        max_messages: int | None,
        is_last: Callable[[CoreMessage], bool] | None,
    ) -> None:
        self._context = context
        self._subject, self._payload, self._header = subject, payload, header
        self._timeout, self._stall, self._max_messages = timeout, stall, max_messages
        self._is_last = is_last
        self._channel = ReplyChannel.of(context.connection)
        self._tracker: ReplyTracker | None = None
        self._error: BaseException | None = None
        self._arrived = Signal()
        self._inbox: Inbox | None = None
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<Replies to {self._subject!r} {self._state.value}>"

    async def next(self) -> CoreMessage:
        """Wait for the next reply and return it. The first call sends the request.

        Raises:
            ClosedError: All replies have been read, or the timeout has expired. An ``async for`` loop ends at this
                point. Also raised if the connection was closed.
            NoRespondersError: The subject has no subscribers.
            DisconnectedError: The connection was lost after the request was sent, so further replies are lost. Or the
                client wasn't connected within the timeout, so the request wasn't sent.
            PermissionDeniedError: The user isn't allowed to publish to the subject.

        An error is raised once, after the replies received before it. Further calls raise `ClosedError`. The same
        applies to an exception raised by the function ``sentinel``.

        If the call is cancelled, no reply is lost, because the next call returns it.
        """
        if self._state is State.NEW:
            await self._send_request()
        tracker = self._tracker
        while tracker is not None and not tracker.front and not tracker.ended:
            await self._arrived.wait()
        if tracker is not None and tracker.front:
            return CoreMessage(tracker.front.popleft(), self._channel)
        await self.close()
        if tracker is not None and tracker.error is not None:
            self._error, tracker.error = tracker.error, None
        if self._error is not None:
            # Raise the error only once. The next call raises `ClosedError`.
            error, self._error = self._error, None
            raise error
        raise ClosedError("all replies were read")

    async def _send_request(self) -> None:
        connection = self._context.connection
        connection.check_here()
        deadline = connection.now() + self._timeout
        await connection.wait_connected(deadline)
        self._state = State.OPEN
        self._tracker = ReplyTracker(
            self._subject,
            deadline=deadline,
            stall=self._stall,
            max_messages=self._max_messages,
            is_last=None if self._is_last is None else self._ends,
        )
        self._timer = Timer(self._tick)
        self._timer.set(deadline)
        self._context.attach(self, self._end_with_connection, self._end_denied)
        inbox = connection.new_inbox()
        try:
            self._inbox = await connection.subscribe(inbox, self._receive_replies)
            await connection.publish(
                self._subject, self._payload, reply=inbox, header=self._header, urgent=True
            )
        except BaseException:
            await self.close()
            raise

    def _ends(self, frame: Frame) -> bool:
        assert self._is_last is not None
        return self._is_last(CoreMessage(frame, self._channel))

    def _receive_replies(self, frames: list[Frame]) -> None:
        assert self._tracker is not None
        try:
            self._tracker.receive_replies(frames, self._context.connection.now())
        except Exception as error:  # noqa: BLE001  the user's function may raise anything
            self._fail_replies(error)
        self._moved()

    def _fail_replies(self, error: BaseException) -> None:
        if self._tracker is not None and not self._tracker.ended:
            self._tracker.ended = True
            self._error = error
            self._arrived.set()

    def _tick(self) -> None:
        assert self._tracker is not None
        self._tracker.check_deadline(self._context.connection.now())
        self._moved()

    def _moved(self) -> None:
        """Update the timer and wake up the reader. Unsubscribe if no more replies are expected."""
        assert self._tracker is not None
        if self._tracker.ended:
            self._stop()
        elif self._timer is not None:
            self._timer.set(self._tracker.deadline)
        self._arrived.set()

    def _end_with_connection(self, what: Lifecycle) -> None:
        waited = f"while waiting for the replies to {self._subject}"
        if what is Lifecycle.CLOSED:
            self._fail_replies(ClosedError(f"the connection was closed {waited}"))
        elif what is Lifecycle.DISCONNECTED:
            self._fail_replies(DisconnectedError(f"the connection was lost {waited}"))

    def _end_denied(self, error: PermissionDeniedError) -> None:
        if error.subject == self._subject or (self._inbox and error.subject == self._inbox.subject):
            self._fail_replies(error)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._context.detach(self, self._end_with_connection, self._end_denied)
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._context.tasks.start(self._context.connection.unsubscribe(inbox), "end of a request")

    async def close(self) -> None:
        """Stop receiving replies. Replies that were received but haven't been read are dropped.

        Called automatically at the end of an ``async with`` block. Calling `close` again has no effect.
        """
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            if self._tracker is not None:
                self._tracker.ended = True
                self._tracker.front.clear()
            self._stop()
            self._arrived.set()

    async def abandon(self) -> None:
        """End the iteration because the connection is closing. For internal use."""
        await self.close()
