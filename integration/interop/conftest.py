"""Fixtures of the tests of interoperability: jsclient reads what another client writes, and the reverse.

theirs      another client: the official one for JavaScript in a process of node, then nats-py
javascript  the client for JavaScript alone, for calls that nats-py does not have
name        the name of a bucket, a store and a service of this test alone
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from integration.interop.javascript import JavaScript
from integration.interop.javascript import javascript as connected_javascript
from integration.interop.nats_py import nats_py
from integration.interop.node_process import NodeProcess
from integration.interop.other_client import OtherClient
from integration.kit.judge.oracle import Oracle


@pytest.fixture(scope="session")
def node() -> Iterator[NodeProcess]:
    with NodeProcess() as node:
        yield node


@pytest.fixture
async def javascript(node: NodeProcess, server: Any) -> AsyncIterator[JavaScript]:
    async with connected_javascript(node, server.url) as client:
        yield client


@pytest.fixture(params=["js", "nats-py"])
async def theirs(request: pytest.FixtureRequest, server: Any) -> AsyncIterator[OtherClient]:
    async with AsyncExitStack() as stack:
        if request.param == "js":
            node = request.getfixturevalue("node")
            yield await stack.enter_async_context(connected_javascript(node, server.url))
        else:
            yield await stack.enter_async_context(nats_py(server))


@pytest.fixture
async def name(oracle: Oracle) -> AsyncIterator[str]:
    name = f"i-{secrets.token_hex(6)}"
    yield name
    await oracle.delete_stream(f"KV_{name}", missing_ok=True)
    await oracle.delete_stream(f"OBJ_{name}", missing_ok=True)
