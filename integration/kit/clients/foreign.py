"""nats-py as a foreign client: traffic and faults that have nothing to do with jsclient."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import nats.aio.client
import nats.aio.msg

Msg = nats.aio.msg.Msg


class Client(nats.aio.client.Client):
    """nats-py's client, which closes the connection of a failed handshake before it tries again.

    nats-py leaves it to the garbage collector, whose ResourceWarning would fail whichever test runs then.
    """

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is not None:
            self._transport.close()
        await super()._connect_to_server(s)


async def closed(nc: Client) -> None:
    """Close, and end what that leaves running.

    It cancels a reconnect, but `asyncio.wait_for` loses a cancellation that comes in the moment of success, and the
    connection then has tasks that no one cancels.
    """
    await nc.close()
    names = ("_reconnection_task", "_reading_task", "_ping_interval_task", "_flusher_task")
    while tasks := {
        task for name in names if (task := getattr(nc, name, None)) is not None and not task.done()
    }:
        if nc._transport is not None:
            nc._transport.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=0.1)


@contextlib.asynccontextmanager
async def client(server: Any, **options: Any) -> AsyncIterator[Client]:
    """A nats-py client that reconnects fast and reports nothing."""

    async def quiet(_: Exception) -> None: ...

    nc = Client()
    await nc.connect(server.url, reconnect_time_wait=0.05, error_cb=quiet, **options)
    try:
        yield nc
    finally:
        await closed(nc)


async def flushed(nc: Client) -> None:
    """The server has processed everything that was sent before.

    One `flush` of nats-py 2.16 does not show that: its PING goes to the transport at once, before commands that still
    wait for the flusher, such as a SUB. The second PING comes after them.
    """
    await nc.flush()
    await nc.flush()


async def subscribed(nc: Client, subject: str) -> list[Msg]:
    """Subscribe. Give the list that messages are appended to."""
    seen: list[Msg] = []

    async def keep(message: Msg) -> None:
        seen.append(message)

    await nc.subscribe(subject, cb=keep)
    await flushed(nc)
    return seen
