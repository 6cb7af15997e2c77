"""Scheduled messages, which the server publishes later. Source: ADR-51."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Literal

from .._runtime.calls import find_streams
from .._runtime.context import Context
from .._runtime.publish import publish
from ..errors import MessageNotFoundError, NoMatchingStreamError
from ..protocol.models.message import read_stored_message
from ..protocol.models.publish import PubAck
from ..protocol.publishing.schedule import ending_headers, schedule_headers
from ..protocol.wire.header_names import SCHEDULE
from ..protocol.wire.headers import merge_headers
from ..protocol.wire.names import check_publish_subject
from ..protocol.wire.version import check_server

__all__ = ["Scheduling"]

_FIRST, _COMPLETE = (2, 12), (2, 14)  # servers: the first one supports only a time and a target


class Scheduling:
    """The methods of `JetStream` that schedule messages."""

    _context: Context

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

        The schedule is stored on ``subject``, one per subject: a new one replaces the old one. Both subjects must
        belong to one stream with ``allow_msg_schedules``. Needs server 2.12 for ``at``, 2.14 for everything else.

        Args:
            subject: The subject of the schedule.
            target: The subject of its messages.
            data: Their payload.
            at: Once, at this time; immediately if it has passed. An aware ``datetime``, or RFC 3339 text.
            every: Repeatedly, at this interval in seconds; 1 or more.
            cron: Six fields, seconds first, or a word such as ``@hourly``; see `check_cron`.
            time_zone: The time zone of ``cron``: an IANA name or a ``ZoneInfo``; by default UTC.
            source: Each time, send the last message of this subject of the stream, if it exists, instead of this
                message.
            ttl: Seconds that each message sent to ``target`` is kept, or ``"never"`` (stream with ``allow_msg_ttl``).
            rollup: ``"sub"``: each message sent to ``target`` replaces the earlier ones there.
            lifetime: Seconds until the schedule itself is removed (stream with ``allow_msg_ttl``).
            headers: Headers of the messages.
            msg_id: For de-duplication of the schedule.
            expected_last_subject_seq: Store it only if the existing schedule has this sequence; 0: if none exists.
            timeout: Seconds for the whole call; by default the timeout of `connect`.

        Returns: the ack of the schedule; its ``seq`` can be passed to `finish_schedule`.

        Raises:
            ConfigError, InvalidNameError, MaxPayloadError: Nothing was sent.
            ApiError: The stream refused it; 10188: it does not allow schedules.
            WrongLastSequenceError: The existing schedule is not the expected one.
            NoRespondersError, RequestTimeoutError, DisconnectedError: See `publish`.

        Source: ADR-51
        """
        wanted = schedule_headers(
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
        check_server(version, _FIRST, "a schedule")
        for what, value in (("every", every), ("cron", cron), ("source", source), ("rollup", rollup)):
            if value is not None:
                check_server(version, _COMPLETE, what)
        return await publish(
            self._context,
            subject,
            data,
            headers=merge_headers(headers, wanted),
            msg_id=msg_id,
            expected_last_subject_seq=expected_last_subject_seq,
            ttl=lifetime,
            timeout=timeout,
        )

    async def cancel_schedule(self, subject: str, *, stream: str | None = None) -> bool:
        """Remove the schedule on ``subject``.

        Any other message on ``subject`` stays, and so does a schedule that replaces it at the same time. To remove many
        at once use `Stream.purge`.

        Args:
            subject: The subject of the schedule.
            stream: Its stream; by default the stream of ``subject``.

        Returns: whether it existed. False if it has been sent already.

        Raises:
            NoMatchingStreamError: Not exactly one stream has ``subject``. And those of any request.

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
        found = read_stored_message(answer)
        if SCHEDULE not in found.headers:
            return False
        # Up to this message, so that a replacement stored meanwhile stays.
        body = {"filter": subject, "seq": found.seq + 1}
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
            subject: The subject of the message; not that of the schedule.
            data: Its payload.
            expected_seq: The sequence of the schedule. The call fails if it was sent, removed or replaced.
            headers, msg_id, ttl, timeout: See `publish`.

        Raises:
            WrongLastSequenceError: The schedule is not the expected one: nothing was changed.
            ConfigError, InvalidNameError, MaxPayloadError: Nothing was sent.
            ApiError, NoRespondersError, RequestTimeoutError, DisconnectedError: See `publish`.

        Source: ADR-51
        """
        wanted = ending_headers(schedule, subject)
        check_server(self._context.connection.server_version, _FIRST, "a schedule")
        return await publish(
            self._context,
            subject,
            data,
            headers=merge_headers(headers, wanted),
            msg_id=msg_id,
            expected_last_subject_seq=expected_seq,
            expected_last_subject_seq_subject=None if expected_seq is None else schedule,
            ttl=ttl,
            timeout=timeout,
        )
