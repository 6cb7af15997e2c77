"""Faults that would be silent without an alarm: a deleted consumer, dropped messages, a deletion at the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import noting, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient import ConsumerConfig, ConsumerDeleted, ConsumerNotKept, DurableDeleted, SlowConsumer


@pytest.mark.parametrize("arguments", [{}, {"durable": "d"}])
async def test_push_has_a_heartbeat_by_default(js: Any, stream: OwnStream, arguments: dict[str, Any]) -> None:
    sub = await js.subscribe(stream.all, **arguments)
    assert (await stream.consumer_info(sub.consumer))["config"]["idle_heartbeat"] == 5_000_000_000
    await sub.unsubscribe()
    without = await js.subscribe(stream.all, config=ConsumerConfig(idle_heartbeat=0.0), **arguments)
    assert "idle_heartbeat" not in (await stream.consumer_info(without.consumer))["config"]
    group = await js.subscribe(stream.all, queue="workers")
    assert "idle_heartbeat" not in (await stream.consumer_info(group.consumer))["config"]


async def test_deleted_consumer_noticed_by_default(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """A subscription whose consumer was deleted waited for ever."""
    sub = await js.subscribe(stream.all, heartbeat_alarm=1.0)
    await stream.oracle.delete_consumer(stream.name, sub.consumer)
    await eventually(lambda: of(ConsumerDeleted, events), 15, "the event")


async def test_drops_reported_with_their_sum(js: Any, stream: OwnStream, events: list[Any]) -> None:
    config = ConsumerConfig(ack_policy="none")
    sub = await js.subscribe(stream.all, config=config, max_pending=10)
    for episode in (1, 2):
        await stream.publish(100)
        await eventually(lambda: sub.dropped == 90 * episode, what="the drops")  # noqa: B023
        await take(sub, 10)
        await stream.publish(1)
        await take(sub, 1)
        await eventually(lambda: len(of(SlowConsumer, events)) == 8 * episode, what="all events")  # noqa: B023
    reports = of(SlowConsumer, events)
    doublings = [(2**power, False) for power in range(7)]
    assert [(one.dropped, one.ended) for one in reports] == [*doublings, (90, True)] * 2
    ends = [(one.first_stream_seq, one.last_stream_seq) for one in reports if one.ended]
    assert ends == [(11, 100), (112, 201)]


async def test_drops_reported_when_the_subscription_ends(
    js: Any, stream: OwnStream, events: list[Any]
) -> None:
    sub = await js.subscribe(stream.all, config=ConsumerConfig(ack_policy="none"), max_pending=10)
    await stream.publish(100)
    await eventually(lambda: sub.dropped == 90, what="the drops")
    await sub.unsubscribe()
    last = of(SlowConsumer, events)[-1]
    assert (last.dropped, last.first_stream_seq, last.last_stream_seq, last.ended) == (90, 11, 100, True)


NAMED = [
    ("subscribe", {"durable": "d"}),
    ("subscribe", {"queue": "d"}),
    ("subscribe", {"config": ConsumerConfig(name="d")}),
    ("pull_subscribe", {"durable": "d"}),
    ("pull_subscribe", {"config": ConsumerConfig(name="d")}),
]
IDS = ["push-durable", "queue", "push-name", "pull-durable", "pull-name"]
named = pytest.mark.parametrize(("kind", "arguments"), NAMED, ids=IDS)


@pytest.mark.covers("J111", "J112")
@named
async def test_creation_of_named_consumer_warns(
    js: Any, stream: OwnStream, events: list[Any], kind: str, arguments: dict[str, Any]
) -> None:
    """A durable without delete_on_close was deleted by a clean stop, and nothing had said that it would be."""
    sub = await getattr(js, kind)(stream.all, **arguments)
    warning = await wait_for_event(ConsumerNotKept, events)
    assert (warning.stream, warning.consumer, warning.severity) == (stream.name, "d", "warning")
    assert "delete_on_close=False" in str(warning)
    assert "delete_on_close=True" in str(warning)
    assert await anext(sub.events()) == warning
    if kind == "pull_subscribe" or "queue" in arguments:  # another reader binds, and does not create
        await getattr(js, kind)(stream.all, **({"queue": "d"} if "queue" in arguments else {"consumer": "d"}))
    await sub.unsubscribe()
    assert len(of(ConsumerNotKept, events)) == 1


@pytest.mark.covers("J111", "J112")
@named
@pytest.mark.parametrize("delete_on_close", [True, False])
async def test_told_choice_does_not_warn(
    js: Any,
    stream: OwnStream,
    events: list[Any],
    kind: str,
    arguments: dict[str, Any],
    delete_on_close: bool,
) -> None:
    sub = await getattr(js, kind)(stream.all, **arguments, delete_on_close=delete_on_close)
    await sub.unsubscribe()
    unnamed = await getattr(js, kind)(stream.all)
    ordered = await js.subscribe(stream.all, ordered=True)
    for other in (unnamed, ordered):
        await other.unsubscribe()
    await js.ping()
    assert of(ConsumerNotKept, events) == []
    deletions = of(DurableDeleted, events)
    assert [(one.consumer, one.chosen, one.severity) for one in deletions] == (
        [("d", True, "info")] if delete_on_close else []
    )
    assert await stream.consumer_names() == ([] if delete_on_close else ["d"])


@pytest.mark.covers("J111", "J112")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@named
async def test_every_deletion_reported(
    js: Any, stream: OwnStream, events: list[Any], kind: str, arguments: dict[str, Any], end: str
) -> None:
    """Everything handled, a clean stop: the place in the stream was gone, without a line in the log (B1)."""
    await stream.publish(3)
    sub = await getattr(js, kind)(stream.all, **arguments)
    for message in await (take(sub, 3) if kind == "subscribe" else sub.fetch(3)):
        await message.ack_sync()
    await getattr(sub, end)()
    event = await wait_for_event(DurableDeleted, events)
    assert (event.pending, event.unacked, event.num_waiting, event.push_bound) == (0, 0, 0, False)
    assert (event.stream, event.consumer, event.chosen, event.severity) == (
        stream.name,
        "d",
        False,
        "warning",
    )
    assert "0 messages undelivered and 0 unacked, because" in str(event)
    assert "delete_on_close=False" in str(event)
    assert await stream.consumer_names() == []
    assert len(of(DurableDeleted, events)) == 1


@pytest.mark.covers("J111", "J112")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("kind", ["pull_subscribe", "subscribe"])
async def test_durable_deleted_with_messages_reported(
    js: Any, stream: OwnStream, events: list[Any], kind: str, end: str
) -> None:
    """ADR-15 deletes what the subscription created, with the place of the reader."""
    config = ConsumerConfig(max_ack_pending=3)
    await stream.publish(10)
    sub = await getattr(js, kind)(stream.all, durable="d", config=config, delete_on_close=True)
    if kind == "subscribe":
        await take(sub, 3)
    else:
        assert len(await sub.fetch(3)) == 3
    await getattr(sub, end)()
    event = await wait_for_event(DurableDeleted, events)
    assert (event.pending, event.unacked, event.chosen, event.severity) == (7, 3, True, "warning")
    assert await stream.consumer_names() == []


@pytest.mark.covers("J111")
@pytest.mark.server(">=2.11")  # 2.10 does not answer the deletion on a connection whose rights were reloaded
async def test_deletion_reported_without_right_to_ask(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    """The user may not ask for the consumer's state: its deletion was not reported at all."""
    every: dict[str, Any] = {"publish": {"allow": [">"]}}
    fewer: dict[str, Any] = {"publish": {"deny": ["$JS.API.CONSUMER.INFO.*.d"], "allow": [">"]}}

    def config(rights: dict[str, Any]) -> dict[str, Any]:
        judge = {"user": "judge", "password": "judge"}
        limited = {"user": "limited", "password": "limited", "permissions": rights}
        return {"authorization": {"users": [judge, limited]}}

    own = await own_server(config=config(every))
    stream = await make_stream(oracle=await oracle_for(own, user="judge", password="judge"))
    js = await connect(own, user="limited", password="limited", timeout=5.0)
    sub = await js.pull_subscribe(stream.all, durable="d")  # looks the name up first, which needs the right
    own.reload(config(fewer))

    async def denied() -> bool:
        try:
            await sub.consumer_info()
        except jsclient.PermissionDeniedError:
            return True
        except jsclient.JetStreamError:
            pass  # the reload may break the connection
        return False

    await eventually(denied, 15, "the right is taken away")
    await sub.unsubscribe()
    event = await wait_for_event(DurableDeleted, events)
    assert (event.pending, event.unacked, event.num_waiting, event.push_bound) == (None,) * 4
    assert "unknown" in str(event)
    assert await stream.consumer_names() == []


