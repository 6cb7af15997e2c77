"""nats-py as a foreign client: traffic and faults that have nothing to do with jsclient."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.aio.client
import nats.aio.msg

Client = nats.aio.client.Client
Msg = nats.aio.msg.Msg


@contextlib.asynccontextmanager
async def client(server: Any, **options: Any) -> AsyncIterator[Client]:
    """A nats-py client that reconnects fast and reports nothing."""

    async def quiet(_: Exception) -> None: ...

    nc = await nats.connect(server.url, reconnect_time_wait=0.05, error_cb=quiet, **options)
    try:
        yield nc
    finally:
        await nc.close()


async def subscribed(nc: Client, subject: str) -> list[Msg]:
    """Subscribe; give the list that messages are appended to."""
    seen: list[Msg] = []

    async def keep(message: Msg) -> None:
        seen.append(message)

    await nc.subscribe(subject, cb=keep)
    await nc.flush()
    return seen
