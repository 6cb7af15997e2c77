"""Publishing a message and waiting until the stream has stored it. Source: ADR-22; nats-server stream.go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ._runtime.context import Context
from .errors import ApiError, ConfigError, DisconnectedError, NoRespondersError, RequestTimeoutError
from .protocol.headers import MSG_ID, encode_headers, publish_headers
from .protocol.models.publish import PubAck, read_pub_ack
from .protocol.names import check_publish_subject

__all__ = ["check_payload", "publish"]

_DUPLICATE_IN_PROCESS = 10158  # the first try is still being stored: the next one finds it stored
_PAUSE = 0.25  # seconds before a try that was refused is repeated (ADR-22)
_TRIES_WITHOUT_RESPONDERS = 3
_ATTEMPT = 2.0  # seconds one try may take where a message id makes another one safe


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


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


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
    expected_last_msg_id: str | None = None,
    ttl: float | None = None,
    timeout: float | None = None,
) -> PubAck:
    """See `JetStream.publish`."""
    check_publish_subject(subject)
    payload = check_payload(data)
    if timeout is not None and not _is_time(timeout):
        raise ConfigError(f"timeout is {timeout!r:.60} s: it must be over 0")
    merged = publish_headers(
        headers,
        msg_id=msg_id,
        expected_stream=expected_stream,
        expected_last_seq=expected_last_seq,
        expected_last_subject_seq=expected_last_subject_seq,
        expected_last_msg_id=expected_last_msg_id,
        ttl=ttl,
    )
    block = encode_headers(merged) if merged else b""
    context.connection.check_size(len(block) + len(payload))
    repeatable = merged is not None and MSG_ID in merged
    loop = asyncio.get_running_loop()
    whole = context.timeout if timeout is None else timeout
    deadline = loop.time() + whole
    refused = 0
    while True:
        left = deadline - loop.time()
        if left <= 0:
            raise RequestTimeoutError(f"publish to {subject!r}: whether it was stored is unknown", whole)
        try:
            answer = await context.requests.request(
                subject,
                payload,
                header=block,
                timeout=min(left, _ATTEMPT) if repeatable else left,
                what="publish",
            )
            return read_pub_ack(answer)
        except NoRespondersError as error:
            # Nothing was stored. There is no such stream, or its leader is being elected.
            refused += 1
            if refused >= _TRIES_WITHOUT_RESPONDERS or deadline - loop.time() < _PAUSE:
                text = f"no stream took the message on {subject!r}"
                raise NoRespondersError(error.code, text, error.retryable) from None
        except (DisconnectedError, RequestTimeoutError):
            if not repeatable or deadline - loop.time() < _PAUSE:
                raise
        except ApiError as error:
            if error.err_code != _DUPLICATE_IN_PROCESS or deadline - loop.time() < _PAUSE:
                raise
        await asyncio.sleep(_PAUSE)
