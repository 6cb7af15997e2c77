"""Acks, and how subscriptions end, as other clients are held to it. Rows 111 to 127 of docs/conformance.md.

A case that is a race is run 200 times.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import pytest

import jsclient
from integration.kit.clients.traffic import Tally
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, numbers, of, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.deletes import DELETES
from jsclient.protocol.consumers.ack import read_jsack

RACES, TOGETHER = 200, 20

Answer = Callable[[Any], Awaitable[None]]

ANSWERS: dict[str, tuple[Answer, bytes]] = {
    "ack": (lambda m: m.ack(), b"+ACK"),
    "ack and wait": (lambda m: m.ack_sync(timeout=30), b"+ACK"),
    "nak": (lambda m: m.nak(), b"-NAK"),
    "nak later": (lambda m: m.nak(delay=30), b'-NAK {"delay": 30000000000}'),
    "term": (lambda m: m.term(), b"+TERM"),
    "term with a reason": (lambda m: m.term("poison"), b"+TERM poison"),
    "in progress": (lambda m: m.in_progress(), b"+WPI"),
}


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def no_consumers(stream: OwnStream) -> bool:
    return await stream.consumer_names() == []


# --- acks --------------------------------------------------------------------------------------------------------


@pytest.mark.row(111, 112)
async def test_one_terminal_ack_goes_out(tap: Any, near: Any, stream: OwnStream) -> None:
    """200 messages, each answered by five at once, some of them cancelled."""
    chance = random.Random(112)
    await stream.publish(RACES)
    sub = await near.pull_subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=60))
    messages = list(await sub.fetch(RACES))
    kinds = [kind for kind in ANSWERS if kind != "nak"]  # a redelivered message would not be answered again

    async def answer(message: Any) -> None:
        chosen = [chance.choice(kinds) for _ in range(5)]
        racing = [asyncio.ensure_future(ANSWERS[kind][0](message)) for kind in chosen]
        for _ in range(chance.randint(0, 3)):
            await asyncio.sleep(0)
        if (
            chosen[0] != "ack and wait"
        ):  # one that is cancelled while it waits may have been counted: it is repeated
            racing[0].cancel()
        results = await asyncio.gather(*racing, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        await message.ack()  # for handlers of which all were in progress, or cancelled

    await within(60, asyncio.gather(*(answer(message) for message in messages)), "all answers")
    await near.ping()
    sent: dict[str, list[bytes]] = defaultdict(list)
    for frame in tap.find(match.is_ack):
        sent[frame.subject].append(frame.payload)
    assert sent.keys() == {message.reply for message in messages}
    for payloads in sent.values():
        *before, last = payloads
        assert set(before) <= {b"+WPI"}
        assert last != b"+WPI"
    assert sum(len(payloads) for payloads in sent.values()) > RACES


@pytest.mark.row(113)
@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_unacked_follows_backoff(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    """Seen in the order of deliveries to two consumers. With ``ack_wait`` none would come again in this time."""
    backoffs = {"quick": [0.1, 0.1, 0.1], "slow": [0.1, 1.5]}
    readers = []
    for name, backoff in backoffs.items():
        config = jsclient.ConsumerConfig(backoff=backoff, max_deliver=len(backoff) + 1)
        if kind == "push":
            readers.append(await near.subscribe(stream.all, durable=name, config=config))
        else:
            readers.append((await near.pull_subscribe(stream.all, durable=name, config=config)).messages())
    reading = [
        asyncio.create_task(take(reader, count)) for reader, count in zip(readers, (4, 3), strict=True)
    ]
    await stream.publish(1)
    for messages in await asyncio.gather(*reading):
        assert [message.metadata.num_delivered for message in messages] == [*range(1, len(messages) + 1)]
    jsacks = [read_jsack((frame.reply or "").encode()) for frame in tap.find(match.is_data)]
    deliveries = [(jsack.consumer, jsack.num_delivered) for jsack in jsacks]
    assert deliveries.index(("slow", 2)) < deliveries.index(("quick", 4)) < deliveries.index(("slow", 3))
    assert len(deliveries) == 7


PENDING_AFTER = {
    "ack": 0,
    "ack and wait": 0,
    "nak later": 1,
    "term": 0,
    "term with a reason": 0,
    "in progress": 1,
    "nothing": 1,
}


@pytest.mark.row(116)
@pytest.mark.parametrize("answer", PENDING_AFTER)
@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_server_counts_unacked(js: Any, stream: OwnStream, kind: str, answer: str) -> None:
    config = jsclient.ConsumerConfig(ack_wait=30)
    await stream.publish(3)
    if kind == "push":
        messages = await take(await js.subscribe(stream.all, durable="d", config=config), 3)
    else:
        messages = list(await (await js.pull_subscribe(stream.all, durable="d", config=config)).fetch(3))
    assert (await stream.consumer_info("d"))["num_ack_pending"] == 3
    for message in messages:
        if answer != "nothing":
            await ANSWERS[answer][0](message)
    await js.ping()
    expected = 3 * PENDING_AFTER[answer]
    info = await stream.oracle.wait_consumer(
        stream.name, "d", lambda info: info["num_ack_pending"] == expected, what=f"{expected} pending"
    )
    assert info["ack_floor"]["stream_seq"] == 3 - expected
    assert info["num_redelivered"] == 0
    await js.ping()


@pytest.mark.row(114, 117)
@pytest.mark.parametrize("answer", [*ANSWERS, "nothing"])
@pytest.mark.parametrize("auto_ack", [None, True, False])
async def test_callback_acks_unless_reported(
    tap: Any, near: Any, stream: OwnStream, answer: str, auto_ack: bool | None
) -> None:
    done: list[Any] = []

    async def handle(message: Any) -> None:
        if answer != "nothing":
            await ANSWERS[answer][0](message)
        done.append(message)

    config = jsclient.ConsumerConfig(ack_wait=30, max_deliver=1)
    await near.subscribe(stream.all, config=config, callback=handle, auto_ack=auto_ack)
    await stream.publish(2)
    await eventually(lambda: len(done) == 2, what="two messages handled")
    await near.ping()
    # The ack after the second message goes out when the handler has returned.
    expected = [] if answer == "nothing" else [ANSWERS[answer][1]]
    if auto_ack is not False and answer in ("nothing", "in progress"):
        expected.append(b"+ACK")
    await eventually(lambda: len(tap.find(match.is_ack)) >= 2 * len(expected), what="the acks")
    await near.ping()
    for message in done:
        assert [f.payload for f in tap.find(match.is_ack) if f.subject == message.reply] == expected


@pytest.mark.row(118)
@pytest.mark.parametrize("kind", ["push", "pull", "messages"])
async def test_acks_outlive_subscription(js: Any, stream: OwnStream, kind: str) -> None:
    await stream.publish(3)
    await stream.create_consumer(
        "d",
        **({"deliver_subject": f"deliver.{stream.prefix}"} if kind == "push" else {}),
        ack_wait=30 * 10**9,
    )
    if kind == "push":
        sub = await js.subscribe(stream=stream.name, consumer="d")
        messages = await take(sub, 3)
    else:
        sub = await js.pull_subscribe(stream=stream.name, consumer="d")
        if kind == "pull":
            messages = list(await sub.fetch(3))
        else:
            async with sub.messages() as reader:
                messages = await take(reader, 3)
    ack, ack_sync, term = messages[0].ack, messages[1].ack_sync, messages[2].term
    messages.clear()
    await sub.unsubscribe()
    await ack()
    await ack_sync(timeout=5)
    await term()
    await stream.oracle.wait_consumer(stream.name, "d", lambda info: info["ack_floor"]["stream_seq"] == 3)


# --- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.row(119, 120)
async def test_close_order_decides_deletion(server: Any, stream: OwnStream) -> None:
    for polite in (False, True):
        nc = await nats.connect(server.url)
        js = jsclient.JetStream(nc, on_event=lambda _: None)
        await stream.create_consumer("there", deliver_subject=f"deliver.{stream.prefix}")
        await js.subscribe(stream=stream.name, consumer="there")
        subs = [
            await js.subscribe(stream.all),
            await js.subscribe(stream.all, ordered=True),
            await js.pull_subscribe(stream.all),
        ]
        names = {"kept", "kept_pull", "there"}
        await js.subscribe(stream.all, durable="kept")
        await js.pull_subscribe(stream.all, durable="kept_pull")
        if polite:
            await js.close()
            await nc.close()
        else:
            names |= {sub.consumer for sub in subs}
            await nc.close()
            await js.close()
        assert set(await stream.consumer_names()) == names
        for name in names:
            await stream.delete_consumer(name)


@pytest.mark.row(123)
async def test_four_drains_ack_all(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """Their handlers wait for the server's word on each ack, and no ack fails while they are drained."""
    handled: dict[str, list[int]] = {f"d{number}": [] for number in range(4)}
    failed: list[BaseException] = []

    def handler(name: str) -> Any:
        async def handle(message: Any) -> None:
            try:
                await message.ack_sync(timeout=10)
            except jsclient.JetStreamError as error:
                failed.append(error)
            handled[name] += numbers([message])

        return handle

    subs = [
        await near.subscribe(stream.all, durable=name, callback=handler(name), delete_on_close=False)
        for name in handled
    ]
    publishing = asyncio.create_task(stream.publish(500))
    await eventually(lambda: all(len(numbers) > 20 for numbers in handled.values()), what="some are handled")
    await within(20, asyncio.gather(*(sub.drain() for sub in subs)), "the drains")
    await publishing
    assert failed == []
    assert alarms(events) == []
    for name, got in handled.items():
        assert got == list(range(1, len(got) + 1))
        info = await stream.consumer_info(name)
        # Messages in flight at the end of the NATS subscription have arrived. All that arrived are acked.
        assert info["ack_floor"]["stream_seq"] == len(got)
        assert info["num_ack_pending"] == info["delivered"]["stream_seq"] - len(got)


