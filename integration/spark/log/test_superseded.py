"""Compaction and messages with a time to live: a superseded or expired message is not a lost message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.kit.calls.source import BatchRead, Query
from integration.kit.judge.oracle import number_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient.errors import HistoryTruncatedError

pytestmark = pytest.mark.covers("L13")

KEYS = 20
MODES = pytest.mark.parametrize(
    "mode", ["consumer", pytest.param("direct", marks=pytest.mark.server(">=2.11"))]
)


@pytest.fixture
def make_bucket(make_stream: Callable[..., Awaitable[OwnStream]]) -> Callable[..., Awaitable[OwnStream]]:
    """A stream with one message of each subject, as a key-value bucket has it."""

    async def make(**config: Any) -> OwnStream:
        return await make_stream(
            **{"max_msgs_per_subject": 1, "allow_direct": True, "discard": "new", **config}
        )

    return make


async def write(bucket: OwnStream, round_: int) -> None:
    """A new value of each key: 100 times the round, plus the key."""
    for key in range(KEYS):
        await bucket.publish(1, "key", key, first=100 * round_ + key)


def newest(query: Any) -> dict[str, int]:
    return {row["subject"].rpartition(".")[2]: number_of(row["data"]) for row in query.rows}


def values(round_: int) -> dict[str, int]:
    return {str(key): 100 * round_ + key for key in range(KEYS)}


async def first_batch(query: Query) -> tuple[Any, dict[str, Any]]:
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    return reader, end


@MODES
async def test_bucket_followed_while_it_is_written(server: Any, make_bucket: Any, mode: str) -> None:
    """Seven messages a batch, and each batch meets a bucket in which all values are new."""
    bucket = await make_bucket()
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest", readMode=mode, maxMessagesPerTrigger=7)
    reader, end = await first_batch(query)
    for round_ in range(2, 6):
        await write(bucket, round_)
        following = query.ask(reader, end)
        await write(bucket, round_ + 10)  # between the plan and the tasks
        query.batch(reader, end, following)
        end = following
    query.drain()
    assert newest(query) == values(15)


@MODES
async def test_no_batches_of_what_is_gone(server: Any, make_bucket: Any, mode: str) -> None:
    """A limit of messages counts existing messages: a query that returned late used to have many empty batches."""
    bucket = await make_bucket()
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest", readMode=mode, maxMessagesPerTrigger=10)
    query.drain()
    for round_ in range(2, 12):
        await write(bucket, round_)
    before = len(query.rows)
    batches = query.drain()
    assert newest(query) == values(11)
    assert len(query.rows) - before == KEYS
    assert len(batches) <= 3


async def test_superseded_are_counted(server: Any, make_bucket: Any) -> None:
    bucket = await make_bucket()
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest", maxMessagesPerTrigger=KEYS // 2)
    reader, end = await first_batch(query)
    await write(bucket, 2)
    query.batch(reader, end, query.ask(reader, end))
    assert reader.reportLatestOffset()["superseded"] == KEYS // 2
    assert reader.reportLatestOffset().keys().isdisjoint({"lost", "expired"})


async def test_batch_again_after_its_values_were_superseded(server: Any, make_bucket: Any) -> None:
    bucket = await make_bucket()
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest")
    await first_batch(query)
    await write(bucket, 2)
    assert query.replay(query.reader(), *query.offsets[0]) == [[]]


async def test_batch_read_from_superseded_sequence(server: Any, make_bucket: Any) -> None:
    bucket = await make_bucket()
    await write(bucket, 1)
    await write(bucket, 2)
    assert newest(BatchRead(server, bucket, startingSequence=1)) == values(2)


async def test_purged_bucket_is_a_loss(server: Any, make_bucket: Any) -> None:
    """The newest message of a compacted stream is never superseded: someone removed it."""
    bucket = await make_bucket()
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest", maxMessagesPerTrigger=5)
    await first_batch(query)
    reader = query.reader()
    end = query.offsets[-1][1]
    following = query.ask(reader, end)
    await bucket.purge()
    with pytest.raises(HistoryTruncatedError, match="messages 6 to 10"):
        reader.partitions(end, following)


@pytest.mark.parametrize(
    "limit", [{"max_msgs": KEYS + 5, "discard": "old"}, {"max_bytes": 5000, "discard": "old"}], ids=str
)
async def test_limit_that_may_have_removed_them_is_a_loss(server: Any, make_bucket: Any, limit: Any) -> None:
    bucket = await make_bucket(**limit)
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest", maxMessagesPerTrigger=5)
    await first_batch(query)
    for other in range(2 * KEYS):
        await bucket.publish(1, "other", other, size=150)
    with pytest.raises(HistoryTruncatedError, match="messages 6 to"):
        query.drain()


async def test_expired_by_age_of_the_stream_is_a_loss(server: Any, make_bucket: Any) -> None:
    bucket = await make_bucket(max_age=1_000_000_000)
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest", maxMessagesPerTrigger=5)
    await first_batch(query)

    async def emptied() -> bool:
        return (await bucket.state())["messages"] == 0

    await eventually(emptied, 20, "the messages expire")
    await write(bucket, 2)
    with pytest.raises(HistoryTruncatedError, match="messages 6 to"):
        query.drain()


async def test_bucket_with_an_age_is_followed(server: Any, make_bucket: Any) -> None:
    """Nothing after the position is old enough to have expired."""
    bucket = await make_bucket(max_age=3600 * 1_000_000_000)
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest")
    await first_batch(query)
    await write(bucket, 2)
    await write(bucket, 3)
    query.drain()
    assert newest(query) == values(3)


@pytest.mark.server(">=2.11")
async def test_own_time_to_live_is_no_loss(server: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_msg_ttl=True)
    await stream.publish(5)
    query = Query(server, stream, startingOffsets="earliest")
    await first_batch(query)
    for number in range(6, 16):
        await stream.oracle.publish(stream.subject(), str(number).encode(), headers={"Nats-TTL": "1s"})
    await stream.publish(5, first=16)

    async def expired() -> bool:
        return (await stream.state())["messages"] == 10

    await eventually(expired, 20, "ten messages expire")
    await stream.oracle.purge(stream.name, seq=6)
    query.drain()
    assert [number_of(row["data"]) for row in query.rows] == [*range(1, 6), *range(16, 21)]


async def test_written_all_the_time(server: Any, make_bucket: Any) -> None:
    """A writer does not wait for the query, which ends with the last value of each key."""
    bucket = await make_bucket()
    await write(bucket, 1)
    query = Query(server, bucket, startingOffsets="earliest", maxMessagesPerTrigger=11)
    reader, end = await first_batch(query)

    async def keep_writing() -> None:
        for round_ in range(2, 30):
            await write(bucket, round_)

    writing = asyncio.create_task(keep_writing())
    while not writing.done():
        following = await asyncio.to_thread(query.ask, reader, end)
        if following != end:
            await asyncio.to_thread(query.batch, reader, end, following)
            end = following
        await asyncio.sleep(0)
    await writing
    query.drain()
    assert newest(query) == values(29)
