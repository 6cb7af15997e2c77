"""Publishing messages all or nothing: `JetStream.batch`. Source: ADR-50."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from .._runtime.context import Context
from .._runtime.publish import check_payload, check_subject, check_time, known_subjects, message_headers
from ..errors import (
    BatchAbandonedError,
    ClosedError,
    ConfigError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ..protocol.models.publish import PubAck
from ..protocol.publishing.batch import BATCH_SERVER, BatchState, BatchTracker, Outgoing, check_batch_headers
from ..protocol.wire.headers import encode_headers
from ..protocol.wire.version import check_server

__all__ = ["AtomicBatch"]


class AtomicBatch:
    """Messages that a stream stores together or not at all. Made by `JetStream.batch`.

    Leaving ``async with`` commits; an exception inside it, or `abandon`, leaves nothing behind. The stream must have
    ``allow_atomic``; all messages must be its own.
    """

    def __init__(self, context: Context, *, ack_every: int | None, timeout: float | None) -> None:
        _check_options(ack_every, timeout)
        self._context = context
        self._timeout = context.timeout if timeout is None else timeout
        self._tracker = BatchTracker(secrets.token_hex(16), ack_every)
        self._lock = asyncio.Lock()  # messages go out in the order of their numbers
        self._ack: PubAck | None = None
        self._failure: JetStreamError | None = None

    @property
    def id(self) -> str:
        """Its id, the header ``Nats-Batch-Id`` of each message stored."""
        return self._tracker.id

    @property
    def ack(self) -> PubAck | None:
        """The answer to the commit: ``seq`` is that of the last message, ``count`` how many; None before it."""
        return self._ack

    @property
    def is_closed(self) -> bool:
        """Whether it was committed or abandoned."""
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
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        rollup: Literal["sub", "all"] | None = None,
    ) -> int:
        """Add a message; its number in the batch, from 1.

        Each call sends the message before, so that the last one can carry the commit. The first one sent is answered:
        so what refuses the batch as a whole is raised by the second call, or the commit. Expectations are checked by
        the server at the commit, against the stream as it is then.

        Args:
            subject, data, headers: As of `JetStream.publish`.
            msg_id: The commit fails with `BatchDuplicateError` if the stream holds a message with this id (2.12.1).
            expected_stream: The stream that must store the batch.
            expected_last_seq: The stream's last sequence before the batch; with the first message only.
            expected_last_subject_seq: The last sequence of the subject before the batch; not if an earlier message of
                the batch has that subject. ``expected_last_subject_seq_subject``: of this subject instead.
            ttl, rollup: As of `JetStream.publish`.

        Raises:
            ConfigError, InvalidNameError, MaxPayloadError: It was not added; the batch stands.
            BatchNotEnabledError, TooManyBatchesError, BatchIncompleteError, ApiError, NoRespondersError: The server
                refused the batch; nothing was stored.
            BatchAbandonedError: The connection was lost or an answer did not come; nothing was stored.
            BatchNotAtomicError: The server does not know batches.
            ClosedError: The batch has ended.

        Cancelled: the batch is abandoned.
        """
        async with self._lock:
            return await self._add(
                subject,
                data,
                headers,
                msg_id=msg_id,
                expected_stream=expected_stream,
                expected_last_seq=expected_last_seq,
                expected_last_subject_seq=expected_last_subject_seq,
                expected_last_subject_seq_subject=expected_last_subject_seq_subject,
                ttl=ttl,
                rollup=rollup,
            )

    async def commit(
        self,
        subject: str | None = None,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        **options: Any,
    ) -> PubAck:
        """Have all of it stored; with a ``subject``, this message as the last one.

        Args:
            subject, data, headers, options: As of `publish`; None: the message added last is the last one.

        Raises:
            WrongLastSequenceError, BatchDuplicateError, BatchTooLargeError, BatchHeaderError, BatchIncompleteError,
                ApiError: The server refused the batch; nothing was stored.
            RequestTimeoutError, DisconnectedError: Whether the batch was stored is unknown. If it was, its messages
                have the header ``Nats-Batch-Id``.
            ConfigError: It is empty. And those of `publish`.

        Cancelled: whether it was stored is unknown.
        """
        async with self._lock:
            if subject is not None:
                await self._add(subject, data, headers, **options)
            return await self._commit()

    async def abandon(self) -> None:
        """End it; nothing is stored. Harmless if it has ended."""
        self._drop()

    async def _add(
        self, subject: str, data: object, headers: Mapping[str, str | Sequence[str]] | None, **options: Any
    ) -> int:
        """Check a message, take it, and send the one before it."""
        tracker, connection = self._tracker, self._context.connection
        tracker.check_open()
        if type(subject) is not str or subject not in known_subjects:
            check_subject(subject)
        payload, block = check_payload(data), b""
        if headers is not None or any(option is not None for option in options.values()):
            merged = message_headers(self._context, headers, **options)
            check_batch_headers(merged, first=tracker.count == 0)
            block = encode_headers(merged) if merged else b""
        connection.check_size(len(block) + tracker.overhead + len(payload))
        if not tracker.count:
            self._check_server()
        before = tracker.add(subject, block, payload)
        number = tracker.count
        if before is not None:
            await self._send(before)
        return number

    async def _send(self, message: Outgoing) -> None:
        """Send a message that is not the last one. If that fails, the batch is abandoned."""
        tracker = self._tracker
        try:
            if message.acked:
                tracker.read_answer(await self._request(message))
            else:
                await self._context.connection.publish(
                    message.subject, message.payload, header=message.header
                )
        except (DisconnectedError, RequestTimeoutError, ClosedError) as error:
            self._fail_with(error)
        except JetStreamError as error:
            self._drop()
            self._failure = error
            raise
        except BaseException:  # cancelled: whether the message was sent cannot be told
            self._drop()
            self._failure = BatchAbandonedError(
                f"batch {tracker.id} was abandoned at message {tracker.sent}: the publish was cancelled"
            )
            raise

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
                # A batch that was begun has most likely lost messages with the connection: say so at once.
                patience = 0.0 if tracker.sent else self._timeout
                await connection.wait_connected(connection.now() + patience)
            except (DisconnectedError, ClosedError) as error:
                self._fail_with(error)
        message = tracker.commit()
        try:
            self._ack = tracker.read_commit(await self._request(message))
        except (DisconnectedError, RequestTimeoutError, ClosedError) as error:
            tracker.state = BatchState.UNKNOWN
            self._failure = _unknown(error, f"whether batch {tracker.id} was stored is unknown")
            raise self._failure from error
        except (NoRespondersError, PermissionDeniedError) as error:
            tracker.state, self._failure = BatchState.ABANDONED, error  # nobody got the commit
            raise
        except JetStreamError as error:
            self._failure = error
            raise
        finally:
            if tracker.state is BatchState.COMMITTING:
                tracker.state = BatchState.UNKNOWN
        return self._ack

    async def _request(self, message: Outgoing) -> bytes:
        try:
            return await self._context.requests.request(
                message.subject,
                message.payload,
                header=message.header,
                timeout=self._timeout,
                what=f"batch {self.id}",
            )
        except NoRespondersError as error:
            raise NoRespondersError(
                error.code, f"no stream took the message on {message.subject!r}", error.retryable
            ) from None

    def _check_server(self) -> None:
        """An older server would store each message on its own."""
        check_server(self._context.connection.server_version, BATCH_SERVER, "an atomic batch")

    def _drop(self) -> None:
        """End it here, and tell the server, so that it does not wait for more."""
        farewell = self._tracker.abandon()
        if farewell is not None:
            try:
                self._context.connection.send(farewell.subject, farewell.payload, header=farewell.header)
            except JetStreamError:
                pass  # the server drops it by itself, in 10 s

    async def __aenter__(self) -> Self:
        self._check_server()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not len(self):
            self._drop()
        elif self._failure is not None:
            raise self._failure  # it was caught inside the block, where it may have been taken for a message's
        elif not self.is_closed:
            await self.commit()


def _unknown(error: JetStreamError, text: str) -> JetStreamError:
    if isinstance(error, RequestTimeoutError):
        return RequestTimeoutError(text, error.timeout)
    return type(error)(f"{text}: {error}")


def _check_options(ack_every: int | None, timeout: float | None) -> None:
    if ack_every is not None and (
        isinstance(ack_every, bool) or not isinstance(ack_every, int) or ack_every < 1
    ):
        raise ConfigError(f"ack_every is {ack_every!r:.60}: it must be a whole number of 1 or more")
    if timeout is not None:
        check_time("timeout", timeout)
