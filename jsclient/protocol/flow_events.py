"""The events about full buffers and flow control."""

from __future__ import annotations

from ..errors import counted
from .event_base import Event

__all__ = ["FlowControlRefused", "FlowControlStalled", "SlowConsumer"]


class SlowConsumer(Event, frozen=True, kw_only=True):
    """The subscription's buffer was full and messages were dropped.

    The event is reported for the first dropped message, and whenever their number ``dropped`` has doubled. If several
    were dropped, it is reported again, with ``ended``, when messages are accepted again or the subscription ends.
    ``first_stream_seq`` and ``last_stream_seq`` are their range. Unless the ack policy is none, the server redelivers
    them after ``ack_wait``. An ordered subscription reads them again. Plain messages have no range, and are lost.
    ``subject`` is the subject of their subscription, and "" for messages of a stream.
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
    """The server still waits for a flow control answer. ``again`` is true if an answer was sent and did not arrive."""

    subject: str
    again: bool = False

    def _says(self) -> str:
        sent = "it was sent, did not arrive, and is sent again once" if self.again else "it is sent once"
        return f"the server waits for a flow control answer on {self.subject!r}: {sent} all earlier messages are taken"


class FlowControlRefused(Event, frozen=True, kw_only=True):
    """A flow control request was not answered, because its subject does not match ``$JS.FC.>`` or is not legal.

    Another client sent it, or the server uses other subjects. Pass their prefix to `JetStream.subscribe` in
    ``flow_control_prefixes``.
    """

    _text = "a flow control request was not answered: {subject!r} is not in $JS.FC.> or not legal"

    subject: str
