"""Events that concern full buffers and flow control."""

from __future__ import annotations

from ..errors import counted
from .event_base import Event

__all__ = ["FlowControlRefused", "FlowControlStalled", "SlowConsumer"]


class SlowConsumer(Event, frozen=True, kw_only=True):
    """The buffer of a subscription was full, so messages were dropped.

    The event is emitted for the first dropped message, and again each time the number ``dropped`` has doubled. If more
    than one message was dropped, a final event follows with ``ended`` set to True. It is emitted when the buffer
    accepts messages again or the subscription ends.

    For messages from a stream, ``first_stream_seq`` and ``last_stream_seq`` are the range of the dropped messages, and
    ``subject`` is "". The server redelivers these messages after ``ack_wait``, unless the ack policy is none. An
    ordered subscription reads them again. For plain messages, ``subject`` is the subject of the subscription. They are
    lost, and their range is 0.
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
    """The server is still waiting for a response to a flow control request.

    The response is sent once all earlier messages have been taken from the buffer. ``subject`` is the subject of the
    response. ``again`` is True if a response has already been sent but did not reach the server.
    """

    subject: str
    again: bool = False

    def _says(self) -> str:
        sent = "it was sent, did not arrive, and is sent again once" if self.again else "it is sent once"
        return f"the server waits for a flow control answer on {self.subject!r}: {sent} all earlier messages are taken"


class FlowControlRefused(Event, frozen=True, kw_only=True):
    """A flow control request was ignored, because its reply subject is invalid or does not match ``$JS.FC.>``.

    Either another client sent the request, or the server is configured to use different subjects. In the latter case,
    pass their prefix in the ``flow_control_prefixes`` argument of `JetStream.subscribe`.
    """

    _text = "a flow control request was not answered: {subject!r} is not in $JS.FC.> or not legal"

    subject: str
