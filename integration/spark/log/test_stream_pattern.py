"""``streamPattern``: the streams whose names match, including new streams and deleted streams."""

from __future__ import annotations

import asyncio
import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from integration.kit.calls.several import COLUMNS, PatternQuery, numbers, sequences
from integration.kit.calls.source import read_all
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient.errors import ConfigError, PositionInvalidError
from jsclient.server import NatsServer
from jsclient.spark.log.batch import LogBatchReader
from jsclient.tables import bounded
from jsclient.tables.source_options import SourceOptions


def read_of(server, pattern, **options):
    """The rows of a batch read."""
    arguments = {"servers": server.url, "streamPattern": pattern, **options}
    reader = LogBatchReader(SourceOptions.parse(arguments, streaming=False), COLUMNS)
    return [row for part in read_all(reader, reader.partitions()) for row in part]


@pytest.fixture
async def two(oracle, make_stream):
    """Two streams with 20 messages each, and the pattern that they and new streams of the test match."""
    first, second = await make_stream(), await make_stream()
    await first.publish(20)
    await second.publish(20)
    return first, second, f"{first.name.rsplit('_', 1)[0]}_*"


@pytest.mark.covers("L9")
async def test_streams_that_match_are_read(server, two, oracle):
    first, second, pattern = two
    other = await OwnStream.create(oracle, "other")
    await other.publish(5)
    query = PatternQuery(server, pattern, startingOffsets="earliest", maxMessagesPerTrigger=15)
    query.drain()
    assert max(len(batch) for batch in query.batches) == 15
    assert sequences(query.rows, first) == sequences(query.rows, second) == numbers(1, 20)
    assert len(query.rows) == 40
    only = query.again(first.name)
    await first.publish(5, first=21)
    await second.publish(5, first=21)
    only.drain()
    assert (sequences(only.rows, first), sequences(only.rows, second)) == (numbers(21, 25), [])
    query.drain()
    assert sequences(query.rows, second) == numbers(1, 25)
    await other.delete()


@pytest.mark.covers("L9")
async def test_stream_that_appears_is_read_whole(server, two, make_stream):
    """While the query runs, and while it is stopped, with `startingOffsets` = `latest` for existing streams."""
    *_, pattern = two
    query = PatternQuery(server, pattern)
    reader = query.reader()
    start = query.start(reader)
    third = await make_stream()
    await third.publish(7)
    end = await eventually(lambda: (got := query.ask(reader, start)) != start and got, what="a batch")
    query.batch(reader, start, end)
    query.batch(reader, end, query.ask(reader, end))
    assert [len(batch) for batch in query.batches] == [0, 7]
    assert sequences(query.rows, third) == numbers(1, 7)
    fourth = await make_stream()
    await fourth.publish(9)
    query.drain()
    assert sequences(query.rows, fourth) == numbers(1, 9)
    assert len(query.rows) == 16
    for offsets, parts in zip(query.offsets, query.parts, strict=True):
        assert query.replay(query.reader(), *offsets) == parts


@pytest.mark.covers("L9", "L11")
async def test_deleted_stream_refused_or_forgotten(server, two):
    first, second, pattern = two
    query = PatternQuery(server, pattern, startingOffsets="earliest")
    query.drain()
    await second.delete()
    with pytest.raises(PositionInvalidError, match=f"stream '{second.name}' was deleted"):
        query.drain()
    tolerant = query.again(failOnDataLoss="false")
    tolerant.drain()
    assert tolerant.batches == [[]]
    assert [*query.offsets[-1][1]["streams"]] == [first.name]
    await first.publish(3, first=21)
    strict = query.again()
    strict.drain()
    assert sequences(strict.rows, first) == numbers(21, 23)
    await second.oracle.create_stream(second.name, [second.all], storage="memory")
    await second.publish(4)
    strict.drain()
    assert sequences(strict.rows, second) == numbers(1, 4)


@pytest.mark.covers("L9")
async def test_stream_deleted_while_query_runs(server, two):
    first, second, pattern = two
    query = PatternQuery(server, pattern, startingOffsets="earliest", failOnDataLoss=False)
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    await second.delete()
    await first.publish(3, first=21)
    following = query.ask(reader, end)
    assert [*following["streams"]] == [first.name]
    query.batch(reader, end, following)
    assert sequences(query.batches[-1], first) == numbers(21, 23)
    assert json.dumps(reader.latestOffset(following, ReadAllAvailable())) == json.dumps(following)


