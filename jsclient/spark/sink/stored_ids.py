"""Read the message ids that are stored in a part of a stream."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence

from ...errors import MessageNotFoundError
from ...protocol.consumers.ack import sequences
from ...protocol.models.stream_config import RetentionPolicy
from ...protocol.wire.frames import Frame
from ...protocol.wire.header_names import MSG_ID
from ...streams.stream import Stream
from ...tables.range_reader import ConsumerRange

__all__ = ["each_stored", "messages_at", "stored_ids"]

_PAGE = 10_000  # number of messages read at a time
_GAP = 1000  # maximum distance in sequences between two messages that are read together
_FEW = 16  # up to this many messages are read one by one rather than with a consumer
_AT_A_TIME = 64  # maximum number of single requests in flight


async def stored_ids(target: Stream, start: int, prefix: bytes, subject: str | None) -> dict[bytes, int]:
    """Return the sequences of messages in the target whose ids start with ``prefix``, by the remainder of the id.

    Args:
        target: The target stream.
        start: The first sequence to search.
        prefix: Prefix of the ids.
        subject: Search only messages with this subject. None searches all messages.
    """
    last = (await target.info()).state.last_seq
    return {tail: seq async for tail, seq, _ in each_stored(target, range(start, last + 1), prefix, subject)}


async def each_stored(
    target: Stream, part: range, prefix: bytes, subject: str | None, *, payloads: bool = False
) -> AsyncIterator[tuple[bytes, int, Frame]]:
    """Yield the messages of a part of the target whose ids start with ``prefix``.

    Args:
        target: The target stream.
        part: The sequences to search.
        prefix: Prefix of the ids.
        subject: Search only messages with this subject. None searches all messages.
        payloads: Whether the frames have payloads. Without payloads, each frame has an additional header
            ``Nats-Msg-Size``.

    Yields:
        The remainder of the id, the sequence, and the frame of each message.
    """
    first = max(part.start, (await target.info()).state.first_seq)
    if part.stop <= first:
        return
    name = f"\r\n{MSG_ID}: ".encode()
    pattern, skip = name + prefix, len(name) + len(prefix)
    reader = ConsumerRange(
        target,
        first,
        part.stop - 1,
        subjects=() if subject is None else (subject,),
        check_loss=False,  # only messages that are still stored matter
        headers_only=not payloads,
    )
    try:
        while frames := await reader.read_messages(_PAGE):
            for frame in frames:
                block = frame[2]
                at = block.find(pattern)
                if at >= 0:
                    tail = block[at + skip : block.find(b"\r\n", at + skip)]
                    yield tail, sequences(frame[1])[0], frame
    finally:
        await reader.close()


async def messages_at(target: Stream, positions: Sequence[int]) -> AsyncIterator[tuple[bytes, bytes, int]]:
    """Yield the id, the subject and the sequence of each message with an id at these positions.

    Args:
        target: The target stream.
        positions: Sequences in ascending order. Removed messages are skipped.
    """
    # Don't create a consumer on a work queue, where it would take messages away from the queue's own consumers.
    few = _FEW if target.cached_info.config.retention in (None, RetentionPolicy.LIMITS) else len(positions)
    for part in _close_together(positions):
        if len(part) > few:
            async for msg_id, sequence, frame in each_stored(target, range(part[0], part[-1] + 1), b"", None):
                at = bisect_left(part, sequence)
                if part[at] == sequence:
                    yield msg_id, frame[0], sequence
            continue
        for start in range(0, len(part), _AT_A_TIME):
            some = part[start : start + _AT_A_TIME]
            for message in await asyncio.gather(*(_message(target, sequence) for sequence in some)):
                if message is not None:
                    yield message


async def _message(target: Stream, sequence: int) -> tuple[bytes, bytes, int] | None:
    try:
        message = await target.get_message(sequence)
    except MessageNotFoundError:
        return None
    msg_id = message.headers.get(MSG_ID) if message.headers else None
    return None if msg_id is None else (msg_id.encode(), message.subject.encode(), sequence)


def _close_together(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ascending sequences into parts, wherever the distance between two sequences is large."""
    start = 0
    for at in range(1, len(positions)):
        if positions[at] - positions[at - 1] > _GAP:
            yield positions[start:at]
            start = at
    if positions:
        yield positions[start:]
