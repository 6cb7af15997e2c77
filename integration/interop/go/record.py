"""Writes `records.json`: what the official Go client sends when it works with buckets, for `test_go_records.py`.

Run it after an update of nats.go, with the program that `go build` makes in this folder:
`JSCLIENT_TEST_GO=… python -m integration.interop.go.record`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from integration.interop.command_client import CommandClient, connected
from integration.interop.programs import go_program
from integration.kit.clients.foreign import client
from jsclient.server import NatsServer

RECORDS = Path(__file__).with_name("records.json")
VERSION = "nats.go 1.53.1"
CHUNK = 1000
DATA = bytes(number % 251 for number in range(2 * CHUNK + 7))

# What changes a bucket, and what an administrator asks of its stream. Requests that only read are left out.
_SENT = ("$KV.>", "$O.>", *(f"$JS.API.STREAM.{action}.>" for action in ("CREATE", "UPDATE", "PURGE")))


async def work(go: CommandClient) -> None:
    """Change a key-value bucket and an object store in each way that leaves a trace."""
    await go.create_bucket("settings", history=3, limit_marker_ttl=3600, description="text", compression=True)
    await go.put("settings", "a", b"1")
    await go.put("settings", "a", b"2")
    await go.update("settings", "a", b"", 2)
    await go.put("settings", "path/b=c_d-e", b"\x00\xff")
    await go.put("settings", "deleted", b"1")
    await go.delete("settings", "deleted")
    await go.put("settings", "purged", b"1")
    await go.purge("settings", "purged")
    await go.create("settings", "deleted.and.created", b"1")
    await go.delete("settings", "deleted.and.created")
    await go.create("settings", "deleted.and.created", b"2")
    await go.create("settings", "short", b"1", 3600)
    await go.purge("settings", "a", 3600)
    await go.create_store("files", description="text")
    await go.put_object("files", "empty", b"")
    await go.put_object("files", "naïve/ü name+?.bin", DATA, chunk_size=CHUNK, metadata={"a": "b"})
    await go.put_object("files", "headers", b"1", description="text", headers={"h": "1"})
    await go.put_object("files", "replaced", DATA)
    await go.put_object("files", "replaced", b"new")
    await go.put_object("files", "deleted", DATA)
    await go.delete_object("files", "deleted")
    await go.put_object("files", "old name", b"renamed")
    await go.rename("files", "old name", "new name")
    await go.link("files", "link", "files", "headers")
    await go.link_bucket("files", "link to a bucket", "files")
    await go.create_store("sealed")
    await go.put_object("sealed", "a", b"1")
    await go.seal("sealed")


async def main() -> None:
    records = []

    async def note(message: Any) -> None:
        data = base64.b64encode(message.data).decode()
        records.append({"subject": message.subject, "headers": dict(message.headers or {}), "data": data})

    async with NatsServer(port=0) as server, client(server) as nc:
        for subject in _SENT:
            await nc.subscribe(subject, cb=note)
        await nc.flush()
        with go_program() as process:
            async with connected("go", process, server.url) as go:
                await work(go)
        await nc.flush()
    text = json.dumps({"client": VERSION, "records": records}, indent=1, ensure_ascii=False)
    RECORDS.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
