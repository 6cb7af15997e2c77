"""Dead letters, which are copies of messages that could not be handled, and advisories about unacked messages.

A dead letter has the payload and the headers of the original. Headers with a meaning for the server (``Nats-…``) are
prefixed with ``Dead-Letter-``. These headers are added::

    Dead-Letter-Stream · -Consumer · -Subject · -Sequence · -Timestamp    the position of the original
    Dead-Letter-Deliveries                                                its number of deliveries
    Dead-Letter-Error · -Reason                                           the class of the error and its text
    Dead-Letter-Unverified                    only if the advisory it stems from could not be checked: why

Any user who may publish to an advisory's subject can forge an advisory. So it is compared with the consumer
(`refutation`).

The message id of a dead letter consists of stream, consumer, sequence and time. If a worker dies after it published
the dead letter and before it terminated the original, the next copy is thus not stored within the stream's duplicate
window.

Source: nats-server server/consumer.go (notifyDeliveryExceeded, JSConsumerDeliveryExceededAdvisory).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ....errors import JetStreamError
from ...models.consumer import ConsumerConfig, ConsumerInfo
from ...wire.codec import decode
from ...wire.headers import Headers
from ...wire.names import subject_matches
from .reasons import Reject

__all__ = [
    "Exhausted",
    "Origin",
    "dead_letter_headers",
    "dead_letter_id",
    "dead_letter_subject",
    "error_text",
    "exhausted_subject",
    "passes",
    "read_exhausted",
    "refutation",
    "term_reason",
]

PREFIX = "Dead-Letter-"
_MAX_TEXT = 1000  # maximum number of characters of an error
_NOT_IN_VALUE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_NOT_IN_NAME = re.compile(r"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")


class Origin(msgspec.Struct, frozen=True):
    """The position of a message, and its number of deliveries."""

    stream: str
    consumer: str
    subject: str
    seq: int
    timestamp_ns: int
    deliveries: int


def dead_letter_subject(pattern: str, subject: str) -> str:
    """Return the subject of a dead letter, ``pattern`` with the message's subject in place of a final ``>``."""
    if not pattern.endswith(".>"):
        return pattern
    return pattern[:-1] + _encodable(subject)


def dead_letter_id(origin: Origin) -> str:
    """Return the message id of a dead letter."""
    return f"dead-letter.{origin.stream}.{origin.consumer}.{origin.seq}.{origin.timestamp_ns}"


def dead_letter_headers(
    original: Headers, origin: Origin, error: BaseException, unverified: str = ""
) -> dict[str, str | list[str]]:
    """Return the headers of a dead letter. Illegal characters are replaced, because a dead letter must not fail."""
    headers: dict[str, str | list[str]] = {}
    for name in original:
        legal = _NOT_IN_NAME.sub("_", name)
        if legal.lower().startswith("nats-"):
            legal = PREFIX + legal
        headers[legal] = [_line(value) for value in original.get_all(name)]
    kind, text = error_text(error)
    added = {
        "Stream": origin.stream,
        "Consumer": origin.consumer,
        "Subject": _line(_encodable(origin.subject)),
        "Sequence": str(origin.seq),
        "Timestamp": str(origin.timestamp_ns),
        "Deliveries": str(origin.deliveries),
        "Error": kind,
        "Reason": text,
    }
    headers.pop(PREFIX + "Unverified", None)
    if unverified:
        added["Unverified"] = _line(_encodable(unverified))[:_MAX_TEXT].strip()
    return headers | {PREFIX + name: value for name, value in added.items()}


def error_text(error: BaseException) -> tuple[str, str]:
    """Return the name of the error's class, and its text in one line. Never raises."""
    kind = type(error)
    if isinstance(error, Reject):
        name = "Reject"
    else:
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a user's class may do anything
        text = "(no text available)"
    return _line(name), _line(_encodable(text))[:_MAX_TEXT].strip()


def term_reason(error: BaseException) -> str:
    """Return the reason of a termination for the server's advisory."""
    kind, text = error_text(error)
    return f"{kind}: {text}" if text else kind


def exhausted_subject(stream: str, consumer: str) -> str:
    """Return the subject of the advisory about messages that were not acked in their last allowed delivery."""
    return f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"


class Exhausted(msgspec.Struct, frozen=True):
    """The content of an advisory about a message that was not acked in its last allowed delivery."""

    stream: str
    consumer: str
    seq: int
    deliveries: int


def read_exhausted(payload: bytes) -> Exhausted | None:
    """Return the content of an advisory, or None if it is malformed."""
    try:
        advisory: Any = decode(payload)
    except JetStreamError:
        return None
    seq, deliveries = advisory.get("stream_seq"), advisory.get("deliveries")
    for number in (seq, deliveries):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1 << 64:
            return None
    return Exhausted(str(advisory.get("stream")), str(advisory.get("consumer")), seq, deliveries)


def refutation(advisory: Exhausted, info: ConsumerInfo, limits: Iterable[int]) -> str:
    """Return how the consumer's state contradicts the advisory, or "" if it does not.

    ``limits`` contains each ``max_deliver`` that the consumer is known to have had. An ack leaves no trace in this
    state.
    """
    if advisory.deliveries not in limits:
        return f"it says {advisory.deliveries} deliveries, max_deliver is {info.config.max_deliver}"
    if advisory.seq > info.delivered.stream_seq:
        return f"the consumer has delivered up to {info.delivered.stream_seq} only"
    return ""


def passes(subject: str, configs: Iterable[ConsumerConfig]) -> bool:
    """Return whether one of these configurations of the consumer would deliver a message on this subject."""
    return any(
        not config.filters or any(subject_matches(pattern, subject) for pattern in config.filters)
        for config in configs
    )


def _encodable(text: str) -> str:
    """Replace the surrogates of bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _line(text: str) -> str:
    return _NOT_IN_VALUE.sub(" ", text)
