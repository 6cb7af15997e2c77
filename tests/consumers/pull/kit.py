"""Fetches on a fake connection."""

from __future__ import annotations

import asyncio

from tests.support.virtual import settle


def now() -> float:
    return asyncio.get_running_loop().time()


def numbers(messages) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


class fetching:  # noqa: N801  reads as: async with fetching(sub, connection, 3) as fetch
    """A fetch in flight, and the means to answer it."""

    def __init__(self, sub, connection, batch, **options) -> None:
        self.connection = connection
        self._call = sub.fetch(batch, **options)

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self._call)
        await settle()
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait({self.task})

    def arrives(self, *frames) -> None:
        self.connection.deliver(self.connection.pulls()[-1].reply, list(frames))
