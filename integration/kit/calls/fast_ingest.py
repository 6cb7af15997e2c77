"""Fast ingest, for its tests."""

from __future__ import annotations

import json
from typing import Any

from integration.kit.judge.streams import OwnStream
from integration.kit.network import match
from integration.kit.network.proxy import Proxy


def operation(number: object, code: object) -> Any:
    """A message of an ingest, by its number and what it asks for: 0 start, 1 append, 2 and 3 commit, 4 ping."""
    return lambda frame: match.published(">")(frame) and (frame.reply or "").endswith(f".{number}.{code}.$FI")


def control(kind: str) -> Any:
    """An answer of the server of this type. "final" for the last answer."""

    def fits(frame: Any) -> bool:
        if not (match.delivered(">")(frame) and (frame.subject or "").endswith(".$FI") and frame.payload):
            return False
        return json.loads(frame.payload).get("type", "final") == kind

    return fits


def codes(tap: Proxy) -> list[str]:
    """The messages that were sent, as number and operation."""
    return [
        ".".join((frame.reply or "").split(".")[-3:-1])
        for frame in tap.sent()
        if (frame.reply or "").endswith(".$FI")
    ]


async def stored(stream: OwnStream) -> list[bytes]:
    if not (await stream.state())["messages"]:
        return []
    return [message.payload for message in await stream.messages()]


async def filled(ingest: Any, stream: OwnStream, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        assert await ingest.publish(stream.subject("a"), b"%d" % number) == number


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]