@pytest.mark.server(">=2.11")
async def test_work_queue_that_cannot_be_read_is_left_out(server, two, make_stream, caplog, monkeypatch):
    """The stream appears while the query runs, and exists at a restart. It is read as soon as that is possible."""
    monkeypatch.setattr("jsclient.spark.log.members._LOOK_AGAIN", 0.0)
    first, second, pattern = two
    query = PatternQuery(server, pattern, startingOffsets="earliest")
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    query.batch(reader, start, end)
    jobs = await make_stream(retention="workqueue", allow_direct=False)
    await jobs.publish(5)
    await first.publish(3, first=21)
    following = query.ask(reader, end)
    query.batch(reader, end, following)
    await second.publish(2, first=21)
    query.drain()
    assert (sequences(query.rows, first), sequences(query.rows, second)) == (numbers(1, 23), numbers(1, 22))
    assert jobs.name not in query.offsets[-1][1]["streams"]
    reports = [one for one in caplog.records if jobs.name in one.getMessage()]
    assert [(one.levelname, "it is not read" in one.getMessage()) for one in reports] == [
        ("WARNING", True)
    ] * 2
    with pytest.raises(ConfigError, match="is a work queue"):  # a new query says so at its start
        PatternQuery(server, pattern, startingOffsets="earliest").drain()
    config = {"name": jobs.name, "subjects": [jobs.all], "retention": "workqueue", "storage": "memory"}
    await jobs.oracle.api(f"STREAM.UPDATE.{jobs.name}", {**config, "allow_direct": True})
    query.drain()
    query.drain()
    assert sequences(query.rows, jobs) == numbers(1, 5)


async def test_query_waits_for_first_stream(server, two, make_stream, caplog):
    *_, pattern = two
    query = PatternQuery(server, f"NEW_{pattern}")
    reader = query.reader()
    start = query.start(reader)
    assert start == {"streams": {}}
    assert query.ask(reader, start) == start
    assert "which no stream matches yet" in caplog.text
    with pytest.raises(ConfigError, match="which matches no stream"):
        read_of(server, f"NEW_{pattern}")


async def test_query_survives_server_without_jetstream(own_server, monkeypatch, caplog):
    """A passing fault: the server answers, but JetStream does not yet. The first look takes it for a wrong option."""
    monkeypatch.setattr("jsclient.spark.log.members._LOOK_AGAIN", 0.0)
    own = await own_server()
    async with Oracle(own.url) as oracle:
        await oracle.api("STREAM.CREATE.FAULT_A", {"name": "FAULT_A", "subjects": ["fault.a"]})
        await oracle.publish_many("fault.a", 5)
    query = PatternQuery(own, "FAULT_*", startingOffsets="earliest")
    reader = query.reader()
    start = await asyncio.to_thread(query.start, reader)
    end = await asyncio.to_thread(query.ask, reader, start)
    await own.stop()
    async with NatsServer(port=own.port, jetstream=False):
        with pytest.raises(ConfigError, match="JetStream does not answer"):
            await asyncio.to_thread(query.start, query.reader())
        call = asyncio.create_task(asyncio.to_thread(query.ask, reader, end))
        await eventually(lambda: call.done() or "asking again" in caplog.text, what="a look, or its end")
    await own.start()
    assert await call == end
    assert "option 'streamPattern': " in caplog.text


async def test_batch_read_of_pattern(server, two):
    first, second, pattern = two
    rows = read_of(server, pattern)
    assert sequences(rows, first) == sequences(rows, second) == numbers(1, 20)
    filtered = read_of(server, pattern, subjects=first.all)
    assert sequences(filtered, first) == numbers(1, 20)
    assert len(filtered) == 20


async def test_batch_read_skips_stream_that_was_deleted(server, two, monkeypatch):
    """A list of names is not made at one moment."""
    first, second, pattern = two
    listed = bounded.matching_names

    def with_deleted(options):
        return (*listed(options), f"{first.name}_deleted")

    monkeypatch.setattr(bounded, "matching_names", with_deleted)
    rows = read_of(server, pattern)
    assert sequences(rows, first) == sequences(rows, second) == numbers(1, 20)
    assert len(rows) == 40


async def test_filter_of_no_stream_names_the_streams(server, two, caplog):
    *both, pattern = two
    PatternQuery(server, pattern, subjects="foo.bar").drain()
    names = ", ".join(sorted(one.name for one in both))
    assert f"'foo.bar' can match no message of the streams {names}, which match" in caplog.text
