"""Frames, which are messages of a subscription as they arrive on the wire, and their three kinds.

A frame is a plain tuple of bytes, ``(subject, reply, header block, payload)``. The header block may be empty.
*Control is never data, data is never control*: a frame whose reply starts with ``$JS.ACK.`` is data, whatever its
headers are. An inline status without such a reply is control. All other frames are foreign, because only the server
delivers to the inboxes of a consumer.

Source: ADR-15 §JSAck, §Automatic Status Management.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .headers import inline_status

__all__ = ["Frame", "Sink", "frame_size", "is_control", "is_data", "total_size"]

Frame: TypeAlias = tuple[bytes, bytes, bytes, bytes]

Sink: TypeAlias = Callable[[list[Frame]], None]
"""A function that receives the frames of one subscription in order, in batches as they arrive. It must not block."""


def frame_size(frame: Frame) -> int:
    """Return the size of a frame in bytes as the server counts it: subject, reply, headers and payload."""
    return len(frame[0]) + len(frame[1]) + len(frame[2]) + len(frame[3])


def total_size(frames: list[Frame]) -> int:
    """Return the total size of frames in bytes as the server counts it."""
    return sum(
        [len(subject) + len(reply) + len(header) + len(data) for subject, reply, header, data in frames]
    )


def is_data(frame: Frame) -> bool:
    """Return whether this is a message of a stream."""
    return frame[1].startswith(b"$JS.ACK.")


def is_control(frame: Frame) -> bool:
    """Return whether this is a status from the server. Check `is_data` first."""
    return bool(frame[2]) and not frame[3] and inline_status(frame[2]) > 0
