"""Atomic batches, which `JetStream.batch` returns. Source: ADR-50."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import NoReturn, Self, TypeVar, Unpack

from .._runtime.connection.speedups import chosen
from .._runtime.connection.wire import PIECE
from .._runtime.context import Context
from .._runtime.publish import (
    BatchOptions,
    check_payload,
    check_subject,
    known_subjects,
    message_headers,
    request_stored,
)
from ..errors import (
    ApiError,
    BatchAbandonedError,
    BatchIncompleteError,
    BatchNotAtomicError,
    ClosedError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ..protocol.models.publish import PubAck
from ..protocol.publishing.batch import (
    BATCH_SERVER,
    BatchMessage,
    BatchState,
    BatchTracker,
    check_batch_headers,
)
from ..protocol.publishing.in_flight import PAUSE, Recovery
from ..protocol.wire.checks import check_count, check_seconds, check_server
from ..protocol.wire.frames import Frame
from ..protocol.wire.headers import encode_headers

__all__ = ["AtomicBatch"]

AnswerT = TypeVar("AnswerT")

_SMALL = 1024  # messages up to this size in bytes aren't checked, because every server accepts them


class _Turns:
    """A lock that counts the callers that hold it or are waiting for it."""

    def __init__(self) -> None:
        self.callers: int = 0
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        self.callers += 1
        try:
            await self._lock.acquire()
        except BaseException:  # the caller was cancelled
            self.callers -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self.callers -= 1


class AtomicBatch:
    """A batch of messages. The stream stores either all of them or none. Created by `JetStream.batch`.

    The batch is committed at the end of an ``async with`` block, or when you call `commit`. If the block raises an
    exception or adds no message, or if you call `abandon`, nothing is stored. If the batch fails and the block
    catches the error, the end of the block raises the error again.

    All subjects must belong to the same stream, which must have ``allow_atomic``.
    """

    def __init__(self, context: Context, *, ack_every: int | None, timeout: float | None) -> None:
        _check_options(ack_every, timeout)
        self._context = context
        self._timeout = context.timeout if timeout is None else timeout
        self._tracker = BatchTracker(secrets.token_hex(16), ack_every)
        self._out = context.connection.outbox
        self._write_at_once = context.connection.write_at_once
        self._small = min(_SMALL, context.connection.max_payload) - self._tracker.overhead
        self._checked: str | None = None  # version of the server for which support of batches was checked
        self._turns = _Turns()  # ensures that messages are sent in the order of their numbers
        self._saw_election = False  # True if a leader was elected, in which case the batch may be lost
        self._refusal: JetStreamError | None = None  # error in the answer to the first message
        # How many times the whole batch was sent again. Responses to earlier attempts must be ignored.
        self._attempt = 0
        self._ack: PubAck | None = None
        self._failure: JetStreamError | None = None

    @property
    def id(self) -> str:
        """Unique ID of the batch. The ``Nats-Batch-Id`` header of each stored message contains it."""
        return self._tracker.id

    @property
    def ack(self) -> PubAck | None:
        """Acknowledgement of the whole batch, or None if the batch hasn't been committed or the commit has failed.

        Its ``seq`` is the stream sequence of the last message, and its ``count`` is the number of messages.
        """
        return self._ack

    @property
    def is_closed(self) -> bool:
        """Whether the batch has been committed, was abandoned or has failed. It then accepts no more messages."""
        return self._tracker.state is not BatchState.OPEN

    def __len__(self) -> int:
        return self._tracker.count

    def __repr__(self) -> str:
        return f"<AtomicBatch {self.id} of {len(self)}, {self._tracker.state.value}>"

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        **options: Unpack[BatchOptions],
    ) -> int:
        """Add a message to the batch. Return its number in the batch, starting at 1.

        Each call sends the message of the previous call, because the last message of the batch must also contain the
        commit. Errors that concern the whole batch are therefore raised by the second call, by a later one, or by
        `commit`.

        The server checks expectations when the batch is committed, against the state of the stream at that time.

        Args:
            subject: Subject of the message, without wildcards.
            data: Payload of the message. Empty by default.
            headers: Headers of the message. See `JetStream.publish`.
            msg_id: Unique ID of the message. If the stream already has a message with this ID, the commit fails with
                `BatchDuplicateError` (nats-server 2.12.1).
            expected_stream: Name of the stream that must store the batch.
            expected_last_seq: Expected last sequence of the stream before the batch. It is allowed only for the first
                message.
            expected_last_subject_seq: Expected last sequence of the subject before the batch. It isn't allowed if an
                earlier message of the batch has the same subject. To check a different subject, set
                ``expected_last_subject_seq_subject``.
            ttl: How long the server keeps the message, in seconds, or ``"never"``. See `JetStream.publish`.
            rollup: ``"sub"`` or ``"all"`` to replace earlier messages. See `JetStream.publish`.

        Raises:
            ConfigError, InvalidNameError, MaxPayloadError: The message is invalid. You can continue with the batch.
            BatchNotEnabledError: The stream doesn't have ``allow_atomic``. Nothing was stored.
            TooManyBatchesError: Too many batches are open on the server. Nothing was stored. Try again later.
            BatchIncompleteError: The stream didn't receive all messages. Nothing was stored. Publish the batch again.
            NoRespondersError: No stream received the message. Nothing was stored.
            ApiError: The server rejected the batch for a different reason. Nothing was stored.
            BatchAbandonedError: The connection was lost, or a response didn't arrive. Nothing was stored.
            BatchNotAtomicError: The server doesn't support batches, and has stored messages individually.
            ClosedError: The batch has ended.

        If the call is cancelled, the batch is abandoned, and nothing is stored.
        """
        if self._refusal is not None:
            await self._recover_first()
        out = self._out
        # The fast path. If the connection already has commands to write at the end of this iteration of the event loop,
        # the command of an ordinary message can simply be appended.
        if (
            (out is not None and 0 < out.size < PIECE)
            and (headers is None and not options and type(data) is bytes and len(data) <= self._small)
            and (type(subject) is str and subject in known_subjects and not self._turns.callers)
            and (size := self._tracker.add_plain(subject, data, out.commands))
        ):
            out.size += size
            return self._tracker.count
        # Without other callers, the order of the messages is certain, and the slow lock isn't needed.
        if not self._turns.callers:
            number, before = self._add(subject, data, headers, options)
            if before is not None and not (self._tracker.sent == 1 and self._send_first(before)):
                to, header, payload = before.subject, before.header, before.payload
                size = len(header) + len(payload)
                line = (known_subjects.get(to) or to.encode(), len(header), size, header, payload)
                if before.acked or not self._write_at_once(b"HPUB %b %d %d\r\n%b%b\r\n" % line, size):
                    async with self._turns:
                        # If an error has already ended the batch, sending raises that error.
                        await self._send_message(before)
            return number
        async with self._turns:
            number, before = self._add(subject, data, headers, options)
            if before is not None:
                await self._send_message(before)
            return number

    async def commit(
        self,
        subject: str | None = None,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        **options: Unpack[BatchOptions],
    ) -> PubAck:
        """Commit the batch, wait until the stream has stored all messages, and return the acknowledgement.

        Args:
            subject: Subject of a final message to add before the commit. By default, no message is added.
            data: Payload of the final message. Empty by default.
            headers: Headers of the final message.
            options: Further arguments of `publish` for the final message.

        Raises:
            WrongLastSequenceError: An expectation wasn't met. Nothing was stored.
            BatchDuplicateError: The stream already has a message with one of the IDs. Nothing was stored.
            BatchTooLargeError: The batch has more messages than the server allows. Nothing was stored.
            BatchHeaderError, BatchIncompleteError, ApiError: The server rejected the batch. Nothing was stored.
            RequestTimeoutError, DisconnectedError: No response arrived, so the batch may or may not have been stored.
                To find out, look for messages whose ``Nats-Batch-Id`` header is `id`.
            ConfigError: The batch is empty. You can continue with the batch.
            ClosedError: The batch has ended.

        May also raise the errors of `publish`, because the last message is sent only now.

        If the call is cancelled, the batch may or may not have been stored.
        """
        async with self._turns:
            if subject is not None:
                _, before = self._add(subject, data, headers, options)
                if before is not None:
                    await self._send_message(before)
            return await self._commit()

    async def abandon(self) -> None:
        """End the batch without storing its messages. Has no effect if the batch has been committed or has failed."""
        self._drop()

    def _add(
        self,
        subject: str,
        data: object,
        headers: Mapping[str, str | Sequence[str]] | None,
        options: BatchOptions,
    ) -> tuple[int, BatchMessage | None]:
        """Check a message and add it. Return its number, and the previous message, which must be sent now."""
        tracker = self._tracker
        if tracker.state is not BatchState.OPEN:
            tracker.check_open()
        if type(subject) is not str or subject not in known_subjects:
            check_subject(subject)
        payload, block = data if type(data) is bytes else check_payload(data), b""
        if headers is not None or (options and any(option is not None for option in options.values())):
            block = self._block(headers, options)
        if (size := len(block) + len(payload)) > self._small:
            self._context.connection.check_size(size + tracker.overhead)
        if not tracker.count and self._context.connection.server_version != self._checked:
            self._check_server()
        before = tracker.add_message(subject, block, payload)
        return tracker.count, before

    def _block(self, headers: Mapping[str, str | Sequence[str]] | None, options: BatchOptions) -> bytes:
        first = not self._tracker.count
        if (
            headers
            and not options
            and type(headers) is dict
            and (block := chosen().ordinary_block(headers)) is not None
        ):
            check_batch_headers(headers, first=first)
            return block
        merged = message_headers(self._context, headers, **options)
        check_batch_headers(merged, first=first)
        return encode_headers(merged) if merged else b""

    def _send_first(self, message: BatchMessage) -> bool:
        """Send the first message without waiting for the response, if its subject's stream is known to accept batches.

        Return False if the message was not sent.
        """
        context = self._context
        encoded = known_subjects.get(message.subject) or message.subject.encode()
        if encoded not in context.takes_batches or not context.requests.ask_now(
            message.subject,
            message.payload,
            header=message.header,
            timeout=self._timeout,
            what=f"batch {self.id}",
            answered=partial(self._first_answered, encoded, self._attempt),
            urgent=False,  # written together with the following messages
        ):
            return False
        self._tracker.accepted = True
        return True

    def _first_answered(self, subject: bytes, attempt: int, answer: Frame | JetStreamError) -> None:
        if attempt != self._attempt:
            return
        try:
            if isinstance(answer, JetStreamError):
                raise answer
            self._tracker.read_answer(answer[3])
        except JetStreamError as error:
            self._refusal = error
            self._saw_election |= isinstance(error, NoRespondersError)
            if isinstance(error, ApiError | BatchNotAtomicError):
                self._context.takes_batches.discard(subject)

    async def _recover_first(self) -> None:
        """Handle the error in the response to the first message.

        If the stream had no leader, send the batch again. Otherwise, raise the error.
        """
        self._tracker.check_open()
        async with self._turns:
            if self._refusal is not None:  # it is None if another call has already handled the error
                await self._guarded(self._mend(self._refusal))

    async def _mend(self, refusal: JetStreamError) -> None:
        if not isinstance(refusal, NoRespondersError) or not self._tracker.can_restart:
            raise refusal
        latest = await self._resend(committing=False)
        if latest.acked:
            await self._exchange(latest, self._tracker.read_answer)
        else:
            await self._write(latest)

    async def _send_message(self, message: BatchMessage) -> None:
        """Send a message that is not the last one. If sending fails, abandon the batch."""
        if message.acked:
            await self._guarded(self._exchange(message, self._tracker.read_answer))
        else:
            await self._guarded(self._write(message))

    async def _guarded(self, sending: Awaitable[None]) -> None:
        """Await ``sending``. If it fails or is cancelled, abandon the batch."""
        tracker = self._tracker
        try:
            await sending
        except (DisconnectedError, RequestTimeoutError, ClosedError) as error:
            self._fail_with(error)
        except JetStreamError as error:
            self._drop()
            self._failure = self._cause(error)
            if self._failure is error:
                raise
            raise self._failure from error
        except BaseException:  # a cancelled message may have been sent, so the batch can't continue
            self._drop()
            self._failure = BatchAbandonedError(
                f"batch {tracker.id} was abandoned at message {tracker.sent}: the publish was cancelled"
            )
            raise

    def _cause(self, error: JetStreamError) -> JetStreamError:
        """Return the server's most informative error.

        If the server rejects the first message, its responses to later messages merely say that messages are missing.
        """
        refusal = self._refusal
        if isinstance(error, BatchIncompleteError) and isinstance(refusal, ApiError):
            return refusal
        return error

    def _fail_with(self, error: JetStreamError) -> NoReturn:
        self._drop()
        self._failure = BatchAbandonedError(
            f"batch {self.id} was abandoned after {self._tracker.sent} messages, nothing was stored: {error}"
        )
        raise self._failure from error

    async def _commit(self) -> PubAck:
        tracker, connection = self._tracker, self._context.connection
        tracker.check_open()
        if not connection.is_connected:
            try:
                # Don't wait if messages were already sent. Some of them were probably lost, so the batch has failed.
                patience = 0.0 if tracker.sent else self._timeout
                await connection.wait_connected(connection.now() + patience)
            except (DisconnectedError, ClosedError) as error:
                self._fail_with(error)
        message = tracker.commit()
        try:
            self._ack = await self._exchange(message, tracker.read_commit)
        except (DisconnectedError, RequestTimeoutError, ClosedError) as error:
            if tracker.state is BatchState.OPEN:  # the batch was being sent again, and was not committed yet
                self._fail_with(error)
            tracker.state = BatchState.UNKNOWN
            self._failure = _unknown(error, f"whether batch {tracker.id} was stored is unknown")
            raise self._failure from error
        except (NoRespondersError, PermissionDeniedError) as error:
            tracker.state, self._failure = BatchState.ABANDONED, error  # no stream has received the commit
            raise
        except JetStreamError as error:
            self._failure = self._cause(error)
            if self._failure is error:
                raise
            raise self._failure from error
        finally:
            if tracker.state is BatchState.COMMITTING:
                tracker.state = BatchState.UNKNOWN
            self._drop()  # has an effect only if the batch failed before the commit was sent
        first = tracker.first_subject
        self._context.takes_batches.add(known_subjects.get(first) or first.encode())
        return self._ack

    async def _exchange(self, message: BatchMessage, read: Callable[[bytes], AnswerT]) -> AnswerT:
        """Send a message and wait for the response. If a new leader doesn't know the batch, send the batch again."""
        tracker, connection = self._tracker, self._context.connection
        deadline = connection.now() + self._timeout
        committing, lost = tracker.state is BatchState.COMMITTING, False
        while True:
            try:
                if lost:
                    message = await self._resend(committing=committing)
                return read(await self._request(message))
            except BatchIncompleteError:
                if not (self._saw_election and tracker.can_restart) or connection.now() + PAUSE >= deadline:
                    raise
            lost = True
            await asyncio.sleep(PAUSE)

    async def _resend(self, *, committing: bool) -> BatchMessage:
        """Send the batch again, except for its latest message. Return that message."""
        tracker, self._refusal, self._attempt = self._tracker, None, self._attempt + 1
        *earlier, latest = tracker.restart(commit=committing)
        for message in earlier:
            if message.acked:
                tracker.read_answer(await self._request(message))
            else:
                await self._write(message)
        if committing:
            tracker.state = BatchState.COMMITTING
        return latest

    async def _request(self, message: BatchMessage) -> bytes:
        recovery = Recovery()
        try:
            return await request_stored(
                self._context,
                message.subject,
                message.payload,
                header=message.header,
                timeout=self._timeout,
                what=f"batch {self.id}",
                recovery=recovery,
            )
        finally:
            self._saw_election |= recovery.refused > 0

    async def _write(self, message: BatchMessage) -> None:
        await self._context.connection.publish(message.subject, message.payload, header=message.header)

    def _check_server(self) -> None:
        """Raise `ConfigError` if the server is too old, because it would store each message separately."""
        version = self._context.connection.server_version
        check_server(version, BATCH_SERVER, "an atomic batch")
        self._checked = version

    def _drop(self) -> None:
        """End the batch, and tell the server to drop it."""
        farewell = self._tracker.abandon_batch()
        if farewell is not None:
            try:
                self._context.connection.send(farewell.subject, farewell.payload, header=farewell.header)
            except JetStreamError:
                pass  # the server drops the batch after 10 s without a message

    async def __aenter__(self) -> Self:
        self._check_server()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not len(self):
            self._drop()
        elif self._failure is not None:
            # The ``async with`` block has caught the error, perhaps as the failure of a single message. Raise it again,
            # because the whole batch has failed.
            raise self._failure
        elif not self.is_closed:
            await self.commit()


def _unknown(error: JetStreamError, text: str) -> JetStreamError:
    if isinstance(error, RequestTimeoutError):
        return RequestTimeoutError(text, error.timeout, error.why)
    return type(error)(f"{text}: {error}")


def _check_options(ack_every: int | None, timeout: float | None) -> None:
    if ack_every is not None:
        check_count("ack_every", ack_every)
    if timeout is not None:
        check_seconds("timeout", timeout)
