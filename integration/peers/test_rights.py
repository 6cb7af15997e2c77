"""The abilities of strangers with limited rights against peers, and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.calls.peer_server import INBOUND, REMOVED, of
from integration.kit.clients.peers import FAST, ServerGround, related
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from jsclient import ApiError, PermissionDeniedError
from jsclient.events import RecordSkipped
from jsclient.peers import (
    Engine,
    EventGivenUp,
    EventRefused,
    Permissions,
    Policy,
    QueryRefusedError,
    Refusal,
    open_policy,
)
from jsclient.protocol.peers.channel import event_subject, query_subject


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


def with_guest(permissions: dict[str, Any] | None) -> dict[str, Any]:
    users = [{"user": "team", "password": "x"}]
    if permissions is not None:
        users.append({"user": "guest", "password": "y", "permissions": permissions})
    return {"authorization": {"users": users}}


async def give_rights(own: Any, permissions: Permissions) -> None:
    """Add a guest to the server. It starts again: before 2.11 a reload of users takes streams from their subjects."""
    own.process.config = own._with(with_guest(permissions.to_config()))
    await own.restart()


@pytest.mark.covers("P9", "P10", "P11", "P38")
async def test_stranger_may_only_request(own_server: Any, events_of: Any, connect: Any) -> None:
    home, team = await own_server(), await own_server(config=with_guest(None))
    there, of_there = await events_of(
        team.url.replace("nats://", "nats://team:x@"), host=team.url, allowed_hosts=[home.url]
    )
    b = await there.peer("b")
    (public,) = b.channels()
    await give_rights(team, public.nats_permissions("_INBOX_guest"))
    await b.new_channel(["connected again"])
    guest = {"user": "guest", "password": "y", "inbox_prefix": "_INBOX_guest"}
    here, of_here = await events_of(home, host=home.url, allowed_hosts={team.url: guest})
    a = await here.peer("a")
    on_b = {"host": team.url}

    assert await a.query(public.eci, "subscription", "wellKnown_Rx", **on_b) == public.eci
    which = await a.request(public.eci, Tx_host=team.url)
    await b.wait_for(INBOUND, Id=which)
    await a.revoke(which)
    await b.wait_for("wrangler:inbound_subscription_cancelled", Id=which)

    for event in ("wrangler:subscription", "wrangler:established_removal", "door:open"):
        with pytest.raises(PermissionDeniedError):
            await a.event_send(public.eci, *event.split(":"), **on_b)
    for rid, name in (("subscription", "established"), ("door", "state")):
        with pytest.raises(PermissionDeniedError):
            await a.query(public.eci, rid, name, **on_b)
    with pytest.raises(PermissionDeniedError):  # nor on another channel
        await a.event_send("b.guess", "wrangler", "new_subscription_request", **on_b)
    js = await connect(team, **guest)
    for call in (js.stream("PICO_STATE"), js.publish("pico.state.b.secret", b"")):
        with pytest.raises(PermissionDeniedError):
            await call
    assert b.refused == {}  # all that the peer would have refused the server did
    assert not of(EventRefused, of_there)
    assert not of(EventGivenUp, of_here)


@pytest.mark.covers("P1", "P10")
async def test_rights_of_channel_those_of_policy(own_server: Any, events_of: Any, connect: Any) -> None:
    own = await own_server(config=with_guest(None))
    engine, _ = await events_of(own.url.replace("nats://", "nats://team:x@"))
    b = await engine.peer("b")
    policy = Policy(events=("feed:*", "door:open"), deny_events=("feed:drop",), queries=("feed:size",))
    channel = await b.new_channel(["guests"], policy)
    await give_rights(own, channel.nats_permissions("_INBOX_guest"))
    guest = {"user": "guest", "password": "y", "inbox_prefix": "_INBOX_guest"}
    js = await connect(own, **guest)
    for domain, name in (("feed", "row"), ("door", "open")):
        await js.publish(event_subject(channel.eci, domain, name), b"{}")
        await b.wait_for(f"{domain}:{name}")
    for domain, name in (("feed", "drop"), ("door", "shut")):
        with pytest.raises(PermissionDeniedError):
            await js.publish(event_subject(channel.eci, domain, name), b"{}")
    silent = await b.new_channel()
    assert silent.nats_permissions().to_config() == {
        "publish": {"deny": [">"]},
        "subscribe": {"deny": [">"]},
    }


STATE = "pico.state.b"


async def attack(js: Any, subjects: Any, targets: list[str]) -> None:
    """Send everything that a user may send, with these reply subjects: NATS does not check them."""
    for subject in subjects:
        for target in targets:
            for payload in (b"", b"{}", b"999"):
                await js._connection.publish(subject.replace("*", "x"), payload, reply=target)
    await js.ping()
    await asyncio.sleep(0.2)  # answers of the server are stored some time after the pong


def skipped_subjects(events: list[Any]) -> set[str]:
    return {event.subject for event in of(RecordSkipped, events)}


@pytest.mark.covers("P9")
async def test_answer_stored_as_state_blocks_nothing(own_server: Any, events_of: Any, connect: Any) -> None:
    own = await own_server(config=with_guest(None))
    url = own.url.replace("nats://", "nats://team:x@")
    engine, _ = await events_of(url)
    b, a = await engine.peer("b"), await engine.peer("a")
    (public,) = b.channels()
    rights = public.nats_permissions("_INBOX_guest")
    await give_rights(own, rights)
    await b.new_channel(["connected again"])
    which = await related(a, b)
    js = await connect(own, user="guest", password="y", inbox_prefix="_INBOX_guest")
    state = [f"{STATE}.channel.wellKnown_Rx", f"{STATE}.secret", f"{STATE}.relationship.{which}"]
    await attack(js, rights.publish, state)
    await b.new_channel(["goes on"])
    await a.cancel(which)
    await b.wait_for(REMOVED, Id=which)
    await attack(js, rights.publish, state)
    await engine.close()

    again, events = await events_of(url)
    b, a = await again.peer("b"), await again.peer("a")
    assert skipped_subjects(events) >= {state[0]}
    await related(a, b)


@pytest.mark.covers("P10")
async def test_messages_of_strangers_remove_nothing(ground: ServerGround, oracle: Oracle) -> None:
    """On the keys of a running engine, which then reads new records. The records it knows still count."""
    engine = await ground.engine()
    a, b = await engine.peer("a"), await engine.peer("b")
    which = await related(a, b)
    a.answers("feed", "size")(lambda: 3)
    known, channel = a.established(), await a.wellKnown_Rx()
    for key in (f"relationship.{which}", "channel.wellKnown_Rx", "secret"):
        await oracle.publish(f"{ground.prefix}.state.a.{key}", b"{}")
    with pytest.raises(QueryRefusedError):
        await b.query(f"{channel}x", "feed", "size")  # an unknown channel: another process may have made it
    assert a.established() == known
    assert await a.wellKnown_Rx() == channel
    assert await b.query(which, "feed", "size") == 3
    await b.cancel(which)
    await a.wait_for(REMOVED, Id=which)


@pytest.mark.covers("P9")
@pytest.mark.server(">=2.11")
async def test_guests_of_other_account(own_server: Any, events_of: Any, connect: Any) -> None:
    """They request and ask as before, and the answers stay in their account."""

    def config(rights: dict[str, Any]) -> dict[str, Any]:
        team = {
            "jetstream": "enabled",
            "users": [{"user": "team", "password": "x"}],
            **rights.get("TEAM", {}),
        }
        guests = {"users": [{"user": "guest", "password": "y"}], **rights.get("GUESTS", {})}
        return {"accounts": {"TEAM": team, "GUESTS": guests}}

    home, own = await own_server(), await own_server(config=config({}))
    engine, _ = await events_of(
        own.url.replace("nats://", "nats://team:x@"), host=own.url, allowed_hosts=[home.url]
    )
    b = await engine.peer("b")
    (public,) = b.channels()
    rights = public.account_rights("TEAM", "GUESTS")
    own.process.config = own._with(config(rights))
    await own.restart()
    await b.new_channel(["connected again"])
    guest = {"user": "guest", "password": "y"}
    js = await connect(own, **guest)
    here, _ = await events_of(home, host=home.url, allowed_hosts={own.url: guest})
    a = await here.peer("a")
    assert await a.query(public.eci, "subscription", "wellKnown_Rx", host=own.url) == public.eci
    which = await a.request(public.eci, Tx_host=own.url)
    await b.wait_for(INBOUND, Id=which)
    oracle = await connect(own, user="team", password="x")
    state = await oracle.stream("PICO_STATE")
    last = (await state.info()).state.last_seq
    may = [one["service"]["subject"] for one in rights["GUESTS"]["imports"]]
    await attack(js, [*may, "pico.state.b.secret", "$JS.API.STREAM.DELETE.PICO_STATE"], [STATE + ".secret"])
    await attack(js, may, ["$JS.API.STREAM.DELETE.PICO_STATE"])
    assert (await state.info()).state.last_seq == last


async def test_answer_goes_to_inboxes_only(ground: ServerGround, oracle: Oracle) -> None:
    """The asker chooses the reply subject: it is used with the engine's rights, so only an inbox is allowed."""
    engine = await ground.engine()
    b = await engine.peer("b")
    subject = query_subject(await b.wellKnown_Rx(), "subscription", "wellKnown_Rx", ground.prefix)
    victim = f"{ground.prefix}.victim"
    async with (
        oracle.listen(f"{victim}.>") as got,
        oracle.listen("_INBOX_own.>") as answers,
        oracle.listen("_R_.>") as accounts,
    ):
        delete = f"$JS.API.STREAM.DELETE.{ground.streams[1]}"
        for reply in (f"{victim}.order", delete, "_R_.loot.1", "_INBOX_own.1"):
            await oracle.nc.publish(subject, b"", reply=reply)
        await eventually(lambda: len(answers) == 1)
        assert got == accounts == []  # the server refuses _R_, which is for requests from other accounts
    assert await oracle.stream_info(ground.streams[1])


