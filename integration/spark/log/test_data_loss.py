"""``failOnDataLoss``: what is gone before it was read is an error that says what and what to do, or is passed over."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from integration.kit.calls.source import BatchRead, Query, options_of, read_all
from jsclient.errors import ConfigError, HistoryTruncatedError, PositionInvalidError
from jsclient.tables.lookup import Lookup

pytestmark = pytest.mark.covers("L11")


def numbers(first, last):
    return list(range(first, last + 1))


async def half_read(server, stream, **options):
    """A query that has read 40 messages of 100."""
    await stream.publish(100)
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=40, **options)
    reader = query.reader()
    start = query.start(reader)
    query.batch(reader, start, query.ask(reader, start))
    return query


async def make_anew(stream, messages):
    await stream.oracle.delete_stream(stream.name)
    await stream.oracle.create_stream(stream.name, [stream.all], storage="memory")
    if messages:
        await stream.publish(messages)


# --- the head is gone ----------------------------------------------------------------------------------------


async def test_a_purged_head_is_an_error(server, stream):
    query = await half_read(server, stream)
    await stream.oracle.purge(stream.name, seq=61)
    with pytest.raises(HistoryTruncatedError, match=r"messages 41 to 60 .*'failOnDataLoss' = 'false'"):
        query.drain()
    assert query.sequences == numbers(1, 40)


async def test_purged_head_skipped(server, stream, caplog):
    query = await half_read(server, stream, failOnDataLoss=False)
    await stream.oracle.purge(stream.name, seq=61)
    with caplog.at_level(logging.WARNING, "jsclient.spark"):
        query.drain()
    assert query.sequences == [*numbers(1, 40), *numbers(61, 100)]
    assert "messages 41 to 60" in caplog.text


async def test_what_was_read_may_go(server, stream):
    query = await half_read(server, stream)
    await stream.oracle.purge(stream.name, seq=41)
    query.drain()
    assert query.sequences == numbers(1, 100)


async def test_idle_stream_may_lose_all_read(server, stream):
    query = await half_read(server, stream)
    query.drain()
    await stream.purge()
    assert query.drain() == []
    await stream.publish(5)
    query.drain()
    assert query.sequences == numbers(1, 105)


async def test_limit_during_read(server, oracle, make_stream):
    """Planned when all messages existed. The executor sees that the head is gone, in the middle of the batch."""
    stream = await make_stream(max_msgs=100)
    query = await half_read(server, stream)
    reader, start = query.reader(), query.offsets[-1][1]
    end = query.ask(reader, start)
    partitions = reader.partitions(start, end)
    await stream.publish(60, first=101)  # 1 to 60 go
    with pytest.raises(HistoryTruncatedError):
        list(query.reader().read(partitions[0]))


async def test_batch_replayed_when_messages_gone(server, stream):
    query = await half_read(server, stream)
    await stream.oracle.purge(stream.name, seq=21)
    with pytest.raises(HistoryTruncatedError, match="messages 1 to 20"):
        query.replay(query.reader(), *query.offsets[0])


async def test_stream_lost_everything_unread(server, stream):
    query = await half_read(server, stream, failOnDataLoss=False)
    await stream.purge()
    await stream.publish(3)
    query.drain()
    assert query.sequences == [*numbers(1, 40), 101, 102, 103]


async def test_start_gone_error(server, stream):
    await stream.publish(50)
    await stream.oracle.purge(stream.name, seq=11)
    with pytest.raises(HistoryTruncatedError, match="messages 1 to 10"):
        Query(server, stream, startingSequence=1).drain()
    query = Query(server, stream, startingSequence=1, failOnDataLoss=False)
    query.drain()
    assert query.sequences == numbers(11, 50)


async def test_messages_deleted_one_by_one_no_loss(server, stream):
    query = await half_read(server, stream)
    for seq in (50, 51, 75):
        await stream.oracle.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": seq})
    query.drain()
    assert query.sequences == [seq for seq in numbers(1, 100) if seq not in (50, 51, 75)]


# --- another stream ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [0, 10, 40, 200])
async def test_stream_recreated_error(server, stream, messages):
    """However many messages the new one has."""
    query = await half_read(server, stream)
    await make_anew(stream, messages)
    with pytest.raises(PositionInvalidError, match="was recreated"):
        query.drain()
    with pytest.raises(PositionInvalidError, match="was recreated"):
        query.replay(query.reader(), *query.offsets[0])


@pytest.mark.parametrize("messages", [10, 40, 200])
async def test_replaced_stream_restarts(server, stream, messages):
    query = await half_read(server, stream, failOnDataLoss=False)
    await make_anew(stream, messages)
    query.drain()
    assert query.sequences == [*numbers(1, 40), *numbers(1, messages)]
    await stream.publish(5)
    query.drain()
    assert query.sequences[-5:] == numbers(messages + 1, messages + 5)


async def test_losses_counted_in_progress(server, stream, caplog):
    """Removed before a batch is planned, and between planning and reading."""
    await stream.publish(400)
    query = Query(server, stream, startingOffsets="earliest", failOnDataLoss=False, minPartitions=2)
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    await stream.oracle.purge(stream.name, seq=101)
    assert len(reader.partitions(start, end)) == 2
    parts = reader.partitions(start, end)  # Spark may ask twice
    await stream.oracle.purge(stream.name, seq=251)
    assert [len(rows) for rows in read_all(query.reader(), parts)] == [0, 150]
    assert "100 messages of stream" in caplog.text  # sequences 101 to 200
    assert "50 messages of stream" in caplog.text
    assert "with option 'failOnDataLoss'" not in caplog.text
    await stream.publish(5)
    following = query.ask(reader, end)
    named = {"seq": 405, "created": end["created"], "stream": stream.name}
    assert reader.reportLatestOffset() == named | {"lost": 100, "expired": 150}
    query.ask(reader, following)
    assert reader.reportLatestOffset()["expired"] == 150


async def test_gone_stream_has_no_rows(server, stream):
    """The batch is replayed with the offsets of the old stream. Its task remains, empty."""
    query = await half_read(server, stream, failOnDataLoss=False)
    await make_anew(stream, 200)
    assert query.replay(query.reader(), *query.offsets[0]) == [[]]


async def test_new_stream_empty_waited_for(server, stream):
    query = await half_read(server, stream, failOnDataLoss=False)
    await make_anew(stream, 0)
    assert query.drain() == []
    await stream.publish(2)
    query.drain()
    assert query.sequences == [*numbers(1, 40), 1, 2]


async def test_replaced_during_read(server, stream):
    query = await half_read(server, stream)
    reader, start = query.reader(), query.offsets[-1][1]
    partitions = reader.partitions(start, query.ask(reader, start))
    await make_anew(stream, 200)
    with pytest.raises(PositionInvalidError):
        list(query.reader().read(partitions[0]))


async def test_stream_ends_before_read(server, stream):
    """As one that was restored from a backup does. The same stream, so it keeps its time."""
    query = await half_read(server, stream)
    start, end = query.offsets[0]
    query.offsets[0] = start, {**end, "seq": 140}
    with pytest.raises(PositionInvalidError, match="ends at sequence 100, but the query has read up to 140"):
        query.drain()


async def test_shorter_stream_continues(server, stream):
    query = await half_read(server, stream, failOnDataLoss=False)
    start, end = query.offsets[0]
    query.offsets[0] = start, {**end, "seq": 140}
    assert [len(batch) for batch in query.drain()] == [0]
    await stream.publish(5)
    query.drain()
    assert query.sequences == [*numbers(1, 40), *numbers(101, 105)]


async def test_stream_deleted_error_names_option(server, stream):
    query = await half_read(server, stream)
    await stream.delete()
    with pytest.raises(ConfigError, match=r"option 'stream': stream '.*' does not exist"):
        query.drain()


async def test_lagging_leader_awaited(server, stream, monkeypatch):
    """A new leader may lag for a moment, so a loss is looked at again."""
    query = await half_read(server, stream)
    reader, (start, end) = query.reader(), query.offsets[0]
    facts, lies = Lookup.facts, []

    def behind(lookup):
        actual = facts(lookup)
        if len(lies) < 2:
            lies.append(actual)
            return replace(actual, last_seq=20, replicas=3)
        return actual

    monkeypatch.setattr(Lookup, "facts", behind)
    assert query.ask(reader, end) == end
    assert len(lies) == 2
    assert query.ask(reader, end)["seq"] == 80
    lies.clear()
    assert query.replay(reader, start, end) == query.parts[0]
    assert len(lies) == 2


async def test_leader_that_stays_behind(server, stream, monkeypatch):
    """A replicated stream that ends before the query's position for so long has lost its end."""
    monkeypatch.setattr("jsclient.protocol.topics.position.CERTAIN", 0.6)
    query = await half_read(server, stream)
    reader, (_, end) = query.reader(), query.offsets[0]
    facts, lies = Lookup.facts, []

    def behind(lookup):
        lies.append(replace(facts(lookup), last_seq=20, replicas=3))
        return lies[-1]

    monkeypatch.setattr(Lookup, "facts", behind)
    with pytest.raises(PositionInvalidError, match="ends at sequence 20"):
        query.ask(reader, end)
    assert len(lies) >= 4


