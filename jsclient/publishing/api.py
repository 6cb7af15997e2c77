"""Publishing: the methods of `JetStream` that store messages. Source: ADR-22, ADR-50, ADR-51."""

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

if TYPE_CHECKING:  # handles are imported when one is made: `import jsclient` stays cheap
    from .batch import AtomicBatch
    from .fast_ingest import FastIngest
    from .publish_many import PublishedMany
    from .publisher import Publisher

__all__ = ["Publishing"]

_SCHEDULES: Final = (2, 12)  # the first server with schedules, which knows only a time and a target
_ALL_SCHEDULES: Final = (2, 14)


class Publishing:
    """The methods of `JetStream` that store messages."""

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

        A message with a ``msg_id`` is sent again within the timeout if the answer is lost, and is stored once. Without
        a ``msg_id`` the outcome of a lost answer is *unknown*. If no stream responds, as during a leader election, the
        message is sent again within the timeout if it has a ``msg_id`` or if a stream has answered on this subject
        before. Otherwise it is sent at most three times.

        Args:
            subject: The subject, without wildcards.
            data: The payload.
            headers: One value, or several, by name. The mapping is not modified.
            msg_id: For de-duplication within the stream's duplicate window.
            expected_stream, expected_last_seq, expected_last_subject_seq, expected_last_msg_id: Store the message only
                if this expectation is met. Sequence 0 means that no message exists. Do not use ``expected_last_msg_id``
                with a replicated stream: on nats-server 2.14 and newer a failed expectation stops the stream on all its
                servers.
            expected_last_subject_seq_subject: The subject of ``expected_last_subject_seq`` if it differs from the
                message's subject. Wildcards are allowed (server 2.11).
            ttl: Seconds until the server removes the message, 1 or more, or ``"never"``, which outlives the stream's
                ``max_age`` (server 2.11, stream with ``allow_msg_ttl``).
            rollup: ``"sub"``: the message replaces all earlier messages of its subject. ``"all"``: it replaces all
                messages of the stream (stream with ``allow_rollup_hdrs``).
            timeout: Seconds for the whole call. The default is the timeout of `connect`.

        Raises:
            NoRespondersError: No stream has the subject, or it has no leader. The message was not stored.
            WrongLastSequenceError, ApiError: The stream refused the message. It was not stored.
            RequestTimeoutError, DisconnectedError: It is unknown whether the message was stored.
            InvalidNameError, ConfigError, MaxPayloadError: The message was not sent. `ConfigError` is also raised if
                the connected server is too old for an argument and would ignore it. The same value in ``headers`` is
                sent without this check.

        Cancelled: it is unknown whether the message was stored.
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
        """Return a batch of messages that are published atomically: ``async with js.batch() as batch``.

        Needs server 2.12 and a stream with ``allow_atomic``. Leaving the block commits the batch and waits until all
        messages are stored. After an exception no message is stored. The server limits a batch to 1,000 messages, with
        at most 10 s between two messages.

        Args:
            ack_every: Wait for an answer every ``ack_every`` messages, so that the server is not overloaded. The first
                message and the commit are always answered.
            timeout: Seconds to wait for an answer. The default is the timeout of `connect`.

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
        """Return an ingest, which publishes at the highest rate of a stream: ``async with js.fast_ingest() as ingest``.

        Needs server 2.14 and a stream with ``allow_batched``. The server acks many messages at once, and limits how
        many may be in flight, so that many publishers can share it. The client keeps no state per message, so there are
        no futures and no retries.

        Args:
            gap: What happens after a message that is lost, or refused by the stream. "fail": no later message is
                stored, and `IngestError` has the number of messages stored. "ok": the other messages are stored, and
                the events `IngestGap` and `IngestRefused` report the missing messages.
            ack_every: The maximum number of messages per ack. The server reduces it while other clients publish.
            max_outstanding_acks: Acks that may be outstanding: 2 keeps the server busy, 3 suits a distant server.
            timeout: Seconds without progress before the ingest fails. The default is the timeout of `connect`.

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
        """Return a publisher for many messages, which does not wait for each ack.

        ::

            async with js.publisher() as pub:
                for payload in payloads:
                    future = await pub.publish("orders.new", payload)

        Args:
            max_in_flight: The maximum number of publishes without an ack.
            max_bytes: The maximum sum of their headers and payloads. None: unlimited. A single message may be larger.
            timeout: Seconds for each publish after it is sent. The default is the timeout of `connect`.
            room_timeout: Seconds that `Publisher.publish` waits while the window is full, before it raises
                `TooManyInFlightError`. 0: it does not wait. None: it waits without a limit.
            resend: Send a message with an id again within its timeout if its outcome is unknown, because the connection
                or the answer was lost. It is stored once (keep the timeout below the stream's duplicate window). A
                reconnect keeps the order. A message that lost only its answer may be stored after later messages.

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

        Like `publisher`, with the same window and the same retries, but without a future for each message, which
        saves more than a third of the work. The call waits while the window is full, so ``payloads`` may be a
        generator of any length.

        Args:
            headers: The headers of every message.
            msg_ids: The ``msg_id`` of each payload. With ids, messages whose outcome is unknown are sent again.
            max_in_flight: The maximum number of messages without an ack.
            timeout: Seconds for each message after it is sent. The default is the timeout of `connect`. It also limits
                each wait for a connection, or for a connection that takes no bytes. The call ends when no message was
                stored for that long. As long as messages are stored the call continues. The time that ``payloads``
                takes to produce them does not count.

        Raises:
            PublishManyError: Not all messages are stored. It has the failed messages by index and the number of
                messages sent. Its cause is a `ConfigError` if a payload is not bytes, or if there are fewer ``msg_ids``
                than payloads.
            ConfigError, InvalidNameError: An argument is not valid, or `JetStream` was created with a nats-py
                connection. No message was sent.

        Cancelled: messages sent so far may be stored.
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
            cron: Publish at these times: six fields, seconds first, or a word such as ``@hourly``. See `check_cron`.
            time_zone: The time zone of ``cron``: an IANA name or a ``ZoneInfo``. The default is UTC.
            source: Publish the last message of this subject of the stream, if it exists, instead of this message.
            ttl: Seconds that each message sent to ``target`` is kept, or ``"never"`` (stream with ``allow_msg_ttl``).
            rollup: ``"sub"``: each message sent to ``target`` replaces the earlier messages there.
            lifetime: Seconds until the schedule itself is removed (stream with ``allow_msg_ttl``).
            headers: Headers of the messages.
            msg_id: For de-duplication of the schedule.
            expected_last_subject_seq: Store it only if the existing schedule has this sequence. 0 requires that none
                exists.
            timeout: Seconds for the whole call. The default is the timeout of `connect`.

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
        """Remove the schedule on ``subject``.

        Any other message on ``subject`` remains, and so does a schedule that replaces this schedule at the same time.
        To remove many schedules at once use `Stream.purge`.

        Args:
            subject: The subject of the schedule.
            stream: Its stream. The default is the stream of ``subject``.

        Returns: whether the schedule existed. False if its message was already sent.

        Raises:
            NoMatchingStreamError: No stream, or more than one, has ``subject``.

        Also raises the errors of any API request.

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
        # Purge up to this message, so that a replacement stored meanwhile stays.
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
        """Publish a message and remove a schedule, atomically.

        Publish to the target to send the scheduled message early, or to any other subject of the stream to announce the
        cancellation to other clients.

        Args:
            schedule: The subject of the schedule.
            subject: The subject of the message. It must differ from ``schedule``.
            data: The payload of the message.
            expected_seq: The sequence of the schedule. The call fails if the schedule was sent, removed or replaced.
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
