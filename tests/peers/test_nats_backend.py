"""The pool of connections to other hosts: what is allowed, one attempt for all who wait."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import ClosedError, ConnectError
from jsclient.peers import EngineOptions, HostNotAllowedError
from jsclient.peers.nats_backend import Hosts
from tests.support.virtual import virtual


class Connected:
    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def dialed(monkeypatch):
    """The addresses and options of each connection attempt. The first attempt fails."""
    seen = []

    async def connect(host, **options):
        seen.append((host, options["user"]))
        await asyncio.sleep(5.0)
        if len(seen) == 1:
            raise ConnectError("nobody is there")
        return Connected()

    monkeypatch.setattr("jsclient.peers.nats_backend.connect", connect)
    monkeypatch.setattr("jsclient.peers.nats_backend.JetStream", Connected)
    return seen


@virtual
async def test_all_who_wait_share_one_attempt(dialed):
    hosts = Hosts(EngineOptions(allowed_hosts={"tls://b:1": {"user": "ann"}}), print)
    with pytest.raises(HostNotAllowedError):
        await hosts.connection("tls://c:1")
    before = asyncio.get_running_loop().time()
    calls = [asyncio.create_task(hosts.connection("tls://b:1")) for _ in range(50)]
    await asyncio.sleep(1.0)
    calls.pop().cancel()  # the others wait on
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {ConnectError}
    assert asyncio.get_running_loop().time() == before + 5.0
    assert dialed == [("tls://b:1", "ann")]

    first, again = await asyncio.gather(hosts.connection("tls://b:1"), hosts.connection("tls://b:1"))
    assert first is again is await hosts.connection("tls://b:1")
    first.is_closed = True
    anew = await hosts.connection("tls://b:1")
    assert anew is not first
    assert len(dialed) == 3
    await hosts.close()
    assert anew.is_closed
    with pytest.raises(ClosedError):
        await hosts.connection("tls://b:1")
