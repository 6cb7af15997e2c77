"""Topics of epochs in streams: the suite of topics in memory, and tests of streams, servers and connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.waiting import eventually, never, within
from jsclient.epochs import Data, FrontierUpdate, Int, Product
from jsclient.errors import (
    ApiError,
    ConfigError,
    EpochsLostError,
    HistoryTruncatedError,
    PositionInvalidError,
    TopicMismatchError,
    TopicNotFoundError,
)
from tests.topics.epochs.kit import Picky, all_of, events, frontier_is, items, records
from tests.topics.epochs.test_events import CompletedEpochSuite
from tests.topics.epochs.test_history import HistorySuite
from tests.topics.epochs.test_publisher import PublisherSuite
from tests.topics.epochs.test_subscription import SubscriptionSuite
from tests.topics.epochs.test_topic import TopicSuite


class Topics:
    """Makes topics in separate streams."""

    def __init__(self, js: Any, prefix: str) -> None:
        self.js, self.prefix, self.made = js, prefix, 0

    def __call__(self, order: Any = None, **options: Any) -> Any:
        self.made += 1
        return self.js.epochs(f"{self.prefix}.{self.made}", Int() if order is None else order, **options)

    async def clear(self) -> None:
        for number in range(1, self.made + 1):
            with contextlib.suppress(jsclient.StreamNotFoundError):
                await self.js.delete_stream(f"{self.prefix}_{number}")


@pytest.fixture
async def make(request: Any, js: Any) -> Any:
    topics = Topics(js, "ep" + "".join(c for c in request.node.name if c.isalnum())[:60])
    yield topics
    await topics.clear()


class TestTopics(TopicSuite):
    pass


class TestPublishers(PublisherSuite):
    pass


class TestSubscriptions(SubscriptionSuite):
    pass


class TestCompletedEpochs(CompletedEpochSuite):
    pass


class TestHistory(HistorySuite):
    pass


# --- schemas and streams -----------------------------------------------------------------------------------


@pytest.mark.covers("S48", "S50", "S51")
async def test_topic_stands_in_stream(js: Any, make: Any) -> None:
    topic = make(order=Product(Int(), Int(3)), partitions=4)
    assert await topic.create(storage="memory") == 4
    stream = await js.stream(topic.name.replace(".", "_"))
    assert stream.config.subjects == [f"{topic.name}.*.data", f"{topic.name}.*.frontier"]
    assert stream.config.storage == "memory"
    same = js.epochs(topic.name, Product(Int(), Int(3)))
    assert await same.partitions() == 4
    assert await same.create() == 4, "it is there as it is to be"
    for other, field in (
        (js.epochs(topic.name, Product(Int(), Int())), "order"),
        (js.epochs(topic.name, Product(Int(), Int(3)), codec=Picky()), "codec"),
        (js.epochs(topic.name, Product(Int(), Int(3)), partitions=3), "partitions"),
    ):
        for call in (other.subscribe(), other.subscribe(wait=False), other.publisher(), other.create()):
            with pytest.raises(TopicMismatchError) as caught:
                await call
            assert [mismatch[0] for mismatch in caught.value.mismatches] == [field]
            assert topic.name in str(caught.value)


@pytest.mark.smoke
async def test_many_at_once_make_one_topic(js: Any, make: Any) -> None:
    topic = make()
    others = [js.epochs(topic.name, partitions=number) for number in (1, 2, 3, 1, 2, 3)]
    results = await asyncio.gather(*(other.create() for other in others), return_exceptions=True)
    created = {one for one in results if isinstance(one, int)}
    assert len(created) == 1
    assert [one for one in results if not isinstance(one, int | TopicMismatchError)] == []


async def test_topics_in_a_users_stream(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(metadata={"team": "red"})
    one, two = (js.epochs(f"{stream.name}.{name}", stream=stream.name) for name in ("one", "two"))
    with pytest.raises(TopicNotFoundError):
        await one.subscribe(wait=False)
    pubs = [await one.publisher(), await two.publisher()]
    config = (await js.stream(stream.name)).config
    assert config.metadata["team"] == "red"
    assert len(config.subjects) == 1 + 4
    sub = await one.subscribe()
    for pub, what in zip(pubs, ("one", "two"), strict=True):
        await pub.send(1, [what])
        await pub.close()
    assert await all_of(sub.completed()) == {1: ["one"]}


async def test_streams_lose_parts_refused(js: Any, oracle: Any, make_stream: Any) -> None:
    """D37: messages that no consumer wanted are not kept there, or messages in the middle go first."""
    for field in ({"retention": "interest"}, {"retention": "workqueue"}, {"max_msgs_per_subject": 5}):
        stream = await make_stream(**field)
        topic = js.epochs(f"{stream.name}.t", stream=stream.name)
        with pytest.raises(ConfigError, match=next(iter(field))):
            await topic.publisher()
        await stream.delete()
        fresh = js.epochs(f"{stream.name}.t")
        with pytest.raises(ConfigError, match=next(iter(field))):
            await fresh.create(**field)
        epochs = js.epochs(f"{stream.name}.t")
        await (await epochs.publisher()).release()
        name = f"{stream.name}_t"
        config = (await js.stream(name)).config
        if "max_msgs_per_subject" in field:  # the server lets a stream be changed to that
            await js.update_stream(config.replace(**field))
            for call in (epochs.subscribe(), js.epochs(f"{stream.name}.t").publisher()):
                with pytest.raises(ConfigError, match="max_msgs_per_subject"):
                    await call
        await js.delete_stream(name)


async def test_place_in_stream_recreated_refused(js: Any, make: Any) -> None:
    topic = make()
    async with await topic.publisher() as pub:
        await pub.advance(5)
        sub = await topic.subscribe()
        position = sub.position
        await js.delete_stream(topic.name.replace(".", "_"))
        again = js.epochs(topic.name)
        async with await again.publisher(takeover=True) as other:
            await other.advance(9)
            with pytest.raises(PositionInvalidError, match="recreated"):
                await again.subscribe(start=position)
            with pytest.raises((PositionInvalidError, EpochsLostError)):
                await events(sub, lambda event: False)
            await sub.close()


async def test_history_removed_reported_and_rest_whole(js: Any, make: Any) -> None:
    topic = make()
    stream = None
    async with await topic.publisher() as pub:
        async with await topic.subscribe() as sub:
            await pub.send(1, ["part"])
            await pub.send(2, ["part"])
            await pub.flush()
            got = await events(sub, lambda event: isinstance(event, Data) and event.time == 2)
            assert items(got) == [(1, ["part"]), (2, ["part"])]
            position = sub.position
        await pub.send(1, ["rest"])
        await pub.advance(2)
        await pub.send(3, ["whole"])
        await pub.flush()
        stream = await js.stream(topic.name.replace(".", "_"))
        await stream.purge(seq=4)
        sub = await topic.subscribe(start=position)
        whole = sub.completed()
        with pytest.raises(EpochsLostError):
            await whole.next(5)
        await pub.advance(4)
        assert (await whole.next(5)).time == 3
        await stream.purge()
        with pytest.raises(HistoryTruncatedError):
            await pub.advance(9)
        await sub.close()


# --- connections and servers -------------------------------------------------------------------------------


async def test_publisher_timeout_frontier(oracle: Any, make: Any) -> None:
    """No one takes them for longer than the timeout of the connection, as in an election."""
    topic = make()
    stream = topic.name.replace(".", "_")
    async with await topic.publisher(timeout=30) as pub:
        await pub.advance(1)
        subjects = (await oracle.stream_info(stream))["config"]["subjects"]
        await oracle.update_stream(stream, subjects=[f"{stream}.away"])
        advancing = asyncio.ensure_future(pub.advance(2))
        await never(advancing.done, 1.5, "the end of the wait")
        await oracle.update_stream(stream, subjects=subjects)
        await within(15, advancing, "the frontier record")
        await pub.advance(3)


async def test_leaves_nothing_behind(js: Any, server: Any, oracle: Any, make: Any) -> None:
    topic = make(partitions=2)
    pubs = [await topic.publisher(number) for number in range(2)]
    stream = topic.name.replace(".", "_")
    await asyncio.gather(js.account_info(), oracle.consumer_names(stream))
    async with no_leaks(oracle=oracle, streams=[stream], monitor=server.monitor, settle=8.0):
        third = await topic.publisher(0, takeover=True)
        async with await topic.subscribe() as sub:
            await third.send(1, ["a"])
            await third.flush()
            await events(sub, lambda event: isinstance(event, Data))
        with pytest.raises(jsclient.RequestTimeoutError):
            await js.epochs("nowhere").subscribe(timeout=0.2)
        waiting = asyncio.ensure_future(js.epochs("nowhere").subscribe())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await third.release()
    for pub in pubs:
        await pub.release()


@pytest.mark.covers("S1", "S2")
async def test_publishers_keep_nothing(js: Any, make: Any) -> None:
    """A publisher keeps only the messages in flight, so it keeps no message after a flush. The stream has the rest."""
    topic = make()
    async with await topic.publisher(max_in_flight=50) as pub:
        for number in range(500):
            await pub.send(number, ["x" * 1000])
        await pub.flush()
        assert (pub._out._publisher.in_flight, pub._out._publisher.in_flight_bytes) == (0, 0)


async def test_refused_data_then_successor(js: Any, make: Any) -> None:
    topic = make()
    await topic.create(max_msgs=6, discard="new")
    async with await topic.publisher() as first:
        sub = await topic.subscribe()
        for number in range(8):
            await first.send(1, [number], msg_id=str(number) if number % 2 else None)
        for _ in range(2):
            with pytest.raises(jsclient.PublishesFailedError):
                await first.advance(2)
        with pytest.raises(jsclient.PublishesFailedError):
            await first.send(1, ["x"])
    await js.update_stream((await js.stream(topic.name.replace(".", "_"))).config.replace(max_msgs=100))
    async with await topic.publisher() as second:
        assert second.frontier.elements == (0,), "1 is open still"
        await second.advance(3)
        assert [event.time for event in await events(sub, frontier_is(3)) if isinstance(event, Data)] == [
            1
        ] * 5
    await sub.close()


@pytest.mark.parametrize("removed", ["the first", "one in the middle", "the last", "all"])
async def test_large_epoch_of_which_a_record_was_removed(js: Any, make: Any, removed: str) -> None:
    """Not kept in memory, it is read again: whole, or not at all."""
    topic = make()
    async with topic.publisher() as pub, topic.subscribe() as sub:
        for number in range(6):
            await pub.send(1, [str(number) * 50])
        await pub.advance(2)
        epoch = await sub.completed(max_bytes=10).next(5)
        assert (epoch.is_kept, epoch.last_seq - epoch.first_seq) == (False, 5)
        assert len([batch async for batch in epoch]) == 6
        stream = await js.stream(topic.name.replace(".", "_"))
        if removed == "all":
            await stream.purge()
        else:
            seq = {"the first": epoch.first_seq, "the last": epoch.last_seq}.get(removed, epoch.first_seq + 3)
            await stream.delete_message(seq)
        batches: list[Any] = []

        async def read() -> None:
            async for batch in epoch:
                batches.append(batch)  # noqa: PERF401  it ends with an error

        with pytest.raises(EpochsLostError, match="removed before it was read again"):
            await read()
        assert len(batches) < 6
        assert removed != "the first" or not batches, "nothing of an epoch that begins too late"


@pytest.mark.server(">=2.12")
async def test_batch_not_committed_leaves_nothing(js: Any, make: Any) -> None:
    topic = make()
    await topic.create(allow_atomic=True)
    pub = await topic.publisher()
    assert pub._out.is_atomic
    sub = await topic.subscribe()
    before = len(await records(topic))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await pub.commit_epoch(3, *(["x"] for _ in range(200)))  # cancelled, it continues
    await pub.commit_epoch(4, *(["y"] for _ in range(300)))
    assert len(await records(topic)) == before + 502
    with pytest.raises(jsclient.BatchTooLargeError):
        await pub.commit_epoch(5, *(["z"] for _ in range(1500)))
    assert len(await records(topic)) == before + 502
    with pytest.raises(jsclient.BatchTooLargeError):
        await pub.advance(9)
    async with await topic.publisher() as again:
        assert again.frontier.elements == (5,)
        await again.close()
    got = await all_of(sub.completed())
    assert {time: len(of) for time, of in got.items()} == {3: 200, 4: 300}
    await pub.release()


async def test_right_to_read_enough_for_subscriber(own_server: Any, connect: Any) -> None:
    name = "T"
    reader = {
        "publish": [
            f"$JS.API.STREAM.INFO.{name}",
            f"$JS.API.STREAM.MSG.GET.{name}",
            f"$JS.API.CONSUMER.CREATE.{name}",
            f"$JS.API.CONSUMER.CREATE.{name}.>",
            f"$JS.API.CONSUMER.MSG.NEXT.{name}.>",
            f"$JS.API.CONSUMER.DELETE.{name}.>",
            f"$JS.API.DIRECT.GET.{name}",
        ],
        "subscribe": ["_INBOX.>"],
    }
    users = [
        {"user": "w", "password": "w"},
        {"user": "r", "password": "r", "permissions": reader},
    ]
    server = await own_server(config={"authorization": {"users": users}})
    writer, js = [await connect(server.url, user=who, password=who) for who in "wr"]
    topic = writer.epochs(name)
    async with await topic.publisher() as pub:
        theirs = js.epochs(name)
        sub = await theirs.subscribe()
        await pub.send(1, ["a"])
        await pub.close()
        assert await all_of(sub.completed()) == {1: ["a"]}
        with pytest.raises((jsclient.PermissionDeniedError, ApiError, jsclient.RequestTimeoutError)):
            await within(20, theirs.publisher(takeover=True))


async def test_frontier_refreshed(js: Any, make: Any) -> None:
    topic = make()
    await topic.create(max_age=3.0)
    stream = await js.stream(topic.name.replace(".", "_"))
    async with await topic.publisher() as pub, await topic.subscribe() as sub:
        await pub.send(4, ["a"])
        await pub.advance(3)
        await eventually(lambda: first_seq_over(stream, 4), 30)
        async with await topic.subscribe(wait=False) as late:
            assert (late.frontier.elements, late.filter.elements) == ((3,), (4,))
        await pub.advance(5)
        got = await events(sub, frontier_is(5))
        assert [event.frontier for event in got if isinstance(event, FrontierUpdate)] == [(0,), (3,), (5,)]


async def first_seq_over(stream: Any, seq: int) -> bool:
    return (await stream.info()).state.first_seq > seq


async def test_frontier_age_grows(js: Any, make: Any) -> None:
    topic = make()
    async with await topic.publisher() as pub, await topic.subscribe() as sub:
        await pub.send(1, ["a"])
        await pub.flush()
        await events(sub, lambda event: isinstance(event, Data))
        before = sub.frontier_age
        await asyncio.sleep(0.05)
        assert sub.frontier_age > before
        await pub.advance(2)
        assert isinstance((await events(sub, frontier_is(2)))[-1], FrontierUpdate)


async def test_on_a_connection_of_nats_py(natspy_js: Any, make: Any) -> None:
    topic = make(partitions=2)
    await topic.create()
    theirs = natspy_js.epochs(topic.name)
    pubs = [await theirs.publisher(number) for number in range(2)]
    sub = await theirs.subscribe()
    for pub in pubs:
        await pub.send(1, [pub.partition])
        await pub.close()
    assert sorted((await all_of(sub.completed()))[1]) == [0, 1]
    live = natspy_js.epochs(f"{topic.name}.live")
    async with await live.live_publisher() as pub, await live.live_subscribe() as hearing:
        await pub.send(1, ["a"])
        assert items(await events(hearing, lambda event: isinstance(event, Data))) == [(1, ["a"])]
