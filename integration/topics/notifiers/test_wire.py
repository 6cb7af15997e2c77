"""The cost of a notifier on the wire, and the fate of its consumers when pushes are lost and connections break."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from integration.kit.clients.kits import Kits
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network.match import delivered
from integration.kit.network.wire import TO_CLIENT
from jsclient import ClosedError, IterationFailed


def values(recording: Any, since: int = 0) -> list[Any]:
    """Messages to the client that carry a value: pushes, answers to direct gets, deliveries of a consumer."""

    def carries(frame: Any) -> bool:
        return (
            frame.direction == TO_CLIENT
            and frame.op in ("MSG", "HMSG")
            and (frame.header("Nats-Sequence") is not None or (frame.reply or "").startswith("$JS.ACK."))
        )

    return recording.find(carries, since)


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture(params=["own stream", "user's stream"])
async def kits(request: Any, server: Any, oracle: Any, tap: Any, connect: Any, make_stream: Any) -> Any:
    """The producer here, the consumer beyond a proxy. A user's stream does not republish, but allows direct gets."""
    here, there = await connect(server), await connect(tap)
    stream = None
    if request.param == "user's stream":
        stream = await make_stream(max_msgs_per_subject=1, allow_direct=True)
    kits = Kits(here, there, stream)
    yield kits
    await kits.clear()


republished = pytest.mark.parametrize("kits", ["own stream"], indirect=True)
pulled = pytest.mark.parametrize("kits", ["user's stream"], indirect=True)


async def waiting(tap: Any, since: int = 0) -> None:
    """Wait until a consumer beyond the proxy waits for a push, and was answered that there is nothing newer."""

    def asks(frame: Any) -> bool:
        subject = frame.subject or ""
        return (frame.op == "SUB" and subject.startswith("jsc.push.")) or "MSG.NEXT" in subject

    start = await tap.wait_for(asks, since=since)
    if start.op == "SUB":
        await eventually(lambda: values(tap, start.number), 25, "an answer")


@pytest.mark.covers("A9", "A11")
async def test_thousand_updates_one_read(kits: Kits, tap: Any) -> None:
    updater, notifier = await kits.notifier_kit(0)
    record = await notifier.get_update_since()
    (waiter,) = [asyncio.create_task(notifier.get_update_since(record.update_count))]
    await waiting(tap)
    await updater.update_state(1)
    record = await waiter  # now the means of waiting have been used
    await kits.settle()
    mark = len(tap.frames)
    for number in range(2, 1002):
        last = updater.update_state(number)
    await last
    await kits.settle()
    assert values(tap, mark) == [], "what nobody asked for"
    record = await notifier.get_update_since(record.update_count)
    assert record.value == 1001
    await kits.settle()
    assert len(values(tap, mark)) == 1


@pytest.mark.core_cases(1)
@pytest.mark.covers("A9", "A11", "A16", "A17", "A18", "A21", "A22")
async def test_few_asks_during_many_updates(kits: Kits, tap: Any, oracle: Any, server: Any) -> None:
    updater, notifier = await kits.notifier_kit()
    subject = (await notifier.get_sharable_notifier_internals())["stream"]
    mark, seen, asks = len(tap.frames), [], 0

    async def ask() -> None:
        nonlocal asks
        count = None
        while not seen or seen[-1] != 4999:
            asks += 1
            record = await notifier.get_update_since(count)
            count = record.update_count
            seen.append(record.value)
            if asks < 42:
                await asyncio.sleep(0.02)  # a consumer at its own pace

    asking = asyncio.create_task(ask())
    for number in range(5000):
        last = updater.update_state(number)
    await last
    await within(120, asking, "the last value")
    await kits.settle()
    got = len(values(tap, mark))
    print(f"{asks} asks, {got} messages")
    assert got <= 2 * asks
    assert all(one < other for one, other in pairwise(seen))
    if kits.stream is None:
        assert await oracle.consumer_names(subject) == []


