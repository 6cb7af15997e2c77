"""nats-py: an `OtherClient`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats.micro
from nats.js import api, errors

from integration.interop.other_client import Answer, Description, Entry, Instance
from integration.kit.clients.foreign import Client, client

__all__ = ["NatsPy", "nats_py"]


@contextlib.asynccontextmanager
async def nats_py(url: Any) -> AsyncIterator[NatsPy]:
    """Connect the client, and close the connection at the end."""
    async with client(url) as nc:
        theirs = NatsPy(nc)
        yield theirs
        await theirs.close()


def _entry(entry: Any) -> Entry:
    return Entry(entry.key, entry.value or b"", entry.revision, entry.operation or "PUT")


def _description(info: Any) -> Description:
    link = info.options and info.options.link
    return Description(
        info.name,
        info.size or 0,
        info.chunks or 0,
        info.digest or "",
        info.nuid or "",
        info.description or "",
        headers=info.headers or {},
        deleted=bool(info.deleted),
        link=tuple(part for part in (link.bucket, link.name) if part) if link else (),
    )


async def _listed(call: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
    """Return a list from the client, or an empty list if it finds nothing five times.

    It may find nothing if all entries arrive before it asks the server how many there are.
    """
    for _ in range(5):
        with contextlib.suppress(errors.NoKeysError):
            return await call()
    return []


class NatsPyWatch:
    """A watcher of the client, without the marks between its entries."""

    def __init__(self, watcher: Any, read: Callable[[Any], Any]) -> None:
        self._watcher, self._read = watcher, read

    async def next(self) -> Any:
        while (entry := await self._watcher.updates(10)) is None:
            pass
        return self._read(entry)

    async def stop(self) -> None:
        await self._watcher.stop()


class NatsPy:
    """A connection of the client."""

    name = "nats-py"

    def __init__(self, nc: Client) -> None:
        self._nc, self._js = nc, nc.jetstream()
        self._services: dict[str, Any] = {}

    async def close(self) -> None:
        for one in list(self._services):
            await self.stop_service(one)

    async def create_bucket(self, name: str, **options: Any) -> None:
        await self._js.create_key_value(bucket=name, **options)

    async def put(self, name: str, key: str, value: bytes) -> int:
        return await (await self._js.key_value(name)).put(key, value)

    async def create(self, name: str, key: str, value: bytes, ttl: int | None = None) -> int:
        return await (await self._js.key_value(name)).create(key, value, msg_ttl=ttl)

    async def update(self, name: str, key: str, value: bytes, last: int) -> int:
        return await (await self._js.key_value(name)).update(key, value, last)

    async def get(self, name: str, key: str, revision: int | None = None) -> Entry | None:
        try:
            entry = await (await self._js.key_value(name)).get(key, revision)
        except errors.KeyNotFoundError:
            return None
        return _entry(entry)

    async def delete(self, name: str, key: str) -> None:
        await (await self._js.key_value(name)).delete(key)

    async def purge(self, name: str, key: str, ttl: int | None = None) -> None:
        await (await self._js.key_value(name)).purge(key, msg_ttl=ttl)

    async def keys(self, name: str) -> list[str]:
        return await _listed((await self._js.key_value(name)).keys)

    async def history(self, name: str, key: str) -> list[Entry]:
        kv = await self._js.key_value(name)
        return [_entry(entry) for entry in await _listed(lambda: kv.history(key))]

    async def increment(self, name: str, key: str, times: int) -> None:
        kv = await self._js.key_value(name)
        done = 0
        while done < times:
            entry = await kv.get(key)
            try:
                await kv.update(key, b"%d" % (int(entry.value) + 1), entry.revision)
            except errors.KeyWrongLastSequenceError:
                continue
            done += 1

    async def watch(self, name: str) -> NatsPyWatch:
        return NatsPyWatch(await (await self._js.key_value(name)).watchall(), _entry)

    async def status(self, name: str) -> dict[str, Any]:
        status = await (await self._js.key_value(name)).status()
        return {
            "history": status.history,
            "ttl": status.ttl,
            "limit_marker_ttl": status.marker_ttl,
            "values": status.values,
            "description": status.stream_info.config.description,
        }

    async def create_store(self, name: str, **options: Any) -> None:
        await self._js.create_object_store(name, config=api.ObjectStoreConfig(**options))

    async def put_object(self, name: str, object: str, data: bytes, **meta: Any) -> None:
        if chunk_size := meta.pop("chunk_size", 0):
            meta["options"] = api.ObjectMetaOptions(max_chunk_size=chunk_size)
        await (await self._js.object_store(name)).put(object, data, meta=api.ObjectMeta(**meta))

    async def get_object(self, name: str, object: str) -> bytes | None:
        try:
            return (await (await self._js.object_store(name)).get(object)).data
        except errors.NotFoundError:
            return None

    async def describe(self, name: str, object: str) -> Description | None:
        try:
            return _description(await (await self._js.object_store(name)).get_info(object))
        except errors.NotFoundError:
            return None

    async def list_objects(self, name: str) -> list[str]:
        try:
            infos = await (await self._js.object_store(name)).list(ignore_deletes=True)
        except errors.NotFoundError:
            return []
        return [info.name for info in infos]

    async def delete_object(self, name: str, object: str) -> None:
        await (await self._js.object_store(name)).delete(object)

    async def watch_objects(self, name: str) -> NatsPyWatch:
        return NatsPyWatch(await (await self._js.object_store(name)).watch(), _description)

    async def seal(self, name: str) -> None:
        await (await self._js.object_store(name)).seal()

    async def store_status(self, name: str) -> dict[str, Any]:
        status = await (await self._js.object_store(name)).status()
        return {"description": status.description, "sealed": status.sealed, "ttl": status.ttl}

    async def add_service(self, name: str, subject: str, metadata: dict[str, str]) -> str:
        async def echo(request: Any) -> None:
            if request.data:
                await request.respond(request.data)
            else:
                await request.respond_error("404", "nothing to answer")

        service = await nats.micro.add_service(
            self._nc, name=name, version="1.2.3", description="an echo", metadata=metadata
        )
        await service.add_endpoint(name="echo", subject=subject, handler=echo, metadata={"format": "bytes"})
        await self._nc.flush()
        self._services[service.id] = service
        return service.id

    async def stop_service(self, id: str) -> None:
        await self._services.pop(id).stop()

    async def services(self, name: str) -> list[Instance]:
        """nats-py has no discovery: the answer of one instance, read by its class."""
        answer = await self._nc.request(f"$SRV.INFO.{name}")
        info = nats.micro.service.ServiceInfo.from_dict(json.loads(answer.data))
        subjects = [endpoint.subject for endpoint in info.endpoints]
        return [Instance(info.name, info.id, info.version, info.metadata, subjects)]

    async def counters(self, name: str) -> list[tuple[int, int]]:
        answer = await self._nc.request(f"$SRV.STATS.{name}")
        fields = json.loads(answer.data)
        for endpoint in fields["endpoints"]:
            endpoint.setdefault("data", None)  # which ADR-32 lets a service leave out, and the class needs
        stats = nats.micro.service.ServiceStats.from_dict(fields)
        return [(endpoint.num_requests, endpoint.num_errors) for endpoint in stats.endpoints]

    async def request(self, subject: str, data: bytes) -> Answer:
        reply = await self._nc.request(subject, data)
        header = reply.headers or {}
        code = int(header.get("Nats-Service-Error-Code", 0))
        return Answer(reply.data, code, header.get("Nats-Service-Error", ""))
