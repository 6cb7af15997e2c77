"""Channels, peers that are away, handlers and queries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.calls.peers import ADDED, INBOUND, OUTBOUND, REMOVED, lists, names, requested
from integration.kit.clients.peers import Ground, LocalGround, ServerGround, received_events, related
from integration.kit.judge.reading import noting
from integration.kit.judge.waiting import eventually
from jsclient import ClosedError, ConfigError, NoRespondersError, RequestTimeoutError
from jsclient.peers import (
    Engine,
    EventGivenUp,
    EventRefused,
    Peer,
    PeerHandlerFailed,
    Policy,
    QueryRefusedError,
    Refusal,
    open_policy,
)


@pytest.fixture(params=["server", "local"])
def url(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "local" else request.getfixturevalue("server").url


@pytest.fixture
async def ground(url: str | None) -> AsyncIterator[Ground]:
    ground = LocalGround() if url is None else ServerGround(url)
    yield ground
    await ground.close()


@pytest.fixture
async def two(ground: Ground) -> tuple[Peer, Peer]:
    """Two peers, each in a separate engine."""
    return await (await ground.engine()).peer("a"), await (await ground.engine()).peer("b")


# --- channels ----------------------------------------------------------------------------------------------


@pytest.mark.covers("P1", "P7", "P8", "P13", "P14", "P15")
async def test_well_known_channel_stays_same(ground: Ground) -> None:
    engine = await ground.engine()
    a, b = await engine.peer("a"), await engine.peer("b")
    wk = await b.wellKnown_Rx()
    (channel,) = b.channels()
    assert (channel.eci, channel.tags) == (wk, ("wellKnown_Rx", "Tx_Rx"))
    assert await a.query(wk, "subscription", "wellKnown_Rx") == wk
    await engine.close()
    again = await (await ground.engine()).peer("b")
    assert await again.wellKnown_Rx() == wk


@pytest.mark.covers("P9", "P10", "P11", "P60")
async def test_well_known_takes_requests(two: tuple[Peer, Peer], ground: Ground) -> None:
    a, b = two
    which = await related(a, b)
    reports = received_events(b)
    wk = await b.wellKnown_Rx()
    for event, attrs in (
        ("wrangler:subscription", {"wellKnown_Tx": await a.wellKnown_Rx()}),
        ("wrangler:established_removal", {"Id": which}),
        ("wrangler:subscription_cancellation", {"Id": which}),
        ("door:open", {}),
    ):
        await a.event_send(wk, *event.split(":"), attrs)
    await eventually(lambda: b.refused[Refusal.POLICY] == 4)
    for rid, name in (("subscription", "established"), ("door", "state")):
        with pytest.raises(QueryRefusedError, match="POLICY"):
            await a.query(wk, rid, name)
    await eventually(lambda: [event.count for event in ground.reports(EventRefused)] == [1, 2, 4])
    assert reports == []
    assert len(b.established()) == 1
    await a.event_send(wk, "wrangler", "new_subscription_request", {"Id": "x"})
    assert "without Tx" in (await b.wait_for("wrangler:no_Tx_failure")).error
    await a.event_send(wk, "wrangler", "new_subscription_request", {"Id": "x", "Tx": 3})
    await eventually(lambda: b.refused[Refusal.MALFORMED] == 1)
    assert b.inbound() == []


@pytest.mark.covers("P1", "P12")
async def test_request_may_come_on_another_channel(two: tuple[Peer, Peer]) -> None:
    a, b = two
    channel = await b.new_channel(["child"], open_policy())
    assert (channel.tags, channel.eci.split(".")[0]) == (("child",), "b")
    which = await a.request(channel.eci)
    await b.wait_for(INBOUND, Id=which)
    await a.event_send(channel.eci, "door", "opened")
    assert (await b.wait_for("door:opened")).eci == channel.eci
    await b.remove_channel(channel.eci)
    await a.event_send(channel.eci, "door", "opened")
    await eventually(lambda: b.refused[Refusal.NO_CHANNEL] == 1)
    for eci in (channel.eci, await b.wellKnown_Rx(), b.inbound()[0]["Rx"]):
        with pytest.raises(ConfigError, match="only those can be removed"):
            await b.remove_channel(eci)
    closed = await b.new_channel()
    await a.event_send(closed.eci, "door", "opened")
    await eventually(lambda: b.refused[Refusal.POLICY] == 1)


@pytest.mark.covers("P1", "P10", "P11")
async def test_each_side_says_may_pass_on_channel(two: tuple[Peer, Peer]) -> None:
    a, b = two
    which = await a.request(await b.wellKnown_Rx(), policy=Policy(events=("feed:*",), queries=("feed:size",)))
    await b.wait_for(INBOUND)
    await b.approve(which)
    for peer in two:
        await peer.wait_for(ADDED)
    a.answers("feed", "size")(lambda: 3)
    a.answers("feed", "secret")(lambda: 4)
    await b.send("door", "open", Id=which)
    await b.send("wrangler", "subscription_cancellation", Id=which)
    await b.send("feed", "row", {"n": 1}, Id=which)
    assert (await a.wait_for("feed:row"))["n"] == 1
    assert a.refused[Refusal.POLICY] == 2
    assert await b.query(which, "feed", "size") == 3
    with pytest.raises(QueryRefusedError, match="POLICY"):
        await b.query(which, "feed", "secret")
    # Without a policy the other side cannot make a peer ask for anything.
    await a.send("wrangler", "subscription_cancellation", Id=which)
    await eventually(lambda: b.refused[Refusal.POLICY] == 1)
    with pytest.raises(ConfigError, match="denies"):
        await a.request(await b.wellKnown_Rx(), policy=Policy(deny_events=("wrangler:established_removal",)))
    await b.cancel(which)  # the relationship's own events pass anyway
    await a.wait_for(REMOVED)


@pytest.mark.covers("P5")
async def test_without_capability_no_part(ground: Ground) -> None:
    engine = await ground.engine()
    a, c = await engine.peer("a"), await engine.peer("c", capability=False)
    with pytest.raises(ConfigError, match="capability"):
        await c.wellKnown_Rx()
    with pytest.raises(ConfigError, match="capability"):
        await c.request(await a.wellKnown_Rx())
    channel = await c.new_channel(["open"], open_policy())
    await a.request(channel.eci)
    await eventually(lambda: c.refused[Refusal.NOT_INSTALLED] == 1)
    await a.event_send(channel.eci, "door", "opened")
    await c.wait_for("door:opened")


# --- who is away -------------------------------------------------------------------------------------------


async def reopened(ground: Ground, engine: Engine, name: str) -> tuple[Engine, Peer]:
    await engine.close()
    again = await ground.engine()
    return again, await again.peer(name)


@pytest.mark.covers("P47", "P65")
async def test_asked_while_peer_away_waits_for(ground: Ground) -> None:
    one, other = await ground.engine(), await ground.engine()
    a, b = await one.peer("a"), await other.peer("b")
    wk = await b.wellKnown_Rx()
    await other.close()
    which = await a.request(wk, note="hello")
    revoked = await a.request(wk)
    await a.revoke(revoked)
    await a.wait_for("wrangler:outbound_subscription_cancelled")

    other = await ground.engine()
    events: list[Any] = []
    b = await other.peer("b", handlers={"*:*": noting(events)})
    soon = received_events(b)  # soon enough, as no event was reported yet
    assert (await b.wait_for(INBOUND, Id=which))["note"] == "hello"
    one, a = await reopened(ground, one, "a")
    assert lists(a) == (1, 0, 0)
    await b.approve(which)
    await a.wait_for(ADDED, Id=which)
    assert await a.send("chat", "hello", Id=which) == 1
    await b.wait_for("chat:hello")
    assert [one["Id"] for one in b.established()] == [which]
    assert b.inbound() == []
    assert [event["Id"] for event in events if event.type == "subscription_added"] == [which]
    assert soon == events


async def test_handlers_not_told_told_next_time(ground: Ground) -> None:
    one, other = await ground.engine(handler_delay=60.0), await ground.engine()
    a, b = await one.peer("a"), await other.peer("b")

    @a.on(OUTBOUND)
    def never(event: Any) -> None:
        raise OSError("the disk is full")

    which = await a.request(await b.wellKnown_Rx())
    failed = await eventually(lambda: ground.reports(PeerHandlerFailed))
    assert (failed[0].peer, failed[0].event, failed[0].attempt) == ("a", OUTBOUND, 1)
    _, a = await reopened(ground, one, "a")
    assert (await a.wait_for(OUTBOUND))["Id"] == which
    await b.wait_for(INBOUND)


@pytest.mark.covers("P67")
async def test_peer_removed_ends_all_relationships(ground: Ground) -> None:
    engine, other = await ground.engine(), await ground.engine()
    a, b = await engine.peer("a"), await other.peer("b")
    established = await related(a, b)
    outbound = await requested(a, b)
    inbound = await requested(b, a)
    wk = await a.wellKnown_Rx()
    await engine.remove(a)
    await b.wait_for(REMOVED, Id=established)
    await b.wait_for("wrangler:inbound_subscription_cancelled", Id=outbound)
    await b.wait_for("wrangler:outbound_subscription_cancelled", Id=inbound)
    assert lists(b) == (0, 0, 0)
    assert a.is_closed
    assert engine.peers == {}
    with pytest.raises(ClosedError):
        await a.request(wk)
    anew = await engine.peer("a")
    assert await anew.wellKnown_Rx() != wk
    assert lists(anew) == (0, 0, 0)
    await anew.close()
    assert engine.peers == {}
    await engine.remove(anew)
    assert await (await engine.peer("a")).wellKnown_Rx() != await anew.wellKnown_Rx()


async def test_removal_waits_for_others(ground: Ground) -> None:
    engine, other = await ground.engine(handler_delay=60.0), await ground.engine()
    a, b = await engine.peer("a"), await other.peer("b")
    await related(a, b)
    a.on(REMOVED, lambda event: 1 / 0)
    with pytest.raises(RequestTimeoutError, match="removing peer 'a'"):
        await engine.remove("a", timeout=0.2)
    await b.wait_for(REMOVED)
    wk = await a.wellKnown_Rx()
    assert await b.query(wk, "subscription", "wellKnown_Rx") == wk  # it is still there
    engine, _ = await reopened(ground, engine, "a")
    await engine.remove("a")
    assert engine.peers == {}


# --- handlers, queries, ends -------------------------------------------------------------------------------


async def test_event_retried_until_handled(two: tuple[Peer, Peer], ground: Ground) -> None:
    a, b = two
    which = await related(a, b)
    tries: list[Any] = []

    @b.on("job:*")
    async def work(event: Any) -> None:
        tries.append(event["n"])
        if event["n"] == 1 or (event["n"] == 2 and tries.count(2) < 2):
            raise ValueError("not now")

    for number in (1, 2, 3):
        await a.send("job", "todo", {"n": number}, Id=which)
    await eventually(lambda: ground.reports(EventGivenUp))
    await eventually(lambda: sorted(tries) == [1, 1, 1, 2, 2, 3])
    (reported,) = ground.reports(EventGivenUp)
    assert (reported.peer, reported.event, reported.attempts) == ("b", "job:todo", 3)
    assert str(reported.error) == "not now"
    assert [one.retry_in is None for one in ground.reports(PeerHandlerFailed) if one.attempt == 3] == [True]
    assert b.refused == {}


async def test_failing_event_abandoned(two: tuple[Peer, Peer], ground: Ground) -> None:
    a, b = two
    b.on(INBOUND, lambda event: 1 / 0)
    b.auto_accept(lambda attrs: True)
    await a.request(await b.wellKnown_Rx())
    await b.wait_for(ADDED)  # the messages after it are not lost
    (reported,) = await eventually(lambda: ground.reports(EventGivenUp))
    assert (reported.event, reported.attempts) == (INBOUND, 3)


async def test_peer_raises_in_itself_callers(ground: Ground) -> None:
    a = await (await ground.engine()).peer("a")
    reports = received_events(a, "door:*")
    await a.raise_event("door:opened", wide=True)
    assert (reports[0].name, reports[0]["wide"], reports[0].eci) == ("door:opened", True, None)
    a.on("door:closed", lambda event: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await a.raise_event("door:closed")
    with pytest.raises(RequestTimeoutError, match=r"door:opened with \{'wide': False\}"):
        await a.wait_for("door:opened", 0.01, wide=False)
    assert (await a.wait_for("door:*"))["wide"] is True


async def test_query_not_answered_says_why(two: tuple[Peer, Peer], ground: Ground) -> None:
    a, b = two
    which = await related(a, b)

    @b.answers("lamp", "broken")
    def broken() -> None:
        raise OSError("a secret path")

    @b.answers("lamp", "odd")
    def odd() -> object:
        return object()

    @b.answers("lamp", "slow")
    async def slow() -> None:
        await asyncio.sleep(0.5)

    for name, refusal in (("none", "UNKNOWN"), ("broken", "FAILED"), ("odd", "FAILED")):
        with pytest.raises(QueryRefusedError, match=refusal) as caught:
            await a.query(which, "lamp", name)
        assert "secret" not in str(caught.value)
    with pytest.raises(QueryRefusedError, match="FAILED"):
        await a.query(which, "lamp", "odd", {"unknown": 1})
    with pytest.raises(QueryRefusedError, match="NO_CHANNEL"):
        await a.query("b.guess", "lamp", "state")
    with pytest.raises(QueryRefusedError, match="MALFORMED"):
        await a.query(which, "subscription", "nonsense")
    with pytest.raises(RequestTimeoutError):
        await a.query(which, "lamp", "slow", timeout=0.05)
    failed = await eventually(lambda: ground.reports(PeerHandlerFailed))
    assert "a secret path" in str(failed[0].error)
    await b.close()
    with pytest.raises(NoRespondersError):
        await a.query(which, "lamp", "state")
    with pytest.raises(ConfigError, match="own"):
        a.answers("subscription", "established")(odd)


async def test_peer_closed_says_so_and_comes_back(two: tuple[Peer, Peer], ground: Ground) -> None:
    a, b = two
    which = await related(a, b)
    waiting = asyncio.create_task(a.wait_for("never:comes"))
    await asyncio.sleep(0)
    await a.close()
    await a.close()
    with pytest.raises(ClosedError):
        await waiting
    for call in (a.cancel(which), a.send("x", "y", Id=which), a.query(which, "x", "y"), a.new_channel()):
        with pytest.raises(ClosedError):
            await call
    await b.send("chat", "hello", Id=which)
    engine = await ground.engine()
    again = await engine.peer("a")
    assert again is await engine.peer("a")
    await again.wait_for("chat:hello")
    await engine.close()
    with pytest.raises(ClosedError):
        await engine.peer("a")


@pytest.mark.parametrize("what", ["peer", "engine"])
@pytest.mark.parametrize("event", ["chat:bye", REMOVED])
async def test_handler_may_close_peer(
    ground: Ground, what: str, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsclient.peers.peer._GRACE", 60.0)
    engine = await ground.engine()
    a, b = await (await ground.engine()).peer("a"), await engine.peer("b")
    which = await related(a, b)
    closed = asyncio.Event()

    @b.on(event)
    async def bye(event: Any) -> None:
        await (b if what == "peer" else engine).close()
        closed.set()

    await (a.send("chat", "bye", Id=which) if event == "chat:bye" else a.cancel(which))
    async with asyncio.timeout(20):  # sooner than handlers are cancelled
        await closed.wait()
    assert b.is_closed


@pytest.mark.parametrize("event", ["chat:bye", REMOVED])
async def test_running_handler_may_end(ground: Ground, event: str) -> None:
    engine = await ground.engine()
    a, b = await (await ground.engine()).peer("a"), await engine.peer("b")
    which = await related(a, b)
    running, done = asyncio.Event(), []

    @b.on(event)
    async def slow(event: Any) -> None:
        running.set()
        await asyncio.sleep(0.2)
        done.append(event.name)

    await (a.send("chat", "bye", Id=which) if event == "chat:bye" else a.cancel(which))
    await running.wait()
    _, b = await reopened(ground, engine, "b")
    reports = received_events(b)
    assert done == [event]
    await requested(a, b)
    assert names(reports) == ["inbound_pending_subscription_added"]  # it is not reported again
