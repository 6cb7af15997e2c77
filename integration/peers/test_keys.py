"""Keys of relationships on a server: made by the engine, exchanged, stored, and the same after a restart."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import jsclient
from integration.kit.clients.peers import ServerGround
from jsclient import ConfigError
from jsclient.peers import Peer

INBOUND = "wrangler:inbound_pending_subscription_added"
ADDED = "wrangler:subscription_added"


@pytest.fixture
async def ground(server: Any) -> AsyncIterator[ServerGround]:
    ground = ServerGround(server.url)
    yield ground
    await ground.close()


async def stored(ground: ServerGround, peer: str) -> dict[str, Any]:
    """The relationship ``fleet`` as the stream has it, read without the engine."""
    async with jsclient.connect(ground.url) as js:
        stream = await js.stream(ground.streams[1])
        actual = await stream.get_last_message(f"{ground.prefix}.state.{peer}.relationship.fleet")
        return msgspec.json.decode(actual.data)


async def pending(ground: ServerGround) -> tuple[Peer, Peer]:
    a, b = await (await ground.engine()).peer("a"), await (await ground.engine()).peer("b")
    await a.request(await b.wellKnown_Rx(), Id="fleet", Tx_verify_key="the user's own")
    await b.wait_for(INBOUND, 30.0)
    return a, b


@pytest.mark.covers("P44", "P45")
async def test_keys_go_with_request_and_approval(ground: ServerGround) -> None:
    a, b = await pending(ground)
    requester, accepter = await stored(ground, "a"), await stored(ground, "b")
    (inbound,) = b.inbound()
    for name in ("verify_key", "public_key"):
        assert accepter[f"Tx_{name}"] == requester[f"Rx_{name}"] == inbound[f"Tx_{name}"] is not None
        assert accepter[f"Rx_{name}"] != accepter[f"Tx_{name}"]
        assert f"Tx_{name}" not in requester, "it learns them with the approval"
    await b.approve("fleet")
    added = await a.wait_for(ADDED, 30.0)
    requester, accepter = await stored(ground, "a"), await stored(ground, "b")
    for name in ("verify_key", "public_key"):
        assert requester[f"Tx_{name}"] == accepter[f"Rx_{name}"] == added[f"Tx_{name}"] is not None
        assert accepter[f"Tx_{name}"] == requester[f"Rx_{name}"]


async def test_keys_are_the_same_after_a_restart(ground: ServerGround) -> None:
    a, b = await pending(ground)
    await b.approve("fleet")
    await a.wait_for(ADDED, 30.0)
    signature, encrypted = a.keys.sign("fleet", b"17"), b.keys.encrypt("fleet", b"18")
    await a.close()
    again = await (await ground.engine()).peer("a")
    assert again.keys.sign("fleet", b"17") == signature
    assert again.keys.decrypt("fleet", encrypted) == b"18"
    assert b.keys.verify("fleet", b"17", signature)


@pytest.mark.covers("P45")
async def test_without_the_extra_no_keys(ground: ServerGround, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl.signing", None)
    a, b = await pending(ground)
    await b.approve("fleet")
    await a.wait_for(ADDED, 30.0)
    for peer in (a, b):
        (record,) = peer.established()
        assert (record["Tx_verify_key"], record["Tx_public_key"]) == (None, None)
        assert not [name for name in await stored(ground, peer.name) if name.endswith("_key")]
    with pytest.raises(ConfigError, match=r'pip install "jsclient\[nkeys\]"'):
        a.keys.sign("fleet", b"17")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="'fleet' has no Tx_verify_key: it is None"):
        b.keys.verify("fleet", b"17", a.keys.sign("fleet", b"17"))
