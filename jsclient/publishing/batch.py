"""Atomic batches: `JetStream.batch`. Source: ADR-50."""

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

_SMALL = 1024  # bytes. Only larger messages are compared with the server's limit before they are added


class _Turns:
    """Lets one caller run at a time, in the order of the calls."""

    def __init__(self) -> None:
        self.callers: int = 0  # number of callers that hold the lock or wait for it
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
    """Messages that a stream stores together or not at all. Created by `JetStream.batch`.

    Leaving ``async with`` commits the batch. After an exception inside the block, or `abandon`, nothing is stored. The
    stream must have ``allow_atomic``, and all subjects must belong to it.
    """

    def __init__(self, context: Context, *, ack_every: int | None, timeout: float | None) -> None:
        _check_options(ack_every, timeout)
        self._context = context
        self._timeout = context.timeout if timeout is None else timeout
        self._tracker = BatchTracker(secrets.token_hex(16), ack_every)
        self._out = context.connection.outbox
        self._write_at_once = context.connection.write_at_once
        self._small = min(_SMALL, context.connection.max_payload) - self._tracker.overhead
        self._checked: str | None = None  # the version of the server, once it is known to support batches
        self._turns = _Turns()  # messages are sent in the order of their numbers
        self._saw_election = False  # no stream answered for a while, so the server may have lost the batch
        self._refusal: JetStreamError | None = None  # the answer to the first message, which no call awaits
        # number of times that the whole batch was sent again. Answers to an earlier attempt are ignored
        self._attempt = 0
        self._ack: PubAck | None = None
        self._failure: JetStreamError | None = None

    @property
    def id(self) -> str:
        """The id of the batch: the header ``Nats-Batch-Id`` of each stored message."""
        return self._tracker.id

    @property
    def ack(self) -> PubAck | None:
        """The answer to the commit: ``seq`` of the last message and ``count`` of messages. None before the commit."""
        return self._ack

    @property
    def is_closed(self) -> bool:
        """True if the batch was committed or abandoned."""
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
        """Add a message, and return its number in the batch, from 1.

        Each call sends the previous message, so that the last one can carry the commit. The first message sent is
        answered, so an error that concerns the whole batch is raised by the second call, or the commit. If an earlier
        batch was accepted on the same subject, no call waits for that answer, and a later call raises the error. The
        server checks expectations at the commit, against the state of the stream at that time.

        Args:
            subject, data, headers: See `JetStream.publish`.
            msg_id: The commit fails with `BatchDuplicateError` if the stream has a message with this id (2.12.1).
            expected_stream: The stream that must store the batch.
            expected_last_seq: The stream's last sequence before the batch. Allowed for the first message only.
            expected_last_subject_seq: The last sequence of the subject before the batch. Not allowed if an earlier
                message of the batch has that subject. ``expected_last_subject_seq_subject`` names another subject to
                check.
            ttl, rollup: See `JetStream.publish`.

        Raises:
            ConfigError, InvalidNameError, MaxPayloadError: The message was not added. The batch can continue.
            BatchNotEnabledError, TooManyBatchesError, BatchIncompleteError, ApiError, NoRespondersError: The server
                refused the batch. Nothing was stored.
            BatchAbandonedError: The connection was lost, or an answer did not arrive. Nothing was stored.
            BatchNotAtomicError: The server does not support batches.
            ClosedError: The batch has ended.

        Cancelled: the batch is abandoned.
        """
        if self._refusal is not None:
            await self._recover_first()
        out = self._out
        # Commands that wait for the end of this iteration of the loop take an ordinary message along.
        if (
            (out is not None and 0 < out.size < PIECE)
            and (headers is None and not options and type(data) is bytes and len(data) <= self._small)
            and (type(subject) is str and subject in known_subjects and not self._turns.callers)
            and (command := self._tracker.add_plain(subject, data)) is not None
        ):
            out.commands.append(command)
            out.size += len(command)
            return self._tracker.count
        if not self._turns.callers:  # the lock is free, so an ordinary message needs no other coroutine
            number, before = self._add(subject, data, headers, options)
            if before is not None and not (self._tracker.sent == 1 and self._send_first(before)):
                to, header, payload = before.subject, before.header, before.payload
                size = len(header) + len(payload)
                line = (known_subjects.get(to) or to.encode(), len(header), size, header, payload)
                if before.acked or not self._write_at_once(b"HPUB %b %d %d\r\n%b%b\r\n" % line, size):
                    async with self._turns:
                        await self._send_message(before)  # raises the error if the batch was refused
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
        """Store the whole batch and return its ack. With a ``subject``, this message is added last.

        Args:
            subject, data, headers, options: See `publish`. Without a ``subject``, the batch ends with the message added
                last.

        Raises:
            WrongLastSequenceError, BatchDuplicateError, BatchTooLargeError, BatchHeaderError, BatchIncompleteError,
                ApiError: The server refused the batch. Nothing was stored.
            RequestTimeoutError, DisconnectedError: It is unknown whether the batch was stored. If it was, its messages
                have the header ``Nats-Batch-Id``.
            ConfigError: The batch is empty. Also the errors of `publish`.

        Cancelled: it is unknown whether the batch was stored.
        """
        async with self._turns:
            if subject is not None:
                _, before = self._add(subject, data, headers, options)
                if before is not None:
                    await self._send_message(before)
            return await self._commit()

    async def abandon(self) -> None:
        """End the batch without storing it. Does nothing if the batch has ended."""
        self._drop()

    def _add(
        self,
        subject: str,
        data: object,
        headers: Mapping[str, str | Sequence[str]] | None,
        options: BatchOptions,
    ) -> tuple[int, BatchMessage | None]:
        """Check and add a message. Returns its number, and its predecessor, which is to be sent now."""
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
        """Send the first message and go on, if its subject is known for batches. False: its answer must be awaited."""
        context = self._context
        encoded = known_subjects.get(message.subject) or message.subject.encode()
        if encoded not in context.takes_batches or not context.requests.ask_now(
            message.subject,
            message.payload,
            header=message.header,
            timeout=self._timeout,
            what=f"batch {self.id}",
            answered=partial(self._first_answered, encoded, self._attempt),
            urgent=False,  # it is written with the next messages
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
        """The first message was not accepted. After an election, the batch is sent again. Otherwise this raises."""
        self._tracker.check_open()
        async with self._turns:
            if self._refusal is not None:  # no other caller has handled the refusal meanwhile
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
        """Send a message that is not the last one. A failure abandons the batch."""
        if message.acked:
            await self._guarded(self._exchange(message, self._tracker.read_answer))
        else:
            await self._guarded(self._write(message))

    async def _guarded(self, sending: Awaitable[None]) -> None:
        """Await something that sends messages before the commit. If it fails, the batch is abandoned."""
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
        except BaseException:  # cancelled: it is unknown whether the message was sent
            self._drop()
            self._failure = BatchAbandonedError(
                f"batch {tracker.id} was abandoned at message {tracker.sent}: the publish was cancelled"
            )
            raise

    def _cause(self, error: JetStreamError) -> JetStreamError:
        """Return why the server refused the batch. A later answer says only that messages are missing."""
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
                # A batch in progress has most likely lost messages with the connection, so it fails at once.
                patience = 0.0 if tracker.sent else self._timeout
                await connection.wait_connected(connection.now() + patience)
            except (DisconnectedError, ClosedError) as error:
                self._fail_with(error)
        message = tracker.commit()
        try:
            self._ack = await self._exchange(message, tracker.read_commit)
        except (DisconnectedError, RequestTimeoutError, ClosedError) as error:
            if tracker.state is BatchState.OPEN:  # while it was sent again, before its commit
                self._fail_with(error)
            tracker.state = BatchState.UNKNOWN
            self._failure = _unknown(error, f"whether batch {tracker.id} was stored is unknown")
            raise self._failure from error
        except (NoRespondersError, PermissionDeniedError) as error:
            tracker.state, self._failure = BatchState.ABANDONED, error  # the commit was not received
            raise
        except JetStreamError as error:
            self._failure = self._cause(error)
            if self._failure is error:
                raise
            raise self._failure from error
        finally:
            if tracker.state is BatchState.COMMITTING:
                tracker.state = BatchState.UNKNOWN
            self._drop()  # the batch ended while a message was sent again, before the commit
        first = tracker.first_subject
        self._context.takes_batches.add(known_subjects.get(first) or first.encode())
        return self._ack

    async def _exchange(self, message: BatchMessage, read: Callable[[bytes], AnswerT]) -> AnswerT:
        """Send a message that is answered. If an election lost the batch, send all of it again."""
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
        """Send the batch again up to its latest message, and return that one."""
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
        """Refuse an older server, which would store each message separately."""
        version = self._context.connection.server_version
        check_server(version, BATCH_SERVER, "an atomic batch")
        self._checked = version

    def _drop(self) -> None:
        """End the batch, and make the server drop it."""
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
            raise self._failure  # the block caught the error, perhaps as the failure of a single message
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
