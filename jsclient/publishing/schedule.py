"""Scheduled messages: stored now, sent to their target later. Source: ADR-51."""

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
from ..protocol.wire.headers import SCHEDULE, merge_headers
from ..protocol.wire.names import check_publish_subject
from ..protocol.wire.version import check_server

__all__ = ["Scheduling"]

_FIRST, _COMPLETE = (2, 12), (2, 14)  # servers: the first knows a time and a target only


class Scheduling:
    """The part of `JetStream` that has messages sent later."""

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
        """Store a message that the server sends to ``target`` later, once or again and again.

        The schedule lies on ``subject``, one to a subject: a new one there takes the place of the old one. ``subject``
        and ``target`` belong to one stream with ``allow_msg_schedules``. Server 2.12 for ``at``, 2.14 for the rest.

        Args:
            subject: Where the schedule is stored.
            target: Where its messages go.
            data: Their payload.
            at: Once, at this time; when it is past, at once. An aware ``datetime``, or RFC 3339 text.
            every: Again and again, this many seconds apart; 1 or more.
            cron: Six fields, seconds first, or a word such as ``@hourly``; see `check_cron`.
            time_zone: The zone of the times in ``cron``: an IANA name or a ``ZoneInfo``; UTC without.
            source: Each time, send the last message of this subject of the stream, if there is one, in the place of
                this message.
            ttl: Seconds that each message sent to ``target`` is kept, or ``"never"`` (stream with ``allow_msg_ttl``).
            rollup: ``"sub"``: each message sent to ``target`` replaces those before it there.
            lifetime: Seconds until the schedule itself is removed (stream with ``allow_msg_ttl``).
            headers: Headers of the messages.
            msg_id: For de-duplication of the schedule.
            expected_last_subject_seq: Store it only if this is the sequence of the schedule there is; 0: if none is.
            timeout: Seconds to wait; by default that of this object.

        Returns: where the schedule is stored; its ``seq`` is what `finish_schedule` may expect.

        Raises:
            ConfigError, InvalidNameError, MaxPayloadError: Nothing was sent.
            ApiError: The stream refused it, 10188 where it does not allow schedules.
            WrongLastSequenceError: Another schedule is there than was expected.
            NoRespondersError, RequestTimeoutError, DisconnectedError: As `publish`.

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

        Only a schedule is removed: any other message there stays, and so does a schedule that takes its place at this
        moment. For many at once there is `Stream.purge`.

        Args:
            subject: Where the schedule is stored.
            stream: Its stream; by default the one that holds ``subject``.

        Returns: whether there was one. False where it has been sent already.

        Raises:
            NoMatchingStreamError: Not exactly one stream holds ``subject``. And those of any request.

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
        # Up to this message, so that one which replaces it meanwhile stays.
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
        """Publish a message and remove a schedule: both happen, or neither.

        To send what was scheduled before its time, publish it to the target; to call it off where others can see it,
        publish to any other subject of the stream.

        Args:
            schedule: The subject of the schedule.
            subject: The subject of the message; not that of the schedule.
            data: Its payload.
            expected_seq: The sequence of the schedule: refuse where it was sent, removed or replaced.
            headers, msg_id, ttl, timeout: As `publish`.

        Raises:
            WrongLastSequenceError: The schedule is not the one that was expected: nothing happened.
            ConfigError, InvalidNameError, MaxPayloadError: Nothing was sent.
            ApiError, NoRespondersError, RequestTimeoutError, DisconnectedError: As `publish`.

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
