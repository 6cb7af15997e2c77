"""Reads stored messages from any replica, for `Stream.get_batch` and other methods. Source: ADR-31."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .._runtime.connection.connection import Connection, Inbox, Lifecycle
from .._runtime.connection.speedups import chosen
from .._runtime.context import Context
from .._runtime.tasks import Signal
from ..errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    NotReadyError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ..protocol.consumers.status import Ending
from ..protocol.models.message import StoredMessage
from ..protocol.streams.direct_get import BATCH_GET_SERVER, DirectBatchTracker, read_direct_answer
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from ..protocol.topics.record_codec import StoredRecords
from ..protocol.wire.checks import check_server
from ..protocol.wire.codec import encode
from ..protocol.wire.frames import Frame

__all__ = ["DirectBatch", "get_directly"]

_FIRST: Final = 0.25  # fraction of the timeout after which a request without a response is sent again


async def get_directly(context: Context, stream: str, body: dict[str, Any]) -> StoredMessage:
    """Read one message from any replica. May raise any error of `read_direct_answer` or of an API request."""
    frame = await context.requests.ask(
        context.api.direct_get(stream), encode(body), timeout=context.timeout, what="direct get", again=True
    )
    return read_direct_answer(frame)


class DirectBatch:
    """An asynchronous iterable of stored messages. Created by `Stream.get_batch` and `Stream.get_last_messages`.

    ::

        async for message in stream.get_batch(1000):
            print(message.seq, message.data)

    The server sends all requested messages at once, so all of them may be in memory at the same time. Each ``async
    for`` loop sends a new request.

    Attributes:
        ending: Why the iteration has ended. FULL means that ``batch`` messages were read, MAX_BYTES that the size limit
            was reached, and NO_MESSAGES that no more messages match. Any other value means that the iteration has
            raised an error. None while the iteration hasn't ended.
        count: Number of messages received in the latest ``async for`` loop.
        num_pending: Number of further messages that match, according to the server. If it is greater than 0, request
            the next batch.
        last_seq: Stream sequence of the last message, or 0 before the first message. After an error, request the
            messages that follow it.
        up_to_seq: For `Stream.get_last_messages`, the stream sequence after which messages were ignored, or 0 if no
            message matched. Reading it raises `NotReadyError` until the iteration has ended.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        body: dict[str, Any],
        *,
        timeout: float | None,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self._context = context
        self._stream = stream
        self._body = body
        self._timeout = context.timeout if timeout is None else timeout
        self._check = check
        self._tracker = DirectBatchTracker()
        self._started = False

    @property
    def ending(self) -> Ending | None:
        return self._tracker.ending

    @property
    def count(self) -> int:
        return self._tracker.count

    @property
    def num_pending(self) -> int:
        return self._tracker.num_pending

    @property
    def last_seq(self) -> int:
        return self._tracker.last_seq

    @property
    def up_to_seq(self) -> int:
        tracker = self._tracker
        if tracker.up_to_seq is not None:
            return tracker.up_to_seq
        if "multi_last" not in self._body:
            raise NotReadyError("up_to_seq is known of get_last_messages() only; use last_seq")
        if tracker.ending is Ending.NO_MESSAGES:
            return 0
        if tracker.ending is not None:
            state = f"ended as {tracker.ending.value!r}"
        else:
            state = "is not at its end" if self._started else "has not begun"
        raise NotReadyError(
            f"up_to_seq is known after the iteration has ended, which {state}: read it with 'async for'"
        )

    def __repr__(self) -> str:
        ending = "" if self.ending is None else f", {self.ending.value}"
        return f"<DirectBatch of {self._stream}: {self.count} messages{ending}>"

    if not TYPE_CHECKING:  # otherwise a type checker would accept ``await batch``

        def __await__(self) -> NoReturn:
            raise TypeError(
                "a DirectBatch is read with 'async for', as in [message async for message in batch]"
            )

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        async for answers in self._answers():
            while answers.frames and self._tracker.ending is None:
                message = self._tracker.read_frame(answers.frames.popleft())
                if message is not None:
                    yield message

    async def frames(self) -> AsyncIterator[list[Frame]]:
        """Iterate over lists of raw messages, which is faster because nothing is parsed. For internal use.

        To get the stream sequence of a raw message, use ``direct_sequence``.
        """
        async for answers in self._answers():
            frames = self._tracker.take_frames(answers.frames)
            answers.frames.clear()
            if frames:
                yield frames

    async def records(self, *, linked: bool, origin: Position | None = None) -> AsyncIterator[list[Record]]:
        """Iterate over lists of topic records. For internal use.

        Args:
            linked: Whether to set `Record.previous`, which is the sequence of the record before. Pass True if the
                publishers of the topic write it to a header.
            origin: A position in the stream, which becomes `Record.origin`. None if the records need no positions.
        """
        decoder: StoredRecords | None = None
        async for answers in self._answers():
            decoder = decoder or StoredRecords(
                self._tracker, linked=linked, origin=origin, split=chosen().split_stored
            )
            records = decoder.read_frames(answers.frames)
            answers.frames.clear()
            if records:
                yield records

    async def _answers(self) -> AsyncIterator[_Answers]:
        """Send the request, and yield each time responses have arrived, until the tracker has detected the end."""
        connection = self._context.connection
        self._started = True
        await self._check()
        check_server(connection.server_version, BATCH_GET_SERVER, "a batch of stored messages")
        tracker = self._tracker = DirectBatchTracker(self._body.get("batch"))
        subject, body = self._context.api.direct_get(self._stream), encode(self._body)
        answers, wait = _Answers(connection, subject), self._timeout * _FIRST
        is_first = True
        try:
            await answers.send_request(body, self._timeout)
            while tracker.ending is None:
                if answers.frames:
                    wait, is_first = self._timeout, False
                    yield answers
                elif answers.error is not None:
                    tracker.ending = Ending.DISCONNECTED
                    raise answers.error
                elif await answers.more(wait):
                    continue
                elif is_first:
                    # The server that received the request may have crashed. Repeat the request, which may reach a
                    # different server.
                    wait, is_first = self._timeout - wait, False
                    await answers.send_request(body, wait)
                else:
                    tracker.ending = Ending.SILENT
                    raise RequestTimeoutError("the rest of the messages", self._timeout, connection.problem)
            if tracker.error is not None:
                raise tracker.error
        finally:
            await answers.close()


