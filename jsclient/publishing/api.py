"""The methods of `JetStream` that publish messages to streams. Source: ADR-22, ADR-50, ADR-51."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final, Literal, Unpack

from .._runtime.calls import find_streams
from .._runtime.context import Context
from .._runtime.publish import publish
from ..errors import MessageNotFoundError, NoMatchingStreamError
from ..protocol.models.message import read_stored_message
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import ACK_EVERY, MAX_BYTES, MAX_IN_FLIGHT
from ..protocol.wire.checks import NoOptions, check_arguments, check_server
from ..protocol.wire.header_names import SCHEDULE
from ..protocol.wire.headers import merge_headers
from ..protocol.wire.names import check_publish_subject

if TYPE_CHECKING:  # imported inside the methods, to keep `import jsclient` fast
    from .batch import AtomicBatch
    from .fast_ingest import FastIngest
    from .publish_many import PublishedMany
    from .publisher import Publisher

__all__ = ["Publishing"]

_SCHEDULES: Final = (2, 12)  # version of the server in which schedules at a fixed time were added
_ALL_SCHEDULES: Final = (2, 14)


class Publishing:
    """Base class of `JetStream` that provides the methods for publishing messages."""

    _context: Context

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
        **unknown: Unpack[NoOptions],
    ) -> PubAck:
        """Publish a message and wait until a stream has stored it.

        ::

            ack = await js.publish("orders.new", b"...", msg_id="order-17")
            print(ack.stream, ack.seq)

        Pass a ``msg_id`` whenever possible. If the answer of the server is lost, the message is then sent again until
        the timeout expires, and the stream stores it only once. Without a ``msg_id``, a lost answer raises an error,
        and the message may or may not be stored.

        If no stream responds, for example during a leader election, the message is also sent again. This is repeated
        until the timeout expires if the message has a ``msg_id``, or if a stream has answered on this subject before.
        Otherwise the message is sent at most three times.

        To publish many messages, `publisher` and `publish_many` are much faster.

        Args:
            subject: The subject, without wildcards.
            data: The payload.
            headers: A mapping from names to values. A value is a string or a list of strings.
            msg_id: A unique id. The stream ignores a message whose id it has seen within its duplicate window.
            expected_stream, expected_last_seq, expected_last_subject_seq, expected_last_msg_id: Store the message only
                if the stream, or its last message, is as expected. Sequence 0 means that no message exists. Do not use
                ``expected_last_msg_id`` with a replicated stream: on nats-server 2.14 and newer a failed expectation
                stops the stream on all its servers.
            expected_last_subject_seq_subject: The subject that ``expected_last_subject_seq`` refers to. The default is
                the subject of the message. Wildcards are allowed (server 2.11).
            ttl: Seconds until the server removes the message, 1 or more, or ``"never"`` to keep it even beyond the
                ``max_age`` of the stream (server 2.11, stream with ``allow_msg_ttl``).
            rollup: ``"sub"`` to replace all earlier messages of the subject, or ``"all"`` to replace all messages of
                the stream (stream with ``allow_rollup_hdrs``).
            timeout: Seconds for the whole call. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            NoRespondersError: No stream has the subject, or it has no leader. The message was not stored.
            WrongLastSequenceError, ApiError: The stream refused the message. It was not stored.
            RequestTimeoutError, DisconnectedError: The message may or may not be stored.
            InvalidNameError, ConfigError, MaxPayloadError: The message was not sent. `ConfigError` is also raised if
                the connected server is too old for an argument and would ignore it. The same value in ``headers`` is
                sent without this check.

        If the call is cancelled, the message may or may not be stored.
        """
        if unknown:
            check_arguments(Publishing.publish, unknown, NoOptions)
        return await publish(
            self._context,
            subject,
            data,
            headers=headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            expected_last_subject_seq_subject=expected_last_subject_seq_subject,
            expected_last_msg_id=expected_last_msg_id,
            ttl=ttl,
            rollup=rollup,
            timeout=timeout,
        )

    def batch(self, *, ack_every: int | None = None, timeout: float | None = None) -> AtomicBatch:
        """Return a batch of messages, which the stream stores all together or not at all.

        ::

            async with js.batch() as batch:
                await batch.publish("orders.new", b"...")
                await batch.publish("orders.items", b"...")

        At the end of the block, the batch is committed. If an exception leaves the block, no message is stored.

        Needs server 2.12 and a stream with ``allow_atomic``. The server limits a batch to 1,000 messages. It abandons
        the batch if there are more than 10 s between two messages.

        Args:
            ack_every: Wait for an answer after so many messages, so that the server is not overloaded. By default, only
                the first message and the commit are answered.
            timeout: Seconds to wait for an answer. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            ConfigError: A value is out of range. Entering the block raises it if the server does not support batches.

        Source: ADR-50
        """
        from .batch import AtomicBatch

        return AtomicBatch(self._context, ack_every=ack_every, timeout=timeout)

    def fast_ingest(
        self,
        *,
        gap: Literal["fail", "ok"] = "fail",
        ack_every: int = ACK_EVERY,
        max_outstanding_acks: int = 2,
        timeout: float | None = None,
    ) -> FastIngest:
        """Return an object for publishing messages to a stream at the highest possible rate.

        ::

            async with js.fast_ingest() as ingest:
                for payload in payloads:
                    await ingest.publish("metrics.cpu", payload)

        The server acks many messages at once. It decides how many messages may be in flight, so that several
        publishers get a fair share. There is no future for each message, and lost messages are not sent again.

        Needs server 2.14 and a stream with ``allow_batched``.

        Args:
            gap: The behavior after a message is lost, or refused by the stream. With "fail", no later message is
                stored, and `IngestError` is raised with the number of messages stored. With "ok", the other messages
                are stored, and the events `IngestGap` and `IngestRefused` report the missing messages.
            ack_every: The maximum number of messages per ack. The server reduces it while other clients publish.
            max_outstanding_acks: The maximum number of acks that may be outstanding. 2 is enough to keep the server
                busy. Choose 3 for a distant server.
            timeout: Seconds without progress before the ingest fails. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            ConfigError: A value is out of range. Entering the block raises it if the server does not support fast
                ingest.

        Source: ADR-50
        """
        from .fast_ingest import FastIngest

        return FastIngest(
            self._context,
            gap=gap,
            ack_every=ack_every,
            max_outstanding_acks=max_outstanding_acks,
            timeout=timeout,
        )

    def publisher(
        self,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_bytes: int | None = MAX_BYTES,
        timeout: float | None = None,
        room_timeout: float | None = None,
        resend: bool = True,
    ) -> Publisher:
        """Return a publisher, which publishes many messages without waiting for each ack.

        ::

            async with js.publisher() as pub:
                for payload in payloads:
                    future = await pub.publish("orders.new", payload)

        At the end of the block, the publisher waits for all acks, and raises an error if a publish has failed.

        Args:
            max_in_flight: The maximum number of publishes that wait for their ack. This is the size of the *window*.
            max_bytes: The maximum size of their headers and payloads, or None for no limit. A single message may be
                larger.
            timeout: Seconds for each publish after it is sent. Defaults to the ``timeout`` passed to `connect`.
            room_timeout: Seconds that `Publisher.publish` waits while the window is full, before it raises
                `TooManyInFlightError`. With 0 it does not wait. With None it waits without a limit.
            resend: Send a message with a ``msg_id`` again if the connection or the answer was lost. The stream stores
                it only once, provided that the timeout is shorter than the duplicate window of the stream. The order of
                messages is preserved after a reconnect. If only an answer is lost, the message may be stored after
                later messages.

        Raises:
            ConfigError: An argument is out of range.
        """
        from .publisher import Publisher

        return Publisher(
            self._context,
            max_in_flight=max_in_flight,
            max_bytes=max_bytes,
            timeout=timeout,
            room_timeout=room_timeout,
            resend=resend,
        )

    async def publish_many(
        self,
        subject: str,
        payloads: Iterable[bytes],
        *,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_ids: Iterable[str] | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        timeout: float | None = None,
    ) -> PublishedMany:
        """Publish a message for each payload, in order, and wait until all are stored.

        ::

            result = await js.publish_many("orders.new", payloads)
            print(result.stored)

        This has the window and the retries of `publisher`. It needs a third less time, because there is no future for
        each message. While the window is full, no payload is taken, so ``payloads`` may be a generator of any length.

        Args:
            subject: The subject of all messages, without wildcards.
            payloads: An iterable of payloads.
            headers: The headers of all messages.
            msg_ids: An iterable with the ``msg_id`` of each payload. With ids, messages are sent again if the
                connection or the answer was lost.
            max_in_flight: The maximum number of messages that wait for their ack.
            timeout: Seconds without progress until the call fails. Defaults to the ``timeout`` passed to `connect`.
                The call continues as long as messages are stored. The time that ``payloads`` takes to produce them does
                not count.

        Raises:
            PublishManyError: Not all messages are stored. The error contains the index of each failed message, and the
                number of messages sent. Its cause is a `ConfigError` if a payload is not bytes, or if there are fewer
                ``msg_ids`` than payloads.
            ConfigError, InvalidNameError: An argument is not valid, or `JetStream` was created with a nats-py
                connection. No message was sent.

        If the call is cancelled, the messages sent so far may or may not be stored.
        """
        from .publish_many import publish_many

        return await publish_many(
            self._context,
            subject,
            payloads,
            headers=headers,
            msg_ids=msg_ids,
            max_in_flight=max_in_flight,
            timeout=timeout,
        )

    # --- schedules ---------------------------------------------------------------------------------------

    async def schedule(
        self,
        subject: str,
        target: str,
        data: bytes = b"",
        *,
        at: datetime | str | None = None,
        every: float | timedelta | None = None,
        cron: str | None = None,
        time_zone: str | tzinfo | None = None,
        source: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        rollup: Literal["sub"] | None = None,
        lifetime: float | timedelta | Literal["never"] | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_id: str | None = None,
        expected_last_subject_seq: int | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Store a message that the server publishes to ``target`` later, once or repeatedly.

        The schedule is stored on ``subject`` and replaces an earlier schedule of this subject. Both subjects must
        belong to one stream with ``allow_msg_schedules``. ``at`` needs server 2.12, everything else server 2.14.

        Args:
            subject: The subject of the schedule.
            target: The subject of its messages.
            data: The payload of its messages.
            at: Publish once, at this time, or immediately if it has passed. An aware ``datetime``, or RFC 3339 text.
            every: Publish repeatedly, at this interval in seconds, 1 or more.
            cron: Publish at the times of a cron expression. It has six fields, of which the first is seconds, or it is
                a word such as ``@hourly``. See `check_cron`.
            time_zone: The time zone of ``cron``: an IANA name or a ``ZoneInfo``. The default is UTC.
            source: Publish the last message of this subject of the stream, if it exists, instead of ``data``.
            ttl: Seconds that each message sent to ``target`` is kept, or ``"never"`` (stream with ``allow_msg_ttl``).
            rollup: ``"sub"`` if each message sent to ``target`` should replace the earlier messages there.
            lifetime: Seconds until the schedule itself is removed (stream with ``allow_msg_ttl``).
            headers: Headers of the messages.
            msg_id: A unique id, so that the schedule is stored only once if it is sent again. See `publish`.
            expected_last_subject_seq: Store the schedule only if the existing schedule has this sequence. 0 requires
                that no schedule exists.
            timeout: Seconds for the whole call. Defaults to the ``timeout`` passed to `connect`.

        Returns: the ack of the schedule. Its ``seq`` can be passed to `finish_schedule`.

        Raises:
            ConfigError, InvalidNameError, MaxPayloadError: The schedule was not sent.
            ApiError: The stream refused the schedule. 10188: it does not allow schedules.
            WrongLastSequenceError: The existing schedule is not the expected one.
            NoRespondersError, RequestTimeoutError, DisconnectedError: See `publish`.

        Source: ADR-51
        """
        from ..protocol.publishing.schedule import schedule_headers

        schedule_fields = schedule_headers(
            subject,
            target,
            at=at,
            every=every,
            cron=cron,
            time_zone=time_zone,
            source=source,
            ttl=ttl,
            rollup=rollup,
        )
        version = self._context.connection.server_version
        check_server(version, _SCHEDULES, "a schedule")
        for what, value in (("every", every), ("cron", cron), ("source", source), ("rollup", rollup)):
            if value is not None:
                check_server(version, _ALL_SCHEDULES, what)
        return await publish(
            self._context,
            subject,
            data,
            headers=merge_headers(headers, schedule_fields),
            msg_id=msg_id,
            expected_last_subject_seq=expected_last_subject_seq,
            ttl=lifetime,
            timeout=timeout,
        )

    async def cancel_schedule(self, subject: str, *, stream: str | None = None) -> bool:
        """Cancel a schedule by removing it from the stream.

        If another client replaces the schedule at the same time, the new schedule remains. A message on ``subject``
        that is not a schedule remains too. To cancel many schedules at once, use `Stream.purge`.

        Args:
            subject: The subject of the schedule.
            stream: Name of its stream. The default is the stream that has ``subject``.

        Returns: True if the schedule was removed, or False if there was none, for example because its message was
        already sent.

        Raises:
            NoMatchingStreamError: No stream, or more than one, has ``subject``.

        May also raise any error common to API requests.

        Source: ADR-51
        """
        context = self._context
        check_publish_subject(subject)
        if stream is None:
            names = await find_streams(context, subject)
            if len(names) != 1:
                raise NoMatchingStreamError(subject, names)
            stream = names[0]
        try:
            answer = await context.call(
                context.api.stream_msg_get(stream), {"last_by_subj": subject}, what="look up the schedule"
            )
        except MessageNotFoundError:
            return False
        message = read_stored_message(answer)
        if SCHEDULE not in message.headers:
            return False
        # Purge only up to this message, because another client may have stored a new schedule meanwhile.
        body = {"filter": subject, "seq": message.seq + 1}
        purged = await context.call(context.api.stream_purge(stream), body, what="cancel the schedule")
        return bool(purged.get("purged"))

    async def finish_schedule(
        self,
        schedule: str,
        subject: str,
        data: bytes = b"",
        *,
        expected_seq: int | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        msg_id: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Publish a message and cancel a schedule, atomically.

        This is useful to send the scheduled message earlier, by publishing it to the target. It can also announce the
        cancellation to other clients, by publishing to any other subject of the stream.

        Args:
            schedule: The subject of the schedule.
            subject: The subject of the message. It must differ from ``schedule``.
            data: The payload of the message.
            expected_seq: The sequence of the schedule. The call fails if another client has removed or replaced it, or
                if its message was already sent.
            headers, msg_id, ttl, timeout: See `publish`.

        Raises:
            WrongLastSequenceError: The schedule is not the expected one. It stays, and no message was stored.
            ConfigError, InvalidNameError, MaxPayloadError: The message was not sent.
            ApiError, NoRespondersError, RequestTimeoutError, DisconnectedError: See `publish`.

        Source: ADR-51
        """
        from ..protocol.publishing.schedule import ending_headers

        ending = ending_headers(schedule, subject)
        check_server(self._context.connection.server_version, _SCHEDULES, "a schedule")
        return await publish(
            self._context,
            subject,
            data,
            headers=merge_headers(headers, ending),
            msg_id=msg_id,
            expected_last_subject_seq=expected_seq,
            expected_last_subject_seq_subject=None if expected_seq is None else schedule,
            ttl=ttl,
            timeout=timeout,
        )
