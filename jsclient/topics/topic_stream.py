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

_PUSHES: Final = "jsc.push"  # what the subjects begin with to which streams that are made here republish

_READABLE: Final = 40  # characters of the subject in a stream's name


async def stream_for(
    manager: StreamManager, context: Context, subject: str, name: str | None, fields: dict[str, Any]
) -> Stream:
    """The stream that holds the subject; it is made if there is none. One that is there is left as it is."""
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
            stream = await manager.stream(name)  # somebody else made it meanwhile
    config = stream.config
    if not any(subject_matches(held, subject) for held in config.subjects or ()):
        raise ConfigError(f"stream {name!r} does not hold {subject!r}")
    check_retention(config)
    return stream


def check_retention(config: StreamConfig) -> None:
    """Raise `ConfigError` if the stream keeps messages only until its consumers have acked them."""
    if config.retention not in (None, RetentionPolicy.LIMITS):
        raise ConfigError(
            f"stream {config.name!r} keeps messages for consumers only (retention {config.retention}): here records "
            "must stay when they were read, so it must be 'limits'"
        )


def _stream_name(subject: str) -> str:
    """The name of the stream that is made for a subject: the same in every process, and another one for any other."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", subject)[:_READABLE]
    return f"KIT_{readable}_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"


async def find_stream(context: Context, name: str) -> Stream:
    """The stream of this name. Raises `StreamNotFoundError` and those of any request."""
    answer = await context.call(context.api.stream_info(name), what="stream info")
    return Stream(context, from_wire(StreamInfo, answer))
