"""Publishing: the methods of `JetStream` that store messages. Source: ADR-22, ADR-50, ADR-51."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from .._runtime.context import Context
from .._runtime.publish import publish
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import ACK_EVERY, MAX_BYTES, MAX_IN_FLIGHT
from .schedule import Scheduling

if TYPE_CHECKING:  # handles are imported when one is made: `import jsclient` stays cheap
    from .batch import AtomicBatch
    from .fast_ingest import FastIngest
    from .publisher import Publisher

__all__ = ["Publishing"]


class Publishing(Scheduling):
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
    ) -> PubAck:
        """Publish a message and wait until a stream has stored it.

        With a ``msg_id`` it is sent again within the timeout if the answer is lost, and stored once; without one a lost
        answer means *unknown*. If no stream takes it, as during a leader election, it is sent again within the timeout,
        provided it has a ``msg_id`` or a stream has answered on this subject before; else three times in all.

        Args:
            subject: Without wildcards.
            data: Bytes.
            headers: One value, or several, by name. Not modified.
            msg_id: For de-duplication within the stream's duplicate window.
            expected_stream, expected_last_seq, expected_last_subject_seq, expected_last_msg_id: The message is
                stored only if this holds; 0 means none yet. Do not use ``expected_last_msg_id`` with a replicated
                stream: on nats-server 2.14 and newer a failed expectation stops the stream on all its servers.
            expected_last_subject_seq_subject: The subject of ``expected_last_subject_seq`` if it is not that of the
                message; wildcards allowed (server 2.11).
            ttl: Seconds until the server removes the message, 1 or more, or ``"never"``, which outlives the stream's
                ``max_age`` (server 2.11, stream with ``allow_msg_ttl``).
            rollup: ``"sub"``: the message replaces all earlier ones of its subject; ``"all"``: all messages of the
                stream (stream with ``allow_rollup_hdrs``).
            timeout: Seconds for the whole call; by default the timeout of `connect`.

        Raises:
            NoRespondersError: No stream has the subject, or it has no leader: nothing was stored.
            WrongLastSequenceError, ApiError: The stream refused it: nothing was stored.
            RequestTimeoutError, DisconnectedError: Whether it was stored is unknown.
            InvalidNameError, ConfigError, MaxPayloadError: Nothing was sent. `ConfigError` also if the connected
                server is too old for an argument, and would ignore it; as a header it is sent anyway.

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
        """Publish messages atomically (server 2.12, stream with ``allow_atomic``), for ``async with``.

        Leaving the block commits, and waits until all messages are stored; after an exception nothing is stored. Limits
        of the server: 1,000 messages, and at most 10 s between two messages.

        Args:
            ack_every: Wait for an answer every ``ack_every`` messages, so that the server is not overloaded. The first
                message and the commit are always answered.
            timeout: Seconds to wait for an answer; by default the timeout of `connect`.

        Raises:
            ConfigError: A value is out of range; on entering, the server does not support batches.

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
        """Publish at the highest rate of a stream (server 2.14, stream with ``allow_batched``), for ``async with``.

        The server acks many messages at once, and limits how many may be in flight, so that many publishers share it.
        The client keeps no state per message: no future, no retry.

        Args:
            gap: The effect of a message that is lost, or refused by the stream. "fail": nothing after it is stored, and
                `IngestError` has the number of messages stored. "ok": the others are stored, and the events `IngestGap`
                and `IngestRefused` report the missing ones.
            ack_every: Messages per ack at most; the server reduces it while others publish.
            max_outstanding_acks: Acks that may be outstanding: 2 keeps the server busy; 3 for a distant one.
            timeout: Seconds without progress before it fails; by default the timeout of `connect`.

        Raises:
            ConfigError: A value is out of range; on entering, the server does not support fast ingest.

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
        """A publisher for many messages, which does not wait for each ack.

        ::

            async with js.publisher() as pub:
                for payload in payloads:
                    future = await pub.publish("orders.new", payload)

        Args:
            max_in_flight: The maximum number of publishes without an ack.
            max_bytes: The maximum sum of their headers and payloads; None: unlimited. A single message may be larger.
            timeout: Seconds for each publish, from its sending; by default the timeout of `connect`.
            room_timeout: Seconds that `Publisher.publish` waits for room before it raises `TooManyInFlightError`; 0: it
                does not wait; None: without a limit.
            resend: A message with an id whose outcome is unknown, because the connection or the answer was lost, is
                sent again within its timeout, and stored once (keep the timeout below the stream's duplicate window).
                A reconnect keeps the order; a message whose answer alone was lost may be stored after later ones.

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
