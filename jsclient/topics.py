"""Topics, and what is built on them: the part of `JetStream` that hands them out."""

from __future__ import annotations

from .streams import StreamManager
from .topic import Topic

__all__ = ["Topics"]


class Topics(StreamManager):
    """What `JetStream` does with topics."""

    def topic(self, subject: str, *, stream: str | None = None) -> Topic:
        """The topic under a subject: an ordered log with its readers. Nothing is asked of the server yet.

        Args:
            subject: Wildcards are allowed for who only reads.
            stream: The stream; by default the one that holds the subject when the topic is used.

        Raises:
            InvalidNameError: That is no subject, or no name of a stream.
        """
        return Topic(self._context, subject, stream)
