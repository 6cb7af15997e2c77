"""Counters, which add up increments in a stream.

Values are integers of any size, sent as decimal text. Python converts at most 4,300 digits to an integer
(``sys.set_int_max_str_digits``), which is the limit here too.

Source: ADR-49; nats-server server/stream.go (CounterValue, CounterSources).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from ...errors import ConfigError, ProtocolError
from ..models.message import StoredMessage
from ..wire.codec import decode
from ..wire.header_names import COUNTER_SOURCES, INCR

__all__ = ["CounterEntry", "increment_text", "next_chunk", "read_counter", "read_number"]

_CHUNK = 1000  # maximum number of subjects in a request. Servers answer with 1,024 messages at most
_NUMBER = re.compile(r"[+-]?[0-9]+")


class CounterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a counter and its last change. Returned by `Counter.get` and `Counter.entries`.

    Attributes:
        subject: Subject of the counter.
        value: Current value of the counter.
        increment: Amount that the last change added. It may be negative.
        sources: The contribution of each source stream, as a dict from stream name to a dict from subject to value.
            Empty if the stream doesn't sum up the counters of other streams.
        seq: Stream sequence of the last change.
        time: Time of the last change, in UTC.
    """

    subject: str
    value: int
    increment: int
    sources: dict[str, dict[str, int]]
    seq: int
    time: datetime


def increment_text(amount: int) -> str:
    """Return the value of ``Nats-Incr``, which is a sign and digits.

    Raises:
        ConfigError: The amount is not an integer, or has more digits than Python converts.
    """
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise ConfigError(f"amount is {amount!r:.60}: it must be an integer")
    try:
        return f"{amount:+d}"
    except ValueError:
        raise ConfigError(
            "amount has more digits than Python converts to text: raise sys.set_int_max_str_digits"
        ) from None


def read_number(text: object, what: str) -> int:
    """Parse an integer.

    Raises:
        ProtocolError: The text is not an integer, or has more digits than Python converts.
    """
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise ProtocolError(f"{what}: {text!r:.60} is not an integer")
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(
            f"{what}: {len(text)} digits are more than Python converts: raise sys.set_int_max_str_digits"
        ) from None


def read_counter(message: StoredMessage) -> CounterEntry:
    """Return the counter whose last change is ``message``.

    Raises:
        ProtocolError: The message is not a change of a counter.
    """
    sources = message.headers.get(COUNTER_SOURCES)
    return CounterEntry(
        subject=message.subject,
        value=read_number(decode(message.data).get("val"), "the value of a counter"),
        increment=read_number(message.headers.get(INCR), INCR),
        sources={} if not sources else _sources(sources),
        seq=message.seq,
        time=message.time,
    )


def _sources(text: str) -> dict[str, dict[str, int]]:
    sources: dict[str, dict[str, int]] = {}
    for stream, values in decode(text.encode()).items():
        if not isinstance(values, Mapping):
            raise ProtocolError(f"{COUNTER_SOURCES}: {stream!r:.60} is not an object")
        sources[stream] = {subject: read_number(value, COUNTER_SOURCES) for subject, value in values.items()}
    return sources


def next_chunk(subjects: Sequence[str], start: int, max_bytes: int) -> int:
    """Return the end of the request that begins at ``start``.

    The request has as many subjects as fit, but at least one.
    """
    size, end = 0, start
    while end < len(subjects) and end - start < _CHUNK:
        size += len(subjects[end].encode()) + 3
        if size > max_bytes and end > start:
            break
        end += 1
    return end
