"""Ask a nats-server that has just been started whether it is ready, over a socket of our own.

The client is not used: reconnects, warnings and events would be misleading while the server starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

__all__ = ["probe"]

_JETSTREAM_UNAVAILABLE = 10008  # err_code: a cluster without a leader yet


async def probe(host: str, port: int, *, jetstream: bool) -> dict[str, Any] | None:
    """Look once at a server that listens: its INFO when it is ready, None when it is not.

    Raises:
        OSError, EOFError: The connection was refused or lost.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        verb, _, rest = (await reader.readline()).partition(b" ")
        if verb != b"INFO":
            return None
        info: dict[str, Any] = json.loads(rest)
        if info.get("auth_required") or info.get("tls_required"):
            return info
        writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        if jetstream:
            writer.write(b"SUB _INBOX.jsclient 1\r\nPUB $JS.API.INFO _INBOX.jsclient 0\r\n\r\n")
        writer.write(b"PING\r\n")
        return info if await _answered(reader, jetstream=jetstream) else None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answered(reader: asyncio.StreamReader, *, jetstream: bool) -> bool:
    """Whether the PING and, with JetStream, the API request succeeded."""
    awaited = {b"PONG", b"MSG"} if jetstream else {b"PONG"}
    while awaited:
        verb, *rest = (await reader.readline()).split() or [b""]
        match verb:
            case b"":
                raise EOFError
            case b"-ERR":
                return True  # forbidden by the configuration, but ready
            case b"HMSG":
                return False  # the API has no responder yet
            case b"MSG":
                answer = json.loads(await reader.readexactly(int(rest[-1])))
                await reader.readline()
                if answer.get("error", {}).get("err_code") == _JETSTREAM_UNAVAILABLE:
                    return False
            case _:
                pass
        awaited.discard(verb)
    return True
