"""Events that concern full buffers and flow control."""

from __future__ import annotations

from ..errors import counted
from .event_base import Event

__all__ = ["FlowControlRefused", "FlowControlStalled", "SlowConsumer"]


class SlowConsumer(Event, frozen=True, kw_only=True):
    """The buffer of a subscription was full, so messages were dropped.

    Handle messages faster, allow a larger buffer with ``max_pending``, or use a pull consumer, which requests only as
    many messages as there is room for.

    The event is emitted for the first dropped message, and again each time ``dropped`` has doubled. If more than one
    message was dropped, a final event follows when the buffer accepts messages again or the subscription ends.

    The server redelivers dropped messages from a stream after ``ack_wait``, unless the ack policy is "none". An ordered
    subscription reads the dropped messages again. Plain messages are lost.

    Attributes:
        dropped: Number of messages dropped since the buffer became full. The number starts at 1 again each time the
            buffer has had room. The property ``dropped`` of the subscription counts all dropped messages.
        first_stream_seq: Stream sequence of the first dropped message, or 0 for plain messages.
        last_stream_seq: Stream sequence of the last dropped message, or 0 for plain messages.
        ended: True for the final event.
        subject: For plain messages, the subject of the subscription. Otherwise "".
    """

    dropped: int
    first_stream_seq: int = 0
    last_stream_seq: int = 0
    ended: bool = False
    subject: str = ""

    def _says(self) -> str:
        if self.subject:
            return self._says_of_plain()
        first, last = self.first_stream_seq, self.last_stream_seq
        which = counted(self.dropped, f"message ({first}) was", f"messages, from {first} to {last}, were")
        if self.ended:
            return f"the buffer was full: {which} dropped"
        return (
            f"the buffer is full: {which} dropped so far. Take messages faster, raise max_pending, or use flow control "
            "or a pull consumer, which send no more than the program takes"
        )

    def _says_of_plain(self) -> str:
        which = counted(self.dropped, "message was", "messages were")
        if self.ended:
            return f"the buffer of the subscription to {self.subject!r} was full: {which} dropped"
        return (
            f"the buffer of the subscription to {self.subject!r} is full: {which} dropped so far, and are lost. Take "
            "messages faster, raise max_pending, or share them in a queue group"
        )


class FlowControlStalled(Event, frozen=True, kw_only=True):
    """The server has paused deliveries until this client responds to a flow control request.

    The client responds once the application has taken all earlier messages from the buffer.

    Attributes:
        subject: Subject of the response.
        again: True if the client has already sent a response that didn't reach the server. The client sends it again.
            False if the client hasn't responded to this request before.
    """

    subject: str
    again: bool = False

    def _says(self) -> str:
        sent = "it was sent, did not arrive, and is sent again once" if self.again else "it is sent once"
        return f"the server waits for a flow control answer on {self.subject!r}: {sent} all earlier messages are taken"


class FlowControlRefused(Event, frozen=True, kw_only=True):
    """A flow control request was ignored, because its reply subject is invalid or doesn't match ``$JS.FC.>``.

    Either another client sent the request, or the server is configured to use different subjects. If the server uses
    different subjects, pass their prefix in the ``flow_control_prefixes`` argument of `JetStream.subscribe`, or the
    server stops delivering messages.

    Attributes:
        subject: The reply subject of the request.
    """

    _text = "a flow control request was not answered: {subject!r} is not in $JS.FC.> or not legal"

    subject: str
