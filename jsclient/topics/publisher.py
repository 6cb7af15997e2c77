"""`TopicPublisher`, which publishes records to a topic and can end the topic.

If records are chained, each record directly follows its predecessor, even after elections and restarts.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from .._runtime.context import Context
from .._runtime.handle import Handle
from .._runtime.retry import Retry
from ..errors import (
    ApiError,
    ClosedError,
    ConfigError,
    JetStreamError,
    MaxPayloadError,
    MessageNotFoundError,
    ProducerFencedError,
    ProtocolError,
    PublishesFailedError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from ..protocol.models.back_doubt import ReportedEnd
from ..protocol.models.publish import PubAck
from ..protocol.publishing.chain_window import ChainWindow
from ..protocol.publishing.in_flight import ATTEMPT, PAUSE
from ..protocol.topics.position import EndCheck, Position
from ..protocol.topics.record import Kind, Record
from ..protocol.wire.header_names import MSG_ID
from ..publishing.publisher import Publisher
from ..publishing.unretrieved import PublishFuture
from ..streams.stream import Stream
from .stream_log import StreamLog

__all__ = ["ChainPublisher", "TopicPublisher"]

_LONGEST_TIMEOUT: Final = 8.0  # the longest timeout of one attempt, in seconds
_WRONG_LAST_MSG_ID: Final = 10070


class ChainPublisher:
    """Publishes a chain of records. The server stores each record only directly after its predecessor.

    No other client may publish to the stream. If the stream is replicated, records are sent one at a time, as
    `jsclient.protocol.publishing.chain_window` explains. When a record fails, the publisher looks up the last record of
    the stream and resumes the chain after it.

    Attributes:
        publisher: The underlying publisher, which sends the records and waits for their acks.
    """

    def __init__(
        self, context: Context, stream: Stream, *, after: int, max_in_flight: int, timeout: float | None
    ) -> None:
        """Create the publisher. ``after`` is the sequence of the stream's last message."""
        is_replicated = (stream.config.num_replicas or 1) > 1
        self._chain = ChainWindow[PublishFuture](
            secrets.token_hex(11),
            context.answered,
            name=secrets.token_hex(8),
            link=after,
            by_id=not is_replicated,
            _seen=(0, after),
        )
        self.publisher: Publisher = Publisher(
            context,
            max_in_flight=1 if is_replicated else max_in_flight,
            timeout=timeout,
            window=self._chain,
            after_event=self._check_chain,
        )
        self._acks = self.publisher.acks
        self._timeout = context.timeout if timeout is None else timeout
        self._context, self._connection, self._loop = context, context.connection, self._acks.loop
        self._stream = stream
        self._after_seq = after
        self._last = 0  # number of the last record sent
        self._in_turn = asyncio.Lock()
        self._mending: asyncio.Task[None] | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether another client has published to the stream."""
        return self._chain.is_fenced

    def may_follow(self, record: Record) -> bool:
        """Return whether the next record may follow this record, which must be the last record sent."""
        if not self._last:
            return record.seq <= self._after_seq
        return self._chain.number_of(record.headers.get(MSG_ID, "")) == self._last

    async def append(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str | Sequence[str]] | None,
        check: Callable[[], None],
    ) -> asyncio.Future[PubAck]:
        """Publish the next record of the chain, and return a future for its ack. See `Publisher.publish`.

        ``check`` is called directly before the record is sent, after the wait for earlier calls. If it raises an error,
        nothing is sent. If the call is cancelled, the chain continues without this record.

        Raises:
            ProducerFencedError: Another client has published to the stream, so the chain has ended.
            ClosedError: An earlier record failed, so the chain has ended.
        """
        chain = self._chain
        # Only one call at a time gives its record a number. A call that is cancelled while it waits for its turn has no
        # number yet, so it leaves no gap in the chain.
        async with self._in_turn:
            await self._wait_for_capacity(subject, len(data))
            check()
            if chain.link is None:
                if chain.is_fenced:
                    raise ProducerFencedError(subject)
                raise ClosedError(
                    "a record of this chain failed: no record can follow; open another publisher"
                )
            link, msg_id = chain.link, chain.id_of(self._acks.number + 1)
            future = await self.publisher.publish(
                subject,
                data,
                headers=headers,
                msg_id=msg_id,
                expected_last_seq=link if isinstance(link, int) else None,
                expected_last_msg_id=link if isinstance(link, str) else None,
            )
            self._last = self._acks.number
            if chain.link == link:
                chain.link = chain.link_after(self._last, link)
            elif chain.link is not None:
                # The chain was repaired while this call waited, so the record names a predecessor that is no longer the
                # last record. It breaks the chain again.
                chain.is_broken = True
                self._check_chain()
        return future

    async def _wait_for_capacity(self, subject: str, size: int) -> None:
        """Wait until another record can be sent, or until the chain has ended.

        The wait must come before `Publisher.publish`. If that method had to wait, the chain could be repaired
        in the meantime, and the record would name a predecessor that is no longer valid.
        """
        chain, admission, changed = self._chain, self._acks.admission, self._acks.changed
        deadline = self._loop.time() + self._timeout
        while chain.link is not None and not admission.closed:
            if not chain.is_broken and admission.has_room(1, size):
                return
            if not chain.is_broken or chain.in_flight:
                # No deadline is needed here, because each publish in flight has its own deadline.
                await changed.wait()
            elif not await changed.wait_until(deadline) and self._loop.time() >= deadline:
                text = f"publish to {subject!r}: the last record of the stream is unknown; nothing was sent"
                raise RequestTimeoutError(text, self._timeout, self._connection.problem)

    def _check_chain(self) -> None:
        """Start the task that repairs a broken chain, or cancel it if the publisher has ended."""
        if self._acks.is_ended:
            if self._mending is not None:
                self._mending.cancel()
        elif self._chain.is_broken and self._mending is None:
            self._mending = self._context.tasks.start(self._mend(), "chain of records")
            self._acks.adapt()

    async def _mend(self) -> None:
        chain, acks = self._chain, self._acks
        try:
            while chain.is_broken and not acks.is_ended:
                # ADR-22 recommends a pause before a retry. Acks that arrive in the meantime may repair the chain.
                await asyncio.sleep(PAUSE)
                await self._mend_once()
        except JetStreamError as error:
            acks.fail_publishes(chain.end_chain(error))
        except Exception as error:  # noqa: BLE001  callers would wait forever if a bug ended this task silently
            failed = ProtocolError(f"a chain could not be mended: {type(error).__name__}: {error}")
            failed.__cause__ = error
            acks.fail_publishes(chain.end_chain(failed))
        finally:
            self._mending = None
            acks.adapt()
            self._check_chain()

    async def _mend_once(self) -> None:
        chain, tries, check, timeout = self._chain, Retry(), EndCheck(), ATTEMPT
        while chain.is_broken:
            try:
                await self._connection.wait_connected(None)
                known = chain.known(self._acks.number)
                number, end = await self._last_stored_within(timeout)
            except JetStreamError as error:
                check.interrupted()
                if isinstance(error, RequestTimeoutError):
                    timeout = min(2 * timeout, _LONGEST_TIMEOUT)
                if not await tries.again(error):
                    raise
                continue
            if number is None:
                self._acks.fail_publishes(chain.end_chain(None))
                return
            if number >= chain.known(self._acks.number):
                failures, sends = chain.last_is(number, end.last_seq, self._stream.name, self._loop.time())
                self._acks.send_again(sends)
                self._acks.fail_publishes(failures)
                return
            # The stream ends before a record that it has acked. Either the ack arrived after this request, or a former
            # leader has answered, or the record is lost. Ask again until the check rules out the first two.
            reached = number >= known or check.check_end(end, chain.place_of(known), self._loop.time())
            if reached is False:
                raise ProtocolError(f"stream {self._stream.name!r} has lost acked records")
            await asyncio.sleep(PAUSE)

    async def _last_stored_within(self, seconds: float) -> tuple[int | None, ReportedEnd]:
        """Call `_last_stored` with a timeout, because a leader that dies never answers."""
        try:
            async with asyncio.timeout(seconds):
                return await self._last_stored()
        except TimeoutError:
            raise RequestTimeoutError("look for the last record of a chain", seconds) from None

    async def _last_stored(self) -> tuple[int | None, ReportedEnd]:
        """Return the chain number of the stream's last record, and the end of the stream.

        The number is None if another client has published the last record.
        """
        chain, connects = self._chain, self._connection.connects
        info = await self._stream.info()
        seq = info.state.last_seq
        end = ReportedEnd(str(info.created), seq, info.config.num_replicas or 1, connects)
        if seq == self._after_seq:
            return 0, end
        try:
            last = await self._stream.get_message(seq)
        except MessageNotFoundError:
            # The stream's last record has expired or was deleted. If an ack has already reported its sequence, the
            # number of the record is known without reading it.
            known = chain.known(self._acks.number)
            if known and chain.place_of(known) == seq:
                return known, end
            raise
        return chain.number_of(last.headers.get(MSG_ID, "")), end


class TopicPublisher(Handle):
    """Publishes records to a topic, and can end the topic. Opened by `Topic.publisher`.

    On exit, ``async with`` waits until all records have been stored. If a record couldn't be stored and you didn't
    await its future, ``async with`` raises `PublishesFailedError`. The topic itself remains open unless you call
    `finish` or `fail`.
    """

    def __init__(self, log: StreamLog, publisher: Publisher, chain: ChainPublisher | None = None) -> None:
        self._log = log
        self._publisher = publisher
        self._chain = chain
        self._at_end = asyncio.Lock()
        self._end_id = ""  # message id of the end record, set before it is sent
        self._ending = self._ended = False

    @classmethod
    async def open(
        cls,
        find: Callable[[], Awaitable[StreamLog]],
        *,
        chained: bool,
        max_in_flight: int,
        timeout: float | None,
    ) -> Self:
        """Open a publisher. For internal use. Applications call `Topic.publisher`."""
        log = await find()
        log.own_subject(None)
        last = await log.last()
        if last is not None and last.is_last:
            raise ClosedError(f"the topic {log.subject!r} has ended: no record can follow")
        if chained:
            after = (await log.extent()).last_seq
            chain = ChainPublisher(
                log.context, log.handle, after=after, max_in_flight=max_in_flight, timeout=timeout
            )
            return cls(log, chain.publisher, chain)
        return cls(log, Publisher(log.context, max_in_flight=max_in_flight, timeout=timeout))

    @property
    def subject(self) -> str:
        """The subject to which records are published."""
        return self._log.subject

    def __repr__(self) -> str:
        return f"<TopicPublisher of {self.subject}: {self._publisher.in_flight} in flight>"

    async def publish(
        self,
        data: bytes = b"",
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_id: str | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a record without waiting for it to be stored, and return a future for its ack.

        Usually, you don't need the future. `flush`, `finish` and the end of ``async with`` wait for all records::

            for reading in readings:
                await publisher.publish(reading)
            await publisher.flush()

        If ``max_in_flight`` records are in flight, the call waits until one of them has been acked. If the call is
        cancelled or raises an error, the record wasn't sent.

        The future gets its result when the record has been stored. If the record can't be stored, the future raises one
        of the errors of `JetStream.publish`.

        If `Topic.publisher` was called with ``chained=True`` and another client publishes to the stream, records that
        were already sent fail: their futures raise `WrongLastSequenceError`, or `ApiError` with ``err_code`` 10070.
        Later calls of `publish` raise `ProducerFencedError`.

        Args:
            data: The payload of the record.
            headers: A mapping of header names to values, stored with the record. None (the default) adds no headers.
            msg_id: An id for deduplication. If a record with this id was stored within the duplicate window of the
                stream, nothing is stored, and the `PubAck` has ``duplicate`` set and the ``seq`` of that record. Omit
                the id for chained records, which get their ids automatically.

        Raises:
            ClosedError: The topic has ended, the publisher was closed, or an earlier chained record failed.
            ConfigError: A header or ``msg_id`` is invalid, or ``msg_id`` was given for a chained record.
            MaxPayloadError: The record is larger than the server accepts.
            ProducerFencedError: Records are chained, and another client has published to the stream.
        """
        self._check_open()
        if self._chain is None:
            return await self._publisher.publish(self.subject, data, headers=headers, msg_id=msg_id)
        if msg_id is not None:
            raise ConfigError("msg_id is given, but chained records have their own ids: omit it")
        return await self._chain.append(self.subject, data, headers, self._check_open)

    def _check_open(self) -> None:
        if self._ended or self._ending:
            raise ClosedError(
                f"the topic {self.subject!r} has ended, or is being ended: no record can follow"
            )

    async def update_state(self, data: bytes, /) -> asyncio.Future[PubAck]:
        """Publish a record, like `publish`.

        With this method, a publisher can be passed as an observer to `observe_iteration`.
        """
        return await self.publish(data)

    async def flush(self) -> None:
        """Wait until all records sent so far have been stored.

        If the call is cancelled, the records are still sent and stored.

        Raises:
            ProducerFencedError: Records are chained, and another client has published to the stream. Records sent after
                that client's message weren't stored.
            PublishesFailedError: Some records couldn't be stored, and their futures weren't awaited. Each failure is
                raised only once.
        """
        try:
            await self._publisher.flush()
        except PublishesFailedError as error:
            raise self._fenced(error) or error from error

    async def finish(self, completion: bytes = b"") -> Position:
        """End the topic successfully, after all records have been stored. Return the position of the end.

        Readers return all records and then stop. No further record can be published to the topic. If the call is
        cancelled or times out, the topic may or may not have ended. Call `finish` again to make sure.

        Args:
            completion: A final payload, which readers provide as ``completion``. It is empty by default.

        Raises:
            ClosedError: The topic has already ended.
            ProducerFencedError: Records are chained, and the last record of the stream isn't the last one sent.
            PublishesFailedError: Some records couldn't be stored, so the topic wasn't ended. Call `finish` again to end
                the topic without these records.

        May also raise any error that publishing can raise.
        """
        return await self._end_topic(Kind.FINISH, completion)

    async def fail(self, reason: str) -> Position:
        """End the topic because of a failure, after all records have been stored. Return the position of the end.

        Readers return all records and then raise `IterationFailed` with the reason. In all other respects, the call
        behaves like `finish` and raises the same errors.

        Args:
            reason: Human-readable description of the failure, such as ``str(error)``.

        Raises:
            ConfigError: ``reason`` isn't a string.
        """
        if not isinstance(reason, str):
            raise ConfigError(f"reason is {type(reason).__name__}: a str is needed, such as str(error)")
        return await self._end_topic(Kind.FAIL, reason.encode())

    async def _end_topic(self, kind: Kind, data: bytes) -> Position:
        async with self._at_end:
            if self._ended:
                raise ClosedError(f"the topic {self.subject!r} has ended: no record can follow")
            self._ending = True
            try:
                # First wait for calls of `publish` that wait for the window. `flush` waits only for records in flight.
                await self._publisher.acks.idle()
                await self.flush()
                position = await self._append_end(kind, data)
            finally:
                self._ending = bool(self._end_id)
            self._ended = True
            return position

    async def _append_end(self, kind: Kind, data: bytes) -> Position:
        while True:
            last = await self._log.last()
            if last is not None and last.is_last:
                if last.headers.get(MSG_ID) == self._end_id:
                    return (await self._log.extent()).end.at(last.seq, last.time_ns)
                self._ended = True
                raise ClosedError(
                    f"the topic {self.subject!r} was ended by another client: no record can follow"
                )
            chain = self._chain
            if chain is not None and last is not None and not chain.may_follow(last):
                raise ProducerFencedError(self.subject)
            self._end_id = self._end_id or secrets.token_hex(11)
            try:
                return await self._log.append(
                    data, kind=kind, expected=0 if last is None else last.seq, msg_id=self._end_id
                )
            except WrongLastSequenceError:
                continue  # another client has published in the meantime, so try again after its record
            except MaxPayloadError:
                self._end_id = ""
                raise

    def _fenced(self, error: PublishesFailedError) -> ProducerFencedError | None:
        if self._chain is None or not (error.failures or error.told):
            return None
        first = error.failures[0][1] if error.failures else None
        refused = isinstance(first, WrongLastSequenceError) or (
            isinstance(first, ApiError) and first.err_code == _WRONG_LAST_MSG_ID
        )
        return ProducerFencedError(self.subject) if refused or self._chain.is_fenced else None

    async def close(self) -> None:
        """Close the publisher immediately, without ending the topic.

        Records that are still in flight fail with `ClosedError`, although the server may store them. Call `flush` first
        if you need to know that they have been stored.
        """
        await self._publisher.close()

    @property
    def is_closed(self) -> bool:
        """Whether the publisher was closed. A closed publisher sends nothing."""
        return self._publisher.is_closed

    async def __aenter__(self) -> Self:
        await self._publisher.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._publisher.__aexit__(kind, error, trace)
        except PublishesFailedError as failed:
            raise self._fenced(failed) or failed from failed