@pytest.mark.row(124)
async def test_drained_reader_keeps_rest(near: Any, stream: OwnStream) -> None:
    await stream.publish(10)
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=10)
    got = [await reader.next(timeout=5)]
    await eventually(lambda: reader.pending == 9, what="nine wait")
    await reader.drain()
    for _ in range(9):
        got.append(await reader.next(timeout=1))
        await got[-1].ack_sync(timeout=5)
    assert numbers(got) == list(range(1, 11))
    with pytest.raises(jsclient.ClosedError):
        await reader.next(timeout=1)
    await sub.drain()
    with pytest.raises(jsclient.ClosedError):
        await sub.fetch(1)
    assert await no_consumers(stream)


@pytest.mark.core_cases(2)
@pytest.mark.row(125)
@pytest.mark.parametrize("kind", ["push", "callback", "ordered", "pull", "messages"])
async def test_cancelled_scope_cleans_up(
    server: Any, oracle: Any, js: Any, stream: OwnStream, kind: str
) -> None:
    """200 tasks of each kind, cancelled while they subscribe, read and end."""
    await stream.publish(20)
    await js.account_info()
    chance = random.Random(125)
    reading = 0

    async def scope() -> None:
        nonlocal reading
        if kind in ("pull", "messages"):
            async with await js.pull_subscribe(stream.all) as sub:
                reading += 1
                if kind == "pull":
                    while True:
                        await sub.fetch(3, expires=5)
                async for message in sub:
                    await message.ack()
        options: dict[str, Any] = {
            "push": {},
            "ordered": {"ordered": True},
            "callback": {"callback": lambda _: asyncio.sleep(0.001)},
        }[kind]
        async with await js.subscribe(stream.all, **options) as sub:
            reading += 1
            if kind == "callback":
                await asyncio.Event().wait()
            async for message in sub:
                await message.ack()

    async def one() -> None:
        task = asyncio.create_task(scope())
        await asyncio.sleep(chance.uniform(0, most))
        task.cancel()
        await asyncio.wait({task}, timeout=30)
        assert task.cancelled()

    most = 0.05
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        for done in range(0, RACES, TOGETHER):
            if reading < done // 4:
                most *= 2  # on a busy machine it takes longer until they read
            async with asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(one())
    assert reading > 20
    assert js._context.open == set()


