"""What the tests ask of another client, in the same words for each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from integration.interop.programs import has_go

__all__ = [
    "KEY_VALUE_CLIENTS",
    "OBJECT_CLIENTS",
    "SERVICE_CLIENTS",
    "Answer",
    "ClientNamed",
    "Description",
    "Entry",
    "Instance",
    "OtherClient",
]

_GO = ("go",) if has_go() else ()
_NEWER_PYTHON = ("nats-key-value",) if importlib.util.find_spec("nats.key_value") else ()
SERVICE_CLIENTS = ("js", "nats-py")
OBJECT_CLIENTS = ("js", "nats-py", "rust", *_GO)
KEY_VALUE_CLIENTS = (*OBJECT_CLIENTS, *_NEWER_PYTHON)

ClientNamed = Callable[[str], AbstractAsyncContextManager[Any]]


class Entry(NamedTuple):
    """An entry of a key-value bucket, as the client read it."""

    key: str
    value: bytes
    revision: int
    operation: str


class Description(NamedTuple):
    """What the client reads of an object. ``link``: bucket and name, or only the bucket."""

    name: str
    size: int
    chunks: int
    digest: str
    nuid: str
    description: str = ""
    headers: dict[str, list[str]] = {}  # noqa: RUF012  never changed
    metadata: dict[str, str] = {}  # noqa: RUF012
    deleted: bool = False
    link: tuple[str, ...] = ()


class Instance(NamedTuple):
    """An instance of a service, as discovery shows it."""

    name: str
    id: str
    version: str
    metadata: dict[str, str]
    subjects: list[str]


class Answer(NamedTuple):
    """An answer of a service."""

    data: bytes
    code: int = 0
    description: str = ""


class Watch(Protocol):
    """A watch of the client."""

    async def next(self) -> Any:
        """Wait for the next entry or description."""

    async def stop(self) -> None: ...


class OtherClient(Protocol):
    """A connection of the client. A method returns None for what the client did not find."""

    name: str

    async def create_bucket(self, name: str, **options: Any) -> None: ...
    async def put(self, name: str, key: str, value: bytes) -> int: ...
    async def create(self, name: str, key: str, value: bytes, ttl: int | None = None) -> int: ...
    async def update(self, name: str, key: str, value: bytes, last: int) -> int: ...
    async def get(self, name: str, key: str, revision: int | None = None) -> Entry | None: ...
    async def delete(self, name: str, key: str) -> None: ...
    async def purge(self, name: str, key: str, ttl: int | None = None) -> None: ...
    async def keys(self, name: str) -> list[str]: ...
    async def history(self, name: str, key: str) -> list[Entry]: ...
    async def increment(self, name: str, key: str, times: int) -> None: ...
    async def watch(self, name: str) -> Watch: ...
    async def status(self, name: str) -> dict[str, Any]: ...

    async def create_store(self, name: str, **options: Any) -> None: ...
    async def put_object(self, name: str, object: str, data: bytes, **meta: Any) -> None: ...
    async def get_object(self, name: str, object: str) -> bytes | None: ...
    async def describe(self, name: str, object: str) -> Description | None: ...
    async def list_objects(self, name: str) -> list[str]: ...
    async def delete_object(self, name: str, object: str) -> None: ...
    async def watch_objects(self, name: str) -> Watch: ...
    async def seal(self, name: str) -> None: ...
    async def store_status(self, name: str) -> dict[str, Any]: ...

    async def add_service(self, name: str, subject: str, metadata: dict[str, str]) -> str: ...
    async def stop_service(self, id: str) -> None: ...
    async def services(self, name: str) -> list[Instance]: ...
    async def counters(self, name: str) -> list[tuple[int, int]]: ...
    async def request(self, subject: str, data: bytes) -> Answer: ...
