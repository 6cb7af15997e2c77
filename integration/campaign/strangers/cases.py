"""Every set of rights that the library prints or its documentation recommends, in the world that it is for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from integration.campaign.strangers.attack import A1, ATTACKED, CALLS, GOES_ON, INBOX, STORED, Case, Make
from integration.campaign.strangers.site import Site, with_user
from integration.kit.judge.waiting import within
from jsclient.peers import Engine, Policy

SUBJECT = "price.gold"


def kit(kind: str, role: str, known: dict[str, str] | None = None) -> Make:
    """A kit of notifiers or of subscriptions, and the rights of one of its roles."""

    @contextlib.asynccontextmanager
    async def case(site: Site) -> AsyncIterator[Case]:
        if kind == "notifier":
            created = await site.js.notifier_kit(SUBJECT, initial=1, storage="memory")
            shared = await created.notifier.get_sharable_notifier_internals()
        else:
            created = await site.js.subscription_kit(SUBJECT, storage="memory")
            shared = await created.subscription.get_sharable_subscription_internals()
            await created.publication.update_state(1)
        stream = shared["stream"]

        async def goes_on() -> None:
            """The producer writes on. A reader gets its values, and no other ones."""
            if kind == "notifier":
                waiting = asyncio.create_task(created.notifier.get_update_since())
                again = await site.js.notifier_kit(SUBJECT)  # a writer may have fenced the producer
                await within(10, again.updater.update_state(2), "the next state")
                first = (await within(10, waiting, "the state")).value
                assert role == "writer" or first in (1, 2), f"the state is {first!r:.60}, 1 was published"
                latest = (await within(10, created.notifier.get_update_since(), "the next state")).value
                assert latest == 2, f"the state is {latest!r:.60}, 2 was published"
                return
            again = await site.js.subscription_kit(SUBJECT)
            await within(10, again.publication.update_state(2), "the next value")
            await within(10, again.publication.finish("end"), "the end")
            values = [value async for value in site.js.make_subscription(shared)]
            foreign = [value for value in values if value not in (1, 2)]
            assert role == "writer" or not foreign, f"a reader got {foreign[:3]!r:.100}"
            assert [value for value in values if value in (1, 2)] == [1, 2]

        targets = [SUBJECT, f"jsc.push.{SUBJECT}", f"$JS.API.STREAM.DELETE.{stream}", *ATTACKED]
        apart = role == "another account"
        rights = (
            created.account_rights("APP", "GUESTS")
            if apart
            else created.permissions(role, inbox_prefix=INBOX)
        )
        trusted = role == "reader"
        yield Case(f"{kind} kit, {role}", rights, targets, goes_on, trusted=trusted, known=known or {})

    return case


def peer(well_known: bool) -> Make:
    """A peer, and the rights of one of its channels."""

    @contextlib.asynccontextmanager
    async def case(site: Site) -> AsyncIterator[Case]:
        url = with_user(site.own.url, "admin")
        engine = await Engine.connect(url, on_event=site.events.append)
        bob = await engine.peer("bob")
        if well_known:
            (channel,) = bob.channels()
        else:
            policy = Policy(events=("feed:*",), deny_events=("feed:drop",), queries=("feed:size",))
            channel = await bob.new_channel(["guests"], policy)
        opened = [engine]

        async def goes_on() -> None:
            """The peer is opened again by another process, and makes a relationship."""
            await engine.close()
            other = await Engine.connect(url, on_event=site.events.append)
            opened.append(other)
            again = await within(15, other.peer("bob"), "opening the peer again")
            ann = await within(15, other.peer("ann"), "another peer")
            which = await within(15, ann.request(await again.wellKnown_Rx()), "a request")
            await again.wait_for("wrangler:inbound_pending_subscription_added", 15, Id=which)

        state = "pico.state.bob.channel.wellKnown_Rx"
        targets = [state, f"pico.ev.{channel.eci}.feed.drop", "pico.ev.bob.none.x.y", *ATTACKED]
        targets += ["$JS.API.STREAM.DELETE.PICO_STATE", "$JS.API.STREAM.PURGE.PICO_EVENTS"]
        kind = "peer, well-known channel" if well_known else "peer, channel with a policy"
        rights = channel.nats_permissions(INBOX).to_config()
        try:
            yield Case(kind, rights, targets, goes_on, known={STORED: A1})
        finally:
            for one in opened:
                await one.close()

    return case


@contextlib.asynccontextmanager
async def epochs_reader(site: Site) -> AsyncIterator[Case]:
    """Topics of epochs: what a subscriber needs."""
    name = "T"
    topic = site.js.epochs(name)
    async with await topic.publisher() as pub:
        await pub.send(1, ["a"])
        await pub.advance(2)
    rights = {
        "publish": {
            "allow": [
                f"$JS.API.STREAM.INFO.{name}",
                f"$JS.API.STREAM.MSG.GET.{name}",
                f"$JS.API.DIRECT.GET.{name}",
            ]
        },
        "subscribe": {"allow": [f"{INBOX}.>"]},
    }

    async def goes_on() -> None:
        """A publisher takes the partition. A subscriber gets its epochs whole."""
        async with await within(10, topic.subscribe(), "a subscriber") as sub:
            pub = await within(10, topic.publisher(), "a publisher")
            await pub.send(5, ["b", "c"])
            await pub.close()
            got = {}
            async for epoch in sub.completed():
                got[epoch.time] = list(epoch.items)
            assert got == {5: ["b", "c"]}, got

    targets = ["T.0.frontier", "T.0.data", f"$JS.API.STREAM.DELETE.{name}", *ATTACKED]
    yield Case("epochs, right to read", rights, targets, goes_on, known={STORED: A1, CALLS: A1})


@contextlib.asynccontextmanager
async def epochs_live(site: Site) -> AsyncIterator[Case]:
    """Live epochs: a subscriber publishes to the live subject and has an inbox."""
    topic = site.js.epochs("open")
    pub = await topic.live_publisher(beat=0.5)

    async def goes_on() -> None:
        async with await within(10, topic.live_subscribe(beat=0.5), "a live subscriber") as sub:
            await pub.send(1, ["a"])
            await pub.advance(2)
            epoch = await within(10, anext(aiter(sub.completed())), "an epoch")
            assert (epoch.time, list(epoch.items)) == (1, ["a"])

    rights = {"publish": {"allow": ["open.*.live"]}, "subscribe": {"allow": [f"{INBOX}.>"]}}
    try:
        yield Case("epochs, live subscriber", rights, ["open.0.x", *ATTACKED], goes_on)
    finally:
        await pub.close()


@contextlib.asynccontextmanager
async def history_reader(site: Site) -> AsyncIterator[Case]:
    """Events with a history: the right to read, of the guide."""
    await site.oracle.create_stream("LOG", ["log.>"], storage="memory", allow_direct=True)
    events = site.js.events("log.a", stream="LOG")
    await site.js.publish("log.a", b"1")
    api = [f"$JS.API.{call}.LOG" for call in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")]
    rights = {"publish": {"allow": api}, "subscribe": {"allow": [f"{INBOX}.>"]}}

    async def goes_on() -> None:
        await site.js.publish("log.a", b"2")
        got: list[Any] = [event.data for event in await events.history()]
        assert got == [b"1", b"2"], f"the history has {len(got)} records: {got[:3]!r:.100}"

    targets = ["log.a", "$JS.API.STREAM.PURGE.LOG", *ATTACKED]
    yield Case("events, right to read", rights, targets, goes_on, known={STORED: A1, GOES_ON: A1, CALLS: A1})


APART: tuple[Make, ...] = (kit("notifier", "another account"), kit("subscription", "another account"))
"""Strangers in a separate account, which imports the services that they may request."""

CASES: list[Make] = [
    *APART,
    kit("notifier", "untrusted reader", {STORED: A1, CALLS: A1}),
    kit("notifier", "reader", {STORED: A1, CALLS: A1}),
    kit("notifier", "writer", {STORED: A1}),
    kit("subscription", "untrusted reader", {STORED: A1, CALLS: A1}),
    kit("subscription", "reader", {STORED: A1, CALLS: A1}),
    kit("subscription", "writer", {STORED: A1}),
    peer(well_known=True),
    peer(well_known=False),
    epochs_reader,
    epochs_live,
    history_reader,
]