@pytest.mark.smoke
@republished
@pytest.mark.covers("A11")
async def test_wait_costs_one_message(kits: Kits, tap: Any) -> None:
    updater, notifier = await kits.notifier_kit("a")
    record = await notifier.get_update_since()
    mark = len(tap.frames)
    waiter = asyncio.create_task(notifier.get_update_since(record.update_count))
    await waiting(tap, mark)
    (sub,) = tap.subs(mark)
    (limit,) = [frame for frame in tap.unsubs(mark) if frame.sid == sub.sid]
    (question,) = tap.sent("$JS.API.>", mark)
    assert limit.args == f"{sub.sid} 1"
    assert sub.number < limit.number < question.number
    await updater.update_state("b")
    assert (await waiter).value == "b"
    await kits.settle()
    assert len(values(tap, mark)) == 2


@republished
@pytest.mark.covers("A1", "A48", "A65", "A67")
async def test_many_waiters_cost_one(kits: Kits, tap: Any) -> None:
    updater, notifier = await kits.notifier_kit("a")
    count = (await notifier.get_update_since()).update_count
    mark = len(tap.frames)
    waiters = [asyncio.create_task(notifier.get_update_since(count)) for _ in range(500)]
    await waiting(tap, mark)
    await kits.settle()
    await updater.update_state("b")
    records = await within(5, asyncio.gather(*waiters), "500 who wait")
    assert {record.value for record in records} == {"b"}
    await kits.settle()
    assert len(tap.subs(mark)) == 1
    assert len(values(tap, mark)) == 2


@pytest.mark.covers("A66", "A67")
async def test_one_question_in_flight(kits: Kits, tap: Any) -> None:
    """A consumer that floods is slowed by its own connection, and asks only for as much as that can carry."""
    updater, notifier = await kits.notifier_kit("a")
    mark = len(tap.frames)
    await asyncio.gather(*(notifier.get_update_since() for _ in range(1000)))
    assert len(tap.sent("$JS.API.>", mark)) == 1
    await updater.finish("done")


@pulled
@pytest.mark.covers("A9", "A11")
async def test_one_pulled_consumer(kits: Kits, tap: Any, oracle: Any) -> None:
    name = kits.stream.name
    updater, notifier = await kits.notifier_kit("a")
    count = (await notifier.get_update_since()).update_count
    assert await oracle.consumer_names(name) == []
    for value in ("b", "c", "d"):
        waiters = [asyncio.create_task(notifier.get_update_since(count)) for _ in range(50)]
        await eventually(lambda: oracle.consumer_names(name), what="a consumer")
        (consumer,) = await oracle.consumer_names(name)
        info = await oracle.wait_consumer(
            name, consumer, lambda info: info["num_waiting"] == 1, what="a pull"
        )
        config = info["config"]
        assert config["ack_policy"] == "none"
        assert config["mem_storage"]
        assert config["num_replicas"] == 1
        await updater.update_state(value)
        records = await asyncio.gather(*waiters)
        assert {record.value for record in records} == {value}
        count = records[0].update_count
    assert len(tap.sent("$JS.API.CONSUMER.MSG.NEXT.>")) == 3
    assert len(tap.sent("$JS.API.CONSUMER.CREATE.>")) == 1
    await kits.there.close()
    assert await oracle.consumer_names(name) == []


async def test_newest_of_longer_stream(server: Any, oracle: Any, connect: Any, make_stream: Any) -> None:
    """With a history and without republishing: a consumer that lags the reads is created again."""
    stream = await make_stream()
    js = await connect(server)
    updater, notifier = await js.notifier_kit(stream.subject("x"), stream=stream.name)
    count, before = None, []

    async def another_consumer() -> list[str] | None:
        names = await oracle.consumer_names(stream.name)
        return names if len(names) == 1 and names != before else None

    for first in range(0, 30, 10):
        waiter = asyncio.create_task(notifier.get_update_since(count))
        # the consumer lags, because no call waited for the values, so another consumer is created
        if count is not None:
            before = await eventually(another_consumer, what="a new consumer")
        await updater.update_state(first)
        assert (await waiter).value == first
        for number in range(first + 1, first + 10):
            await updater.update_state(number)
        record = await notifier.get_update_since(count)
        assert record.value == first + 9
        count = record.update_count


