"""`JetStream` methods that publish messages to streams. Source: ADR-22, ADR-50, ADR-51."""

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

_SCHEDULES: Final = (2, 12)  # first version of the server with schedules at a fixed time
_ALL_SCHEDULES: Final = (2, 14)  # first version of the server with all kinds of schedules


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

        Pass a ``msg_id`` whenever possible. If the server's response is lost, the client then sends the message again
        until the timeout expires, and the stream stores it only once. Without a ``msg_id``, a lost response raises an
        error, and the message may or may not have been stored.

        The client also sends the message again if no stream responds, for example during a leader election. If the
        message has a ``msg_id``, or if a stream has responded on this subject before, the client keeps trying until the
        timeout expires. Otherwise, it sends the message up to three times.

        To publish many messages, `publisher` and `publish_many` are much faster.

        Args:
            subject: Subject to publish to, without wildcards.
            data: Payload of the message. Empty by default.
            headers: A mapping from names to values. A value is a string or a list of strings.
            msg_id: Unique ID of the message. If the stream has stored a message with this ID within its duplicate
                window, nothing is stored. The `PubAck` then has ``duplicate`` set, and the ``seq`` of that message.
            expected_stream: Name of the stream that must store the message.
            expected_last_seq: Stream sequence that the last message of the stream must have, or 0 if the stream must
                not have stored any message yet.
            expected_last_subject_seq: Stream sequence that the last message of the subject must have, or 0 if the
                subject must have no message.
            expected_last_subject_seq_subject: The subject that ``expected_last_subject_seq`` refers to. It may contain
                wildcards. Defaults to the subject of the message. Requires nats-server 2.11 or later.
            expected_last_msg_id: ID that the last message of the stream must have. Don't use it with a replicated
                stream. On nats-server 2.14 or later, a failed expectation stops the stream on all its servers.
            ttl: How long the server keeps the message, in seconds (at least 1), or ``"never"`` to keep it even beyond
                the ``max_age`` of the stream. Requires nats-server 2.11 or later, and ``allow_msg_ttl`` of the stream.
            rollup: ``"sub"`` to replace all earlier messages of the subject, or ``"all"`` to replace all messages of
                the stream. Requires a stream with ``allow_rollup_hdrs``.
            timeout: Time limit of the whole call, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            NoRespondersError: No stream has the subject, or the stream has no leader. The message wasn't stored.
            WrongLastSequenceError: The last sequence isn't the expected one. The message wasn't stored.
            ApiError: The stream rejected the message for a different reason. The message wasn't stored.
            RequestTimeoutError: No response arrived in time. The message may or may not have been stored.
            DisconnectedError: The connection was lost. The message may or may not have been stored.
            InvalidNameError: The subject or a header is invalid. The message wasn't sent.
            MaxPayloadError: The message exceeds the server's size limit. The message wasn't sent.
            ConfigError: ``data`` isn't bytes, an argument is out of range, or the server is too old for an argument.
                The message wasn't sent. For options that are set in ``headers``, the version isn't checked.

        If the call is cancelled, the message may or may not have been stored.
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
        """Return a batch of messages. The stream stores either all of them or none.

        ::

            async with js.batch() as batch:
                await batch.publish("orders.new", b"...")
                await batch.publish("orders.items", b"...")

        The batch is committed at the end of the block. If the block raises an exception, no message is stored.

        Batches require nats-server 2.12 or later, and a stream with ``allow_atomic``. The server limits a batch to
        1,000 messages. It abandons a batch if more than 10 s pass between two messages.

        Args:
            ack_every: Number of messages after which the client waits for a response, so it doesn't overload the
                server. By default, the server responds only to the first message and the commit.
            timeout: How long to wait for a response, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            ConfigError: A value is out of range. If the server doesn't support batches, entering the block raises this
                error.

        See ADR-50 for the protocol.
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
        """Return a `FastIngest`, which publishes messages to a stream as fast as the server's flow control allows.

        ::

            async with js.fast_ingest() as ingest:
                for payload in payloads:
                    await ingest.publish("metrics.cpu", payload)

        The server acknowledges many messages at once. It decides how many messages may be in flight, so that several
        publishers get a fair share. There is no future for each message, and lost messages are not sent again.

        Fast ingest requires nats-server 2.14 or later, and a stream with ``allow_batched``.

        Args:
            gap: What happens if a message is lost, or rejected by the stream. With "fail", no later message is stored,
                and `IngestError` is raised with the number of messages stored. With "ok", the other messages are
                stored, and the events `IngestGap` and `IngestRefused` report the missing messages.
            ack_every: Maximum number of messages per acknowledgement. The server reduces it while other clients publish
                too.
            max_outstanding_acks: Maximum number of acknowledgements that may be outstanding. Defaults to 2, which is
                enough to keep a nearby server busy. Choose 3 for a distant server.
            timeout: If no message is stored for this many seconds, the ingest fails. Defaults to the ``timeout`` passed
                to `connect`.

        Raises:
            ConfigError: A value is out of range. If the server doesn't support fast ingest, entering the block raises
                this error.

        See ADR-50 for the protocol.
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
        """Return a `Publisher`, which publishes many messages without waiting for each acknowledgement.

        ::

            async with js.publisher() as pub:
                for payload in payloads:
                    future = await pub.publish("orders.new", payload)

        At the end of the block, the publisher waits for all acknowledgements. If a message couldn't be published, it
        raises `PublishesFailedError`.

        Args:
            max_in_flight: Maximum number of messages waiting for their acknowledgement. This is the size of the
                *window*.
            max_bytes: Maximum total size of the headers and payloads in flight, or None for no limit. A single message
                may be larger.
            timeout: How long to wait for the acknowledgement of each message, in seconds. Defaults to the ``timeout``
                passed to `connect`.
            room_timeout: How long `Publisher.publish` waits while the window is full, in seconds, before it raises
                `TooManyInFlightError`. If it is 0, the call doesn't wait. By default, the call waits indefinitely.
            resend: Whether to send a message with a ``msg_id`` again if the connection or the response was lost. The
                stream stores the message only once, provided that the timeout is shorter than the stream's duplicate
                window. The order of messages is preserved after a reconnect. If only a response was lost, the message
                may be stored after later messages.

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
        """Publish a message for each payload, in order, and wait until all messages are stored.

        ::

            result = await js.publish_many("orders.new", payloads)
            print(result.stored)

        The window and the retries are the same as for `publisher`, but the call takes a third less time, because there
        is no future for each message. While the window is full, no payloads are consumed, so ``payloads`` may be a
        generator of any length.

        Args:
            subject: Subject of all messages, without wildcards.
            payloads: An iterable of payloads.
            headers: Headers of all messages, as for `publish`.
            msg_ids: An iterable with the ``msg_id`` of each payload. If it is given, messages are sent again after the
                connection or a response was lost.
            max_in_flight: Maximum number of messages waiting for their acknowledgement.
            timeout: If no message is stored for this many seconds, the call fails. Defaults to the ``timeout`` passed
                to `connect`. The call continues as long as messages are being stored. The time that ``payloads`` takes
                to produce a payload doesn't count.

        Returns:
            A `PublishedMany` with the number of messages and their stream sequences.

        Raises:
            PublishManyError: Some messages couldn't be stored. The error contains the index of each failed message, and
                the number of messages sent. If a payload isn't bytes, or if there are fewer ``msg_ids`` than payloads,
                its ``__cause__`` is a `ConfigError`.
            InvalidNameError: The subject or a header is invalid. Nothing was sent.
            ConfigError: A limit is out of range, an argument isn't iterable, or the client uses a nats-py connection.
                Nothing was sent.

        If the call is cancelled, the messages sent so far may or may not have been stored.
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
        """Store a schedule, by which the server publishes messages to ``target`` later, once or repeatedly.

        The schedule is stored on ``subject``, where it replaces an earlier schedule. Both subjects must belong to the
        same stream, which must have ``allow_msg_schedules``. ``at`` requires nats-server 2.12 or later, and all other
        kinds of schedules require nats-server 2.14 or later.

        Args:
            subject: Subject of the schedule itself.
            target: Subject that the server publishes to.
            data: Payload of the published messages. Empty by default.
            at: Publish once at this time, or immediately if it is in the past. It is an aware ``datetime`` or an RFC
                3339 string.
            every: Publish repeatedly at this interval, in seconds (at least 1).
            cron: Publish at the times given by a cron expression. It has six fields, the first of which is seconds, or
                it is a word such as ``@hourly``. See `check_cron`.
            time_zone: Time zone of ``cron``, as an IANA name or a ``ZoneInfo``. Defaults to UTC.
            source: Instead of ``data``, publish the last message of this subject, if the stream contains one.
            ttl: How long the server keeps each published message, in seconds, or ``"never"``. Requires a stream with
                ``allow_msg_ttl``.
            rollup: ``"sub"`` if each published message replaces the earlier messages of ``target``.
            lifetime: How long the server keeps the schedule itself, in seconds. Requires a stream with
                ``allow_msg_ttl``.
            headers: Headers of the published messages.
            msg_id: Unique ID of the schedule, so that it is stored only once if it is sent again. See `publish`.
            expected_last_subject_seq: Store the schedule only if the existing schedule has this stream sequence, or
                with 0, only if no schedule exists.
            timeout: Time limit of the whole call, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Returns:
            The acknowledgement of the schedule. Pass its ``seq`` to `finish_schedule`.

        Raises:
            InvalidNameError: A subject or a header is invalid. Nothing was sent.
            MaxPayloadError: The schedule exceeds the server's size limit. Nothing was sent.
            ConfigError: A time, an interval or another option is invalid, or the server is too old. Nothing was sent.
            WrongLastSequenceError: The existing schedule isn't the expected one. Nothing was stored.
            ApiError: The stream rejected the schedule, for example because it doesn't have ``allow_msg_schedules``
                (10188).
            NoRespondersError: No stream has ``subject``, or the stream has no leader. Nothing was stored.
            RequestTimeoutError, DisconnectedError: No response arrived. The schedule may or may not have been stored.

        See ADR-51 for the details.
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

        If another client replaces the schedule at the same time, the new schedule remains. If the message on
        ``subject`` isn't a schedule, it remains too. To cancel many schedules at once, use `Stream.purge`.

        Args:
            subject: Subject of the schedule.
            stream: Name of the stream. By default, the client looks up the stream that has ``subject``.

        Returns:
            True if the schedule was removed. False if there was none, for example because its message has already been
            published.

        Raises:
            NoMatchingStreamError: No stream, or more than one, has ``subject``.

        Also raises `RequestTimeoutError` or `DisconnectedError` if no response arrived. You may then repeat the call.

        See ADR-51 for the details.
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
        # Purge only up to this message, because another client may have stored a new schedule in the meantime.
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

        For example, publish the scheduled message early by passing the target of the schedule as ``subject``. With a
        different subject of the stream, the message can announce the cancellation to other clients.

        Args:
            schedule: Subject of the schedule.
            subject: Subject of the message. It must differ from ``schedule``.
            data: Payload of the message. Empty by default.
            expected_seq: Stream sequence of the schedule. If it is given, the call fails if another client has removed
                or replaced the schedule, or if the scheduled message has already been published.
            headers: Headers of the message.
            msg_id: Unique ID of the message. See `publish`.
            ttl: How long the server keeps the message, in seconds. See `publish`.
            timeout: Time limit of the whole call, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Returns:
            The acknowledgement of the message.

        Raises:
            WrongLastSequenceError: The schedule isn't the expected one. It remains, and no message was stored.
            InvalidNameError: A subject or a header is invalid. Nothing was sent.
            MaxPayloadError: The message exceeds the server's size limit. Nothing was sent.
            ConfigError: A time, an interval or another option is invalid, or the server is too old. Nothing was sent.
            ApiError: The stream rejected the message. The schedule remains.
            NoRespondersError: No stream has ``subject``, or the stream has no leader. The schedule remains.
            RequestTimeoutError, DisconnectedError: No response arrived, so the outcome is unknown.

        See ADR-51 for the details.
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
