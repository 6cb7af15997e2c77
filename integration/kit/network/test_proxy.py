"""The proxy against a real server, with nats-py as the client under fault."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import pytest

from integration.kit.clients.foreign import client, flushed, subscribed
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from integration.kit.network.recording import in_order
from integration.kit.network.wire import TO_CLIENT, TO_SERVER
from integration.kit.servers.monitor import monitor_json
from integration.kit.servers.nats_server import ServerUnderTest

MakeProxy = Callable[..., Awaitable[Proxy]]


# The proxy records


async def test_recording_keeps_the_order(proxy: MakeProxy, stream: OwnStream) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        await nc.subscribe("deliver.here")
        await nc.request(f"$JS.API.CONSUMER.CREATE.{stream.name}", b'{"x":1}')
        await nc.publish(stream.subject("a"), b"body", headers={"Nats-Msg-Id": "7"})
        published = await tap.wait_for(match.published(stream.all))
    sub = next(f for f in tap.subs() if f.subject == "deliver.here")
    (create,) = tap.sent("$JS.API.CONSUMER.CREATE.>")
    (answer,) = tap.received("_INBOX.>")
    assert in_order(sub, create, answer)
    assert not in_order(create, sub)
    assert (published.op, published.payload, published.header("nats-msg-id")) == ("HPUB", b"body", "7")
    assert create.reply == answer.subject
    assert [f.op for f in tap.frames[:3]] == ["INFO", "CONNECT", "PING"]
    assert sub.time <= create.time <= answer.time


async def test_missing_frame_shows_others(proxy: MakeProxy) -> None:
    tap = await proxy()
    async with client(tap):
        with pytest.raises(AssertionError, match=r"(?s)no such frame within 0.1 s.*CONNECT"):
            await tap.wait_for(match.published("never"), timeout=0.1)


async def test_plain_proxy_pumps_bytes(server: ServerUnderTest) -> None:
    size, count = 1 << 20, 100
    async with Proxy(server.url, frames=False) as plain, client(plain) as nc:
        sub = await nc.subscribe("bulk", pending_bytes_limit=-1)
        for _ in range(count // 10):  # the server cuts off a client for which more than 64 MiB wait
            for _ in range(10):
                await nc.publish("bulk", bytes(size))
            for _ in range(10):
                await sub.next_msg(60)
        assert plain.link.pipes[TO_CLIENT].passed > size * count
        assert plain.frames == []
        with pytest.raises(RuntimeError, match="only pumps bytes"):
            plain.drop_frames(match.is_data)


async def test_large_frames_are_read_whole(proxy: MakeProxy) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        seen = await subscribed(nc, "big")
        await nc.publish("big", b"z" * 900_000)
        await eventually(lambda: seen, what="the big message")
    assert len(tap.received("big")[0].payload) == len(seen[0].data) == 900_000


# The proxy does harm to frames


async def test_drop_first_acks_of_publishes(proxy: MakeProxy, stream: OwnStream) -> None:
    tap = await proxy()
    rule = tap.drop_frames(match.is_publish_ack, count=2)
    async with client(tap) as nc:
        for _ in range(2):
            with pytest.raises(nats.errors.TimeoutError):
                await nc.request(stream.subject(), b"x", timeout=0.2)
        await nc.request(stream.subject(), b"x", timeout=30)
    assert rule.count == 2
    assert (await stream.state())["messages"] == 3
    assert [f.fate for f in tap.find(match.is_publish_ack)] == ["dropped", "dropped", "passed"]


async def test_delivery_rules(proxy: MakeProxy, stream: OwnStream) -> None:
    tap = await proxy()
    await stream.publish(5)
    tap.drop_frames(match.is_message(2))
    tap.duplicate_frames(match.is_message(3))
    tap.modify_frames(match.is_message(4), lambda f: f.but(payload=b"other").raw)
    held = tap.hold_frames(match.is_message(1))
    async with client(tap) as nc:
        seen = await subscribed(nc, "deliver")
        await stream.create_consumer("c", deliver_subject="deliver")
        await eventually(lambda: len(seen) == 4, what="the deliveries")
        assert [m.data for m in seen] == [b"3", b"3", b"other", b"5"]
        await held.wait()
        assert held.release() == 1
        await eventually(lambda: seen[-1].data == b"1", what="the held message")
    assert [match.consumer_seq(f) for f in tap.find(match.is_data)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("after_bytes", [None, 0, 10])
async def test_cut_inside_a_delivery(proxy: MakeProxy, after_bytes: int | None) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        seen = await subscribed(nc, "cut")
        fault = tap.cut_inside_frame(TO_CLIENT, after_bytes)
        await nc.publish("cut", b"never whole")
        await fault.wait()
        await tap.wait_links(2)
        await eventually(lambda: nc.is_connected, what="the reconnect")
        await flushed(nc)
        await nc.publish("cut", b"next")
        await eventually(lambda: seen, what="the next message")
        assert [m.data for m in seen] == [b"next"]
    assert fault.frames[0].fate == "cut"


async def test_cut_inside_a_publish(proxy: MakeProxy, oracle: Oracle) -> None:
    tap = await proxy()
    async with client(tap) as nc, oracle.listen("cut.up") as received:
        fault = tap.cut_inside_frame(TO_SERVER)
        await nc.publish("cut.up", b"never whole")
        await fault.wait()
        await tap.wait_links(2)
        await eventually(lambda: nc.is_connected, what="the reconnect")
        await nc.publish("cut.up", b"next")
        await eventually(lambda: received, what="the next publish")
        assert [m.data for m in received] == [b"next"]


async def test_inject_status_and_raw_bytes(proxy: MakeProxy) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        seen = await subscribed(nc, "inbox.*")
        tap.inject_message("inbox.1", status="409 Consumer Deleted", headers={"A": "b"}, reply="r")
        await eventually(lambda: seen, what="the injected status")
        assert (seen[0].subject, seen[0].reply) == ("inbox.1", "r")
        assert (seen[0].headers or {})["A"] == "b"
        tap.inject(b"PING\r\n")
        await tap.wait_for(match.match(op="PONG", direction=TO_SERVER))
        with pytest.raises(AssertionError, match="no client is subscribed"):
            tap.inject_message("elsewhere")


# The proxy does harm to the network


@pytest.mark.parametrize("fault", ["cut", "close"])
async def test_connections_end_and_new_ones_come(proxy: MakeProxy, fault: str) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        seen = await subscribed(nc, "s")
        getattr(tap, fault)()
        await tap.wait_links(2)
        await eventually(lambda: nc.is_connected and nc.stats["reconnects"] == 1, what="the reconnect")
        await nc.publish("s", b"again")
        await eventually(lambda: seen, what="a message after the reconnect")


async def test_refuse_and_accept(proxy: MakeProxy) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        tap.refuse()
        tap.cut()
        await never(lambda: nc.is_connected and len(tap.links) > 1, 0.2, "a new connection")
        await tap.accept()
        await eventually(lambda: nc.is_connected, what="the reconnect")


async def test_stall_loses_nothing(proxy: MakeProxy) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        seen = await subscribed(nc, "s")
        tap.stall()
        await nc.publish("s", b"1")
        await never(lambda: seen, 0.15, "a message through a stall")
        tap.unstall()
        await eventually(lambda: seen, what="the message after the stall")
        assert len(tap.links) == 1


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT, None])
async def test_blackhole_is_silent(proxy: MakeProxy, direction: Any) -> None:
    tap = await proxy()
    async with client(tap, ping_interval=0.3, max_outstanding_pings=2) as nc:
        seen = await subscribed(nc, "s")
        link, links = tap.link, len(tap.links)
        tap.blackhole(direction)
        await nc.publish("s", b"lost")
        await eventually(lambda: any(p.lost for p in link.pipes.values()), what="a lost byte")
        tap.heal()
        await tap.wait_links(links + 1)
        await eventually(lambda: nc.is_connected, what="the reconnect after missing PONGs")

        async def heard() -> list[Any]:
            await nc.publish("s", b"seen")
            return seen

        await eventually(heard, what="a message on the new connection", interval=0.1)
        assert seen[0].data == b"seen"


async def test_half_open_seen_by_server_only(proxy: MakeProxy, server: ServerUnderTest) -> None:
    tap = await proxy()
    async with client(tap, name="half") as nc:

        async def known() -> bool:
            assert server.monitor is not None
            answer = await monitor_json(server.monitor, "/connz")
            return any(c.get("name") == "half" for c in answer["connections"])

        assert await known()
        tap.half_open()
        await eventually(lambda: _not(known()), what="the server's end of the connection")
        await never(lambda: not nc.is_connected, 0.1, "the client's noticing")


async def _not(answer: Awaitable[bool]) -> bool:
    return not await answer


async def test_delay_and_rate(proxy: MakeProxy) -> None:
    tap = await proxy()
    async with client(tap) as nc:
        seen = await subscribed(nc, "x")
        tap.delay(0.1)
        started = time.monotonic()
        await flushed(nc)
        assert 0.2 <= time.monotonic() - started < 30
        tap.heal()
        tap.rate(200_000, TO_SERVER)
        started = time.monotonic()
        # Not by a flush: nats-py sends its PING ahead of what is still buffered.
        await nc.publish("x", bytes(60_000))
        await eventually(lambda: seen, what="the slow message")
        assert 0.25 <= time.monotonic() - started < 30
