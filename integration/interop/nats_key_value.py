"""nats-key-value, which needs Python 3.13: an `OtherClient` for key-value buckets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import nats.client
import nats.jetstream
import nats.key_value
from nats.key_value.errors import KeyNotFoundError

from integration.interop.other_client import Entry

__all__ = ["NatsKeyValue", "nats_key_value"]

_TIMES = ("ttl", "limit_marker_ttl")


@contextlib.asynccontextmanager
async def nats_key_value(server: Any) -> AsyncIterator[NatsKeyValue]:
    """Connect the client, and close the connection at the end."""
    async with await nats.client.connect(server.url) as connection:
        yield NatsKeyValue(nats.jetstream.new(connection))


def _entry(one: Any) -> Entry:
    return Entry(one.key, one.value, one.revision, one.operation.value)


def _span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


class NatsKeyValueWatch:
    """A watcher of the client."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher

    async def next(self) -> Entry:
        return _entry(await asyncio.wait_for(anext(self._watcher), 20))

    async def stop(self) -> None:
        await self._watcher.stop()


class NatsKeyValue:
    """A connection of the client."""

    name = "nats-key-value"

    def __init__(self, js: Any) -> None:
        self._js = js

    async def _bucket(self, name: str) -> Any:
        return await nats.key_value.key_value(self._js, name)

    async def create_bucket(self, name: str, **options: Any) -> None:
        given = {option: _span(value) if option in _TIMES else value for option, value in options.items()}
        if mirror := given.get("mirror"):
            given["mirror"] = nats.jetstream.StreamSource(**mirror)
        if sources := given.get("sources"):
            given["sources"] = [nats.jetstream.StreamSource(**source) for source in sources]
        await nats.key_value.create_key_value(self._js, nats.key_value.KeyValueConfig(bucket=name, **given))

    async def put(self, name: str, key: str, value: bytes) -> int:
        return await (await self._bucket(name)).put(key, value)

    async def create(self, name: str, key: str, value: bytes, ttl: int | None = None) -> int:
        return await (await self._bucket(name)).create(key, value, ttl=_span(ttl))

    async def update(self, name: str, key: str, value: bytes, last: int) -> int:
        return await (await self._bucket(name)).update(key, value, last)

    async def get(self, name: str, key: str, revision: int | None = None) -> Entry | None:
        try:
            return _entry(await (await self._bucket(name)).get(key, revision=revision))
        except KeyNotFoundError:
            return None

    async def delete(self, name: str, key: str) -> None:
        await (await self._bucket(name)).delete(key)

    async def purge(self, name: str, key: str, ttl: int | None = None) -> None:
        await (await self._bucket(name)).purge(key, ttl=_span(ttl))

    async def keys(self, name: str) -> list[str]:
        return [key async for key in await (await self._bucket(name)).keys()]

    async def history(self, name: str, key: str) -> list[Entry]:
        return [_entry(one) async for one in await (await self._bucket(name)).history(key)]

    async def increment(self, name: str, key: str, times: int) -> None:
        kv = await self._bucket(name)
        done = 0
        while done < times:
            one = await kv.get(key)
            try:
                await kv.update(key, b"%d" % (int(one.value) + 1), one.revision)
            except Exception as error:
                if "wrong last sequence" not in str(error):
                    raise
                continue
            done += 1

    async def watch(self, name: str) -> NatsKeyValueWatch:
        return NatsKeyValueWatch(await (await self._bucket(name)).watch_all())

    async def status(self, name: str) -> dict[str, Any]:
        status = await (await self._bucket(name)).status()
        times = {name: span.total_seconds() for name in _TIMES if (span := getattr(status, name)) is not None}
        return {
            "history": status.history,
            "description": status.stream_info.config.description,
            "values": status.values,
            **times,
        }
