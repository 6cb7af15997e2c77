"""Relationships between two peers on a server, from the first request to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.calls.peers import ADDED, INBOUND, OUTBOUND, REMOVED, lists, names, requested
from integration.kit.clients.peers import Ground, LocalGround, ServerGround, received_events, related
from integration.kit.judge.reading import noting
from integration.kit.judge.waiting import eventually
from jsclient import ConfigError, InvalidNameError
from jsclient.peers import (
    EventRefused,
    Peer,
    PeerError,
    Refusal,
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


# --- a relationship begins ---------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.covers(
    "P2", "P3", "P4", "P6", "P16", "P17", "P18", "P19", "P23", "P33", "P34", "P35", "P36", "P37", "P39",
    "P41", "P43", "P44", "P45", "P46", "P47", "P48", "P49", "P50",
)  # fmt: skip
async def test_relationship_requested_and_approved(two: tuple[Peer, Peer]) -> None:
    a, b = two
    of_a, of_b = received_events(a), received_events(b)
    wk = await b.wellKnown_Rx()
    await a.raise_event(
        "wrangler:subscription", wellKnown_Tx=wk, Id="fleet", Rx_role="owner", Tx_role="thing", note="hello"
    )
    request = await b.wait_for(INBOUND)
    await a.wait_for(OUTBOUND)
    assert request["note"] == "hello"
    assert (request["Id"], request["Rx_role"], request["Tx_role"]) == ("fleet", "thing", "owner")
    assert (request["name"], request["channel_type"], request["Tx_host"]) == ("fleet", "subscription", None)
    assert lists(a) == (1, 0, 0)
    assert lists(b) == (0, 1, 0)
    (pending,) = a.outbound()
    assert request["Tx"] == pending["Rx"]
    assert pending["Tx"] is None

    await b.raise_event("wrangler:pending_subscription_approval", Rx=request["Rx"], since=17)
    added_b, added_a = await b.wait_for(ADDED), await a.wait_for(ADDED)
    assert lists(a) == lists(b) == (0, 0, 1)
    (one,), (other,) = a.established(), b.established()
    assert (one["Tx"], one["Rx"]) == (other["Rx"], other["Tx"])
    assert one["Rx"] == pending["Rx"]
    assert (one["Rx_role"], one["Tx_role"]) == (other["Tx_role"], other["Rx_role"]) == ("owner", "thing")
    assert one["Id"] == other["Id"] == "fleet"
    for added, mine in ((added_a, one), (added_b, other)):
        assert mine.items() <= added.attrs.items()
        assert (added["note"], added["since"]) == ("hello", 17)
    assert names(of_a) == [
        "subscription_request_needed", "outbound_pending_subscription_added", "subscription_added",
    ]  # fmt: skip
    assert names(of_b) == ["inbound_pending_subscription_added", "subscription_added"]


@pytest.mark.covers("P20", "P21", "P33")
@pytest.mark.parametrize("which", ["Id", "Rx", "all"])
async def test_request_approved_by_event(two: tuple[Peer, Peer], which: str) -> None:
    a, b = two

    @b.on(INBOUND)
    async def approve(event: Any) -> None:
        attrs = event.attrs if which == "all" else {which: event[which]}
        await b.raise_event("wrangler:pending_subscription_approval", attrs)

    one = await a.request(await b.wellKnown_Rx())
    other = await a.request(await b.wellKnown_Rx())
    assert one != other
    for peer in (a, b):
        for which_one in (one, other):
            await peer.wait_for(ADDED, Id=which_one)


@pytest.mark.covers("P23", "P28")
async def test_who_told_of_can_send_at_once(two: tuple[Peer, Peer]) -> None:
    a, b = two
    mine = {}

    @a.on(ADDED)
    async def greet(event: Any) -> None:
        mine[event["Id"]] = event.attrs
        await a.event_send(event.attrs, "chat", "hello", {"from": "a"})

    @b.on(ADDED)
    async def greet_back(event: Any) -> None:
        await b.send("chat", "hello", {"from": "b"}, Id=event["Id"])

    which = await related(a, b)
    at_b = await b.wait_for("chat:hello")
    assert (at_b["from"], at_b.relationship["Id"]) == ("a", which)
    assert (await a.wait_for("chat:hello"))["from"] == "b"
    assert mine.keys() == {which}


@pytest.mark.covers("P66")
async def test_requests_approved_by_rule(two: tuple[Peer, Peer]) -> None:
    a, b = two
    b.auto_accept(Rx_role="thing")
    b.auto_accept(lambda attrs: attrs.get("code") == 42)
    wk = await b.wellKnown_Rx()
    by_role = await a.request(wk, Tx_role="thing")
    by_code = await a.request(wk, code=42)
    neither = await a.request(wk, Tx_role="boss")
    for which in (by_role, by_code):
        await a.wait_for(ADDED, Id=which)
    await b.wait_for(INBOUND, Id=neither)
    assert [one["Id"] for one in b.inbound()] == [neither]
    for wrong in ({}, {"rule": lambda attrs: True, "Rx_role": "x"}):
        with pytest.raises(ConfigError, match="auto_accept"):
            b.auto_accept(**wrong)


# --- it ends -----------------------------------------------------------------------------------------------


@pytest.mark.covers("P22", "P51", "P52", "P64")
async def test_a_request_is_rejected(two: tuple[Peer, Peer]) -> None:
    a, b = two
    which = await requested(a, b)
    of_a, of_b = received_events(a), received_events(b)
    rx = b.inbound()[0]["Rx"]
    await b.raise_event("wrangler:inbound_rejection", Rx=rx, why="no room")
    cancelled = await a.wait_for("wrangler:outbound_subscription_cancelled")
    assert (cancelled["Id"], cancelled["why"]) == (which, "no room")
    await b.wait_for("wrangler:inbound_subscription_cancelled")
    assert names(of_a) == ["outbound_removal", "outbound_subscription_cancelled"]
    assert names(of_b) == ["inbound_removal", "inbound_subscription_cancelled"]
    assert lists(a) == lists(b) == (0, 0, 0)
    await a.event_send(rx, "chat", "hello")  # its channel is gone
    await eventually(lambda: b.refused[Refusal.CHANNEL_GONE] == 1)


@pytest.mark.covers("P53", "P54", "P64")
async def test_a_request_is_revoked(two: tuple[Peer, Peer]) -> None:
    a, b = two
    await requested(a, b)
    of_a, of_b = received_events(a), received_events(b)
    rx = a.outbound()[0]["Rx"]
    await a.raise_event("wrangler:outbound_cancellation", Rx=rx)
    await b.wait_for("wrangler:inbound_subscription_cancelled")
    await a.wait_for("wrangler:outbound_subscription_cancelled")
    assert names(of_a) == ["outbound_removal", "outbound_subscription_cancelled"]
    assert names(of_b) == ["inbound_removal", "inbound_subscription_cancelled"]
    assert lists(a) == lists(b) == (0, 0, 0)
    await b.event_send(rx, "chat", "hello")
    await eventually(lambda: a.refused[Refusal.CHANNEL_GONE] == 1)


@pytest.mark.core_cases(4)
@pytest.mark.covers("P24", "P25", "P55", "P56", "P57", "P58", "P62")
@pytest.mark.parametrize("by", ["Id", "Rx", "Tx"])
@pytest.mark.parametrize("who", [0, 1], ids=["requester", "accepter"])
async def test_either_side_ends_it(two: tuple[Peer, Peer], who: int, by: str) -> None:
    which = await related(*two)
    ends, other = two[who], two[1 - who]
    (record,) = ends.established()
    events = [received_events(peer) for peer in two]
    await ends.raise_event("wrangler:subscription_cancellation", {by: record[by]}, reason="enough")
    for peer in two:
        removed = await peer.wait_for(REMOVED)
        assert (removed["Id"], removed["reason"]) == (which, "enough")
        assert lists(peer) == (0, 0, 0)
    for reports in events:
        assert names(reports) == ["established_removal", "subscription_removed"]
    await ends.event_send(record["Tx"], "chat", "hello")
    await eventually(lambda: other.refused[Refusal.CHANNEL_GONE] == 1)
    with pytest.raises(PeerError, match="no relationship"):
        await ends.send("chat", "hello", Id=which)


@pytest.mark.covers("P55", "P65")
async def test_both_end_it_at_once(two: tuple[Peer, Peer]) -> None:
    a, b = two
    which = await related(a, b)
    events = [received_events(peer) for peer in two]
    await asyncio.gather(a.cancel(which), b.cancel(which), a.cancel(which))
    for peer in two:
        await peer.wait_for(REMOVED)
    for reports in events:
        assert names(reports).count("subscription_removed") == 1

    async def anew() -> bool:
        """The Id may be used again, when the end of the former one was reported."""
        try:
            return await related(a, b, Id=which) == which
        except PeerError:
            return False

    await eventually(anew)


@pytest.mark.covers("P65")
async def test_comes_twice_changes_nothing(two: tuple[Peer, Peer], ground: Ground) -> None:
    a, b = two
    wk = await b.wellKnown_Rx()
    which = await requested(a, b)
    (pending,) = a.outbound()
    request = {"Id": which, "Tx": pending["Rx"], "Tx_role": None}
    await a.event_send(wk, "wrangler", "new_subscription_request", request)
    await b.approve(which)
    for peer in two:
        await peer.wait_for(ADDED)
    before = [peer.established() for peer in two]
    (at_b,) = b.established()
    of_a, of_b = received_events(a, "wrangler:*", "done:*"), received_events(b, "wrangler:*", "done:*")
    await b.event_send(at_b, "wrangler", "outbound_pending_subscription_approved", {"Tx": at_b["Rx"]})
    await a.event_send(wk, "wrangler", "new_subscription_request", request)
    await b.approve(which)
    # Messages on another channel may overtake, so the end of the test is sent on the same channels.
    await b.send("done", "now", Id=which)
    await a.wait_for("done:now")
    await requested(a, b, Id="next")
    assert [peer.established() for peer in two] == before
    assert names(of_a) == ["now", "subscription_request_needed", "outbound_pending_subscription_added"]
    assert names(of_b) == ["inbound_pending_subscription_added"]
    assert not ground.reports(EventRefused)


# --- sending -----------------------------------------------------------------------------------------------


@pytest.mark.covers("P29", "P30", "P31", "P32")
async def test_send_by_id_and_roles(ground: Ground) -> None:
    engine, other = await ground.engine(), await ground.engine()
    hub = await engine.peer("hub")
    ids, got = [], []
    for number, (mine, theirs) in enumerate([("owner", "thing"), ("owner", "lamp"), ("guest", "lamp")]):
        peer = await other.peer(f"p{number}")
        peer.on("set:state", noting(got, lambda event, number=number: (number, event["n"])))
        ids.append(await related(hub, peer, Rx_role=mine, Tx_role=theirs))

    async def sent(count: int, **to: Any) -> list[int]:
        got.clear()
        assert await hub.send("set", "state", {"n": count}, **to) == count
        await eventually(lambda: len(got) == count)
        assert {n for _, n in got} == {count}
        return sorted(number for number, _ in got)

    assert await sent(1, Id=ids[2]) == [2]
    assert await sent(2, Tx_role="lamp") == [1, 2]
    assert await sent(2, Rx_role="owner") == [0, 1]
    assert await sent(3, Id=ids[0], Tx_role="lamp", Rx_role="owner") == [0, 1, 2]
    got.clear()
    await hub.raise_event(
        "wrangler:send_event_on_subs", domain="set", type="state", attrs={"n": 1}, subID=ids[1]
    )
    await eventually(lambda: got == [(1, 1)])


@pytest.mark.covers("P26", "P27", "P40", "P61")
async def test_relationship_attributes(two: tuple[Peer, Peer]) -> None:
    a, b = two
    which = await related(a, b, Tx_role="lamp")
    await related(a, b, Tx_role="door")

    @b.answers("lamp", "state")
    async def state(room: str, default: str = "off") -> dict[str, str]:
        return {room: default}

    assert len(a.established()) == 2
    assert a.established("Tx_role", "window") == a.established("nothing", None) == []
    (actual,) = a.established("Tx_role", "lamp")
    assert actual["Id"] == which
    await a.event_send(actual["Tx"], "lamp", "on", {"level": 3}, host=actual["Tx_host"])
    assert (await b.wait_for("lamp:on"))["level"] == 3
    assert await a.query(actual["Tx"], "lamp", "state", {"room": "hall"}) == {"hall": "off"}
    assert await a.query(actual, "lamp", "state", {"room": "hall", "default": "on"}) == {"hall": "on"}
    assert await a.query(
        which, "subscription", "established", {"key": "Id", "value": which}
    ) == b.established("Id", which)


@pytest.mark.covers("P59", "P62", "P63")
async def test_cannot_be_done_raised_and_reported(two: tuple[Peer, Peer]) -> None:
    a, b = two
    await related(a, b)
    reports = received_events(a)

    async def fails(event: str, match: str, call: Any) -> None:
        with pytest.raises(PeerError, match=match) as caught:
            await call
        assert caught.value.event == f"wrangler:{event}"
        assert reports[-1].name == caught.value.event
        assert reports[-1].error.endswith(caught.value.reason)

    raised = a.raise_event
    await fails("wellKnown_Tx_format_failure", "ECI", raised("wrangler:subscription", Rx_role="x"))
    await fails("no_such_subscription_failure", "wrong", a.approve("wrong"))
    await fails("failed_to_send_event_to_sub", "no relationship", a.send("chat", "hello", Tx_role="nobody"))
    api = "wrangler:send_event_on_subs"
    await fails("failed_to_send_event_to_sub", "no domain", raised(api, type="x", Id="y"))
    await fails("failed_to_send_event_to_sub", "no type", raised(api, domain="x", Id="y"))
    await fails("Tx_host_failure", "allowed", a.request(await b.wellKnown_Rx(), Tx_host="nats://elsewhere:1"))
    with pytest.raises(PeerError, match="is established"):
        await a.query("wrong", "lamp", "state")
    for attrs in ({"x": object()}, {"x": "y" * 200_000}):
        with pytest.raises(ConfigError):
            await a.event_send(await b.wellKnown_Rx(), "chat", "hello", attrs)
    with pytest.raises(ConfigError, match="domain:type"):
        await raised("nonsense")
    with pytest.raises(InvalidNameError):
        await a.event_send(await b.wellKnown_Rx(), "a.b", "hello")
