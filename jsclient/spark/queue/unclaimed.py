"""Detect messages that a stream has removed before the consumer of a query could deliver them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ...consumers.pull.consumer import Consumer
from ...errors import HistoryTruncatedError
from ...protocol.models.consumer import ConsumerInfo, DeliverPolicy
from ...protocol.models.stream import StreamInfo
from ...streams.stream import Stream
from ...tables.loss_policy import LossPolicy
from ...tables.removal import Removal

__all__ = ["Unclaimed", "UnclaimedRemovedError"]

_MOST_GAPS = 1000  # maximum number of gaps that are remembered for a batch


class UnclaimedRemovedError(HistoryTruncatedError):
    """Raised when messages were removed from a stream before a query claimed them.

    Attributes:
        last: Sequence of the last removed message.
        consumer: The consumer that would have delivered the messages.
    """

    last: int = 0
    consumer: str = ""

    def __str__(self) -> str:
        return (
            f"messages {self.wanted} to {self.last} of stream {self.stream!r} were removed (by a limit, or deleted) "
            f"before consumer {self.consumer!r} delivered them: the stream begins at {self.first_available} now. Keep "
            "messages longer, or let the query claim more of them per batch; with option 'failOnDataLoss' = 'false' "
            "the query continues with the messages that exist"
        )


class Unclaimed:
    """Comparison of a consumer's deliveries with the head of its stream.

    This works only for a consumer without filters. Otherwise messages that it has not delivered may have matched none
    of the filters.

    Args:
        stream: The stream of the consumer.
        consumer: The consumer.
        policy: Raises or logs the error for removed messages.
        largest: The maximum size of a message on this server, in bytes.

    Attributes:
        lost: Number of messages that were removed before they were delivered, if that is not an error. Deleted messages
            count too.
        applies: Whether the consumer delivers all messages of the stream. Otherwise the methods do nothing.
    """

    def __init__(self, stream: Stream, consumer: Consumer, policy: LossPolicy, largest: int) -> None:
        self._stream, self._consumer, self._policy, self._largest = stream, consumer, policy, largest
        self._gaps: list[tuple[int, int | None]] = []  # first and last sequence of each gap
        self._last: tuple[int, int] | None = None  # consumer and stream sequence of the latest first delivery
        self._reported = 0  # sequence up to which losses were reported
        self.lost: int = 0
        config = consumer.config
        self.applies: bool = not config.filters and config.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT

    async def check_gap(self, ask: Callable[[], Awaitable[ConsumerInfo]]) -> None:
        """Check the messages between the last delivery and the head of the stream.

        The stream's info is requested before the consumer's. Messages that other clients claim and ack in between are
        then before the consumer's last delivery, and do not look removed.

        Raises:
            UnclaimedRemovedError: Messages were removed, and ``failOnDataLoss`` is set.
        """
        if self.applies:
            stream = await self._stream.info()
            self._check_gaps(stream, [((await ask()).delivered.stream_seq + 1, None)])

    def delivered(self, consumer_seq: int, stream_seq: int) -> None:
        """Record the first delivery of a message.

        If no other delivery was between this and the previous delivery, the messages between them were never delivered.
        """
        if not self.applies:
            return
        before = self._last
        self._last = (consumer_seq, stream_seq)
        if before is None or consumer_seq != before[0] + 1 or stream_seq <= before[1] + 1:
            return
        if len(self._gaps) < _MOST_GAPS:
            self._gaps.append((before[1] + 1, stream_seq - 1))

    async def look_at_gaps(self) -> None:
        """Check the gaps between the recorded deliveries. Raises the same errors as `check_gap`."""
        gaps, self._gaps = self._gaps, []
        if gaps:
            self._check_gaps(await self._stream.info(), gaps)

    def _check_gaps(self, info: StreamInfo, gaps: Sequence[tuple[int, int | None]]) -> None:
        if Removal.from_info(info).is_harmless(None, self._largest):
            return
        for first, last in gaps:
            self._report(info, max(first, self._reported + 1), last)

    def _report(self, info: StreamInfo, first: int, last: int | None) -> None:
        """Report the part of a gap before the head of the stream. Messages after the head were deleted, not lost.

        ``last`` is the last sequence of the gap, or None for a gap up to the head.
        """
        state = info.state
        head = state.first_seq if state.messages else state.last_seq + 1
        last_removed = head - 1 if last is None else min(head - 1, last)
        if last_removed < first:
            return
        error = UnclaimedRemovedError(head, first, info.name)
        error.last, error.consumer = last_removed, self._consumer.name
        if not self._policy.accept(error):
            self.lost += last_removed - first + 1
        self._reported = last_removed
