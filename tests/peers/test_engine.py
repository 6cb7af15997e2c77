"""An engine in this process: its peers, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import ClosedError, ConfigError, InvalidNameError
from jsclient.peers.engine import Engine
from jsclient.peers.local_backend import LocalHub
from tests.support.virtual import noting, virtual


@virtual
async def test_peer_is_opened_once():
    async with Engine.local() as engine:
        one, other = await asyncio.gather(engine.peer("a"), engine.peer("a"))
        assert one is other
        assert engine.peers == {"a": one}
        assert repr(engine) == "<Engine of ['a']>"


@virtual
async def test_closed_peer_is_opened_again_with_its_state():
    async with Engine.local() as engine:
        first = await engine.peer("a")
        channel = await first.wellKnown_Rx()
        await first.close()
        assert engine.peers == {}
        second = await engine.peer("a")
        assert second is not first
        assert await second.wellKnown_Rx() == channel


@virtual
async def test_state_outlives_the_engine_in_its_hub():
    hub, channels = LocalHub(), []
    for _ in range(2):
        async with Engine.local(hub) as engine:
            channels.append(await (await engine.peer("a")).wellKnown_Rx())
    assert channels[0] == channels[1]


@virtual
async def test_removed_peer_begins_anew():
    async with Engine.local() as engine:
        channel = await (await engine.peer("a")).wellKnown_Rx()
        await engine.remove("a")
        assert engine.peers == {}
        assert await (await engine.peer("a")).wellKnown_Rx() != channel


@virtual
async def test_first_handlers_hear_the_first_event():
    async with Engine.local() as engine:
        seen: list = []
        a = await engine.peer("a")
        b = await engine.peer("b", handlers={"wrangler:*": noting(seen)})
        await a.request(await b.wellKnown_Rx())
        await b.wait_for("wrangler:inbound_pending_subscription_added", timeout=5)
        assert seen


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", 7])
@virtual
async def test_name_is_a_token(name):
    async with Engine.local() as engine:
        with pytest.raises(InvalidNameError):
            await engine.peer(name)


@pytest.mark.parametrize("options", [{"max_inbond": 5}, {"max_inbound": 0}])
def test_invalid_option_is_refused(options):
    with pytest.raises(ConfigError, match="max_inbo"):
        Engine.local(**options)
    with pytest.raises(ConfigError, match=r"Engine\.connect"):
        Engine("nats://127.0.0.1")


@virtual
async def test_closed_engine_opens_nothing():
    engine = Engine.local()
    async with engine:
        peer = await engine.peer("a")
    assert peer.is_closed
    for call in (engine.peer("a"), engine.remove("a")):
        with pytest.raises(ClosedError):
            await call
