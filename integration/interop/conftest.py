"""Fixtures of the tests of interoperability: jsclient reads what another client writes, and the reverse.

client_named  another client, opened by its name. The modules have a fixture `theirs` with their clients
javascript    the official client for JavaScript alone, for calls that the others do not have
name          the name of a bucket, a store and a service of this test alone
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from integration.interop.command_client import CommandClient, connected
from integration.interop.command_process import CommandProcess
from integration.interop.nats_py import nats_py
from integration.interop.other_client import ClientNamed
from integration.interop.programs import go_program, node_program
from integration.interop.rust import rust
from integration.kit.judge.oracle import Oracle


@pytest.fixture(scope="session")
def node() -> Iterator[CommandProcess]:
    with node_program() as process:
        yield process


@pytest.fixture(scope="session")
def go() -> Iterator[CommandProcess]:
    with go_program() as process:
        yield process


@pytest.fixture
async def javascript(node: CommandProcess, server: Any) -> AsyncIterator[CommandClient]:
    async with connected("js", node, server.url) as client:
        yield client


@pytest.fixture
def client_named(request: pytest.FixtureRequest, server: Any) -> ClientNamed:
    def client(name: str) -> AbstractAsyncContextManager[Any]:
        if name == "js":
            return connected(name, request.getfixturevalue("node"), server.url)
        if name == "go":
            return connected(name, request.getfixturevalue("go"), server.url)
        if name == "rust":
            return rust(server)
        if name == "nats-key-value":
            from integration.interop.nats_key_value import nats_key_value  # needs Python 3.13

            return nats_key_value(server)
        return nats_py(server)

    return client


@pytest.fixture
async def name(oracle: Oracle) -> AsyncIterator[str]:
    name = f"i-{secrets.token_hex(6)}"
    yield name
    for stream in (f"KV_{name}", f"OBJ_{name}"):
        await oracle.delete_stream(stream, missing_ok=True)
