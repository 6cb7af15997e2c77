"""Publishes one message and waits for its ack. Source: ADR-22; nats-server stream.go."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypedDict, TypeGuard, Unpack

from ..errors import (
    ApiError,
    ConfigError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    RequestTimeoutError,
)
from ..protocol.models.publish import PubAck, read_pub_ack
from ..protocol.publishing.in_flight import ATTEMPT, PAUSE, Recovery, question_about
from ..protocol.wire.checks import check_seconds, check_server
from ..protocol.wire.frames import Frame
from ..protocol.wire.header_names import EXPECTED_LAST_MSG_ID, MSG_ID
from ..protocol.wire.headers import encode_headers, merge_headers, ordinary_block, publish_headers
from ..protocol.wire.names import check_publish_subject
from .context import Context

__all__ = [
    "BatchOptions",
    "PublishOptions",
    "check_payload",
    "check_subject",
    "header_of_ids",
    "headers_and_ids",
    "known_subjects",
    "message_headers",
    "publish",
    "publish_now",
    "request_stored",
]


class BatchOptions(TypedDict, total=False):
    """A ``TypedDict`` of the keyword arguments of `AtomicBatch.publish` that are sent as message headers.

    Use it to annotate wrappers, for example ``def add(batch: AtomicBatch, **options: Unpack[BatchOptions])``. The
    arguments are documented at `AtomicBatch.publish`.
    """

    msg_id: str | None
    expected_stream: str | None
    expected_last_seq: int | None
    expected_last_subject_seq: int | None
    expected_last_subject_seq_subject: str | None
    ttl: float | timedelta | Literal["never"] | None
    rollup: Literal["sub", "all"] | None


class PublishOptions(BatchOptions, total=False):
    """A ``TypedDict`` of keyword arguments that are sent as message headers, for example by `FastIngest.publish`.

    Use it to annotate wrappers, for example ``def send(**options: Unpack[PublishOptions])``. The arguments are
    documented at `JetStream.publish`.
    """

    expected_last_msg_id: str | None


known_subjects: dict[str, bytes] = {}
"""The subjects that were checked, with their encoded form."""

_MAX_KNOWN, _MAX_LENGTH = 4096, 256
_MSG_ID = MSG_ID.encode()


def check_payload(data: object) -> bytes:
    """Return the payload as bytes.

    Raises:
        ConfigError: The payload is not bytes, bytearray or memoryview.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    how = "text.encode() gives" if isinstance(data, str) else "json.dumps(x).encode() gives"
    raise ConfigError(f"the payload is {type(data).__name__}: it must be bytes, as {how}")


def check_subject(subject: str) -> bytes:
    """Check and encode a subject, and remember it in ``known_subjects``.

    Raises:
        InvalidNameError: The subject is not valid for publishing.
    """
    encoded = check_publish_subject(subject).encode()
    if len(encoded) <= _MAX_LENGTH:
        if len(known_subjects) >= _MAX_KNOWN:
            known_subjects.clear()
        known_subjects[subject] = encoded
    return encoded


def header_of_ids(msg_id: str, after: str | None = None) -> bytes:
    """Return the header block of a message with an id, and optionally the id that it must follow.

    Raises:
        ConfigError: An id is not valid.
    """
    if not _is_plain(msg_id) or not (after is None or _is_plain(after)):
        return encode_headers(publish_headers(msg_id=msg_id, expected_last_msg_id=after) or {})
    link = "" if after is None else f"{EXPECTED_LAST_MSG_ID}: {after}\r\n"
    return f"NATS/1.0\r\n{MSG_ID}: {msg_id}\r\n{link}\r\n".encode()


