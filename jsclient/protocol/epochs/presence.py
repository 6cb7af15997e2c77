"""The request to find out whether a partition has a live publisher, and the answer.

The publisher of a partition subscribes to ``<topic>.<partition>.publisher``, the publisher of a live topic to
``<topic>.<partition>.live.publisher``. If there is no publisher, the server answers at once with "no responders".
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ...errors import ProtocolError

__all__ = ["ANSWER", "Verb", "presence_subject", "read_presence", "write_presence"]

Verb = Literal["ask", "take", "alive"]
"""The question, the command to end (for the publisher of a live topic), and the answer to both."""

ANSWER: Final = 1.0
"""How long a publisher may take to answer, in seconds. After that, it counts as dead."""


class _Presence(msgspec.Struct, frozen=True):
    v: Literal[1]
    verb: Verb


def presence_subject(topic: str, partition: int, *, live: bool = False) -> str:
    """Return the subject on which the publisher of a partition answers."""
    return f"{topic}.{partition}.{'live.' if live else ''}publisher"


def write_presence(verb: Verb) -> bytes:
    """Encode a request or an answer."""
    return msgspec.json.encode(_Presence(1, verb))


def read_presence(data: bytes) -> Verb:
    """Read a request or an answer. Raises `ProtocolError` if it is not valid."""
    try:
        return msgspec.json.decode(data, type=_Presence).verb
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"not a question about a publisher: {data[:80]!r}: {error}") from None
