"""Requests that several packages share: consumer info and deletion, stream lookup, and subjects of a stream."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any

from ..errors import (
    ConsumerNotFoundError,
    JetStreamError,
    NoMatchingStreamError,
    StreamNotFoundError,
)
from ..protocol.consumers.ack import AckKind, is_jsack
from ..protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ..protocol.models.consumer_checks import check_consumer, like_milliseconds
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import StreamConfig
from ..protocol.wire.api import next_offset, page_items, page_request
from ..protocol.wire.checks import check_seconds, check_server
from ..protocol.wire.codec import from_wire, to_wire
from ..protocol.wire.frames import Frame
from .connection.connection import Connection
from .context import Context

__all__ = [
    "check_known",
    "check_known_to_stream",
    "consumer_info",
    "create_consumer",
    "delete_consumer",
    "is_gone",
    "is_missing",
    "nak_all",
    "pages",
    "subject_pages",
    "warn_of_units",
]

_log = logging.getLogger("jsclient.consumer")

_SINCE = {
    "filter_subjects": (2, 10),
    "pause_until": (2, 11),
    "priority_groups": (2, 11),
    "priority_timeout": (2, 11),
}


def check_known(context: Context, config: ConsumerConfig) -> None:
    """Raise `ConfigError` if the configuration is invalid or has a field that this server is too old to support."""
    check_consumer(config, datetime.now(UTC))
    for field, version in _SINCE.items():
        if getattr(config, field):
            check_server(context.connection.server_version, version, f"{field} of a consumer")


def warn_of_units(stream: str, config: ConsumerConfig) -> None:
    """Log durations that look like milliseconds, when a consumer is created or updated."""
    name = config.durable_name or config.name
    for text in like_milliseconds(config):
        _log.warning("%s (consumer %r of stream %r)", text, name, stream)


_STREAM_SINCE = {
    "allow_msg_ttl": (2, 11),
    "subject_delete_marker_ttl": (2, 11),
    "allow_msg_counter": (2, 12),
    "allow_atomic": (2, 12),
    "allow_msg_schedules": (2, 12),
    "persist_mode": (2, 12),
    "allow_batched": (2, 14),
}


def check_known_to_stream(context: Context, config: StreamConfig) -> None:
    """Like `check_known`, for the fields of a stream."""
    for field, version in _STREAM_SINCE.items():
        if getattr(config, field):
            check_server(context.connection.server_version, version, f"{field} of a stream")


async def consumer_info(
    context: Context, stream: str, consumer: str, *, timeout: float | None = None
) -> ConsumerInfo:
    """Return the consumer's current state.

    Raises `ConsumerNotFoundError` if the consumer doesn't exist, or `ConfigError` if an argument is invalid. May
    raise any other error common to API requests.
    """
    if timeout is not None:
        check_seconds("timeout", timeout)
    answer = await context.call(
        context.api.consumer_info(stream, consumer), timeout=timeout, what=f"info of consumer {consumer!r}"
    )
    return from_wire(ConsumerInfo, answer)


async def create_consumer(
    context: Context,
    stream: str,
    config: ConsumerConfig,
    *,
    timeout: float | None = None,
    what: str = "create consumer",
) -> ConsumerInfo:
    """Create a consumer. An existing consumer of this name with another configuration is never changed.

    Raises:
        ConfigError: The configuration is invalid, or the server doesn't support one of its fields. No request was
            sent.

        May also raise any error common to API requests.
    """
    check_known(context, config)
    warn_of_units(stream, config)
    api = context.api
    body: dict[str, Any] = {"stream_name": stream, "config": to_wire(config)}
    if config.durable_name is not None:
        subject = api.consumer_durable_create(stream, config.durable_name)
    elif config.name is not None:
        subject = api.consumer_create_named(stream, config.name, config.filter_subject or "")
    else:
        subject = api.consumer_create(stream)
    if config.durable_name is not None or config.name is not None:
        body["action"] = "create"
    return from_wire(ConsumerInfo, await context.call(subject, body, timeout=timeout, what=what))


async def delete_consumer(
    context: Context, stream: str, consumer: str, *, timeout: float | None = None
) -> bool:
    """Delete a consumer. Return False if it doesn't exist. May raise any error common to API requests."""
    try:
        await context.call(
            context.api.consumer_delete(stream, consumer),
            timeout=timeout,
            what=f"delete consumer {consumer!r}",
        )
    except (ConsumerNotFoundError, StreamNotFoundError):
        return False
    return True


async def is_gone(context: Context, stream: str, consumer: str) -> bool:
    """Return True if the server confirms that the consumer or its stream doesn't exist, otherwise False."""
    try:
        await consumer_info(context, stream, consumer)
    except JetStreamError as error:
        return is_missing(error)
    return False


def is_missing(error: JetStreamError) -> bool:
    """Return whether the server answered that the consumer or its stream does not exist."""
    return isinstance(error, ConsumerNotFoundError | StreamNotFoundError)


async def nak_all(connection: Connection, frames: Iterable[Frame]) -> None:
    """Nak messages that will not be read here, so that the server redelivers them at once. Never raises."""
    try:
        for frame in frames:
            if is_jsack(frame[1]):
                await connection.ack(frame[1], AckKind.NAK.value, settles=False)
    except JetStreamError:
        pass  # the server redelivers the messages after ack_wait


async def pages(context: Context, api: str, field: str, /, **fields: Any) -> AsyncIterator[Any]:
    """Yield the items of a list request, page by page. May raise `ProtocolError` or any error of an API request."""
    offset: int | None = 0
    while offset is not None:
        answer = await context.call(api, page_request(offset, **fields), what=f"list {field}")
        items = page_items(answer, field)
        for item in items:
            yield item
        offset = next_offset(answer, offset, len(items))


async def subject_pages(
    context: Context, stream: str, subjects_filter: str, *, timeout: float | None = None, **fields: Any
) -> AsyncIterator[StreamInfo]:
    """Yield the stream's info page by page, each with up to 100,000 subjects in ``state.subjects``.

    ``timeout`` is the number of seconds for all pages. None means the default timeout for each page.

    Raises `StreamNotFoundError` if the stream doesn't exist, or `ProtocolError` if an answer is malformed. May raise
    any other error common to API requests.
    """
    offset: int | None = 0
    now = context.connection.now
    deadline, remaining = now() + (timeout or 0.0), timeout
    while offset is not None:
        body = {"subjects_filter": subjects_filter, **fields}
        if offset:
            body["offset"] = offset
        answer = await context.call(
            context.api.stream_info(stream), body, timeout=remaining, what="stream info"
        )
        remaining = None if timeout is None else deadline - now()
        info = from_wire(StreamInfo, answer)
        yield info
        offset = next_offset(answer, offset, len(info.state.subjects or ()))


async def find_streams(context: Context, subject: str, *, timeout: float | None = None) -> list[str]:
    """Return the names of the streams that have a subject, which may have wildcards."""
    what = f"find the stream of {subject!r}"
    answer = await context.call(context.api.stream_names(), {"subject": subject}, timeout=timeout, what=what)
    names = answer.get("streams")
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NoMatchingStreamError(subject)
    return names
