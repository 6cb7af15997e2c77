"""Publishing a message and waiting until the stream has stored it. Source: ADR-22; nats-server stream.go."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from ..errors import (
    ApiError,
    ConfigError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    RequestTimeoutError,
)
from ..protocol.models.publish import PubAck, read_pub_ack
from ..protocol.publishing.in_flight import ATTEMPT, PAUSE, Trouble, question_about
from ..protocol.wire.headers import (
    EXPECTED_LAST_MSG_ID,
    MSG_ID,
    encode_headers,
    merge_headers,
    publish_headers,
)
from ..protocol.wire.names import check_publish_subject
from ..protocol.wire.version import check_server
from .context import Context
from .retry import Tries

__all__ = [
    "check_payload",
    "check_subject",
    "check_time",
    "header_of_ids",
    "known_subjects",
    "message_headers",
    "publish",
    "publish_patiently",
]

known_subjects: dict[str, bytes] = {}
"""Subjects known to be legal, and what goes out for them."""

_MAX_KNOWN, _MAX_LENGTH = 4096, 256


def check_payload(data: object) -> bytes:
    """The payload as bytes.

    Raises:
        ConfigError: It is not bytes.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise ConfigError(f"the payload is {type(data).__name__}: it must be bytes; encode text first")


def check_time(what: str, value: object) -> float:
    """A number of seconds over 0.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigError(f"{what} is {value!r:.60} s: it must be over 0")
    return value


def check_subject(subject: str) -> bytes:
    """The subject as it goes out; one that was checked lately is found in ``known_subjects``.

    Raises:
        InvalidNameError: It may not be published to.
    """
    encoded = check_publish_subject(subject).encode()
    if len(encoded) <= _MAX_LENGTH:
        if len(known_subjects) >= _MAX_KNOWN:
            known_subjects.clear()
        known_subjects[subject] = encoded
    return encoded


def header_of_ids(msg_id: str, after: str | None = None) -> bytes:
    """The header block of a message that has an id, perhaps that of the message before it, and no other header.

    Raises:
        ConfigError: One of them is no id.
    """
    if not _is_plain(msg_id) or not (after is None or _is_plain(after)):
        return encode_headers(publish_headers(msg_id=msg_id, expected_last_msg_id=after) or {})
    link = "" if after is None else f"{EXPECTED_LAST_MSG_ID}: {after}\r\n"
    return f"NATS/1.0\r\n{MSG_ID}: {msg_id}\r\n{link}\r\n".encode()


def _is_plain(id: object) -> bool:
    """Whether it is an id that goes out as it is."""
    return isinstance(id, str) and bool(id) and id.isascii() and id.isprintable()


def message_headers(
    context: Context, headers: Mapping[str, str | Sequence[str]] | None, **options: Any
) -> dict[str, str | Sequence[str]]:
    """The user's headers and those of the arguments of a publish, as `publish_headers` takes them.

    Raises:
        ConfigError: As `publish_headers`; or the server is too old for one of them and would overlook it.
    """
    if list(options.values()).count(None) == len(options):
        return dict(headers) if type(headers) is dict else merge_headers(headers, {})
    merged = publish_headers(headers, **options)
    for what in ("ttl", "expected_last_subject_seq_subject"):
        if options.get(what) is not None:
            check_server(context.connection.server_version, (2, 11), what)
    return merged or {}


async def publish(
    context: Context,
    subject: str,
    data: bytes = b"",
    *,
    headers: Mapping[str, str | Sequence[str]] | None = None,
    msg_id: str | None = None,
    expected_stream: str | None = None,
    expected_last_seq: int | None = None,
    expected_last_subject_seq: int | None = None,
    expected_last_subject_seq_subject: str | None = None,
    expected_last_msg_id: str | None = None,
    ttl: float | timedelta | Literal["never"] | None = None,
    rollup: Literal["sub", "all"] | None = None,
    timeout: float | None = None,
) -> PubAck:
    """See `JetStream.publish`."""
    if type(subject) is not str or subject not in known_subjects:
        check_subject(subject)
    payload = check_payload(data)
    if timeout is not None:
        check_time("timeout", timeout)
    merged = message_headers(
        context,
        headers,
        msg_id=msg_id,
        expected_stream=expected_stream,
        expected_last_seq=expected_last_seq,
        expected_last_subject_seq=expected_last_subject_seq,
        expected_last_subject_seq_subject=expected_last_subject_seq_subject,
        expected_last_msg_id=expected_last_msg_id,
        ttl=ttl,
        rollup=rollup,
    )
    block = encode_headers(merged) if merged else b""
    context.connection.check_size(len(block) + len(payload))
    whole = context.timeout if timeout is None else timeout
    return await _send(context, subject, payload, headers=merged, block=block, timeout=whole)


async def publish_patiently(
    context: Context, subject: str, data: bytes, *, timeout: float | None = None, **options: Any
) -> PubAck:
    """`publish` to a stream that is there: where nobody takes the message, a cluster elects a leader, and it waits.

    Raises:
        NoRespondersError: Nobody took it within the timeout. And as `publish`.
    """
    tries, loop = Tries(), asyncio.get_running_loop()
    left = context.timeout if timeout is None else check_time("timeout", timeout)
    deadline = loop.time() + left
    while True:
        try:
            return await publish(context, subject, data, timeout=left, **options)
        except NoRespondersError as error:
            if not await tries.again(error) or (left := deadline - loop.time()) <= 0:
                raise


async def _send(
    context: Context,
    subject: str,
    payload: bytes,
    *,
    headers: Mapping[str, str | Sequence[str]],
    block: bytes,
    timeout: float,
) -> PubAck:
    """Send it until it is known to be stored or refused, or the time is over."""
    repeatable, loop = MSG_ID in headers, asyncio.get_running_loop()
    deadline = loop.time() + timeout
    trouble: Trouble | None = None
    final: JetStreamError
    left = timeout
    while True:
        try:
            if repeatable:
                await _connected(context, deadline, timeout)
                left = min(deadline - loop.time(), ATTEMPT if trouble is None else trouble.attempt)
            answer = await context.requests.request(
                subject, payload, header=block, timeout=left, what="publish"
            )
            return read_pub_ack(answer)
        except (NoRespondersError, ApiError) as error:
            trouble = trouble or Trouble()
            final, pause = trouble.refusal(error, subject)
            left = deadline - loop.time()
            if pause is None or left <= pause:
                raise final from None if final is error else error
            if not pause:
                payload, block = b"", question_about(headers[MSG_ID], secrets.token_hex(11))
        except (DisconnectedError, RequestTimeoutError) as error:
            left, pause = deadline - loop.time(), PAUSE
            if not repeatable or left <= pause:
                raise
            final, trouble = error, trouble or Trouble()
            trouble.in_doubt = True
            trouble.silent += isinstance(error, RequestTimeoutError)
        await asyncio.sleep(pause)
        if (left := deadline - loop.time()) <= 0:
            raise final


async def _connected(context: Context, deadline: float, timeout: float) -> None:
    """Wait for the connection: what was not sent is not in doubt."""
    if not context.connection.is_connected:
        try:
            await context.connection.wait_connected(deadline)
        except DisconnectedError:
            raise RequestTimeoutError("publish: not connected to a server", timeout) from None