# --- batch reads ---------------------------------------------------------------------------------------------


async def test_batch_read_of_gone_error(server, stream):
    await stream.publish(50)
    await stream.oracle.purge(stream.name, seq=11)
    assert BatchRead(server, stream).sequences == numbers(11, 50)
    with pytest.raises(HistoryTruncatedError, match="messages 1 to 10"):
        BatchRead(server, stream, startingSequence=1)
    with pytest.raises(HistoryTruncatedError, match="messages 3 to 5"):
        BatchRead(server, stream, startingSequence=3, endingSequence=5)
    assert BatchRead(server, stream, startingSequence=1, failOnDataLoss=False).sequences == numbers(11, 50)


# --- with Spark ----------------------------------------------------------------------------------------------


async def test_spark_ends_query_with_reason(spark, drain, server, stream):
    await stream.publish(50)
    options = options_of(server, stream, startingOffsets="earliest")
    frame = spark.readStream.format("jetstream").options(**options).load()
    drain(frame)
    await stream.publish(50)
    await stream.oracle.purge(stream.name, seq=71)
    with pytest.raises(Exception, match="messages 51 to 70"):
        drain(frame)
    tolerant = spark.readStream.format("jetstream").options(**options, failOnDataLoss="false").load()
    assert drain(tolerant).column("sequence") == numbers(71, 100)
