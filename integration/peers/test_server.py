"""Peers on a real server: across hosts, and after crashes and restarts."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import jsclient
from integration.kit.calls.peer_server import ADDED, INBOUND, REMOVED, ROOT, of
from integration.kit.clients.peers import FAST, ServerGround, received_events, related
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import noting
from integration.kit.judge.waiting import eventually
from integration.kit.servers.monitor import connections
from jsclient import ConfigError, JetStreamError
from jsclient.peers import (
    Engine,
    EventDelayed,
    EventGivenUp,
    EventRefused,
    HostNotAllowedError,
    Peer,
    PeerError,
    QueryRefusedError,
    Refusal,
)


@pytest.fixture
async def ground(server: Any) -> AsyncIterator[ServerGround]:
    ground = ServerGround(server.url)
    yield ground
    await ground.close()


@pytest.fixture
async def events_of() -> AsyncIterator[Any]:
    """Make an engine on a server of the test's own: `engine, events = await events_of(own, **options)`."""
    opened: list[Engine] = []

    async def make(own: Any, **options: Any) -> tuple[Engine, list[Any]]:
        events: list[Any] = []
        url = getattr(own, "url", own)
        opened.append(await Engine.connect(url, on_event=events.append, **{**FAST, **options}))
        return opened[-1], events

    yield make
    for engine in opened:
        await engine.close()


# --- across hosts ------------------------------------------------------------------------------------------


@pytest.mark.covers("P4", "P38", "P40", "P42")
async def test_peers_across_servers(own_server: Any, events_of: Any) -> None:
    one, other = await own_server(), await own_server()
    here, of_here = await events_of(one, host=one.url, allowed_hosts=[other.url])
    there, of_there = await events_of(other, host=other.url, allowed_hosts=[one.url])
    a, b = await here.peer("a"), await there.peer("b")

    wk = await b.wellKnown_Rx()
    assert await a.query(wk, "subscription", "wellKnown_Rx", host=other.url) == wk
    which = await a.request(wk, Tx_host=other.url, Rx_role="tenant", Tx_role="team")
    request = await b.wait_for(INBOUND)
    assert (request["Id"], request["Tx_host"]) == (which, one.url)
    await b.approve(which)
    for peer in (a, b):
        await peer.wait_for(ADDED)
    (at_a,), (at_b,) = a.established(), b.established()
    assert (at_a["Tx_host"], at_b["Tx_host"]) == (other.url, one.url)
    assert (at_a["Tx"], at_a["Rx"]) == (at_b["Rx"], at_b["Tx"])

    b.answers("feed", "size")(lambda: 3)
    a.answers("feed", "used")(lambda: 2)
    await a.send("feed", "wanted", {"n": 1}, Tx_role="team")
    await b.event_send(at_b, "feed", "row", {"n": 2})
    assert (await b.wait_for("feed:wanted")).relationship["Id"] == which
    assert (await a.wait_for("feed:row"))["n"] == 2
    assert await a.query(which, "feed", "size") == 3
    assert await b.query(at_b, "feed", "used") == 2
    await b.cancel(which)
    for peer in (a, b):
        await peer.wait_for(REMOVED)
    assert of_here == of_there == []


@pytest.mark.covers("P38", "P42")
async def test_no_host_dialed_not_allowed(own_server: Any, events_of: Any) -> None:
    one, other = await own_server(), await own_server()
    here, _ = await events_of(one, host=one.url, allowed_hosts=[other.url])
    there, of_there = await events_of(other, host=other.url)  # allows none
    a, b = await here.peer("a"), await there.peer("b")
    before = await connections(one.monitor)

    which = await a.request(await b.wellKnown_Rx(), Tx_host=other.url)
    await eventually(lambda: b.refused[Refusal.HOST] == 1)
    (refused,) = await eventually(lambda: of(EventRefused, of_there))
    assert (refused.refusal, refused.detail) == (Refusal.HOST, repr(one.url))
    assert b.inbound() == []
    assert [one["Id"] for one in a.outbound()] == [which]
    with pytest.raises(HostNotAllowedError):
        await b.event_send("a.guess", "door", "open", host=one.url)
    with pytest.raises(HostNotAllowedError):
        await b.query("a.guess", "door", "state", host=one.url)
    with pytest.raises(PeerError, match="not one of the allowed hosts"):
        await b.request(await a.wellKnown_Rx(), Tx_host=one.url)
    assert set(await connections(one.monitor)) == set(before)