def headers_and_ids(
    headers: Mapping[str, str | Sequence[str]] | None,
    msg_id: str | None,
    after: str | None,
    write: Callable[[dict[str, str | Sequence[str]]], bytes | None] = ordinary_block,
) -> tuple[bytes, bool]:
    """Return the block of the user's headers and these ids, and whether the message has an id.

    ``write`` is `ordinary_block` or its compiled version.

    Raises:
        ConfigError, InvalidNameError: A header or an id is not valid.
    """
    if headers is None and msg_id is not None:
        return header_of_ids(msg_id, after), True
    if headers and type(headers) is dict and (block := write(headers)) is not None:
        if msg_id is None and after is None:
            return block, MSG_ID in headers
        if after is None and MSG_ID not in headers and _is_plain(msg_id):
            # Replace the empty line at the end of the block with the header of the message id and an empty line.
            return b"%b%b: %b\r\n\r\n" % (block[:-2], _MSG_ID, msg_id.encode()), True
    merged = publish_headers(headers, msg_id=msg_id, expected_last_msg_id=after)
    return (encode_headers(merged), MSG_ID in merged) if merged else (b"", False)


def _is_plain(id: object) -> TypeGuard[str]:
    return isinstance(id, str) and bool(id) and id.isascii() and id.isprintable()


def message_headers(
    context: Context, headers: Mapping[str, str | Sequence[str]] | None, **options: Unpack[PublishOptions]
) -> dict[str, str | Sequence[str]]:
    """Return the user's headers merged with the headers of the arguments of a publish. See `publish_headers`.

    Raises:
        ConfigError: See `publish_headers`. Also raised if the server is too old for an argument and would ignore it.
    """
    if list(options.values()).count(None) == len(options):
        if headers is None:
            return {}
        return dict(headers) if type(headers) is dict else merge_headers(headers, {})
    merged = publish_headers(headers, **options)
    version = context.connection.server_version
    if options.get("ttl") is not None:
        check_server(version, (2, 11), "ttl")
    if options.get("expected_last_subject_seq_subject") is not None:
        check_server(version, (2, 11), "expected_last_subject_seq_subject")
    return merged or {}


async def publish(
    context: Context,
    subject: str,
    data: bytes = b"",
    *,
    headers: Mapping[str, str | Sequence[str]] | None = None,
    timeout: float | None = None,
    stream_exists: bool = False,
    **options: Unpack[PublishOptions],
) -> PubAck:
    """Publish a message and wait for its ack. See `JetStream.publish`.

    If ``stream_exists`` is True, "no responders" is retried until the timeout, because the subject cannot be wrong.
    """
    if type(subject) is not str or subject not in known_subjects:
        check_subject(subject)
    payload = check_payload(data)
    if timeout is not None:
        check_seconds("timeout", timeout)
    merged = message_headers(context, headers, **options)
    block = encode_headers(merged) if merged else b""
    if (size := len(block) + len(payload)) > context.connection.max_payload:
        context.connection.check_size(size)
    seconds = context.timeout if timeout is None else timeout
    try:
        return await _send(
            context,
            subject,
            payload,
            headers=merged,
            block=block,
            timeout=seconds,
            stream_exists=stream_exists,
        )
    except RequestTimeoutError as error:  # a lookup may reveal that no stream stores the subject
        from .refusals import unanswered

        raise await unanswered(context, error, subject) from None