async def test_flood_is_bounded(ground: ServerGround, connect: Any) -> None:
    engine = await ground.engine(max_waiting=5, max_event_size=1000)
    b = await engine.peer("b")
    wk, other = await b.wellKnown_Rx(), await b.new_channel(["other"], open_policy())
    await b.close()
    js = await connect(ground.url)
    flooded = event_subject(wk, "wrangler", "new_subscription_request", ground.prefix)
    for _ in range(5):
        await js.publish(flooded, b'{"Id": "x", "Tx": 1}')
    with pytest.raises(ApiError, match="maximum messages per subject"):
        await js.publish(flooded, b"{}")
    with pytest.raises(ApiError, match="message size exceeds"):
        await js.publish(event_subject(other.eci, "door", "open", ground.prefix), b" " * 1001)
    await js.publish(event_subject(other.eci, "door", "open", ground.prefix), b"not json")
    await js.publish(event_subject(other.eci, "door", "open", ground.prefix), b"[" * 999)
    await js.publish(f"{ground.prefix}.ev.b.a.b.c.d", b"{}")
    await js.publish(event_subject(other.eci, "door", "open", ground.prefix), b"")
    b = await engine.peer("b")
    await b.wait_for("door:open")
    await eventually(lambda: b.refused[Refusal.MALFORMED] == 8)
    assert await eventually(lambda: _empty(js, ground))


async def _empty(js: Any, ground: ServerGround) -> bool:
    return (await (await js.stream(ground.streams[0])).info()).state.messages == 0
