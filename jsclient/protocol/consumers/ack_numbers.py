"""Reads the numbers in the JSAcks of many messages at once, which costs much less than reading them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ..wire.frames import Frame
from .ack import sequences

__all__ = ["AckNumbers", "ack_numbers"]

_MANY: Final = 4  # with at least this many messages, reading all their numbers at once is faster
_DOTS: Final = 8  # number of dots in a JSAck of the first form

# The numbers are read as JSON, because no other function of Python reads many numbers as fast.
_read_numbers = msgspec.json.Decoder(list[int]).decode


class AckNumbers(NamedTuple):
    """Numbers in the JSAcks of several messages. Each field has one number for each message, in order.

    Attributes:
        stream_seqs: The stream sequences.
        times_ns: The times at which the stream stored the messages, as Unix times in nanoseconds.
        pending: The number of messages that the consumer had yet to deliver after each message.
    """

    stream_seqs: Sequence[int]
    times_ns: Sequence[int]
    pending: Sequence[int]

    def between(self, start: int, end: int) -> AckNumbers:
        """Return the numbers of the messages from index ``start`` up to but not including index ``end``."""
        return AckNumbers(self.stream_seqs[start:end], self.times_ns[start:end], self.pending[start:end])


def ack_numbers(frames: list[Frame]) -> AckNumbers:
    """Return the numbers in the JSAcks of these frames.

    Raises:
        NotJetStreamMessageError: A frame has no valid JSAck. Some invalid JSAcks are not detected, so the caller must
            have checked all of them.
    """
    if len(frames) == 1:  # a change usually arrives alone
        seq, _, time_ns, pending = sequences(frames[0][1])
        return AckNumbers((seq,), (time_ns,), (pending,))
    replies = [reply for _, reply, _, _ in frames]
    numbers = _numbers_after_start(replies) if len(replies) >= _MANY else []
    if numbers:
        return AckNumbers(numbers[::4], numbers[2::4], numbers[3::4])
    rows = [sequences(reply) for reply in replies]
    return AckNumbers([row[0] for row in rows], [row[2] for row in rows], [row[3] for row in rows])


def _numbers_after_start(replies: list[bytes]) -> list[int]:
    """Return the last four numbers of each JSAck in one list, if all JSAcks are the same before these numbers.

    The list is empty if they are not, or if the JSAcks have a different form.
    """
    first = replies[0]
    if first.count(b".") != _DOTS:
        return []
    start = b"%b." % first.rsplit(b".", 4)[0]
    # If the smallest and the largest of several texts start in the same way, all of them do.
    if not min(replies).startswith(start) or not max(replies).startswith(start):
        return []
    length = len(start)
    rows = b",".join([reply[length:] for reply in replies])
    try:
        numbers = _read_numbers(b"[%b]" % rows.replace(b".", b","))
    except msgspec.DecodeError:  # for example leading zeros, which JSON does not allow
        return []
    return numbers if len(numbers) == 4 * len(replies) else []
