"""Publishers, which `JetStream.publisher` returns. Source: ADR-22."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import timedelta
from threading import get_ident
from types import TracebackType
from typing import Any, Literal, Self

from .._runtime.connection.speedups import chosen
from .._runtime.connection.wire import CHUNK
from .._runtime.context import Context
from .._runtime.handle import Handle
from .._runtime.publish import (
    check_payload,
    check_subject,
    headers_and_ids,
    known_subjects,
    message_headers,
)
from .._runtime.tasks import clock
from ..errors import ConfigError, PublishesFailedError, WrongLoopError
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import ATTEMPT, MAX_BYTES, MAX_IN_FLIGHT, InFlight
from ..protocol.publishing.publish_window import NEVER, PublishWindow
from ..protocol.wire.checks import check_count, check_seconds
from ..protocol.wire.commands import large_command
from ..protocol.wire.header_names import MSG_ID
from ..protocol.wire.headers import encode_headers
from .ack_window import AckWindow
from .admission import YIELD_AFTER, Limits
from .last_words import describe, publishers, say
from .slot_acks import SlotAcks, new_slots
from .unretrieved import PublishFuture, UnretrievedFailures

__all__ = ["Publisher"]

_RETAINED = 1000  # minimum number of failures that are kept until the application retrieves them


class Publisher(Handle):
    """Publishes messages without waiting for each acknowledgement. Created by `JetStream.publisher`.

    `publish` returns a future as soon as it has sent the message. It waits only while too many messages are in flight.
    `send` is similar, but never waits. Messages are sent in the order of the calls. The result of the future is a
    `PubAck`. The future fails with the same errors as `JetStream.publish`, at the latest when the timeout expires.

    You don't have to await the futures. At the end of an ``async with`` block, the publisher waits for all messages in
    flight, and raises `PublishesFailedError` if some of them have failed. `flush` does the same at any time. Failures
    that you have retrieved from a future aren't raised again. If the block raises an exception, the publisher adds a
    note with the number of failures to the exception.
    """

    def __init__(
        self,
        context: Context,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_bytes: int | None = MAX_BYTES,
        timeout: float | None = None,
        room_timeout: float | None = None,
        resend: bool = True,
        window: PublishWindow[PublishFuture] | None = None,
        after_event: Callable[[], None] | None = None,
    ) -> None:
        check_count("max_in_flight", max_in_flight)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        if room_timeout is not None and room_timeout != 0:
            check_seconds("room_timeout", room_timeout)
        self._timeout = context.timeout if timeout is None else check_seconds("timeout", timeout)
        self._resend = resend
        self._context = context
        self._out = context.connection.outbox
        self._failures = UnretrievedFailures(context.emit, max(_RETAINED, max_in_flight))
        limits = Limits(
            max_in_flight,
            NEVER if max_bytes is None else max_bytes,
            NEVER if room_timeout is None else room_timeout,
        )
        self._slots = None if window is not None else new_slots(context)
        self.acks: AckWindow[PublishFuture] = (
            AckWindow(context, self._failures, limits, window=window, after_event=after_event)
            if self._slots is None
            else SlotAcks(context, self._failures, limits, self._slots, after_event=after_event)
        )
        self._block, self._command = chosen().ordinary_block, chosen().publish_command
        self._loop, self._now, self._thread = self.acks.loop, clock(self.acks.loop), get_ident()
        self._admission, self._window = self.acks.admission, self.acks.window
        self._pending: Sized = self._window.in_flight if self._slots is None else self._slots
        publishers.add(self)

    def describe_rest(self) -> str:
        """Describe the messages that may be lost if the application ends now, or return "". For internal use."""
        if self.acks.is_ended:
            return ""
        self._window.expand()
        return describe(self._window.in_flight.values(), self._failures)

    def __del__(self) -> None:
        if "_window" in self.__dict__:
            say(self.describe_rest())

    @property
    def in_flight(self) -> int:
        """Number of messages waiting for their acknowledgement, including messages that must be sent again."""
        return self._window.count

    @property
    def in_flight_bytes(self) -> int:
        """Total size of the headers and payloads of the messages in flight, in bytes."""
        return self._window.size

    @property
    def waiting(self) -> int:
        """Number of calls of `publish` that are waiting, because the window is full or the client is disconnected."""
        return self._admission.gate.waiting

    @property
    def published(self) -> int:
        """Number of messages sent so far. A message that is sent again counts only once."""
        return self.acks.number - self.acks.unsent

    @property
    def stored(self) -> int:
        """Number of messages that the stream has acknowledged as stored, including duplicates."""
        return self._window.stored

    @property
    def failed(self) -> int:
        """Number of messages that were rejected, or whose outcome is unknown because no acknowledgement arrived."""
        return self.acks.failed

    @property
    def resent(self) -> int:
        """Number of times that a message was sent again, because the connection or a response was lost."""
        return self._window.resent

    @property
    def is_closed(self) -> bool:
        """Whether the publisher has been closed, so it accepts no more messages."""
        return self._admission.closed

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        return f"<Publisher{state}: {self.in_flight} in flight, {self.stored} stored, {self.failed} failed>"

    def permissions(self, *subjects: str, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a NATS user needs in order to publish to these subjects.

        The result can be pasted into the server's configuration.

        Args:
            subjects: Subjects to publish to. They may contain wildcards.
            inbox_prefix: The ``inbox_prefix`` that the user passes to `connect`. Acknowledgements arrive there.

        Returns:
            A dict with the subjects that the user may publish and subscribe to.

        Raises:
            ConfigError: No subjects were given.
            InvalidNameError: A subject is invalid.
        """
        from ..protocol.consumers.rights import publisher_rights

        return publisher_rights(subjects, inbox_prefix=inbox_prefix)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        rollup: Literal["sub", "all"] | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a message, and return a future for its acknowledgement. If the window is full, wait for space.

        Args:
            timeout: How long to wait for the acknowledgement before the future fails, in seconds. The time spent
                waiting for space doesn't count. If the client is disconnected, the call waits up to ``timeout`` seconds
                for the reconnect. Defaults to the timeout of the publisher.

        The other arguments are the same as for `JetStream.publish`.

        Raises:
            TooManyInFlightError: The window was full for ``room_timeout`` seconds. The message wasn't sent.
            RequestTimeoutError: The client didn't reconnect in time. The message wasn't sent.
            InvalidNameError: The subject or a header is invalid. The message wasn't sent.
            ConfigError: ``data`` isn't bytes, or another argument is out of range. The message wasn't sent.
            MaxPayloadError: The message exceeds the server's size limit. The message wasn't sent.
            ClosedError: The publisher or the connection is closed. The message wasn't sent.

        Once the message has been sent, the future reports the errors of `JetStream.publish`.

        If the call is cancelled, the message wasn't sent. With a nats-py connection, however, it may have been sent.
        Cancelling the future has no effect on the message, which remains in flight.
        """
        to = (type(subject) is str and known_subjects.get(subject)) or check_subject(subject)
        if type(data) is not bytes:
            data = check_payload(data)
        header, repeatable = b"", False
        if (
            (expected_stream is not None or expected_last_seq is not None or expected_last_msg_id is not None)
            or (expected_last_subject_seq is not None or expected_last_subject_seq_subject is not None)
            or (ttl is not None or rollup is not None)
        ):
            header, repeatable = self._header(
                headers, msg_id, expected_stream, expected_last_seq, expected_last_subject_seq,
                expected_last_subject_seq_subject, expected_last_msg_id, ttl, rollup,
            )  # fmt: skip
        elif headers is not None or msg_id is not None:
            header, repeatable = headers_and_ids(headers, msg_id, None, self._block)
        timeout = self._timeout if timeout is None else check_seconds("timeout", timeout)
        admission, window, out = self._admission, self._window, self._out
        now = self._now()
        if (
            (slots := self._slots) is not None
            and (out is not None and out.scheduled and out.size < CHUNK)
            and (admission.clear and now <= admission.yield_at)
        ):
            future: PublishFuture | None = slots.publish(
                to, header, data, now, timeout, repeatable and self._resend, False
            )
            if future is not None:
                return future
        size = len(header) + len(data)
        if size > self.acks.small:
            self.acks.connection.check_size(size)
        if out is not None and not out.scheduled:
            admission.yield_at = now + YIELD_AFTER  # this is the first message in this iteration of the loop
        total = window.size + size
        if (not admission.clear or len(self._pending) >= admission.max_in_flight) or (
            now > admission.yield_at or (total > admission.watch and admission.too_much(total))
        ):
            await self.acks.enter(subject, size, timeout)
            now = self._now()
            admission.yield_at = now + YIELD_AFTER
        future = self._put(to, header, data, size, now, timeout, repeatable)
        if out is None:
            await self._send_slowly(future)
        return future

    def send(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        rollup: Literal["sub", "all"] | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a message without waiting, and return a future for its acknowledgement.

        Unlike `publish`, this is a plain method, so it can be called from callbacks. If `publish` would have to wait,
        `send` raises an error instead, and the message isn't sent. The arguments and the future are as for `publish`.
        Messages are written only when the event loop runs, so the caller must yield to the event loop from time to
        time.

        Raises:
            TooManyInFlightError: The window or the write buffer is full, or a call of `publish` is waiting.
            DisconnectedError: The client is currently disconnected.
            ConfigError: An argument is invalid, or the client uses a nats-py connection.
            WrongLoopError: The method was called in a different thread or event loop.
            InvalidNameError: The subject or a header is invalid.
            MaxPayloadError: The message exceeds the server's size limit.
            ClosedError: The publisher or the connection is closed.
        """
        if get_ident() != self._thread:
            raise WrongLoopError("`send` was called outside of the thread of its publisher; nothing was sent")
        to = (type(subject) is str and known_subjects.get(subject)) or check_subject(subject)
        if type(data) is not bytes:
            data = check_payload(data)
        header, repeatable = b"", False
        # This repeats the code of `publish`, to avoid a function call for each message.
        if (
            (expected_stream is not None or expected_last_seq is not None or expected_last_msg_id is not None)
            or (expected_last_subject_seq is not None or expected_last_subject_seq_subject is not None)
            or (ttl is not None or rollup is not None)
        ):
            header, repeatable = self._header(
                headers, msg_id, expected_stream, expected_last_seq, expected_last_subject_seq,
                expected_last_subject_seq_subject, expected_last_msg_id, ttl, rollup,
            )  # fmt: skip
        elif headers is not None or msg_id is not None:
            header, repeatable = headers_and_ids(headers, msg_id, None, self._block)
        timeout = self._timeout if timeout is None else check_seconds("timeout", timeout)
        admission, window, out = self._admission, self._window, self._out
        if out is None:
            raise ConfigError(
                "`send` needs a connection that `jsclient.connect` opened; await `publish` instead"
            )
        now = self._now()
        if (slots := self._slots) is not None and (out.scheduled and out.size < CHUNK) and admission.clear:
            future: PublishFuture | None = slots.publish(
                to, header, data, now, timeout, repeatable and self._resend, False
            )
            if future is not None:
                return future
        size = len(header) + len(data)
        if size > self.acks.small:
            self.acks.connection.check_size(size)
        if not out.scheduled:
            admission.yield_at = now + YIELD_AFTER
        total = window.size + size
        if (not admission.clear or len(self._pending) >= admission.max_in_flight) or (
            total > admission.watch and admission.too_much(total)
        ):
            self.acks.enter_now(subject, size)
        return self._put(to, header, data, size, now, timeout, repeatable)

    def _header(  # noqa: PLR0917  positional arguments are faster
        self,
        headers: Mapping[str, str | Sequence[str]] | None,
        msg_id: str | None,
        stream: str | None,
        last_seq: int | None,
        last_subject_seq: int | None,
        last_subject_seq_subject: str | None,
        last_msg_id: str | None,
        ttl: float | timedelta | Literal["never"] | None,
        rollup: Literal["sub", "all"] | None,
    ) -> tuple[bytes, bool]:
        """Encode the headers of a message. Return them, and True if the message has an ID, so it can be sent again."""
        if (
            (stream is None and last_seq is None and last_subject_seq is None)
            and (last_subject_seq_subject is None and ttl is None)
            and (rollup is None and msg_id is not None)
        ):
            # Fast path for a message whose only options are headers and message IDs.
            return headers_and_ids(headers, msg_id, last_msg_id)
        merged = message_headers(
            self._context,
            headers,
            msg_id=msg_id,
            expected_stream=stream,
            expected_last_seq=last_seq,
            expected_last_subject_seq=last_subject_seq,
            expected_last_subject_seq_subject=last_subject_seq_subject,
            expected_last_msg_id=last_msg_id,
            ttl=ttl,
            rollup=rollup,
        )
        return (encode_headers(merged), MSG_ID in merged) if merged else (b"", False)

    def _put(  # noqa: PLR0917
        self,
        to: bytes,
        header: bytes,
        data: bytes,
        size: int,
        now: float,
        timeout: float,
        repeatable: bool,  # noqa: FBT001
    ) -> PublishFuture:
        """Send a message for which there is capacity. On a nats-py connection, only register it."""
        acks, window, out = self.acks, self._window, self._out
        repeatable = repeatable and self._resend
        if (slots := self._slots) is not None and out is not None and size <= CHUNK:
            out.prepare()  # raises an error if it is called in another event loop
            placed: PublishFuture | None = slots.publish(to, header, data, now, timeout, repeatable, True)
            if placed is not None:
                return placed
        deadline = now + timeout
        due = min(deadline, now + ATTEMPT) if repeatable else deadline
        future = PublishFuture(loop=self._loop)
        number = acks.number + 1
        if out is None or size > CHUNK:
            reply = b"%b%d" % (acks.prefix, number)
            entry = InFlight(future, to, header, data, size, number, deadline, due, repeatable)
            if out is None:
                acks.number = number
                window.add_publish(reply, entry)
                return future
            out.write_parts(*large_command(to, reply, header, data))
        else:
            if (compiled := self._command) is not None:
                reply, command = compiled(to, acks.prefix, number, header, data)
            else:  # this repeats `publish_command`, because the call would take as long as the formatting
                reply = b"%b%d" % (acks.prefix, number)
                if header:
                    command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (to, reply, len(header), size, header, data)
                else:
                    command = b"PUB %b %b %d\r\n%b\r\n" % (to, reply, size, data)
            if out.scheduled and out.size < CHUNK:
                out.commands.append(command)
                out.size += len(command)
            else:
                out.write(command)  # raises an error if it is called in another event loop
            entry = InFlight(future, to, header, data, size, number, deadline, due, repeatable)
        acks.number = number
        if slots is not None:
            window.expand()
        window.in_flight[reply] = entry
        window.size += size
        if due < window.next_check:
            acks.next_check(due)
        return future

    async def _send_slowly(self, future: PublishFuture) -> None:
        try:
            await self.acks.send_slowly()
        except asyncio.CancelledError:
            future.cancel()
            raise

    async def flush(self) -> None:
        """Wait until all messages sent so far have been acknowledged or have failed.

        Raises:
            PublishesFailedError: Some messages have failed, and the application hasn't retrieved their errors from the
                futures. Each failure is raised only once.

        If the call is cancelled, the messages remain in flight.
        """
        await self.acks.settled()
        self._raise_failures()

    def _raise_failures(self) -> None:
        failures, reported = self._failures.take_failures()
        if failures or reported:
            raise PublishesFailedError(failures, reported) from (failures[0][1] if failures else None)

    async def close(self) -> None:
        """Close the publisher immediately, without waiting for acknowledgements. To wait for them, call `flush` first.

        The futures of messages in flight fail with `ClosedError`, and these messages may or may not have been stored.
        The event `PublishFailed` reports failures that you haven't retrieved. The call itself raises no error.
        """
        await self.acks.end_window()

    async def __aenter__(self) -> Self:
        self.acks.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self.acks.idle()
            if error is None:
                self._raise_failures()
            elif isinstance(error, Exception):
                self._failures.note_on(error)
        finally:
            await self.acks.end_window()