@pytest.mark.core_cases(2)
@pytest.mark.row(126)
@pytest.mark.parametrize("kind", ["push", "callback", "ordered", "pull"])
async def test_concurrent_ends_once(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], kind: str
) -> None:
    await stream.publish(3)
    chance = random.Random(126)

    async def one() -> None:
        if kind == "pull":
            sub = await near.pull_subscribe(stream.all)
            await sub.fetch(2)
        else:
            callback = (lambda _: asyncio.sleep(0)) if kind == "callback" else None
            sub = await near.subscribe(stream.all, ordered=kind == "ordered", callback=callback)
        ends = [sub.drain, sub.unsubscribe, sub.drain, sub.unsubscribe]
        chance.shuffle(ends)
        # the calls meet at any instant of the end
        for _ in range(chance.randint(0, 5)):
            await asyncio.sleep(0)
        first = [asyncio.create_task(end()) for end in ends[:3]]
        for _ in range(chance.randint(0, 5)):
            await asyncio.sleep(0)
        await within(30, asyncio.gather(*first, ends[3]()), "the ends")
        assert sub.is_closed
        for end in ends:
            await within(30, end(), "one more end")

    for _ in range(0, RACES, TOGETHER):
        async with asyncio.TaskGroup() as group:
            for _ in range(TOGETHER):
                group.create_task(one())
    await eventually(lambda: no_consumers(stream), what="no consumer")
    assert len(tap.sent(DELETES)) == RACES
    assert alarms(events) == []


