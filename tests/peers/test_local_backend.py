"""Engines in this process, in virtual time: time passes, inboxes fill, pieces that need no peer."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, ProtocolError, PublishError
from jsclient.peers import (
    Engine,
    EventDelayed,
    EventGivenUp,
    HostNotAllowedError,
    LocalHub,
    QueryRefusedError,
    open_policy,
)
from jsclient.peers.backend import (
    Delivery,
    Stopping,
    backoff,
    pack,
    read_answer,
    read_attrs,
    refusal,
    reply,
    unpack,
)
from jsclient.protocol.consumers.worker.reasons import DeliveriesExhaustedError
from jsclient.protocol.peers.channel import event_subject
from tests.support.virtual import noting, virtual


@virtual
async def test_relationship_over_forgotten_in_time(monkeypatch):
    hub = LocalHub()
    async with Engine.local(hub, remember=100.0, max_age=50.0) as engine:
        a, b = await engine.peer("a"), await engine.peer("b")
        monkeypatch.setattr("time.time", lambda: 5000.0)
        which = await a.request(await b.wellKnown_Rx())
        await b.wait_for("wrangler:inbound_pending_subscription_added")
        await b.reject(which)
        await a.wait_for("wrangler:outbound_subscription_cancelled")
        await a._stopping.pause(30.0)
        assert [record.id for record in b._tracker.relationships] == [which]
        monkeypatch.setattr("time.time", lambda: 5101.0)
        await a._stopping.pause(30.0)
        assert a._tracker.relationships == b._tracker.relationships == []


@virtual
async def test_a_local_inbox_is_bounded():
    hub = LocalHub()
    async with Engine.local(hub, max_waiting=3) as engine:
        a, b = await engine.peer("a"), await engine.peer("b")
        channel = await b.new_channel([], open_policy())
        await b.close()
        for number in range(3):
            await a.event_send(channel.eci, "door", "open", {"n": number}, msg_id=f"m{number}")
        await a.event_send(channel.eci, "door", "open", {"n": 0}, msg_id="m0")  # the same again
        with pytest.raises(PublishError, match="full"):
            await a.event_send(channel.eci, "door", "open")
        b = await engine.peer("b")
        got = []
        b.on("door:open", noting(got))
        await b.wait_for("door:open", n=2)
        await a.event_send(channel.eci, "door", "open", {"n": 3})
        await b.wait_for("door:open", n=3)
        assert [event["n"] for event in got] == [0, 1, 2, 3]


@virtual
async def test_full_inbox_blocks_sender():
    events = []
    hub = LocalHub()
    async with Engine.local(hub, max_waiting=1, on_event=events.append) as engine:
        a, b = await engine.peer("a"), await engine.peer("b")
        wk = await b.wellKnown_Rx()
        await b.close()
        ids = {await a.request(wk) for _ in range(3)}
        await a._stopping.pause(20.0)
        assert any(isinstance(event, EventDelayed) for event in events)
        b = await engine.peer("b")
        for which in ids:
            await b.wait_for("wrangler:inbound_pending_subscription_added", 60.0, Id=which)


@virtual
async def test_message_comes_again_asks_for_same():
    async with Engine.local() as engine:
        a, b = await engine.peer("a"), await engine.peer("b")
        channel = await a.new_channel(["parent"], open_policy())
        attrs = pack({"wellKnown_Tx": await b.wellKnown_Rx()})
        subject = event_subject(channel.eci, "wrangler", "subscription")

        async def never(_):
            raise AssertionError("it is done with")

        for ident in (b"1", b"1", b"2", b"1"):
            await a._incoming.handle(Delivery(subject, attrs, ident, 1, never, never))
        assert len(a.outbound()) == 2


@virtual
async def test_event_no_process_survives_abandoned():
    events, reports, refused = [], [], []
    async with Engine.local(max_deliver=3, on_event=events.append) as engine:
        a = await engine.peer("a")
        channel = await a.new_channel([], open_policy())
        a.on("bomb:*", noting(reports))

        async def keep(value):
            refused.append(value)

        for attempt in (23, 24):
            subject = event_subject(channel.eci, "bomb", "goes")
            await a._incoming.handle(Delivery(subject, b"", b"1", attempt, keep, keep))
        assert len(reports) == 1
        assert refused == ["its handler failed too often"]
    (failure,) = [event for event in events if isinstance(event, EventGivenUp)]
    assert isinstance(failure.error, DeliveriesExhaustedError)


@virtual
async def test_local_engine_reaches_no_other_host():
    async with Engine.local(host="nats://here:1", allowed_hosts=["nats://there:1"]) as engine:
        a = await engine.peer("a")
        wk = await a.wellKnown_Rx()
        with pytest.raises(HostNotAllowedError, match="there"):
            await a.event_send(wk, "door", "open", host="nats://there:1")
        with pytest.raises(HostNotAllowedError, match="there"):
            await a.query(wk, "subscription", "wellKnown_Rx", host="nats://there:1")
        assert await a.query(wk, "subscription", "wellKnown_Rx", host="nats://here:1") == wk


@virtual
async def test_peer_in_one_local_engine():
    hub = LocalHub()
    async with Engine.local(hub) as one, Engine.local(hub) as other:
        await one.peer("a")
        with pytest.raises(PublishError, match="another engine"):
            await other.peer("a")
        await one.peers["a"].close()
        await other.peer("a")


def test_what_is_no_json_is_refused():
    for attrs in ({1: "x"}, {"x": object()}, {"x": {1, 2}.__iter__()}):
        with pytest.raises(ConfigError, match="JSON"):
            pack(attrs)
    assert read_attrs({"x": (1, 2)}, 100) == {"x": [1, 2]}
    with pytest.raises(ConfigError, match="max_event_size"):
        read_attrs({"x": "y" * 100}, 100)
    assert unpack(b"") == {}
    for data in (b"[]", b"{", b"\xff", b"[" * 100_000, b"null", b'"x"'):
        assert unpack(data) is None


def test_answer_value_or_says_why_not():
    assert read_answer(reply(None)) is None
    with pytest.raises(QueryRefusedError, match="BUSY: later"):
        read_answer(refusal("BUSY", "later"))
    for data in (b"", b"{}", b'{"refusal": 3}', b"\xff"):
        with pytest.raises(ProtocolError):
            read_answer(data)


@virtual
async def test_a_pause_ends_with_its_owner():
    stopping = Stopping()
    assert await stopping.pause(10.0)
    stopping.begin_closing()
    assert not await stopping.pause(10.0)
    assert [backoff(n) for n in (1, 2, 3, 50)] == [0.1, 0.2, 0.4, 30.0]


@virtual
async def test_engine_is_closed_after_its_block():
    async with Engine.local() as engine:
        assert not engine.is_closed
    assert engine.is_closed
