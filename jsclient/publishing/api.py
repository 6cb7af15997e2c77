"""Publishing: the part of `JetStream` that stores messages. Source: ADR-22, ADR-50, ADR-51."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from .._runtime.context import Context
from .._runtime.publish import publish
from ..protocol.models.publish import PubAck
from .limits import ACK_EVERY, MAX_BYTES, MAX_IN_FLIGHT
from .schedule import Scheduling

if TYPE_CHECKING:  # handles are imported when one is made: `import jsclient` stays cheap
    from .batch import AtomicBatch
    from .fast_ingest import FastIngest
    from .publisher import Publisher

__all__ = ["Publishing"]


class Publishing(Scheduling):
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
        expected_last_subject_seq_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        rollup: Literal["sub", "all"] | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Publish a message and wait until a stream has stored it.

        With a ``msg_id`` it is sent again within the timeout if the answer is lost, and stored once; without one a lost
        answer means *unknown*. If no stream takes it, as during a leader election, it is sent again within the timeout,
        provided it has a ``msg_id`` or a stream has answered on this subject before; else three times in all.

        Args:
            subject: Without wildcards.
            data: Bytes.
            headers: A value, or several, by name. Not changed.
            msg_id: For de-duplication inside the stream's duplicate window.
            expected_stream, expected_last_seq, expected_last_subject_seq, expected_last_msg_id: Refuse to store the
                message unless this holds; 0 is a value. Give no ``expected_last_msg_id`` to a replicated stream: on
                nats-server 2.14 and newer one that does not hold breaks the stream on all its servers.
            expected_last_subject_seq_subject: The subject that ``expected_last_subject_seq`` is about, if not the
                message's own; wildcards allowed (server 2.11).
            ttl: Seconds until the server removes the message, 1 or more, or ``"never"``, which outlives the stream's
                ``max_age`` (server 2.11, stream with ``allow_msg_ttl``).
            rollup: ``"sub"``: it replaces all earlier messages of its subject; ``"all"``: all of the stream (one with
                ``allow_rollup_hdrs``).
            timeout: Seconds for the whole; by default that of this object.

        Raises:
            NoRespondersError: No stream holds the subject, or it has no leader: nothing was stored.
            WrongLastSequenceError, ApiError: The stream refused it: nothing was stored.
            RequestTimeoutError, DisconnectedError: Whether it was stored is unknown.
            InvalidNameError, ConfigError, MaxPayloadError: Nothing was sent. `ConfigError` also where the connected
                server would overlook an argument, being too old; given as a header it is sent all the same.

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
            expected_last_subject_seq_subject=expected_last_subject_seq_subject,
            expected_last_msg_id=expected_last_msg_id,
            ttl=ttl,
            rollup=rollup,
            timeout=timeout,
        )

    def batch(self, *, ack_every: int | None = None, timeout: float | None = None) -> AtomicBatch:
        """Publish messages all or nothing (server 2.12, stream with ``allow_atomic``): for ``async with``.

        Leaving the block commits and waits until all is stored; an exception in it leaves nothing behind. A batch may
        have 1,000 messages, and 10 s without one end it (the server's limits).

        Args:
            ack_every: Wait for the server at each so many messages, so that it is not overrun. The first message and
                the commit are waited for always.
            timeout: Seconds to wait for an answer; by default that of this object.

        Raises:
            ConfigError: A value out of range; on entering, a server that does not know batches.

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
        """Publish as fast as a stream can take it (server 2.14, stream with ``allow_batched``): for ``async with``.

        The server acks many messages at once and says how many may be under way, so that many publishers share it.
        Nothing is kept of a message here: no future, no retry.

        Args:
            gap: What happens when a message does not reach the stream, or is refused by it. "fail": nothing after it is
                stored, and `IngestError` says how many are. "ok": the others are stored, and the events `IngestGap` and
                `IngestRefused` tell what is missing.
            ack_every: Messages for one ack, at most; the server asks for fewer while others publish.
            max_outstanding_acks: Acks that may be due: 2 keeps the server busy; 3 where it is far away.
            timeout: Seconds to wait for a sign of progress; by default that of this object.

        Raises:
            ConfigError: A value out of range; on entering, a server that does not know fast ingest.

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
        """A publisher for many messages: it does not wait for each ack.

        ::

            async with js.publisher() as pub:
                for payload in payloads:
                    future = await pub.publish("orders.new", payload)

        Args:
            max_in_flight: Publishes that may wait for their acks.
            max_bytes: Bytes of headers and payloads that may; None: no bound. A single message may be larger.
            timeout: Seconds that each publish may take, from its sending; by default those of this object.
            room_timeout: Seconds that `Publisher.publish` waits for room before it raises `TooManyInFlightError`; 0:
                not at all; None: until there is room.
            resend: A message with an id whose outcome is unknown, because the connection or the answer was lost, is
                sent again within its timeout, and stored once (keep the timeout below the stream's duplicate window).
                After a reconnect the order is kept; one whose answer alone was lost may come behind later ones.

        Raises:
            ConfigError: An argument out of range.
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
