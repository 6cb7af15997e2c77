"""The stream that holds a topic: found, or created."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from .._runtime.calls import find_streams
from .._runtime.context import Context
from ..errors import (
    ConfigError,
    NoMatchingStreamError,
    StreamExistsError,
    StreamNotFoundError,
)
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import RetentionPolicy, StreamConfig
from ..protocol.wire.codec import from_wire
from ..protocol.wire.names import subject_matches
from ..streams.api import StreamManager
from ..streams.stream import Stream

__all__ = ["find_stream", "stream_for"]

_PUSHES: Final = "jsc.push"  # prefix of the subjects to which streams created here republish

_READABLE: Final = 40  # characters of the subject in a stream's name


async def stream_for(
    manager: StreamManager, context: Context, subject: str, name: str | None, fields: dict[str, Any]
) -> Stream:
    """The stream that holds the subject. It is created if missing; an existing stream is not changed."""
    if name is None:
        names = await find_streams(context, subject)
        if len(names) > 1:
            raise NoMatchingStreamError(subject, names)
        name = names[0] if names else _stream_name(subject)
    try:
        stream = await manager.stream(name)
    except StreamNotFoundError:
        # A destination takes no "*". All that the stream holds fits ">".
        source = ">" if "*" in subject.split(".") else subject
        made = {
            "allow_direct": True,
            "republish": {"src": source, "dest": f"{_PUSHES}.{source}"},
            **fields,
        }
        try:
            stream = await manager.create_stream(name, subjects=[subject], **made)
        except StreamExistsError:
            stream = await manager.stream(name)  # another client created it meanwhile
    config = stream.config
    if not any(subject_matches(held, subject) for held in config.subjects or ()):
        raise ConfigError(f"stream {name!r} does not hold {subject!r}: use another stream or subject")
    check_retention(config)
    return stream


def check_retention(config: StreamConfig) -> None:
    """Raise `ConfigError` if the stream removes messages that its consumers have acked."""
    if config.retention not in (None, RetentionPolicy.LIMITS):
        raise ConfigError(
            f"retention of stream {config.name!r} is {config.retention}: 'limits' is needed, because records must be "
            "kept after they were read; use Topic.work"
        )


def _stream_name(subject: str) -> str:
    """The name of the stream created for a subject: the same in every process, and unique to the subject."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", subject)[:_READABLE]
    return f"KIT_{readable}_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"


async def find_stream(context: Context, name: str) -> Stream:
    """The stream of this name. Raises `StreamNotFoundError` and those of any request."""
    answer = await context.call(context.api.stream_info(name), what="stream info")
    return Stream(context, from_wire(StreamInfo, answer))
