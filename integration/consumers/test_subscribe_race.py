"""Two subscribers at the same moment: who creates the consumer, and what becomes of the other. Source: ADR-15.

A race is forced: the proxy delays the answer "consumer not found" until another connection has created it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle, OracleError, number_of
from integration.kit.judge.reading import numbers, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network.asking import answers_to, api_requests, creates, delivers
from integration.kit.network.proxy import Proxy
from integration.kit.network.recording import in_order
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient import ConsumerConfig

DELIVER = "deliver.of.the.winner"
GROUPED = {"deliver_subject": DELIVER, "deliver_group": "workers"}


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    js = await connect(tap, timeout=10)
    await js.account_info()
    return js


@pytest.fixture
def losing(tap: Proxy) -> Any:
    """Run a subscribe call that gets "not found", and `meanwhile` before it continues."""

    async def lose(call: Any, meanwhile: Callable[[], Awaitable[Any]]) -> Any:
        held = tap.hold_frames(answers_to(tap, "CONSUMER.INFO.>"), count=1)
        task = asyncio.create_task(call)
        await held.wait()
        assert b"10014" in held.frames[0].payload, "the look-up said: not found"
        await meanwhile()
        held.release()
        return await within(30, task, "the subscribe call that lost the race")

    return lose


@pytest.mark.covers("J54", "J56", "J58", "J59", "J42", "J3")
async def test_plain_race_loser_refused(
    js: Any, tap: Proxy, losing: Any, stream: OwnStream, oracle: Oracle, server: ServerUnderTest
) -> None:
    async def meanwhile() -> None:
        await stream.create_consumer("shared", deliver_subject=DELIVER, filter_subject=stream.all)

    await stream.create_consumer("before")
    await js.ping()
    async with no_leaks(monitor=server.monitor):
        with pytest.raises(jsclient.DuplicateSubscriptionError) as caught:
            await losing(js.subscribe(stream.all, durable="shared"), meanwhile)
    assert caught.value.consumer == "shared"
    assert api_requests(tap, "CONSUMER.>") == [
        f"CONSUMER.INFO.{stream.name}.shared",
        f"CONSUMER.DURABLE.CREATE.{stream.name}.shared",
        f"CONSUMER.INFO.{stream.name}.shared",
    ]
    assert await stream.consumer_names() == ["before", "shared"]


@pytest.mark.covers("J54", "J57", "J58", "J59", "J31", "J40", "J41")
@pytest.mark.parametrize("arguments", [{}, {"durable": "workers"}])
async def test_queue_race_loser_joins(
    js: Any, tap: Proxy, losing: Any, stream: OwnStream, arguments: dict[str, Any]
) -> None:
    async def meanwhile() -> None:
        await stream.create_consumer("workers", **GROUPED, filter_subject=stream.all)

    sub = await losing(js.subscribe(stream.all, queue="workers", **arguments), meanwhile)
    inbox, joined = delivers(tap)
    (create,) = creates(tap)
    unsub = next(frame for frame in tap.unsubs() if frame.sid == inbox.sid)
    assert (inbox.queue, joined.queue, joined.subject) == ("workers", "workers", DELIVER)
    assert in_order(inbox, create, unsub, joined)
    assert sub.subject == DELIVER
    assert not sub.created

    await stream.publish(10)
    assert numbers(await take(sub, 10)) == list(range(1, 11))
    await sub.unsubscribe()
    await js.close()
    assert api_requests(tap, "CONSUMER.DELETE.>") == []
    assert await stream.consumer_names() == ["workers"]


@pytest.mark.covers("J54", "J55", "J59", "J112")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_pull_race_loser_reads(js: Any, tap: Proxy, losing: Any, stream: OwnStream, end: str) -> None:
    async def meanwhile() -> None:
        await stream.create_consumer("shared", filter_subject=stream.all, description="the winner's")

    await stream.publish(5)
    sub = await losing(js.pull_subscribe(stream.all, durable="shared"), meanwhile)
    assert not sub.created
    assert delivers(tap) == []
    assert numbers(await sub.fetch(5)) == [1, 2, 3, 4, 5]
    await getattr(sub, end)()
    await js.close()
    assert api_requests(tap, "CONSUMER.DELETE.>") == []
    assert await stream.consumer_names() == ["shared"]


LOST: list[Any] = [
    # kind, arguments, what the winner created, error
    ("pull_subscribe", {"durable": "shared"}, {"deliver_subject": DELIVER}, jsclient.PushConsumerError),
    ("pull_subscribe", {"durable": "shared"}, {"filter_subject": "other"}, jsclient.SubjectMismatchError),
    (
        "pull_subscribe",
        {"durable": "shared", "config": ConsumerConfig(max_deliver=5)},
        {"max_deliver": 4},
        jsclient.ConfigMismatchError,
    ),
    ("subscribe", {"durable": "shared"}, {}, jsclient.PullConsumerError),
    ("subscribe", {"durable": "shared"}, GROUPED, jsclient.QueueRequiredError),
    ("subscribe", {"durable": "shared", "queue": "others"}, GROUPED, jsclient.QueueMismatchError),
    (
        "subscribe",
        {"durable": "shared", "queue": "workers"},
        {"deliver_subject": DELIVER},
        jsclient.NotQueueConsumerError,
    ),
    (
        "subscribe",
        {"durable": "shared", "queue": "workers"},
        {**GROUPED, "filter_subject": "other"},
        jsclient.SubjectMismatchError,
    ),
    (
        "subscribe",
        {"durable": "shared", "queue": "workers"},
        {**GROUPED, "idle_heartbeat": 5_000_000_000},
        jsclient.QueueHeartbeatError,
    ),
    (
        "subscribe",
        {"durable": "shared", "queue": "workers", "config": ConsumerConfig(max_deliver=5)},
        {**GROUPED, "max_deliver": 4},
        jsclient.ConfigMismatchError,
    ),
]


@pytest.mark.covers("J54", "J55", "J59", "J60", "J3")
@pytest.mark.parametrize(("kind", "arguments", "theirs", "error"), LOST)
async def test_race_winner_must_fit(
    js: Any,
    tap: Proxy,
    losing: Any,
    stream: OwnStream,
    server: ServerUnderTest,
    kind: str,
    arguments: dict[str, Any],
    theirs: dict[str, Any],
    error: type[Exception],
) -> None:
    config = {"filter_subject": stream.all, **theirs}
    if config["filter_subject"] == "other":
        config["filter_subject"] = stream.subject("other")

    async def meanwhile() -> None:
        await stream.create_consumer("shared", **config)

    await js.ping()
    async with no_leaks(monitor=server.monitor):
        with pytest.raises(error):
            await losing(getattr(js, kind)(stream.all, **arguments), meanwhile)
    assert api_requests(tap, "CONSUMER.DELETE.>") == []
    assert await stream.consumer_names() == ["shared"]


@pytest.mark.covers("J59", "J112", "J60")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_unanswered_create_keeps(
    tap: Proxy, connect: Any, losing: Any, stream: OwnStream, kind: str
) -> None:
    js = await connect(tap, timeout=3)
    await js.account_info()

    async def meanwhile() -> None:
        config = {"deliver_subject": DELIVER} if kind == "subscribe" else {"description": "the winner's"}
        await stream.create_consumer("shared", filter_subject=stream.all, **config)
        tap.drop_frames(answers_to(tap, "CONSUMER.DURABLE.CREATE.>"))

    with pytest.raises(jsclient.RequestTimeoutError):
        await losing(getattr(js, kind)(stream.all, durable="shared"), meanwhile)
    if kind == "subscribe":
        await eventually(lambda: len(api_requests(tap, "CONSUMER.INFO.>")) == 2, what="the look whose it is")
    await js.close()  # waits for the tasks that continue in the background
    assert api_requests(tap, "CONSUMER.DELETE.>") == []
    assert await stream.consumer_names() == ["shared"]


@pytest.mark.covers("J42", "J41", "J27", "J56")
async def test_same_durable_one_refused(connect: Any, server: ServerUnderTest, stream: OwnStream) -> None:
    """P24: with nats-py both are accepted most of the time, and messages come twice."""
    first, second = await connect(server), await connect(server)
    for number in range(10):
        results = await asyncio.gather(
            *(js.subscribe(stream.all, durable=f"d{number}") for js in (first, second)),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        assert [type(error) for error in errors] == [jsclient.DuplicateSubscriptionError]
        (winner,) = [result for result in results if not isinstance(result, BaseException)]
        assert winner.created
        seq = await stream.publish(1)
        message = await winner.next(5)
        while message.metadata.stream_seq < seq:
            message = await winner.next(5)
        assert await stream.consumer_names() == [f"d{number}"]
        await winner.unsubscribe()


@pytest.mark.covers("J42", "J41")
async def test_second_push_refused(js: Any, stream: OwnStream) -> None:
    """Without the interest made before the create request it would just move the deliver subject."""
    sub = await js.subscribe(stream.all, durable="used")

    async def create_again(name: str) -> Any:
        config = (await stream.consumer_info(name))["config"] | {"deliver_subject": "deliver.elsewhere"}
        subject = f"CONSUMER.DURABLE.CREATE.{stream.name}.{name}"
        return await stream.oracle.api(subject, {"stream_name": stream.name, "config": config})

    with pytest.raises(OracleError) as caught:
        await create_again("used")
    assert caught.value.err_code == 10013
    with pytest.raises(jsclient.DuplicateSubscriptionError):
        await js.subscribe(stream.all, durable="used")
    await stream.publish(1)
    assert (await sub.next(5)).data == b"1"
    other = await js.subscribe(stream.all, durable="unused", delete_on_close=False)
    await other.unsubscribe()
    moved = await create_again("unused")
    assert moved["config"]["deliver_subject"] == "deliver.elsewhere"


@pytest.mark.covers("J58", "J25")
async def test_joining_loses_nothing(
    js: Any, losing: Any, stream: OwnStream, connect: Any, server: ServerUnderTest
) -> None:
    other = await connect(server)
    results: list[int] = []

    async def note(message: jsclient.Message) -> None:
        results.append(number_of(message.data))

    async def meanwhile() -> None:
        await other.subscribe(stream.all, queue="workers", callback=note)
        await stream.publish(100)

    await losing(js.subscribe(stream.all, queue="workers", callback=note), meanwhile)
    await stream.publish(100, first=101)
    await eventually(lambda: len(results) >= 200, 15, "every message")
    await never(lambda: len(results) > 200, 0.2, "a message twice")
    assert sorted(results) == list(range(1, 201))


SAME = "deliver.chosen.by.the.user"


@pytest.mark.covers("J54", "J55", "J59", "J112")
@pytest.mark.parametrize("metadata", [None, {"team": "a"}])
async def test_same_pull_durable_created_once(
    connect: Any, server: ServerUnderTest, stream: OwnStream, metadata: dict[str, str] | None
) -> None:
    """The server answers both with success when their configurations are identical."""
    first, second = await connect(server), await connect(server)
    config = ConsumerConfig(metadata=metadata)
    for number in range(10):
        subs = await asyncio.gather(
            *(js.pull_subscribe(stream.all, durable=f"d{number}", config=config) for js in (first, second))
        )
        assert sorted(sub.created for sub in subs) == [False, True]
        (other,) = [sub for sub in subs if not sub.created]
        await other.unsubscribe()
        assert await stream.consumer_names() == [f"d{number}"]
        (creator,) = [sub for sub in subs if sub.created]
        await creator.unsubscribe()
        assert await stream.consumer_names() == []


@pytest.mark.covers("J54", "J56", "J59")
async def test_same_deliver_subject_one_refused(
    connect: Any, server: ServerUnderTest, stream: OwnStream
) -> None:
    first, second = await connect(server), await connect(server)
    config = ConsumerConfig(deliver_subject=SAME)
    for number in range(10):
        results = await asyncio.gather(
            *(js.subscribe(stream.all, durable=f"d{number}", config=config) for js in (first, second)),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        assert [type(error) for error in errors] == [jsclient.DuplicateSubscriptionError]
        (winner,) = [result for result in results if not isinstance(result, BaseException)]
        await winner.unsubscribe()
        assert await stream.consumer_names() == []


@pytest.mark.covers("J54", "J57", "J59", "J112")
async def test_same_queue_deliver_subject_created_once(
    connect: Any, server: ServerUnderTest, stream: OwnStream
) -> None:
    first, second = await connect(server), await connect(server)
    config = ConsumerConfig(deliver_subject=SAME)
    for number in range(10):
        subs = await asyncio.gather(
            *(js.subscribe(stream.all, queue=f"q{number}", config=config) for js in (first, second))
        )
        assert sorted(sub.created for sub in subs) == [False, True]
        (other,) = [sub for sub in subs if not sub.created]
        await other.unsubscribe()
        assert await stream.consumer_names() == [f"q{number}"]
        (creator,) = [sub for sub in subs if sub.created]
        await creator.unsubscribe()


@pytest.mark.covers("J3", "J60")
async def test_unanswered_pull_durable_removed(tap: Proxy, connect: Any, stream: OwnStream) -> None:
    """Its metadata prove that this call created it."""
    js = await connect(tap, timeout=3)
    await js.account_info()
    tap.drop_frames(answers_to(tap, "CONSUMER.DURABLE.CREATE.>"))
    with pytest.raises(jsclient.RequestTimeoutError):
        await js.pull_subscribe(stream.all, durable="shared")

    async def is_removed() -> bool:
        return await stream.consumer_names() == []

    await eventually(is_removed, what="the consumer's removal")
