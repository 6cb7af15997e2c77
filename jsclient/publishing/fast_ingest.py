"""Fast ingests, which `JetStream.fast_ingest` returns. Source: ADR-50 §Fast-ingest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Literal, NoReturn, Self, Unpack

from .._runtime.context import Context
from .._runtime.handle import body_error_first
from .._runtime.publish import (
    PublishOptions,
    check_payload,
    check_subject,
    known_subjects,
    message_headers,
)
from ..errors import (
    ClosedError,
    ConfigError,
    DisconnectedError,
    IngestError,
    JetStreamError,
    RequestTimeoutError,
)
from ..protocol.models.publish import PubAck
from ..protocol.publishing.fast_ingest import INGEST_SERVER, IngestTracker, check_ingest
from ..protocol.publishing.in_flight import ACK_EVERY, Recovery
from ..protocol.wire.checks import check_seconds, check_server
from ..protocol.wire.frames import Frame
from ..protocol.wire.headers import encode_headers
from .ingest_channel import CHUNK, IngestChannel

__all__ = ["FastIngest"]

_FIRST, _MOST = 16, 1000  # number of messages in the first write, and maximum number in a later write
_NO_ANSWER = (RequestTimeoutError, DisconnectedError, ClosedError)


class FastIngest:
    """Publishes messages to a stream as fast as the server's flow control allows. Created by `JetStream.fast_ingest`.

    The server determines how many messages may be in flight. `publish` waits only while this limit is reached. At the
    end of an ``async with`` block, the ingest waits until all messages are stored.

    The ingest isn't atomic. If it fails, the messages stored before the failure remain in the stream. If the block
    raises an exception, the ingest ends without waiting, and the messages already sent may or may not be stored.

    Args:
        gap: What happens if a message is lost or rejected. With "fail", the ingest fails. With "ok", it continues
            without the message and reports an event.
        ack_every: Maximum number of messages per acknowledgement.
        max_outstanding_acks: Maximum number of acknowledgements that may be outstanding.
        timeout: If no message is stored for this many seconds, the ingest fails. Defaults to the ``timeout`` passed to
            `connect`.
    """

    def __init__(
        self,
        context: Context,
        *,
        gap: Literal["fail", "ok"] = "fail",
        ack_every: int = ACK_EVERY,
        max_outstanding_acks: int = 2,
        timeout: float | None = None,
    ) -> None:
        check_ingest(gap, ack_every, max_outstanding_acks)
        self._context = context
        self._tracker = IngestTracker(
            context.connection.new_inbox(), ack_every, max_outstanding_acks, gap_ok=gap == "ok"
        )
        seconds = context.timeout if timeout is None else check_seconds("timeout", timeout)
        self._channel = IngestChannel(context, self._tracker, seconds)
        self._ending = asyncio.Lock()
        self._over = False

    @property
    def id(self) -> str:
        """Unique ID of the ingest. The final acknowledgement and the events of the ingest contain it too."""
        return self._tracker.id

    @property
    def sent(self) -> int:
        """Number of messages sent so far. They aren't necessarily stored yet. See `acked`."""
        return self._tracker.sent

    @property
    def acked(self) -> int:
        """Number of messages, counted from the first, that the server has acknowledged.

        All of these messages are stored, unless ``gap="ok"`` was passed and some were lost or rejected.
        """
        return self._tracker.acked

    @property
    def lost(self) -> int:
        """Number of messages that didn't reach the stream. With ``gap="ok"``, `IngestGap` reports each gap."""
        return self._tracker.lost

    @property
    def refused(self) -> int:
        """Number of messages that the stream has rejected. With ``gap="ok"``, `IngestRefused` reports each of them."""
        return self._tracker.refused

    @property
    def ack(self) -> PubAck | None:
        """Final acknowledgement, or None if it hasn't arrived, for example because the ingest has failed.

        Its ``seq`` is the stream sequence of the last message, and its ``count`` is the number of messages.
        """
        return self._tracker.final

    @property
    def is_closed(self) -> bool:
        """Whether the ingest has ended or failed. If so, it accepts no more messages."""
        return self._over or self._tracker.closing or self._tracker.failure is not None

    def __repr__(self) -> str:
        return f"<FastIngest {self.id}: {self.sent} sent, {self.acked} acked{', closed' * self.is_closed}>"

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        **options: Unpack[PublishOptions],
    ) -> int:
        """Send a message. Return its number in the ingest, starting at 1.

        The first call waits until the stream has accepted the ingest. Later calls wait only while too many messages are
        in flight. A message may still be rejected after the call has returned. A later call or `commit` then raises
        `IngestError`.

        Args:
            subject: Subject of the message, without wildcards. All subjects must belong to the same stream.
            data: Payload of the message. Empty by default.
            headers: Headers of the message. See `JetStream.publish`.
            options: Further arguments of `JetStream.publish`, such as ``msg_id``.

        Raises:
            BatchNotEnabledError: The stream doesn't have ``allow_batched``. No message was stored.
            TooManyBatchesError: Too many ingests are open on the server. No message was stored. Try again later.
            ApiError: The stream didn't accept the ingest for a different reason. No message was stored.
            NoRespondersError: No stream has the subject. No message was stored.
            IngestError: The ingest has failed, possibly at an earlier message. The error contains the number of
                messages stored.
            ConfigError, InvalidNameError, MaxPayloadError: The message is invalid. You can continue with the ingest.
            ClosedError: The ingest has ended.

        If the call is cancelled while too many messages are in flight, the message wasn't sent. If the first call is
        cancelled while it waits for the stream, the message may or may not be stored.
        """
        tracker, channel = self._tracker, self._channel
        to = known_subjects.get(subject) if type(subject) is str else None
        if to is None:
            to = check_subject(subject)
        if type(data) is not bytes:
            data = check_payload(data)
        block = b""
        if headers is not None or options:
            merged = message_headers(self._context, headers, **options)
            block = encode_headers(merged) if merged else b""
        size = len(data) + len(block)
        if size > channel.max_payload:
            self._context.connection.check_size(size)
        if tracker.sent >= tracker.limit or channel.unsent > CHUNK or not channel.is_open:
            await self._wait_for_window()
        # Write the message immediately after numbering it, so that messages are written in the order of their numbers.
        reply = tracker.next_reply()
        channel.write(to, reply, block, data)
        number = tracker.sent
        if number == 1:
            await self._begin_ingest((to, reply, block, data), lambda: tracker.accepted, channel.ping)
            if tracker.failure is not None:
                await self._raise_failure()
        return number

    async def publish_many(self, subject: str, payloads: Iterable[bytes]) -> int:
        """Send a message for each payload. Return the number of the last message in the ingest.

        This is faster than calling `publish` for each payload.

        Args:
            subject: Subject of all messages, without wildcards.
            payloads: An iterable of payloads. While too many messages are in flight, no payloads are consumed.

        Raises:
            ConfigError: A payload isn't bytes. The payloads before it were sent.
            MaxPayloadError: A payload exceeds the server's size limit. The payloads before it were sent.
            IngestError: The ingest has failed.

        If the stream doesn't accept the ingest, the call raises the same errors as the first call of `publish`.

        After an error, or if the call is cancelled, `sent` is the number of messages sent so far.
        """
        tracker, channel = self._tracker, self._channel
        to, waiting, together = check_subject(subject), iter(payloads), _FIRST
        if not tracker.sent:
            # Send the first message alone, because its answer says whether the stream accepts the ingest.
            for payload in waiting:
                await self.publish(subject, payload)
                break
        while True:
            if tracker.sent >= tracker.limit or channel.unsent > CHUNK or not channel.is_open:
                await self._wait_for_window()
            chunk = list(islice(waiting, min(tracker.limit - tracker.sent, together)))
            if not chunk:
                return tracker.sent
            good, error = self._usable(chunk)
            # If a payload is invalid, send the payloads before it, as individual calls of `publish` would have done.
            if good:
                size, replies = sum(map(len, good)), tracker.next_replies(len(good))
                channel.write_many([(to, r, b"", data) for r, data in zip(replies, good, strict=True)], size)
                together = max(1, min(_MOST, CHUNK * len(good) // (size or 1)))
            if error is not None:
                raise error

    async def commit(
        self,
        subject: str | None = None,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        **options: Unpack[PublishOptions],
    ) -> PubAck:
        """End the ingest, wait until all messages are stored, and return the final acknowledgement.

        At the end of an ``async with`` block, this is called automatically.

        Args:
            subject: Subject of a final message to send. By default, no message is sent.
            data: Payload of the final message. Empty by default.
            headers: Headers of the final message.
            options: Further arguments of `publish` for the final message.

        Raises:
            IngestError: Some messages weren't stored, or their outcome is unknown. The error tells how many were
                stored.
            ConfigError: No message was published.
            ClosedError: The ingest has already ended, because an earlier call committed it or raised its failure.

        A final message may also raise the errors of `publish`.

        If the call is cancelled, the ingest ends anyway. You may call `commit` again to wait for the acknowledgement.
        """
        tracker, channel = self._tracker, self._channel
        if self._over:
            raise self._closed()
        if subject is not None:
            payload = check_payload(data)
            merged = message_headers(self._context, headers, **options)
            block = encode_headers(merged) if merged else b""
            self._context.connection.check_size(len(block) + len(payload))
            to = check_subject(subject)
            await self._wait_for_window()
            frame = (to, tracker.commit_reply(), block, payload)
            channel.write(*frame)
            tracker.close()
            # If the commit is also the first message, the stream hasn't accepted the ingest yet, for example because it
            # has no leader. Repeat the message until the stream accepts it.
            if tracker.sent == 1:
                await self._begin_ingest(frame, lambda: tracker.ended, channel.send_end)
        elif not tracker.sent:
            raise ConfigError("nothing was published: publish a message before the commit")
        elif not tracker.closing:
            channel.send_end()
        await channel.until(lambda: tracker.ended, channel.send_end)
        if tracker.failure is not None:
            await self._raise_failure()
        await self._end_channel()
        assert tracker.final is not None
        return tracker.final

    async def ping(self) -> int:
        """Ask the server how many messages it has stored, wait for the response, and return `acked`.

        Use it to record progress during a long ingest. The response also reveals whether messages were lost. The call
        raises `IngestError` if the ingest has failed, and `ClosedError` if it has ended. If no message has been sent,
        the call returns 0 immediately.
        """
        tracker, channel = self._tracker, self._channel
        if self._over or tracker.closing:
            raise self._closed()
        if tracker.sent:
            seen = channel.pongs
            channel.ping()
            await channel.until(lambda: channel.pongs != seen, channel.ping)
            if tracker.failure is not None:
                await self._raise_failure()
        return tracker.acked

    def _usable(self, chunk: list[bytes]) -> tuple[list[bytes], JetStreamError | None]:
        """Return the payloads before the first invalid payload, and its error. The error is None if all are valid."""
        if set(map(type, chunk)) == {bytes} and max(map(len, chunk)) <= self._channel.max_payload:
            return chunk, None
        good: list[bytes] = []
        for data in chunk:
            try:
                payload = check_payload(data)
                self._context.connection.check_size(len(payload))
            except JetStreamError as error:
                return good, error
            good.append(payload)
        return good, None

    async def _wait_for_window(self) -> None:
        """Wait until another message may be sent. Raise an error if the ingest has failed or ended."""
        tracker = self._tracker
        if not tracker.sent:
            check_server(self._context.connection.server_version, INGEST_SERVER, "a fast ingest")
        if not self._over:
            await self._channel.room()
        if tracker.failure is not None:
            await self._raise_failure()
        if tracker.closing or self._over:
            raise self._closed()

    async def _begin_ingest(self, first: Frame, done: Callable[[], bool], again: Callable[[], None]) -> None:
        """Wait for the response to the first message. If no stream responds, send the message again."""
        tracker, channel, answered = self._tracker, self._channel, self._context.answered
        retries, loop = Recovery(), asyncio.get_running_loop()
        deadline = loop.time() + channel.timeout
        try:
            while True:
                await channel.until(lambda: tracker.no_stream is not None or done(), again)
                if (error := tracker.no_stream) is None:
                    break
                remaining, expected = deadline - loop.time(), first[0] in answered
                final, pause = retries.refusal(error, first[0].decode(), remaining, expected=expected)
                if pause is None:
                    tracker.not_begun(final)
                    break
                await asyncio.sleep(pause)
                if tracker.failure is not None:
                    break
                tracker.no_stream = None
                channel.write(*first)
        finally:
            # The loop was left without an answer, because the call was cancelled or the connection was closed. End the
            # ingest with the last refusal.
            if (error := tracker.no_stream) is not None:
                tracker.not_begun(error)
        if tracker.accepted:
            answered.add(first[0])

    async def _raise_failure(self) -> NoReturn:
        """Find out how many messages are stored, and raise the error of the ingest."""
        tracker, failure = self._tracker, self._tracker.failure
        async with self._ending:
            if not self._over:
                self._channel.send_end()
                if not isinstance(failure, _NO_ANSWER):
                    await self._channel.final()
                await self._end_channel()
        assert failure is not None
        if tracker.complete and not tracker.accepted:
            raise failure  # the stream accepted no message
        raise IngestError(
            f"the fast ingest failed: {failure}", tracker.sent, tracker.acked, tracker.complete
        ) from failure

    async def _end_channel(self) -> None:
        self._over = True
        await self._channel.close()

    def _closed(self) -> ClosedError:
        return ClosedError(f"fast ingest {self.id} has ended")

    async def __aenter__(self) -> Self:
        check_server(self._context.connection.server_version, INGEST_SERVER, "a fast ingest")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not self.sent:
            with body_error_first(error, self):
                await self._leave()
            return
        try:
            if self._tracker.failure is not None:
                await self._raise_failure()
            elif not self._over:
                await self.commit()
        except asyncio.CancelledError:
            await self._leave()  # stops the keepalive pings, which would continue forever
            raise

    async def _leave(self) -> None:
        """End the ingest without waiting for the final ack."""
        if not self._tracker.ended:
            self._channel.send_end()
        await self._end_channel()
