"""Many publishes under way at once: `JetStream.publisher`. Source: ADR-22."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self

from .._runtime.context import Context
from .._runtime.nats.write_buffer import CHUNK
from .._runtime.publish import (
    check_count,
    check_payload,
    check_subject,
    check_time,
    header_of_ids,
    known_subjects,
    message_headers,
)
from ..errors import PublishesFailedError
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import ATTEMPT, InFlight
from ..protocol.publishing.publish_window import NEVER
from ..protocol.wire.headers import MSG_ID, encode_headers
from .ack_window import Window

__all__ = ["Publisher"]

_YIELD_AFTER = (
    0.01  # seconds for which publishing keeps the event loop: else nothing is written, and nothing read
)


class Publisher(Window):
    """Publishes without waiting for each ack. Made by `JetStream.publisher`.

    `publish` gives a future as soon as the message is sent; it waits only while the window is full. Messages go out in
    the order of the calls. Every future ends within the timeout of its publish: with a `PubAck`, or with an error of
    `JetStream.publish`.

    Leaving ``async with`` waits for all that is under way. A failure that nobody looked at, by awaiting the future or
    asking it for its result or exception, is raised there, or by `flush`, in a `PublishesFailedError`.

    Source: ADR-22
    """

    __slots__ = (
        "_resend",
        "_timeout",
    )

    def __init__(
        self,
        context: Context,
        *,
        max_in_flight: int,
        max_bytes: int | None,
        timeout: float | None,
        room_timeout: float | None,
        resend: bool,
    ) -> None:
        check_count("max_in_flight", max_in_flight)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        if room_timeout is not None and room_timeout != 0:
            check_time("room_timeout", room_timeout)
        super().__init__(
            context,
            max_in_flight,
            NEVER if max_bytes is None else max_bytes,
            NEVER if room_timeout is None else room_timeout,
        )
        self._timeout = context.timeout if timeout is None else check_time("timeout", timeout)
        self._resend = resend

    # --- what it says of itself ----------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Publishes under way: sent, or about to be sent again, and not known to be stored or refused."""
        return len(self._window.in_flight)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of their headers and payloads."""
        return self._window.size

    @property
    def waiting(self) -> int:
        """Calls of `publish` that wait for room, or for a connection."""
        return self._gate.waiting

    @property
    def published(self) -> int:
        """Messages sent so far."""
        return self._number - self._unsent

    @property
    def stored(self) -> int:
        """Those of them that were acked."""
        return self._window.stored

    @property
    def failed(self) -> int:
        """Those of them that were refused, or whose outcome is unknown."""
        return self._failed

    @property
    def resent(self) -> int:
        """How often a message was sent again."""
        return self._window.resent

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._closed

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<Publisher{state}: {self.in_flight} in flight, {self.stored} stored, {self.failed} failed>"

    # --- publishing ----------------------------------------------------------------------------------------

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
        """Send a message and give the future of its ack; while the window is full, wait for room first.

        Args:
            timeout: Seconds from the sending within which the future ends, and that it waits for a connection before
                that; by default those of the publisher.

        All others are those of `JetStream.publish`.

        Raises:
            TooManyInFlightError: There was no room within ``room_timeout``. Nothing was sent.
            RequestTimeoutError: There was no connection within the timeout. Nothing was sent.
            InvalidNameError, ConfigError, MaxPayloadError, ClosedError: Nothing was sent.

        The future raises what `JetStream.publish` raises for a message that was sent.

        Cancelled: nothing was sent (over a nats-py connection of your own it may have been). A future that is cancelled
        takes nothing back: its place is free when the ack comes or its time is over.
        """
        to = (type(subject) is str and known_subjects.get(subject)) or check_subject(subject)
        if type(data) is not bytes:
            data = check_payload(data)
        header, repeatable = b"", False
        if (
            (headers is None and expected_stream is None and expected_last_seq is None and ttl is None)
            and (expected_last_subject_seq is None and expected_last_subject_seq_subject is None)
            and (rollup is None and (expected_last_msg_id is None or msg_id is not None))
        ):
            if msg_id is not None:
                header, repeatable = header_of_ids(msg_id, expected_last_msg_id), self._resend
        elif merged := message_headers(
            self._context,
            headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            expected_last_subject_seq_subject=expected_last_subject_seq_subject,
            expected_last_msg_id=expected_last_msg_id,
            ttl=ttl,
            rollup=rollup,
        ):
            header, repeatable = encode_headers(merged), self._resend and MSG_ID in merged
        timeout = self._timeout if timeout is None else check_time("timeout", timeout)
        size = len(header) + len(data)
        if size > self._small:
            self._connection.check_size(size)
        out, window, now = self._out, self._window, self._loop.time()
        if out is not None and not out.scheduled:
            self._yield_at = now + _YIELD_AFTER  # the first one in this turn of the loop
        wanted = window.size + size
        if (not self._clear or len(window.in_flight) >= self._max or now > self._yield_at) or (
            wanted > self._watch and self._too_much(wanted)
        ):
            await self._enter(subject, size, timeout)
            wanted, now = window.size + size, self._loop.time()
            self._yield_at = now + _YIELD_AFTER
        deadline = now + timeout
        due = min(deadline, now + ATTEMPT) if repeatable else deadline
        future: asyncio.Future[PubAck] = asyncio.Future(loop=self._loop)
        self._number = number = self._number + 1
        reply = b"%b%d" % (self._prefix, number)
        entry = InFlight(future, to, header, data, size, number, deadline, due, repeatable)
        if out is None:
            return await self._send_slowly(reply, entry)
        if header:
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (to, reply, len(header), size, header, data)
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (to, reply, size, data)
        if out.scheduled and out.size < CHUNK:
            out.commands.append(command)
            out.size += len(command)
        else:
            out.write(command)
        window.in_flight[reply] = entry
        window.size = wanted
        if due < window.look_at:
            self._look_at(due)
        return future

    # --- waiting and ending --------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait for the outcome of all that was sent so far.

        Raises:
            PublishesFailedError: Publishes failed, and nobody had looked at them.

        Cancelled: what is under way goes on.
        """
        await self._settled()
        self._raise_failures()

    def _raise_failures(self) -> None:
        failures, told = self._unseen.take()
        if failures or told:
            raise PublishesFailedError(failures, told) from (failures[0][1] if failures else None)

    async def close(self) -> None:
        """End it now. What is under way ends with `ClosedError`: whether it was stored is unknown.

        Failures that nobody looked at are told as events `PublishFailed`. `flush` before it waits for the acks.
        """
        await self._end()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self._idle()
            if error is None:
                self._raise_failures()
        finally:
            await self._end()
