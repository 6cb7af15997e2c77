"""A server's monitoring endpoint, read with a plain socket."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

_LIMIT = 64 << 20


async def monitor_json(monitor: str, path: str, timeout: float = 5.0) -> Any:
    """Read `path`, such as `/connz?subs=1`, from the monitoring URL of a server."""
    parts = urlsplit(monitor)
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_LIMIT)
        try:
            # Version 1.0: the answer then ends with the connection and comes in one piece.
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n".encode())
            answer = await reader.read(-1)
        finally:
            writer.close()
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise RuntimeError(f"monitoring of {path} answered {head[:80]!r}")
    return json.loads(body)


async def connections(monitor: str) -> dict[int, tuple[str, Counter[str]]]:
    """Name and subscribed subjects of each client connection, by the server's connection id."""
    answer = await monitor_json(monitor, "/connz?subs=1&limit=10000")
    return {
        connection["cid"]: (
            connection.get("name", ""),
            Counter(connection.get("subscriptions_list") or ()),
        )
        for connection in answer["connections"] or ()
    }