@pytest.mark.row(126)
async def test_found_consumer_rebinds(js: Any, stream: OwnStream) -> None:
    """The server's consumer learns a moment after its connection that no one listens any more."""
    await stream.create_consumer("d", deliver_subject=f"deliver.{stream.prefix}", ack_wait=60 * 10**9)
    got: list[int] = []
    for number in range(1, RACES + 1):
        sub = await js.subscribe(stream=stream.name, consumer="d")
        seq = await stream.publish(1, first=number)
        [message] = await take(sub, 1)
        await message.ack()
        got += numbers([message])
        assert message.metadata.stream_seq == seq
        if number % 2:
            await sub.unsubscribe()
        else:
            await sub.drain()
        await stream.oracle.wait_consumer(stream.name, "d", lambda info: not info.get("push_bound"))
    assert got == list(range(1, RACES + 1))
    assert await stream.consumer_names() == ["d"]


@pytest.mark.full
@pytest.mark.row(127)
@pytest.mark.parametrize("way", ["async for", "callback"])
async def test_durable_push_200_reconnects(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    tap = await proxy(record=False)
    near = await connect(tap, reconnect_time_wait=0.002)
    tally = Tally(way)
    config = jsclient.ConsumerConfig(ack_wait=1.5, max_ack_pending=5000)
    options: dict[str, Any] = {"durable": "d", "config": config, "delete_on_close": False}
    if way == "callback":
        sub = await near.subscribe(stream.all, callback=tally.take, **options)
    else:
        sub = await near.subscribe(stream.all, **options)

    async def read() -> None:
        async for message in sub:
            tally.take(message)
            try:
                await message.ack()
            except jsclient.DisconnectedError:
                pass  # it comes again

    reading = asyncio.create_task(read()) if way == "async for" else None
    for cut in range(1, RACES + 1):
        await stream.publish(5, first=5 * cut - 4)
        tap.cut()
        await eventually(
            lambda n=cut: len(of(jsclient.Reconnected, events)) >= n, what="a reconnect", interval=0.001
        )
    last = 5 * RACES
    await eventually(lambda: not tally.lost(last), 15, "every message")
    await stream.oracle.wait_consumer(
        stream.name, "d", lambda info: info["ack_floor"]["stream_seq"] == last, 15, "every ack"
    )
    assert tally.untold == []
    await sub.unsubscribe()
    if reading:
        await within(5, reading, "the loop")
