"""A server whose memory, CPU, consumers and sent messages are observed from outside. Linux only."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsclient
from benchmarks.usage import cpu_of

__all__ = ["Watched", "watched"]


class Watched:
    """A server that this process started, with its monitoring port."""

    def __init__(self, server: jsclient.server.NatsServer, monitor: int) -> None:
        self.server = server
        self.url = server.url
        self._monitor = monitor

    @property
    def rss_kb(self) -> int:
        """The resident memory in kB."""
        lines = Path(f"/proc/{self.server.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    @property
    def cpu(self) -> float:
        """The seconds of user and system time used so far."""
        assert self.server.pid is not None
        return cpu_of(self.server.pid)

    async def consumers(self) -> int:
        """Return the number of consumers."""
        return int((await self._ask("jsz"))["consumers"])

    async def newest(self) -> int:
        """Return the id of the newest connection."""
        return max(int(connection["cid"]) for connection in (await self._ask("connz"))["connections"])

    async def sent_to(self, connection: int) -> int:
        """Return the number of messages sent to one connection so far."""
        answer = await self._ask(f"connz?cid={connection}")
        return int(answer["connections"][0]["out_msgs"])

    async def _ask(self, what: str) -> dict[str, Any]:
        return await asyncio.to_thread(_read, f"http://127.0.0.1:{self._monitor}/{what}")


def _read(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        results: dict[str, Any] = json.load(answer)
    return results


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    """Run a server until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        monitor = reserved.getsockname()[1]
    config = {"http": f"127.0.0.1:{monitor}", "max_pending": 1 << 30}
    async with jsclient.server.NatsServer(config=config) as server:
        yield Watched(server, monitor)