class _Answers:
    """A request with many responses, which are buffered. ``error`` is the error that ended the request, or None."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self.frames: deque[Frame] = deque()
        self.error: JetStreamError | None = None
        self._connection = connection
        self._subject = subject
        self._replies: list[str] = []
        self._inboxes: list[Inbox] = []
        self._answered: str | None = None  # reply subject of the request that received the first response
        self._changed = Signal()

    async def send_request(self, body: bytes, timeout: float) -> None:
        """Send the request, or send it again with a different reply subject.

        If both requests receive responses, only those to the request with the first response are used.
        """
        connection = self._connection
        await connection.wait_connected(connection.now() + timeout)
        reply = connection.new_inbox()
        self._inboxes.append(await connection.subscribe(reply, partial(self._receive_answers, reply)))
        self._replies.append(reply)
        if len(self._replies) == 1:
            connection.add_listener(self._end_with_connection, self._denied)
        await connection.publish(self._subject, body, reply=reply)

    async def more(self, timeout: float) -> bool:
        """Wait for the next response or error. Return False if the timeout expires."""
        return await self._changed.wait_until(self._connection.now() + timeout) or bool(self.frames)

    async def close(self) -> None:
        connection = self._connection
        if self._replies:
            connection.remove_listener(self._end_with_connection, self._denied)
        while self._inboxes:
            await connection.unsubscribe(self._inboxes.pop())

    def _receive_answers(self, reply: str, frames: list[Frame]) -> None:
        if self._answered is None:
            self._answered = reply
        if self._answered == reply:
            self.frames.extend(frames)
            self._changed.set()

    def _end_with_connection(self, what: Lifecycle) -> None:
        if what is Lifecycle.CLOSED:
            self._end_reading(ClosedError("closed while messages were read"))
        else:
            self._end_reading(DisconnectedError("the connection was lost while messages were read"))

    def _denied(self, error: PermissionDeniedError) -> None:
        if error.subject in (self._subject, *self._replies):
            self._end_reading(error)

    def _end_reading(self, error: JetStreamError) -> None:
        self.error = self.error or error
        self._changed.set()