@pytest.mark.covers("A21", "A22")
async def test_push_lost_asked_for(server: Any, tap: Any, connect: Any) -> None:
    here, there = await connect(server), await connect(tap)
    kits = Kits(here, there)
    updater, notifier = await kits.notifier_kit("a")
    again = there.make_notifier(await notifier.get_sharable_notifier_internals(), quiet=0.2)
    lost = tap.drop_frames(delivered("jsc.push.>"))
    count = (await again.get_update_since()).update_count
    waiter = asyncio.create_task(again.get_update_since(count))
    await waiting(tap)
    await updater.update_state("b")
    assert (await within(5, waiter, "the value")).value == "b"
    assert lost.count == 1
    await kits.clear()


@pytest.mark.covers("A21", "A66")
@pytest.mark.parametrize("way", ["before", "while away"])
async def test_who_waits_goes_on_after_disconnect(kits: Kits, tap: Any, way: str) -> None:
    updater, notifier = await kits.notifier_kit("a")
    count = (await notifier.get_update_since()).update_count
    waiter = asyncio.create_task(notifier.get_update_since(count))
    await waiting(tap)
    if way == "while away":
        tap.refuse()
    tap.cut()
    await updater.update_state("b")
    if way == "while away":
        assert not waiter.done()
        await tap.accept()
    assert (await within(10, waiter, "the value")).value == "b"
    ended = asyncio.create_task(notifier.completion())
    tap.cut()
    await updater.finish("done")
    assert await within(10, ended, "the end") == "done"


async def test_nothing_remains_of_those_who_waited(kits: Kits, oracle: Any, server: Any) -> None:
    updater, notifier = await kits.notifier_kit("a")
    stream = (await notifier.get_sharable_notifier_internals())["stream"]
    count = (await notifier.get_update_since()).update_count
    await kits.settle()
    await oracle.consumer_names(stream)  # it makes its inbox
    # A consumer is kept for a while, because who has waited will wait again.
    async with no_leaks(oracle=oracle, streams=[stream], monitor=server.monitor, settle=5.0):
        for cancelled_after in (0, 1, 5, 20, 100):
            waiters = [asyncio.create_task(notifier.get_update_since(count)) for _ in range(20)]
            for _ in range(cancelled_after):
                await asyncio.sleep(0)
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
        waiters = [asyncio.create_task(notifier.get_update_since(count)) for _ in range(20)]
        await kits.settle()
        await updater.update_state("b")
        await asyncio.gather(*waiters)


async def test_closing_connection_tells_who_waits(kits: Kits, tap: Any) -> None:
    _, notifier = await kits.notifier_kit("a")
    count = (await notifier.get_update_since()).update_count
    waiter = asyncio.create_task(notifier.get_update_since(count))
    await waiting(tap)
    await kits.there.close()
    with pytest.raises(ClosedError):
        await within(10, waiter, "the end of the wait")
    with pytest.raises(ClosedError):
        await notifier.get_update_since(count)


async def test_consumer_on_connection_of_nats_py(natspy_js: Any, js: Any) -> None:
    kits = Kits(js, natspy_js)
    updater, notifier = await kits.notifier_kit("a")
    seen = []

    async def watch() -> None:
        async for value in notifier:
            seen.append(value)  # noqa: PERF401  looked at meanwhile

    watching = asyncio.create_task(watch())
    for value in ("a", "b", "c"):
        await updater.update_state(value)
        await kits.until(lambda value=value: seen[-1:] == [value])
    await updater.fail("why")
    with pytest.raises(IterationFailed, match="why"):
        await watching
    await kits.clear()


async def test_purged_subject_no_state_until_next(kits: Kits, oracle: Any) -> None:
    updater, notifier = await kits.notifier_kit("a")
    internals = await notifier.get_sharable_notifier_internals()
    count = (await notifier.get_update_since()).update_count
    await oracle.purge(internals["stream"])
    waiters = [asyncio.create_task(notifier.get_update_since(requested)) for requested in (None, count, 7000)]
    await kits.settle()
    await never(lambda: any(waiter.done() for waiter in waiters), 0.05, "a state")
    await updater.update_state("b")
    assert {record.value for record in await asyncio.gather(*waiters)} == {"b"}
