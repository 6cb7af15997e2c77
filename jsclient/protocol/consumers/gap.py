"""Gap detection: finds missing deliveries.

A consumer numbers its deliveries 1, 2, 3 …, redeliveries too. Messages carry that number in the JSAck, heartbeats
carry the last one in ``Nats-Last-Consumer``. A jump means that deliveries were lost. Not for queue groups, whose
members each receive a part. Source: ADR-15 §Messages Gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..events import ConsumerReset, Event, GapDetected

__all__ = ["GapTracker"]


@dataclass(slots=True)
class GapTracker:
    """Follows the consumer sequence of one consumer."""

    stream: str = ""
    consumer: str = ""
    consumer_seq: int | None = None  # the last one seen; None: the first one seen is accepted
    stream_seq: int = 0  # the stream sequence of the same message

    def message(self, stream_seq: int, consumer_seq: int) -> Event | None:
        """A message arrived; returns the event to emit, if any."""
        last, last_stream = self.consumer_seq, self.stream_seq
        self.consumer_seq, self.stream_seq = consumer_seq, stream_seq
        if last is None or consumer_seq == last + 1:
            return None
        if consumer_seq <= last:
            return self._began_again(last, consumer_seq)
        return GapDetected(
            stream=self.stream,
            consumer=self.consumer,
            last_consumer_seq=last,
            consumer_seq=consumer_seq,
            last_stream_seq=last_stream,
            stream_seq=stream_seq,
            missed=consumer_seq - last - 1,
        )

    def heartbeat(self, last_stream: int, last_consumer: int) -> Event | None:
        """A heartbeat reported the last delivery; returns the event to emit, if any."""
        last, seen_stream = self.consumer_seq, self.stream_seq
        self.consumer_seq, self.stream_seq = last_consumer, last_stream
        if last is None or last_consumer == last:
            return None
        if last_consumer < last:
            return self._began_again(last, last_consumer)
        return GapDetected(
            stream=self.stream,
            consumer=self.consumer,
            last_consumer_seq=last,
            consumer_seq=last_consumer,
            last_stream_seq=seen_stream,
            stream_seq=last_stream,
            missed=last_consumer - last,
        )

    def _began_again(self, last: int, found: int) -> Event:
        return ConsumerReset(
            stream=self.stream,
            consumer=self.consumer,
            reason=f"the consumer sequence went back from {last} to {found}",
            resume_stream_seq=self.stream_seq,
        )
