"""Whether a partition has a publisher that is alive: the question of one that opens, and the answer.

The publisher of a partition listens on ``<topic>.<partition>.publisher``, that of a live topic on
``<topic>.<partition>.live.publisher``. Without one, the server answers at once that there are no responders.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ...errors import ProtocolError

__all__ = ["ANSWER", "Verb", "presence_subject", "read_presence", "write_presence"]

Verb = Literal["ask", "take", "alive"]
"""The question, the command to end (for the publisher of a live topic), and the answer to both."""

ANSWER: Final = 1.0
"""Seconds that a publisher has to answer. After that it counts as dead."""


class _Presence(msgspec.Struct, frozen=True):
    v: Literal[1]
    verb: Verb


def presence_subject(topic: str, partition: int, *, live: bool = False) -> str:
    """The subject on which the publisher of a partition answers."""
    return f"{topic}.{partition}.{'live.' if live else ''}publisher"


def write_presence(verb: Verb) -> bytes:
    """A question or an answer, as it is sent."""
    return msgspec.json.encode(_Presence(1, verb))


def read_presence(data: bytes) -> Verb:
    """Read a question or an answer. Raises `ProtocolError` if it is not valid."""
    try:
        return msgspec.json.decode(data, type=_Presence).verb
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"not a question about a publisher: {data[:80]!r}: {error}") from None
