"""Counters: an increment on its way to the stream, and what the stream has counted.

Numbers are whole and of any size; they travel as decimal text. Python itself turns no more than 4,300 digits into a
number (``sys.set_int_max_str_digits``), and that is the limit here.

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
from ..wire.headers import COUNTER_SOURCES, INCR

__all__ = ["CounterEntry", "increment_text", "next_chunk", "read_counter", "read_number"]

_CHUNK = 1000  # subjects in a request; servers answer with 1,024 messages at most
_NUMBER = re.compile(r"[+-]?[0-9]+")


class CounterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a counter stands at.

    Attributes:
        subject: Which counter.
        value: What it stands at.
        increment: What the last change added to it.
        sources: What came from other streams: by stream, by the subject there. Empty for a counter that has none.
        seq: The stream sequence of the last change.
        time: When that was; UTC.
    """

    subject: str
    value: int
    increment: int
    sources: dict[str, dict[str, int]]
    seq: int
    time: datetime


def increment_text(amount: int) -> str:
    """The value of ``Nats-Incr``: sign and digits.

    Raises:
        ConfigError: It is no whole number, or has more digits than Python writes.
    """
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise ConfigError(f"amount is {amount!r:.60}: it must be a whole number")
    try:
        return f"{amount:+d}"
    except ValueError:
        raise ConfigError(
            "amount has more digits than Python writes as text (sys.set_int_max_str_digits)"
        ) from None


def read_number(text: object, what: str) -> int:
    """The number in ``text``.

    Raises:
        ProtocolError: It is none, or has more digits than Python reads.
    """
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise ProtocolError(f"{what}: {text!r:.60} is no whole number")
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(
            f"{what}: {len(text)} digits are more than Python reads (sys.set_int_max_str_digits)"
        ) from None


def read_counter(message: StoredMessage) -> CounterEntry:
    """The counter whose last change is ``message``.

    Raises:
        ProtocolError: It is no change of a counter.
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
    found: dict[str, dict[str, int]] = {}
    for stream, values in decode(text.encode()).items():
        if not isinstance(values, Mapping):
            raise ProtocolError(f"{COUNTER_SOURCES}: {stream!r:.60} is no object")
        found[stream] = {subject: read_number(value, COUNTER_SOURCES) for subject, value in values.items()}
    return found


def next_chunk(subjects: Sequence[str], start: int, max_bytes: int) -> int:
    """Where the request for last messages ends that begins at ``start``: as many subjects as fit, at least one."""
    size, end = 0, start
    while end < len(subjects) and end - start < _CHUNK:
        size += len(subjects[end].encode()) + 3
        if size > max_bytes and end > start:
            break
        end += 1
    return end