@pytest.mark.covers("J112", "J114")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_members_left_behind_reported(
    server: Any, connect: Any, stream: OwnStream, events: list[Any], end: str
) -> None:
    """The first member of a queue group left. The other members received no further message and no error (B2)."""
    first = await (await connect(server)).subscribe(stream.all, queue="crew")
    second = await (await connect(server)).subscribe(stream.all, queue="crew")
    await getattr(first, end)()
    deleted = await wait_for_event(DurableDeleted, events)
    assert deleted.push_bound is True
    assert "other members of its queue group" in str(deleted)
    missing = await wait_for_event(ConsumerDeleted, events, timeout=30)
    assert (missing.stream, missing.consumer) == (stream.name, "crew")
    assert missing == await anext(second.events())
    await second.unsubscribe()


@pytest.mark.covers("J112", "J114")
async def test_member_told_of_consumer_recreated(
    server: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """A third one made the consumer again: it delivers to its own inbox, and the second member hears nothing."""
    first = await (await connect(server)).subscribe(stream.all, queue="crew", delete_on_close=True)
    second = await (await connect(server)).subscribe(stream.all, queue="crew", delete_on_close=False)
    await first.unsubscribe()
    third = await (await connect(server)).subscribe(stream.all, queue="crew", delete_on_close=True)
    assert third.created
    assert await anext(second.events()) == ConsumerDeleted(stream=stream.name, consumer="crew")
    assert not third.is_closed
    await eventually(lambda: of(ConsumerDeleted, events), what="the event of the connection")
    assert len(of(ConsumerDeleted, events)) == 1


@pytest.mark.covers("J112", "J114")
async def test_worker_left_behind_ends(server: Any, connect: Any, stream: OwnStream) -> None:
    first = await (await connect(server)).subscribe(stream.all, queue="crew", delete_on_close=True)
    second = await (await connect(server)).subscribe(stream.all, queue="crew", delete_on_close=False)
    worker = second.run(noting([]))
    await first.unsubscribe()
    with pytest.raises(jsclient.ConsumerDeletedError):
        await within(30, worker, "the end of the worker")


@pytest.mark.core_cases(2)
@pytest.mark.server(">=2.11")  # 2.10 does not answer requests for a consumer that is gone: HeartbeatError
@pytest.mark.covers("J112", "J114")
@pytest.mark.parametrize("late", [False, True], ids=["waiting", "next-request"])
@pytest.mark.parametrize("how", ["fetch", "messages"])
async def test_pull_members_left_behind_reported(
    server: Any,
    connect: Any,
    stream: OwnStream,
    events: list[Any],
    how: str,
    late: bool,
) -> None:
    """A member of a pull consumer notices it with the request in flight, or with its next request."""
    first = await (await connect(server)).pull_subscribe(stream.all, durable="d")
    second = await (await connect(server)).pull_subscribe(stream.all, durable="d")
    assert not second.created

    async def read() -> Any:
        return await (second.fetch(1, expires=60) if how == "fetch" else anext(second.messages()))

    reading = None
    if not late:
        reading = asyncio.create_task(read())
        await eventually(lambda: _waiting(stream), what="the request of the second")
    await first.unsubscribe()
    deleted = await wait_for_event(DurableDeleted, events)
    assert deleted.num_waiting == (0 if late else 1)
    assert ("1 pull request of other readers waited" in str(deleted)) is not late
    with pytest.raises(jsclient.ConsumerDeletedError) as caught:
        await within(30, reading or read(), "the end of the reader")
    assert caught.value.consumer == "d"


async def _waiting(stream: OwnStream) -> bool:
    return (await stream.consumer_info("d"))["num_waiting"] == 1
