"""Settles the messages of a worker: acks them, returns them to the server, or dead-letters them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

from ..._runtime.publish import publish
from ..._runtime.tasks import Signal
from ...errors import (
    ClosedError,
    ConfigError,
    DisconnectedError,
    JetStreamError,
    NoMatchingStreamError,
    NotJetStreamMessageError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ...protocol.consumers.ack import read_jsack
from ...protocol.consumers.worker.dead_letter import (
    Origin,
    dead_letter_headers,
    dead_letter_id,
    dead_letter_subject,
    term_reason,
)
from ...protocol.consumers.worker.seq_set import SeqSet
from ...protocol.consumers.worker.work_rules import default_delay
from ...protocol.consumers.worker.worker import Work, Workload, WorkOutcome
from ...protocol.events import AcksUnsent, DeadLettered, DeadLetterFailed, HandlerFailed, HandlerSlow
from ...protocol.models.consumer import ConsumerConfig
from ...protocol.wire.headers import Headers
from ...protocol.wire.names import subjects_overlap
from ..message import Message
from .sources import Source

__all__ = ["DeadLetters", "Settling", "dead_lettered"]


class DeadLetters:
    """Publishes the dead letters of one consumer."""

    def __init__(self, source: Source, pattern: str) -> None:
        self._source = source
        self._context = source.context
        self._stream, self._consumer = source.stream, source.consumer
        self.pattern = pattern

    async def check_subject(self, config: ConsumerConfig) -> None:
        """Check the subject of dead letters before the worker starts.

        If the server can't be asked, for example because the user lacks the permission, the subject is accepted.

        Raises:
            NoMatchingStreamError: No stream has the subject, so dead letters could not be stored.
            ConfigError: The consumer would receive its own dead letters.
        """
        try:
            answer = await self._context.call(
                self._context.api.stream_names(),
                {"subject": self.pattern},
                what="stream names",
                optional=True,
            )
        except JetStreamError:
            return  # without the permission or an answer, the subject can't be checked
        names = answer.get("streams") or []
        if not names:
            raise NoMatchingStreamError(self.pattern, (), "dead_letter")
        filters = config.filters or [">"]
        if self._stream in names and any(subjects_overlap(subject, self.pattern) for subject in filters):
            raise ConfigError(
                f"dead_letter is {self.pattern!r}: the consumer would receive its own dead letters"
            )

    async def store(
        self,
        origin: Origin,
        data: bytes,
        headers: Headers,
        error: BaseException,
        *,
        timeout: float,
        unverified: str = "",
    ) -> str:
        """Publish a dead letter, and return its subject.

        The message id is derived from ``origin``, so a dead letter is stored only once, even if the call is repeated.

        May raise any error of `JetStream.publish`.
        """
        subject = dead_letter_subject(self.pattern, origin.subject)
        await publish(
            self._context,
            subject,
            data,
            headers=dead_letter_headers(headers, origin, error, unverified),
            msg_id=dead_letter_id(origin),
            timeout=timeout,
        )
        return subject

    def failed(self, seq: int, error: JetStreamError, subject: str = "") -> None:
        """Report that a dead letter could not be stored."""
        self._source.emit(
            DeadLetterFailed(
                stream=self._stream,
                consumer=self._consumer,
                error=error,
                subject=subject,
                stream_seq=seq,
                dead_letter=self.pattern,
            )
        )


_STORE_TRIES = 5  # attempts to store a dead letter before the message is returned to the server
_SYNC_TRIES = 3  # attempts to ack a message with ack_sync
_LAST_DENIALS = 1.0  # how long an ending worker waits for errors about its last acks, in seconds
_MOST_COUNTED = 10_000  # maximum size of `_counted`


def dead_lettered(origin: Origin, error: BaseException, attempt: int, where: str) -> DeadLettered:
    """Create the event for a dead letter. ``where`` is its subject, or "" if the message was only terminated."""
    return DeadLettered(
        stream=origin.stream,
        consumer=origin.consumer,
        error=error,
        subject=origin.subject,
        stream_seq=origin.seq,
        attempt=attempt,
        dead_letter=where,
    )


class Settling:
    """Settles messages that were handled or failed, with acks, naks and dead letters.

    While the client is disconnected, acks wait for the reconnect. There is no limit while the worker runs. When it
    stops, ``deadline`` and `reconnect_by` limit the time. ``changed`` is set whenever an ack starts to wait.
    """

    def __init__(
        self, source: Source, load: Workload[Message], *, letters: DeadLetters | None, ack_sync: bool
    ) -> None:
        self._source = source
        self._context = source.context
        self._load = load
        self._letters = letters
        self._ack_sync = ack_sync
        self.acks_now: bool = not ack_sync  # whether acks can be sent without waiting, while connected
        self.deadline: float | None = None
        self.changed: Signal = Signal()
        self._reconnect_by: float | None = None
        # One timeout for each ack that is waiting for the connection.
        self._waits: set[asyncio.Timeout] = set()
        self._acks_unsent = self._not_returned = 0
        # Maps the stream sequence and delivery number of a settled message to the name of the count that includes the
        # message, or to "" if no count does. If the server refuses the ack later, that count is corrected. A message
        # that isn't in this dict was counted as handled.
        self._counted: dict[tuple[int, int], str] = {}
        self.is_denied: bool = False  # True once the server has refused an ack
        self.done: SeqSet | None = None  # sequences of acked and dead-lettered messages, for `Advisories`

    async def ended(self, work: Work[Message], error: BaseException | None, *, stuck: bool = False) -> None:
        """Settle a message after its handler has returned or failed.

        Args:
            work: The message.
            error: The exception that the handler has raised, or None.
            stuck: True if the handler is still running, because it ignores its cancellation after a timeout.
        """
        load = self._load
        # If the handler itself has acked or nak'ed the message, a second answer could contradict the first.
        if work.message.acked:
            self._settled_by_handler(work, error)
            return
        verdict = load.judge(work, error, stuck=stuck)
        if verdict.delay_error is not None:
            self._source.report_error(
                ConfigError(f"retry_delay({work.attempt}) cannot be used: {verdict.delay_error!r:.200}")
            )
        if error is not None:
            self._report_failure(work, error, None if verdict.outcome is WorkOutcome.DEAD else verdict.delay)
        match verdict.outcome:
            case WorkOutcome.ACK:
                if await self._ack(work.latest) and not work.denied:
                    load.counts.handled += 1
                    self._note(work)
                else:
                    self._count(work, "unsettled")
                load.settled(work)
            case WorkOutcome.RETRY:
                await self._again(work, verdict.wire_delay)
                load.settled(work)
            case WorkOutcome.REPEAT:
                load.repeat(work, verdict.delay, self._context.connection.now())
            case WorkOutcome.DEAD:
                assert error is not None
                await self.dead_letter(work, error)

    def _settled_by_handler(self, work: Work[Message], error: BaseException | None) -> None:
        counts = self._load.counts
        if error is not None:
            counts.failed += 1
            self._report_failure(work, error, None)
        if work.denied:
            self._count(work, "unsettled")
        elif error is None:
            counts.handled += 1
        else:
            self._remember(work, "")
        self._load.settled(work)

    async def give_back(self, works: Iterable[Work[Message]]) -> None:
        """Nak messages, so that the server redelivers them immediately.

        While the client is disconnected, the messages are only counted. The server redelivers them after ``ack_wait``.
        """
        for work in works:
            try:
                await work.latest.nak()
                self._count(work, "returned")
            except (ClosedError, DisconnectedError):
                self._load.counts.unsettled += 1
                self._not_returned += 1

    async def interrupted(self, work: Work[Message]) -> None:
        """Settle a message whose handler was interrupted because the worker stopped."""
        if self._load.rules.is_last(work.deliveries):
            await self.dead_letter(
                work, asyncio.CancelledError("the worker stopped; it was the last delivery of the message")
            )
            return
        self._load.settled(work)
        await self.give_back([work])

    async def dead_letter(self, work: Work[Message], error: BaseException) -> None:
        """Store the dead letter of a message, then terminate the message.

        If the dead letter can't be stored, the message is not terminated, so that it isn't lost.
        """
        message, letters, where = work.message, self._letters, ""
        meta, source = message.metadata, self._source
        origin = Origin(
            source.stream,
            source.consumer,
            message.subject,
            meta.stream_seq,
            meta.timestamp_ns,
            work.deliveries,
        )
        if letters is not None:
            try:
                where = await letters.store(
                    origin, message.data, message.headers.copy(), error, timeout=self._timeout()
                )
            except JetStreamError as failure:
                await self._not_stored(work, error, failure)
                return
        if not await self._send_ack(lambda: work.latest.term(term_reason(error))) or work.denied:
            # The server didn't accept the term, so it will redeliver the message. That is harmless, because the dead
            # letter of a message is stored only once.
            self._count(work, "unsettled")
        else:
            self._count(work, "dead_lettered" if letters is not None else "terminated")
        self._note(work)
        self._load.settled(work)
        source.emit(dead_lettered(origin, error, work.attempt, where))

    def _count(self, work: Work[Message], counted: str) -> None:
        """Increment one of the `WorkCounts`, other than ``handled``, for a settled message."""
        self._change(counted, 1)
        self._remember(work, counted)

    def _remember(self, work: Work[Message], counted: str) -> None:
        self._counted[work.ident[0], work.deliveries] = counted
        if len(self._counted) > _MOST_COUNTED:
            del self._counted[next(iter(self._counted))]

    def _change(self, counted: str, by: int) -> None:
        counts = self._load.counts
        setattr(counts, counted, getattr(counts, counted) + by)

    def denied(self, error: PermissionDeniedError) -> None:
        """Correct the counts after the server has refused to accept an ack of this worker.

        The connection calls this method for every permission error, so other errors must be ignored.
        """
        if error.operation != "publish" or not error.subject.startswith("$JS.ACK."):
            return
        try:
            meta = read_jsack(error.subject.encode("utf-8", "surrogateescape"))
        except NotJetStreamMessageError:
            return
        if (meta.stream, meta.consumer) != (self._source.stream, self._source.consumer):
            return
        self.is_denied = True
        if self._load.deny((meta.stream_seq, meta.timestamp_ns)):
            return  # the message is still being handled, so it was not counted yet
        key = meta.stream_seq, meta.num_delivered
        counted = self._counted.get(key, "handled")
        if counted != "unsettled":
            if counted:
                self._change(counted, -1)
            self._change("unsettled", 1)
            self._counted[key] = "unsettled"
            if self.done is not None:
                self.done.discard(meta.stream_seq)

    def _note(self, work: Work[Message]) -> None:
        if self.done is not None and not work.denied:
            self.done.add(work.ident[0])

    async def _not_stored(self, work: Work[Message], error: BaseException, failure: JetStreamError) -> None:
        load, letters = self._load, self._letters
        assert letters is not None
        letters.failed(work.ident[0], failure, work.message.subject)
        work.burials += 1
        work.final_error = error
        delay = default_delay(work.burials)
        # The message can't be returned to the server if messages with its key must stay in order, or if this was its
        # last delivery.
        must_stay = work.key_queue is not None or load.rules.is_last(work.deliveries)
        if not load.stopping and (must_stay or work.burials <= _STORE_TRIES):
            load.repeat(work, delay, self._context.connection.now())
            return
        load.settled(work)
        if load.stopping:
            await self.give_back([work])
        else:
            await self._again(work, load.rules.wire_delay(work.deliveries, delay))

    async def _ack(self, message: Message) -> bool:
        if not self._ack_sync:
            return await self._send_ack(message.ack)

        async def ask() -> None:
            # Without a connection, raise `DisconnectedError` at once. `_send_ack` then waits for the reconnect instead
            # of the ack's timeout.
            self._context.connection.check_sendable()
            await message.ack_sync(self._timeout())

        for _ in range(_SYNC_TRIES):
            try:
                return await self._send_ack(ask)
            except RequestTimeoutError as error:
                self._source.report_error(error)
            except PermissionDeniedError:
                break  # the connection has already reported this error
        return False

    async def _again(self, work: Work[Message], wire_delay: float | None) -> None:
        latest = work.latest
        send = latest.in_progress if wire_delay is None else lambda: latest.nak(wire_delay)
        if await self._send_ack(send):
            self._remember(work, "")
        else:
            self._load.counts.unsettled += 1
            self._acks_unsent -= 1
            self._not_returned += 1

    async def _send_ack(self, send: Callable[[], Awaitable[None]]) -> bool:
        """Send an ack. While the client is disconnected, wait for the reconnect.

        Returns False if the ack could not be sent. The server then redelivers the message after ``ack_wait``.
        """
        while True:
            try:
                await send()
                return True
            except DisconnectedError:
                pass
            except ClosedError:
                break
            if not await self._reconnected():
                break
        self._acks_unsent += 1
        return False

    async def _reconnected(self) -> bool:
        """Wait for the reconnect. Returns False if the connection is closed or was not restored in time."""
        try:
            async with asyncio.timeout_at(self._reconnect_by) as wait:
                self._waits.add(wait)
                self.changed.set()
                try:
                    await self._context.connection.wait_connected(self.deadline)
                finally:
                    self._waits.discard(wait)
        except (ClosedError, DisconnectedError, TimeoutError):
            return False
        return True

    @property
    def waits(self) -> bool:
        """True while an ack is waiting for the connection."""
        return bool(self._waits)

    def reconnect_by(self, moment: float) -> None:
        """Set the time until which acks wait for the connection, when the worker is about to end.

        It also applies to the acks that are already waiting. A later call can only set an earlier time.
        """
        if self._reconnect_by is None or moment < self._reconnect_by:
            self._reconnect_by = moment
            for wait in self._waits:
                wait.reschedule(moment)

    async def close(self) -> None:
        """Report the messages that could not be settled because there was no connection.

        If the server has refused acks before, wait until it has processed the last acks, to get the counts right.
        """
        if self.is_denied:
            with contextlib.suppress(JetStreamError):
                await self._context.connection.ping(_LAST_DENIALS)
        if self._acks_unsent or self._not_returned:
            self._source.emit(
                AcksUnsent(
                    stream=self._source.stream,
                    consumer=self._source.consumer,
                    count=self._acks_unsent,
                    returned=self._not_returned,
                )
            )

    def _timeout(self) -> float:
        """Return the timeout for a request, in seconds. The request must end before ``deadline``."""
        if self.deadline is None:
            return self._context.timeout
        return max(0.1, min(self._context.timeout, self.deadline - self._context.connection.now()))

    def slow(self, blocked: float, count: int, work: Work[Message] | None) -> None:
        """Report that a handler has blocked the event loop for ``blocked`` seconds."""
        self._source.emit(
            HandlerSlow(
                stream=self._source.stream,
                consumer=self._source.consumer,
                blocked=blocked,
                count=count,
                subject="" if work is None else work.message.subject,
                stream_seq=0 if work is None else work.ident[0],
            )
        )

    def _report_failure(self, work: Work[Message], error: BaseException, retry_in: float | None) -> None:
        self._source.emit(
            HandlerFailed(
                stream=self._source.stream,
                consumer=self._source.consumer,
                error=error,
                subject=work.message.subject,
                stream_seq=work.ident[0],
                attempt=work.attempt,
                retry_in=retry_in,
            )
        )
