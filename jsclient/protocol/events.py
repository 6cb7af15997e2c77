"""What is told to the user out of band: typed events.

Whatever cannot be raised to a caller goes here: to ``on_event`` of the connection and to ``events()`` of the
subscription concerned. Every event names its ``stream`` and ``consumer`` where it has them, empty otherwise.
Source: ADR-15 (asynchronous error callback), ADR-37.
"""

from __future__ import annotations

import msgspec

from ..errors import JetStreamError

__all__ = [
    "AcksLost",
    "ClaimsGone",
    "ClaimsLapsed",
    "ConsumerDeleted",
    "ConsumerReset",
    "DeadLetterFailed",
    "DeadLettered",
    "DeleteFailed",
    "Disconnected",
    "ErrorRaised",
    "Event",
    "FlowControlRefused",
    "FlowControlStalled",
    "ForeignMessage",
    "GapDetected",
    "HandlerFailed",
    "HeartbeatMissed",
    "HistoryTruncated",
    "IngestGap",
    "IngestRefused",
    "PermissionDenied",
    "Pinned",
    "PublishFailed",
    "Reconnected",
    "SlowConsumer",
    "StreamReset",
    "Unpinned",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all events."""

    stream: str = ""
    consumer: str = ""


class HeartbeatMissed(Event, frozen=True, kw_only=True):
    """Neither a message nor a status came within the time allowed (3 × the idle heartbeat by default).

    ``silent_for`` is in seconds. The subscription goes on; the alarm comes again while the silence lasts.
    """

    silent_for: float


class GapDetected(Event, frozen=True, kw_only=True):
    """Deliveries are missing: the consumer sequence jumped.

    ``last_consumer_seq`` and ``last_stream_seq`` were seen before the gap; ``consumer_seq`` and ``stream_seq`` were
    found after it (in a message, or in a heartbeat's headers); ``missed`` deliveries are missing. Reading on from
    ``resume_stream_seq`` misses nothing.
    """

    last_consumer_seq: int
    consumer_seq: int
    last_stream_seq: int
    stream_seq: int
    missed: int

    @property
    def resume_stream_seq(self) -> int:
        """The stream sequence from which nothing is missed."""
        return self.last_stream_seq + 1


class HistoryTruncated(Event, frozen=True, kw_only=True):
    """Records between these stream sequences were removed before they were read, and are passed over."""

    after: int
    before: int


class ConsumerReset(Event, frozen=True, kw_only=True):
    """The consumer was made anew, or its sequence began again; ``reason`` says why.

    ``resume_stream_seq`` is the stream sequence from which it reads on, 0 where its start policy decides.
    """

    reason: str
    resume_stream_seq: int = 0


class ConsumerDeleted(Event, frozen=True, kw_only=True):
    """The consumer does not exist any more, though nobody here deleted it."""


class StreamReset(Event, frozen=True, kw_only=True):
    """The stream's sequence went backwards: it was deleted and made again, or restored."""

    last_stream_seq: int
    stream_seq: int


class Pinned(Event, frozen=True, kw_only=True):
    """The server chose this client to be the one that a priority group's messages go to (policy ``pinned_client``).

    Others may still have messages from before. ``pin_id`` is the server's id of this choice.
    """

    group: str
    pin_id: str


class Unpinned(Event, frozen=True, kw_only=True):
    """This client is no longer the one that a priority group's messages go to; it waits to be chosen again.

    It had sent no request for ``priority_timeout``, or somebody called `Consumer.unpin`, or the server was restarted.
    What it has in its buffer it may still handle and ack; ``pin_id`` is the choice that ended.
    """

    group: str
    pin_id: str


class SlowConsumer(Event, frozen=True, kw_only=True):
    """The subscription's buffer was full and messages were dropped, once per episode.

    ``dropped`` counts them so far; ``first_stream_seq`` and ``last_stream_seq`` are the range. With an ack policy other
    than none the server sends them again after ``ack_wait``; an ordered subscription reads them again by itself.
    """

    dropped: int
    first_stream_seq: int
    last_stream_seq: int


class FlowControlStalled(Event, frozen=True, kw_only=True):
    """A heartbeat said that the server waits for a flow control answer that it did not get; it was sent now."""

    subject: str


class FlowControlRefused(Event, frozen=True, kw_only=True):
    """A flow control subject that may not be answered: not a legal publish subject, or an API or system subject."""

    subject: str


class ForeignMessage(Event, frozen=True, kw_only=True):
    """Something on the deliver or pull inbox that is neither data nor a status was dropped.

    ``count`` is how many so far; the event comes for the first and then at each doubling.
    """

    subject: str
    count: int


class ErrorRaised(Event, frozen=True, kw_only=True):
    """An error that has no caller to be raised to: a 409, 503 or unknown status on a callback subscription, for one."""

    error: JetStreamError


class HandlerFailed(Event, frozen=True, kw_only=True):
    """A user's callback or handler raised. The message was not acked.

    After a callback the server sends it again after ``ack_wait``. A worker tries it again after ``retry_in`` seconds,
    which is None where this was the last try (see `DeadLettered`) or where the handler had settled the message itself;
    ``attempt`` counts from 1, and is 0 after a callback.
    """

    error: BaseException
    subject: str = ""
    stream_seq: int = 0
    attempt: int = 0
    retry_in: float | None = None


class DeadLettered(Event, frozen=True, kw_only=True):
    """A worker gave a message up: it will not be delivered again. ``error`` says why.

    ``dead_letter`` is the subject under which its copy was stored; empty where the worker was given none, so that the
    message is in its stream and nowhere else, as long as the stream keeps it.
    """

    error: BaseException
    subject: str = ""
    stream_seq: int = 0
    attempt: int = 0
    dead_letter: str = ""


class DeadLetterFailed(Event, frozen=True, kw_only=True):
    """The dead letter of a message could not be stored (``error``). It is not given up: it is tried again."""

    error: JetStreamError
    subject: str = ""
    stream_seq: int = 0
    dead_letter: str = ""


class DeleteFailed(Event, frozen=True, kw_only=True):
    """The consumer that a drained subscription had created could not be deleted."""

    error: JetStreamError


class AcksLost(Event, frozen=True, kw_only=True):
    """Acks were written to a connection that died before the server confirmed it had read them.

    ``resent`` of the ``count`` were sent again after the reconnect; the server redelivers what was not counted.
    """

    count: int
    resent: int


class ClaimsLapsed(Event, frozen=True, kw_only=True):
    """Messages that a Spark query claimed were not kept alive in time (``ack_wait``), so others may have got them too.

    Up to ``count`` of them, as far as the consumer shows, are handled twice; ``reason`` says what happened.
    """

    count: int
    reason: str


class ClaimsGone(Event, frozen=True, kw_only=True):
    """Messages that a Spark query claimed were not in the stream any more when they were to be read.

    ``count`` of them, between ``first_stream_seq`` and ``last_stream_seq``. They were deleted, purged or expired, or
    somebody else acked them, in a work queue; ``lapsed`` says whether that can be.
    """

    count: int
    first_stream_seq: int
    last_stream_seq: int
    lapsed: bool = False


class PublishFailed(Event, frozen=True, kw_only=True):
    """A publish that nobody waits for failed.

    ``count`` publishes failed in this way at this time; ``subject`` and ``error`` are those of the first.
    """

    subject: str
    error: BaseException
    count: int = 1


class IngestGap(Event, frozen=True, kw_only=True):
    """Messages of the fast ingest ``ingest``, which allows gaps, did not reach the stream: ``first`` to ``last``."""

    ingest: str
    first: int
    last: int


class IngestRefused(Event, frozen=True, kw_only=True):
    """The stream did not take message ``number`` of the fast ingest ``ingest``, which allows gaps."""

    ingest: str
    number: int
    error: JetStreamError


class Disconnected(Event, frozen=True, kw_only=True):
    """The connection to the server was lost; reconnecting goes on until the connection is closed."""

    reason: str = ""


class Reconnected(Event, frozen=True, kw_only=True):
    """The connection is back; subscriptions were made again. ``url`` is shown without user info."""

    url: str = ""


class PermissionDenied(Event, frozen=True, kw_only=True):
    """The server refused a publish or a subscription of this user."""

    operation: str
    subject: str
