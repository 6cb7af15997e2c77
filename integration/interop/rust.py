"""The official Rust client, through natsrpy: an `OtherClient` for buckets."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import natsrpy
from natsrpy.exceptions import NatsrpySessionError
from natsrpy.js import KVConfig, KVOperation, ObjectStoreConfig, Source, StorageType

from integration.interop.other_client import Description, Entry

__all__ = ["Rust", "rust"]

_CHUNK = 131_072  # as ADR-20 has it. natsrpy cuts at 24 KiB unless told
_OPERATIONS = ((KVOperation.Put, "PUT"), (KVOperation.Delete, "DEL"), (KVOperation.Purge, "PURGE"))


@contextlib.asynccontextmanager
async def rust(server: Any) -> AsyncIterator[Rust]:
    """Connect the client, and close the connection at the end."""
    client = natsrpy.Nats(addrs=[server.url])
    await client.startup()
    try:
        yield Rust(await client.jetstream())
    finally:
        await client.shutdown()


def _entry(one: Any) -> Entry:
    (operation,) = (name for operation, name in _OPERATIONS if one.operation == operation)
    return Entry(one.key, one.value, one.revision, operation)


def _description(info: Any) -> Description:
    # A link to a bucket has no name. A header with one value is a text.
    link = info.link and tuple(part for part in (info.link.bucket, info.link.name) if part)
    # A header with one value is text.
    headers = {
        name: [values] if isinstance(values, str) else list(values) for name, values in info.headers.items()
    }
    return Description(
        info.name,
        info.size,
        info.chunks,
        info.digest or "",
        info.nuid,
        info.description or "",
        headers=headers,
        metadata=info.metadata,
        deleted=info.deleted,
        link=link or (),
    )


def _config(options: dict[str, Any]) -> dict[str, Any]:
    if storage := options.pop("storage", None):
        options["storage"] = {"memory": StorageType.MEMORY, "file": StorageType.FILE}[storage]
    return options


class RustWatch:
    """An iterator of the client."""

    def __init__(self, entries: Any, read: Callable[[Any], Any]) -> None:
        self._entries, self._read = entries, read

    async def next(self) -> Any:
        return self._read(await asyncio.wait_for(anext(self._entries), 20))

    async def stop(self) -> None:
        """The client has no way to stop a watch."""


class Rust:
    """A connection of the client."""

    name = "rust"

    def __init__(self, js: Any) -> None:
        self._js = js

    async def create_bucket(self, name: str, **options: Any) -> None:
        names = {"ttl": "max_age", "limit_marker_ttl": "limit_markers", "replicas": "num_replicas"}
        given = {names.get(option, option): value for option, value in _config(options).items()}
        if mirror := given.get("mirror"):
            given["mirror"] = Source(**mirror)
        if sources := given.get("sources"):
            given["sources"] = [Source(**source) for source in sources]
        await self._js.kv.create(KVConfig(bucket=name, **given))

    async def put(self, name: str, key: str, value: bytes) -> int:
        return await (await self._js.kv.get(name)).put(key, value)

    async def create(self, name: str, key: str, value: bytes, ttl: int | None = None) -> int:
        return await (await self._js.kv.get(name)).create(key, value, ttl=ttl)

    async def update(self, name: str, key: str, value: bytes, last: int) -> int:
        return await (await self._js.kv.get(name)).update(key, value, last)

    async def get(self, name: str, key: str, revision: int | None = None) -> Entry | None:
        one = await (await self._js.kv.get(name)).entry(key, revision)
        # A deletion is an entry for it.
        return None if one is None or one.operation != KVOperation.Put else _entry(one)

    async def delete(self, name: str, key: str) -> None:
        await (await self._js.kv.get(name)).delete(key)

    async def purge(self, name: str, key: str, ttl: int | None = None) -> None:
        await (await self._js.kv.get(name)).purge(key, ttl=ttl)

    async def keys(self, name: str) -> list[str]:
        return [key async for key in await (await self._js.kv.get(name)).keys()]

    async def history(self, name: str, key: str) -> list[Entry]:
        return [_entry(one) async for one in await (await self._js.kv.get(name)).history(key)]

    async def increment(self, name: str, key: str, times: int) -> None:
        kv = await self._js.kv.get(name)
        done = 0
        while done < times:
            one = await kv.entry(key)
            try:
                await kv.update(key, b"%d" % (int(one.value) + 1), one.revision)
            except NatsrpySessionError as error:
                if "wrong last" not in str(error):
                    raise
                continue
            done += 1

    async def watch(self, name: str) -> RustWatch:
        return RustWatch(await (await self._js.kv.get(name)).watch_many_with_history([">"]), _entry)

    async def status(self, name: str) -> dict[str, Any]:
        info = (await (await self._js.kv.get(name)).status()).info
        config = info.config
        times = {"ttl": config.max_age.total_seconds()}
        if config.subject_delete_marker_ttl is not None:
            times["limit_marker_ttl"] = config.subject_delete_marker_ttl.total_seconds()
        return {
            "history": config.max_messages_per_subject,
            "description": config.description,
            "values": info.state.messages,
            **times,
        }

    async def create_store(self, name: str, **options: Any) -> None:
        if "ttl" in options:
            options["max_age"] = options.pop("ttl")
        await self._js.object_store.create(ObjectStoreConfig(bucket=name, **_config(options)))

    async def put_object(self, name: str, object: str, data: bytes, **meta: Any) -> None:
        store = await self._js.object_store.get(name)
        await store.put(object, data, **{"chunk_size": _CHUNK, **meta})

    async def get_object(self, name: str, object: str) -> bytes | None:
        data = io.BytesIO()
        try:
            await (await self._js.object_store.get(name)).get(object, data)
        except NatsrpySessionError as error:
            if "not found" not in str(error):
                raise
            return None
        return data.getvalue()

    async def describe(self, name: str, object: str) -> Description | None:
        try:
            info = await (await self._js.object_store.get(name)).get_info(object)
        except NatsrpySessionError as error:
            if "not found" not in str(error):
                raise
            return None
        return None if info.deleted else _description(info)

    async def list_objects(self, name: str) -> list[str]:
        return [info.name async for info in await (await self._js.object_store.get(name)).list()]

    async def delete_object(self, name: str, object: str) -> None:
        await (await self._js.object_store.get(name)).delete(object)

    async def rename(self, name: str, old: str, new: str) -> None:
        await (await self._js.object_store.get(name)).update_metadata(old, new_name=new)

    async def link(self, name: str, object: str, bucket: str, target: str) -> None:
        assert bucket == name  # the client links objects of one store only
        await (await self._js.object_store.get(name)).link_object(target, object)

    async def link_bucket(self, name: str, object: str, bucket: str) -> None:
        await (await self._js.object_store.get(name)).link_bucket(bucket, object)

    async def watch_objects(self, name: str) -> RustWatch:
        return RustWatch(await (await self._js.object_store.get(name)).watch(with_history=True), _description)

    async def seal(self, name: str) -> None:
        await (await self._js.object_store.get(name)).seal()

    async def store_status(self, name: str) -> dict[str, Any]:
        """The client has no status of a store: what its stream has."""
        config = (await (await self._js.streams.get(f"OBJ_{name}")).get_info()).config
        return {
            "description": config.description,
            "sealed": config.sealed,
            "ttl": config.max_age.total_seconds(),
        }
