"""Publishing: the part of `JetStream` that stores messages. Source: ADR-22, ADR-49, ADR-50, ADR-51."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ._runtime.context import Context
from .protocol.models.publish import PubAck
from .publish import publish

__all__ = ["Publishing"]


class Publishing:
    """What `JetStream` does to store messages."""

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
        expected_last_msg_id: str | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Publish a message and wait until a stream has stored it.

        With a ``msg_id`` it is tried again inside the timeout when the answer is lost, and stored once; without one a
        lost answer means *unknown*. Where no stream answers it is tried three times, 0.25 s apart.

        Args:
            subject: Without wildcards.
            data: Bytes.
            headers: A value, or several, by name. Not changed.
            msg_id: For de-duplication inside the stream's duplicate window.
            expected_stream, expected_last_seq, expected_last_subject_seq, expected_last_msg_id: Refuse to store the
                message unless this holds; 0 is a value.
            ttl: Seconds until the server removes the message, 1 or more (server 2.11, stream with ``allow_msg_ttl``).
            timeout: Seconds for the whole; by default that of this object.

        Raises:
            NoRespondersError: No stream holds the subject, or it has no leader: nothing was stored.
            WrongLastSequenceError, ApiError: The stream refused it: nothing was stored.
            RequestTimeoutError, DisconnectedError: Whether it was stored is unknown.
            InvalidNameError, ConfigError, MaxPayloadError: Nothing was sent.

        Cancelled: whether it was stored is unknown.
        """
        return await publish(
            self._context,
            subject,
            data,
            headers=headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            expected_last_msg_id=expected_last_msg_id,
            ttl=ttl,
            timeout=timeout,
        )
