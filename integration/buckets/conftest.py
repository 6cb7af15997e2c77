"""Fixtures of the tests of buckets.

name        the name of a bucket of this test alone, which is deleted after the test
make        creates a bucket of that name: `kv = await make(history=5)`
kv          a bucket with a history of 5
store       an object store of that name, in memory
chunks      the names of the chunks that its stream has, each with their number, by a request of the judge
raw         what the stream of the bucket has, by a request of the judge: (key, data, headers) in order
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, Stored


def headers_of(message: Stored) -> dict[str, str]:
    lines = message.headers.decode().split("\r\n")
    return dict(line.split(": ", 1) for line in lines[1:] if line)


@pytest.fixture
async def name(oracle: Oracle) -> AsyncIterator[str]:
    name = f"b-{secrets.token_hex(6)}"
    yield name
    await oracle.delete_stream(f"KV_{name}", missing_ok=True)
    await oracle.delete_stream(f"OBJ_{name}", missing_ok=True)


@pytest.fixture
def make(js: Any, name: str) -> Callable[..., Awaitable[Any]]:
    async def make(**options: Any) -> Any:
        return await js.create_key_value(name, **{"storage": "memory", **options})

    return make


@pytest.fixture
async def kv(make: Callable[..., Awaitable[Any]]) -> Any:
    return await make(history=5)


@pytest.fixture
def raw(oracle: Oracle, name: str) -> Callable[[], Awaitable[list[tuple[str, bytes, dict[str, str]]]]]:
    async def raw() -> list[tuple[str, bytes, dict[str, str]]]:
        return [
            (message.subject.removeprefix(f"$KV.{name}."), message.payload, headers_of(message))
            for message in await oracle.messages(f"KV_{name}")
        ]

    return raw


@pytest.fixture
async def store(js: Any, name: str) -> Any:
    return await js.create_object_store(name, storage="memory")


@pytest.fixture
def chunks(oracle: Oracle, name: str) -> Callable[[], Awaitable[Counter[str]]]:
    async def chunks() -> Counter[str]:
        subjects = [message.subject for message in await oracle.messages(f"OBJ_{name}")]
        start = f"$O.{name}.C."
        return Counter(subject.removeprefix(start) for subject in subjects if subject.startswith(start))

    return chunks
