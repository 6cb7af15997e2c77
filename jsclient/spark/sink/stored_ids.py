"""Reads the message ids that are stored in a part of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...protocol.consumers.ack import sequences
from ...protocol.wire.frames import Frame
from ...protocol.wire.header_names import MSG_ID
from ...streams.stream import Stream
from ..log.range_reader import ConsumerRange

__all__ = ["each_stored", "stored_ids"]

_PAGE = 10_000  # messages


async def stored_ids(target: Stream, start: int, prefix: bytes, subject: str | None) -> dict[bytes, int]:
    """Map the message ids in the target that start with ``prefix`` to their sequences. The prefix is cut off.

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
        payloads: Whether the frames have payloads. Without payloads, each has an additional header ``Nats-Msg-Size``.

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
        check_loss=False,  # removed messages are not stored, so they don't matter
        headers_only=not payloads,
    )
    try:
        while frames := await reader.read(_PAGE):
            for frame in frames:
                block = frame[2]
                at = block.find(pattern)
                if at >= 0:
                    tail = block[at + skip : block.find(b"\r\n", at + skip)]
                    yield tail, sequences(frame[1])[0], frame
    finally:
        await reader.close()