@pytest.mark.parametrize("moment", ["at once", "while it waits for the host"])
async def test_cancelled_close_leaves_no_connection(moment: str, own_server: Any, events_of: Any) -> None:
    """Neither its own connection, nor that to one host while another host is dialled."""
    one, other = await own_server(), await own_server()
    dialled: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def keep(*streams: Any) -> None:
        dialled.append(streams)

    silent = await asyncio.start_server(keep, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    options = {"connect_timeout": 60.0}
    here, _ = await events_of(one, host=one.url, allowed_hosts={other.url: {}, url: options})
    a = await here.peer("a")
    with pytest.raises(JetStreamError):
        await a.query("nobody.x", "door", "state", host=other.url, timeout=30)  # nobody is there: at once
    assert len(await connections(other.monitor)) == 1
    asking = asyncio.create_task(a.query("nobody.x", "door", "state", host=url, timeout=60))
    await eventually(lambda: dialled, what="the dial of the silent host")
    closing = asyncio.create_task(here.close())
    await asyncio.sleep(0)
    if moment != "at once":
        await eventually(lambda: here._backend._hosts._closed, 20, "the end of the peers")
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()

    async def none_left() -> bool:
        return not await connections(one.monitor) and not await connections(other.monitor)

    await eventually(none_left, 20, "the end of the connections")
    await eventually(dialled[0][0].at_eof, 20, "the end of the dial")
    asking.cancel()
    await asyncio.wait({asking})
    for _, writer in dialled:
        writer.close()
    silent.close()


async def test_host_down_told_later(own_server: Any, events_of: Any) -> None:
    one, other = await own_server(), await own_server()
    here, of_here = await events_of(one, host=one.url, allowed_hosts=[other.url])
    there, _ = await events_of(other, host=other.url, allowed_hosts=[one.url])
    a, b = await here.peer("a"), await there.peer("b")
    wk = await b.wellKnown_Rx()
    await other.stop()
    which = await a.request(wk, Tx_host=other.url)
    delayed = await eventually(lambda: of(EventDelayed, of_here))
    assert (delayed[0].host, delayed[0].event) == (other.url, "wrangler:new_subscription_request")
    with pytest.raises(JetStreamError):
        await a.query(wk, "subscription", "wellKnown_Rx", host=other.url, timeout=0.2)
    await other.start()
    await b.wait_for(INBOUND, 60, Id=which)


@pytest.mark.parametrize(
    "options",
    [
        {"host": "b.example"},
        {"allowed_hosts": ["nats://me:secret@b.example:4222"]},
        {"allowed_hosts": "nats://b.example"},
        {"max_age": 10.0, "remember": 5.0},
        {"max_deliver": 0},
        {"prefix": "a.*"},
        {"colour": "red"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_engine_cannot_be_reported(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Engine.local(**options)
    assert "secret" not in str(caught.value)


# --- crashes and restarts ----------------------------------------------------------------------------------


DYING = """
import asyncio, os, signal, sys
from jsclient.peers import Engine
from jsclient.peers.nats_backend import ServerBackend

url, prefix, eci, when = sys.argv[1:]
publish = ServerBackend.publish

async def die(self, send):
    if when == "after":
        await publish(self, send)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    engine = await Engine.connect(url, prefix=prefix)
    a = await engine.peer("a")
    ServerBackend.publish = die
    await a.request(eci, Id="fleet", note="hello")
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.core_cases(1)
@pytest.mark.covers("P44", "P47", "P65")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_process_loses_nothing(ground: ServerGround, when: str) -> None:
    b = await (await ground.engine()).peer("b")
    reports = received_events(b)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DYING, ground.url, ground.prefix, await b.wellKnown_Rx(), when, cwd=ROOT
    )
    assert await child.wait() == -signal.SIGKILL
    if when == "before":
        assert reports == []
    a = await (await ground.engine()).peer("a")
    assert [one["Id"] for one in a.outbound()] == ["fleet"]
    assert (await b.wait_for(INBOUND))["note"] == "hello"
    await a.wait_for("wrangler:outbound_pending_subscription_added")
    await b.approve("fleet")
    for peer in (a, b):
        await peer.wait_for(ADDED)
    assert [event.type for event in reports] == ["inbound_pending_subscription_added", "subscription_added"]


async def test_server_restarts_in_middle(own_server: Any, events_of: Any) -> None:
    own = await own_server()
    one, _ = await events_of(own)
    other, _ = await events_of(own)
    a, b = await one.peer("a"), await other.peer("b")
    b.auto_accept(lambda attrs: True)
    got: list[int] = []
    b.on("count:up", noting(got, lambda event: event["n"]))
    wk = await b.wellKnown_Rx()

    async def ask(number: int) -> None:
        """Ask until it is known to be stored: asking again does no harm."""
        while True:
            try:
                await a.request(wk, Id=f"r{number}")
                return
            except PeerError as error:
                if error.event != "wrangler:duplicate_id_failure":
                    raise
                return  # the first time was stored
            except JetStreamError:
                await asyncio.sleep(0.05)

    asking = [asyncio.create_task(ask(number)) for number in range(30)]
    await eventually(a.established)
    await own.kill()
    await own.start()
    await asyncio.gather(*asking)
    ids = {f"r{number}" for number in range(30)}
    for peer in (a, b):
        await eventually(lambda peer=peer: {one["Id"] for one in peer.established()} == ids, 30)
    for number in range(30):
        await a.send("count", "up", {"n": number}, Id=f"r{number}")
    await eventually(lambda: set(got) == set(range(30)))
    assert {one["Rx"] for one in a.established()} == {one["Tx"] for one in b.established()}


async def test_peer_heals_after_deletion(ground: ServerGround, oracle: Oracle) -> None:
    engine = await ground.engine()
    a, b = await engine.peer("a"), await engine.peer("b")
    which = await related(a, b)
    inboxes = ground.streams[0]
    await oracle.delete_consumer(inboxes, "b")
    await a.send("chat", "hello", {"n": 1}, Id=which)
    await b.wait_for("chat:hello", n=1)
    await oracle.delete_stream(inboxes)

    async def sent() -> bool:
        try:
            return await a.send("chat", "hello", {"n": 2}, Id=which) == 1
        except JetStreamError:
            return False

    await eventually(sent)
    await b.wait_for("chat:hello", 30, n=2)
    assert of(jsclient.ErrorRaised, ground.events)  # it was reported


@pytest.mark.covers("P67")
async def test_durable_until_removed(ground: ServerGround, oracle: Oracle, connect: Any) -> None:
    js = await connect(ground.url)
    inboxes, state = ground.streams
    async with Engine(js, prefix=ground.prefix) as engine:
        a, b = await engine.peer("a"), await engine.peer("b")
        await related(a, b)
        await a.close()
        assert set(await oracle.consumer_names(inboxes)) == {"a", "b"}
        assert engine.peers["b"] is b
        await engine.remove("a")
        await b.wait_for(REMOVED)
        assert await oracle.consumer_names(inboxes) == ["b"]
        subjects = [message.subject for message in await oracle.messages(state)]
        assert not [subject for subject in subjects if subject.startswith(f"{ground.prefix}.state.a.")]
    assert await oracle.consumer_names(inboxes) == ["b"]
    assert js.is_connected


async def test_engine_leaves_nothing_behind(
    ground: ServerGround, oracle: Oracle, server: Any, connect: Any
) -> None:
    await (await (await ground.engine()).peer("a")).close()
    await (await (await ground.engine()).peer("b")).close()
    js = await connect(ground.url)
    await js.account_info()
    await oracle.stream_names()
    async with no_leaks(oracle=oracle, streams=ground.streams, monitor=server.monitor):
        for close in (True, False):
            engine = Engine(js, prefix=ground.prefix)
            a, b = await engine.peer("a"), await engine.peer("b")
            await related(a, b)
            await a.close()
            if close:
                await engine.close()
        # The connection ends: so does the engine that is on it.
        await js.close()
        assert b.is_closed
    with pytest.raises(jsclient.ClosedError):
        await engine.peer("c")


async def test_engine_on_nats_py(ground: ServerGround, natspy_js: Any) -> None:
    engine = Engine(natspy_js, prefix=ground.prefix, **FAST)
    a, b = await engine.peer("a"), await engine.peer("b")
    which = await related(a, b)
    b.answers("door", "state")(lambda: "open")
    await a.send("door", "shut", Id=which)
    await b.wait_for("door:shut")
    assert await a.query(which, "door", "state") == "open"
    await engine.close()


async def test_two_processes_may_overlap(ground: ServerGround) -> None:
    """In a rolling restart, a process that does not know a relationship yet does not refuse its events."""
    old, new = await ground.engine(), await ground.engine()
    a = await (await ground.engine()).peer("a")
    pair = [await engine.peer("b") for engine in (old, new)]
    got: list[int] = []
    for b in pair:
        b.auto_accept(lambda attrs: True)
        b.on("count:up", noting(got, lambda event: event["n"]))
        b.answers("count", "size")(lambda: 3)
    wk = await pair[0].wellKnown_Rx()
    assert await pair[1].wellKnown_Rx() == wk
    ids = [await a.request(wk) for _ in range(5)]
    for which in ids:
        await a.wait_for(ADDED, Id=which)
    for number, which in enumerate(ids * 6):
        await a.send("count", "up", {"n": number}, Id=which)
        assert await a.query(which, "count", "size") == 3
    await eventually(lambda: sorted(got) == list(range(30)))
    assert all(b.refused == {} for b in pair)
    await pair[0].cancel(ids[0])  # one that the other process may have made
    await a.wait_for(REMOVED, Id=ids[0])


@pytest.mark.parametrize(
    ("which", "config"),
    [
        (0, {"max_age": 0}),
        (0, {"max_age": 10**9 * 86400 * 30}),
        (0, {"max_age": 10**9, "retention": "interest"}),
        (1, {"max_msgs_per_subject": 2}),
        (1, {"max_msgs_per_subject": 1, "max_age": 10**9}),
    ],
    ids=["no age", "too long", "interest", "two of a key", "state that ages"],
)
async def test_streams_do_not_fit_refused(
    ground: ServerGround, oracle: Oracle, which: int, config: dict[str, Any]
) -> None:
    subject = f"{ground.prefix}.{('ev', 'state')[which]}.>"
    await oracle.create_stream(ground.streams[which], [subject], **config)
    with pytest.raises(ConfigError, match=ground.streams[which]):
        await ground.engine()


async def test_name_none_refused(ground: ServerGround, oracle: Oracle) -> None:
    engine = await ground.engine()
    for name in ("", "a.b", "a b", "*", "a/b"):
        with pytest.raises(jsclient.InvalidNameError):
            await engine.peer(name)
    assert engine.peers == {}
    assert (await oracle.state(ground.streams[1]))["messages"] == 0
    assert await engine.peer("ok") is (await asyncio.gather(engine.peer("ok"), engine.peer("ok")))[1]


async def test_a_hostile_peer_meets_limits(ground: ServerGround) -> None:
    """An approval of someone else's request, a removal by a guess, a state that cannot be."""
    engine = await ground.engine(max_inbound=2)
    a, b, evil = [await engine.peer(name) for name in ("a", "b", "evil")]
    which = await related(a, b)
    mine = await related(evil, b, Id="mine")
    wk = await b.wellKnown_Rx()
    (tx,) = [one["Tx"] for one in evil.established()]
    await evil.event_send(tx, "wrangler", "established_removal", {"Id": which})
    await evil.event_send(wk, "wrangler", "inbound_removal", {"Id": which, "Tx": "evil.guess"})
    await evil.event_send(wk, "wrangler", "new_subscription_request", {"Id": which, "Tx": "evil.x"})
    await eventually(lambda: b.refused[Refusal.FOREIGN] == 1)
    await b.wait_for("wrangler:duplicate_id_failure")
    assert {one["Id"] for one in b.established()} == {which, mine}
    for number in range(4):  # two wait here, the others at their destination
        await evil.event_send(
            wk, "wrangler", "new_subscription_request", {"Id": f"n{number}", "Tx": f"evil.n{number}"}
        )
    await eventually(lambda: len(b.inbound()) == 2)
    await b.reject(b.inbound()[0]["Id"])
    await eventually(lambda: len(b.inbound()) == 2)
    with pytest.raises(QueryRefusedError, match="POLICY"):
        await evil.query(wk, "subscription", "inbound")
    assert not of(EventGivenUp, ground.events)
    assert isinstance(b, Peer)


@pytest.mark.covers("P29", "P62")
async def test_server_stores_event_for_the_one_named(ground: ServerGround, oracle: Oracle) -> None:
    """Sent by Id, one message is stored, for that relationship. Ended by Id, Rx or Tx, only this relationship ends."""
    engine = await ground.engine()
    hub, peers = await engine.peer("hub"), [await engine.peer(f"p{number}") for number in range(3)]
    ids = [await related(hub, peer, Rx_role="owner", Tx_role="thing") for peer in peers]
    got: list[tuple[str, int]] = []
    for peer in peers:
        peer.on("set:state", noting(got, lambda event, peer=peer: (peer.name, event["n"])))
    events, state = ground.streams
    tx = {one["Id"]: one["Tx"] for one in hub.established()}

    async def drained() -> bool:
        return bool((await oracle.state(events))["messages"] == 0)

    await eventually(drained)
    for number, which in enumerate(ids):
        before = (await oracle.state(events))["last_seq"]
        async with oracle.listen(f"{ground.prefix}.ev.>") as stored:
            assert await hub.send("set", "state", {"n": number}, Id=which) == 1
            await eventually(lambda number=number: got == [(f"p{n}", n) for n in range(number + 1)])
            await eventually(lambda stored=stored: stored)
        assert [message.subject for message in stored] == [f"{ground.prefix}.ev.{tx[which]}.set.state"]
        assert (await oracle.state(events))["last_seq"] == before + 1

    async def stored_keys() -> set[str]:
        """The Ids of the hub's relationships that the server has as established."""
        of_hub = f"{ground.prefix}.state.hub.relationship."
        actual = [
            json.loads(one.payload)
            for one in await oracle.messages(state)
            if one.subject.startswith(of_hub) and one.payload
        ]
        return {one["Id"] for one in actual if one["state"] == "established"}

    assert await stored_keys() == {*ids}
    for which, key in zip(list(ids), ("Id", "Rx", "Tx"), strict=True):
        (named,) = hub.established("Id", which)
        await hub.raise_event("wrangler:subscription_cancellation", {key: named[key]})
        ids.remove(which)
        assert await stored_keys() == {*ids}, key


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("excess", [3, 1200])
async def test_excess_requests_do_not_hold_up_accepted_ones(ground: ServerGround, excess: int) -> None:
    """Undecided requests of strangers wait. Those that a rule takes, and other events, pass them."""
    engine = await ground.engine(max_inbound=2, retry_delay=2.0)
    b, evil = await engine.peer("b"), await engine.peer("evil")
    b.auto_accept(Rx_role="thing")
    wk = await b.wellKnown_Rx()
    a = await (await ground.engine()).peer("a")
    mine = await a.request(wk, Tx_role="thing")
    await a.wait_for(ADDED, Id=mine)
    await asyncio.gather(
        *(
            evil.event_send(
                wk, "wrangler", "new_subscription_request", {"Id": f"n{number}", "Tx": f"evil.n{number}"}
            )
            for number in range(excess)
        )
    )
    await eventually(lambda: len(b.inbound()) == 2)
    await asyncio.sleep(0.5)  # the excess is in the middle of its pause of 2 s
    which = await a.request(wk, Tx_role="thing")
    # The server delivers redelivered messages before new messages, so this event may wait until the pauses have grown.
    # On a slow machine this takes a minute.
    await a.wait_for(ADDED, timeout=120, Id=which)
    await a.send("door", "open", Id=mine)
    await b.wait_for("door:open", timeout=20)
    assert len(b.inbound()) == 2
