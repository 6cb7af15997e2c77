"""The official clients for JavaScript and Go: an `OtherClient` over a `CommandProcess`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from integration.interop.command_process import CommandProcess, decoded, encoded
from integration.interop.other_client import Answer, Description, Entry, Instance

__all__ = ["CommandClient", "connected"]

_MILLISECONDS = 1000


@contextlib.asynccontextmanager
async def connected(name: str, process: CommandProcess, url: str) -> AsyncIterator[CommandClient]:
    """Connect the client, and close the connection at the end."""
    await process.call("connect", url=url)
    try:
        yield CommandClient(name, process)
    finally:
        await process.call("close")


def _entry(fields: dict[str, Any]) -> Entry:
    return Entry(fields["key"], decoded(fields["value"]), fields["revision"], fields["operation"])


def _description(fields: dict[str, Any]) -> Description:
    link = fields["link"] or {}
    return Description(
        *(fields[name] for name in ("name", "size", "chunks", "digest", "nuid", "description")),
        headers=fields["headers"],
        metadata=fields["metadata"],
        deleted=fields["deleted"],
        link=tuple(link[part] for part in ("bucket", "name") if link.get(part)),
    )


class CommandWatch:
    """An iterator of the client."""

    def __init__(self, process: CommandProcess, watch: int, read: Callable[[dict[str, Any]], Any]) -> None:
        self._process, self._watch, self._read = process, watch, read

    async def next(self) -> Any:
        fields = await self._process.call("next", watch=self._watch)
        return None if fields is None else self._read(fields)

    async def stop(self) -> None:
        await self._process.call("stop", watch=self._watch)


class CommandClient:
    """A connection of the client."""

    def __init__(self, name: str, process: CommandProcess) -> None:
        self.name = name
        self.call = process.call
        self._process = process

    async def create_bucket(self, name: str, **options: Any) -> None:
        names = {"ttl": "ttl", "limit_marker_ttl": "markerTTL"}
        renamed = {
            names.get(option, option): value * _MILLISECONDS if option in names else value
            for option, value in options.items()
        }
        await self.call("kv_create_bucket", name=name, options=renamed)

    async def encode_keys(self, name: str) -> None:
        """Encode the keys of a bucket with the base64 codec, from now on. For JavaScript only."""
        await self.call("kv_encode_keys", name=name)

    async def put(self, name: str, key: str, value: bytes) -> int:
        return await self.call("kv_put", name=name, key=key, value=encoded(value))

    async def create(self, name: str, key: str, value: bytes, ttl: int | None = None) -> int:
        text = None if ttl is None else f"{ttl}s"
        return await self.call("kv_create", name=name, key=key, value=encoded(value), ttl=text)

    async def update(self, name: str, key: str, value: bytes, last: int) -> int:
        return await self.call("kv_update", name=name, key=key, value=encoded(value), last=last)

    async def get(self, name: str, key: str, revision: int | None = None) -> Entry | None:
        fields = await self.call("kv_get", name=name, key=key, revision=revision)
        # A deletion is an entry for it.
        return None if fields is None or fields["operation"] != "PUT" else _entry(fields)

    async def delete(self, name: str, key: str) -> None:
        await self.call("kv_delete", name=name, key=key)

    async def purge(self, name: str, key: str, ttl: int | None = None) -> None:
        await self.call("kv_purge", name=name, key=key, ttl=None if ttl is None else f"{ttl}s")

    async def keys(self, name: str, *filters: str) -> list[str]:
        return await self.call("kv_keys", name=name, filters=filters)

    async def history(self, name: str, key: str) -> list[Entry]:
        return [_entry(fields) for fields in await self.call("kv_history", name=name, key=key)]

    async def increment(self, name: str, key: str, times: int) -> None:
        await self.call("kv_increment", name=name, key=key, times=times)

    async def watch(self, name: str) -> CommandWatch:
        return CommandWatch(self._process, await self.call("kv_watch", name=name), _entry)

    async def status(self, name: str) -> dict[str, Any]:
        fields = await self.call("kv_status", name=name)
        names = ("history", "description", "compression", "metadata", "values")
        times = {"ttl": fields["ttl"] / _MILLISECONDS}
        if fields["marker_ttl"] is not None:
            times["limit_marker_ttl"] = fields["marker_ttl"] / _MILLISECONDS
        return {name: fields[name] for name in names} | times

    async def create_store(self, name: str, **options: Any) -> None:
        if "ttl" in options:
            options["ttl"] *= _MILLISECONDS
        await self.call("obj_create_bucket", name=name, options=options)

    async def put_object(self, name: str, object: str, data: bytes, **meta: Any) -> None:
        if chunk_size := meta.pop("chunk_size", 0):
            meta["options"] = {"max_chunk_size": chunk_size}
        await self.call("obj_put", name=name, meta={"name": object, **meta}, data=encoded(data))

    async def get_object(self, name: str, object: str) -> bytes | None:
        data = await self.call("obj_get", name=name, object=object)
        return None if data is None else decoded(data)

    async def describe(self, name: str, object: str) -> Description | None:
        fields = await self.call("obj_info", name=name, object=object)
        return None if fields is None or fields["deleted"] else _description(fields)

    async def list_objects(self, name: str) -> list[str]:
        return [fields["name"] for fields in await self.call("obj_list", name=name)]

    async def delete_object(self, name: str, object: str) -> None:
        await self.call("obj_delete", name=name, object=object)

    async def rename(self, name: str, old: str, new: str) -> None:
        await self.call("obj_update", name=name, object=old, meta={"name": new})

    async def link(self, name: str, object: str, bucket: str, target: str) -> None:
        await self.call("obj_link", name=name, object=object, target_bucket=bucket, target=target)

    async def link_bucket(self, name: str, object: str, bucket: str) -> None:
        await self.call("obj_link_bucket", name=name, object=object, target_bucket=bucket)

    async def watch_objects(self, name: str) -> CommandWatch:
        return CommandWatch(self._process, await self.call("obj_watch", name=name), _description)

    async def seal(self, name: str) -> None:
        await self.call("obj_seal", name=name)

    async def store_status(self, name: str) -> dict[str, Any]:
        fields = await self.call("obj_status", name=name)
        return {name: fields[name] for name in ("description", "sealed")} | {
            "ttl": fields["ttl"] / _MILLISECONDS
        }

    async def add_service(self, name: str, subject: str, metadata: dict[str, str]) -> str:
        return await self.call(
            "service_add",
            name=name,
            version="1.2.3",
            description="an echo",
            metadata=metadata,
            subject=subject,
        )

    async def stop_service(self, id: str) -> None:
        await self.call("service_stop", id=id)

    async def services(self, name: str) -> list[Instance]:
        return [
            Instance(
                *(one[field] for field in ("name", "id", "version", "metadata")),
                [endpoint["subject"] for endpoint in one["endpoints"]],
            )
            for one in await self.call("service_info", name=name)
        ]

    async def counters(self, name: str) -> list[tuple[int, int]]:
        return [
            (endpoint["num_requests"], endpoint["num_errors"])
            for one in await self.call("service_stats", name=name)
            for endpoint in one["endpoints"]
        ]

    async def request(self, subject: str, data: bytes) -> Answer:
        fields = await self.call("request", subject=subject, data=encoded(data))
        error = fields["error"] or {"code": 0, "description": ""}
        return Answer(decoded(fields["data"]), error["code"], error["description"])