async def _send(
    context: Context,
    subject: str,
    payload: bytes,
    *,
    headers: Mapping[str, str | Sequence[str]],
    block: bytes,
    timeout: float,
    stream_exists: bool,
) -> PubAck:
    """Send the message until it is known to be stored or refused, or the timeout has passed."""
    repeatable, loop = MSG_ID in headers, context.connection.running_loop()
    answered, encoded = context.answered, known_subjects.get(subject) or subject.encode()
    deadline = loop.time() + timeout
    retries: Recovery | None = None
    final: JetStreamError
    remaining = timeout
    while True:
        try:
            if repeatable or not context.connection.is_connected:
                await _connected(context, deadline, timeout, sent=retries is not None)
                remaining = deadline - loop.time()
            # An attempt takes less than the timeout, so that the message can be sent again if its answer is lost.
            if repeatable:
                remaining = min(remaining, ATTEMPT if retries is None else retries.attempt)
            answer = await context.requests.ask(
                subject, payload, header=block, timeout=remaining, what="publish"
            )
            ack = read_pub_ack(answer[3])
            answered.add(encoded)
            return ack
        except (NoRespondersError, ApiError) as error:
            retries = retries or Recovery()
            expected = repeatable or stream_exists or encoded in answered
            remaining = deadline - loop.time()
            final, pause = retries.refusal(
                error, subject, remaining, expected=expected, identified=repeatable
            )
            if pause is None:
                raise final from None
            # A pause of 0 means that an earlier attempt may have been stored. To find out, send a message that has the
            # same id, but that the server can't store. The answer shows whether the server knows the id.
            if not pause:
                payload, block = b"", question_about(headers[MSG_ID], secrets.token_hex(11))
        except (DisconnectedError, RequestTimeoutError) as error:
            remaining, pause = deadline - loop.time(), PAUSE
            if not repeatable or remaining <= pause:
                raise
            final, retries = error, retries or Recovery()
            retries.unconfirmed = True
            retries.silent += isinstance(error, RequestTimeoutError)
        await asyncio.sleep(pause)
        if (remaining := deadline - loop.time()) <= 0:
            raise final


def publish_now(
    context: Context,
    subject: str,
    payload: bytes,
    block: bytes,
    *,
    timeout: float,
    stored: Callable[[int | JetStreamError], None],
) -> bool:
    """Send a message with a complete header block if that is possible without waiting. See `Requests.ask_now`.

    ``stored`` is called with the sequence or with an error. After an error the message may still be stored.
    """

    def receive(answer: Frame | JetStreamError) -> None:
        if isinstance(answer, JetStreamError):
            stored(answer)
            return
        try:
            seq = read_pub_ack(answer[3]).seq
        except JetStreamError as error:
            stored(error)
        else:
            context.answered.add(known_subjects.get(subject) or check_subject(subject))
            stored(seq)

    return context.requests.ask_now(
        subject, payload, header=block, timeout=timeout, what="publish", answered=receive
    )


async def request_stored(
    context: Context,
    subject: str,
    payload: bytes,
    *,
    header: bytes,
    timeout: float,
    what: str,
    recovery: Recovery | None = None,
) -> bytes:
    """Send a message whose answer is not a plain ack, and return the answer.

    "No responders" is retried as for a publish without an id. If a stream has answered on this subject before, the
    message is sent again until the timeout. Otherwise, ``recovery`` counts the attempts, and there are three in total.

    Raises:
        NoRespondersError: No stream received the message, so it was not stored.

    May also raise any other error of `Requests.ask`.
    """
    loop, recovery = context.connection.running_loop(), recovery or Recovery()
    encoded = known_subjects.get(subject) or subject.encode()
    deadline = loop.time() + timeout
    while True:
        try:
            remaining = max(deadline - loop.time(), 0.001)
            answer = await context.requests.ask(subject, payload, header=header, timeout=remaining, what=what)
        except NoRespondersError as error:
            remaining, expected = deadline - loop.time(), encoded in context.answered
            # A stream that has answered before probably has no leader at the moment, so retry. A subject without any
            # stream fails sooner.
            final, pause = recovery.refusal(error, subject, remaining, expected=expected)
            if pause is None:
                raise final from None
            await asyncio.sleep(pause)
        else:
            context.answered.add(encoded)
            return answer[3]


async def _connected(context: Context, deadline: float, timeout: float, *, sent: bool) -> None:
    """Wait for the connection before sending, so that the outcome of a message that was not sent is certain."""
    if not context.connection.is_connected:
        try:
            await context.connection.wait_connected(deadline)
        except DisconnectedError:
            what = "publish" if sent else "publish: nothing was sent"
            why = context.connection.problem
            raise RequestTimeoutError(f"{what}: not connected to a server", timeout, why) from None
