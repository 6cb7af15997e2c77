"""Streams that change the subjects of messages: the source reads by the subjects under which they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.calls.source import BatchRead, Query, options_of, read_all
from integration.kit.judge.waiting import eventually
from jsclient.arrow import read_jetstream
from jsclient.errors import ConfigError
from jsclient.spark.log.batch import LogBatchReader
from jsclient.tables.source_options import SourceOptions

COPIED, OWN = 1600, 40


@dataclass
class EqualTo:
    """A filter as Spark pushes it down."""

    attribute: tuple[str, ...]
    value: Any


@pytest.fixture
async def aggregate(make_stream):
    """`await aggregate()`: a stream with 1,600 messages of two sources under `….a`, 320 under `….b`, 40 originals."""

    async def create(**config):
        origins = [await make_stream(), await make_stream()]
        own = await make_stream()
        await own.delete()
        sources = [
            {"name": one.name, "subject_transforms": [{"src": one.all, "dest": f"{own.prefix}.all.>"}]}
            for one in origins
        ]
        transform = {"src": f"{own.prefix}.in.>", "dest": f"{own.prefix}.own.>"}
        options = {"subject_transform": transform, "sources": sources, "storage": "memory", **config}
        await own.oracle.create_stream(own.name, [f"{own.prefix}.in.>"], **options)
        for _ in range(4):
            for one in origins:
                await one.publish(COPIED // 8, "a")
                await one.publish(40, "b")
        await own.publish(OWN, "in", "x")

        async def copied():
            return (await own.state())["messages"] == COPIED + 320 + OWN

        await eventually(copied, 20, "all messages of the sources")
        return own, origins

    return create


@pytest.mark.core_cases(1)
@pytest.mark.covers("L6", "L10")
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "consumer"])
async def test_aggregate_filtered_by_stored_subject(server, aggregate, direct):
    stream, _ = await aggregate(allow_direct=direct)
    counts = {"all.a": COPIED, "all.>": COPIED + 320, "*.b": 320, "own.x": OWN, "own.>": OWN}
    for tokens, count in counts.items():
        subject = stream.subject(tokens)
        for mode in ("auto", "consumer", "direct") if direct else ("auto", "consumer"):
            assert len(BatchRead(server, stream, readMode=mode, subjects=subject).rows) == count, (
                tokens,
                mode,
            )
        assert read_jetstream(server.url, stream.name, subjects=subject).read_all().num_rows == count
    query = Query(
        server,
        stream,
        startingOffsets="earliest",
        subjects=stream.subject("all.a"),
        maxMessagesPerTrigger=300,
    )
    assert max(len(batch) for batch in query.drain()) <= 300
    assert len(query.rows) == COPIED
    for options in ({}, {"subjects": stream.subject("all.>")}):
        actual = BatchRead(
            server, stream, pushdown=True, filters=[EqualTo(("subject",), stream.subject("all.a"))], **options
        )
        assert (len(actual.rows), actual.unhandled) == (COPIED, [])


@pytest.mark.full
@pytest.mark.covers("L10")
async def test_spark_reads_what_is_stored(spark, server, aggregate):
    """By the subjects after the transforms, filtered by the source and by Spark."""
    stream, _ = await aggregate(allow_direct=True)
    load = spark.read.format("jetstream").options(**options_of(server, stream))
    assert load.option("subjects", stream.subject("all.a")).load().count() == COPIED
    rows = load.option("subjects", stream.subject(">")).load()
    assert rows.where(rows.subject == stream.subject("all.b")).count() == 320
    assert rows.count() == COPIED + 320 + OWN


@pytest.mark.covers("L10", "L15")
async def test_aggregate_beside_a_source_and_as_queue(server, aggregate):
    stream, (origin, _) = await aggregate(allow_direct=True)
    options = options_of(server, f"{stream.name},{origin.name}")
    options["subjects"] = f"{stream.subject('all.a')},{origin.subject('b')}"
    reader = LogBatchReader(SourceOptions.parse(options, streaming=False), ("stream",))
    rows = [row["stream"] for part in read_all(reader, reader.partitions()) for row in part]
    assert (rows.count(stream.name), rows.count(origin.name)) == (COPIED, 160)
    await stream.create_consumer(
        "q", ack_policy="explicit", filter_subject=stream.subject("all.a"), max_ack_pending=5000
    )
    queue = QueueQuery(server, stream, "q")
    assert len(await queue.batch()) == COPIED
    await queue.stop()


@pytest.mark.covers("L6")
@pytest.mark.parametrize("which", ["before the transform", "of the source", "of nobody"])
async def test_filter_by_other_subjects_refused(server, aggregate, which):
    """If a transform changes the subject, no message is stored under the subject to which a client publishes."""
    stream, (origin, _) = await aggregate(allow_direct=True)
    subject = {
        "before the transform": stream.subject("in.x"),
        "of the source": origin.subject("a"),
        "of nobody": stream.subject("none"),
    }[which]
    with pytest.raises(
        ConfigError, match=rf"{subject!r} can match no message .* subjects .*\.own\.>, .*\.all\.>"
    ):
        BatchRead(server, stream, subjects=subject)
    with pytest.raises(ConfigError, match="can match no message"):
        Query(server, stream, subjects=subject).drain()


@pytest.mark.covers("L6", "L10")
async def test_stored_before_the_transform(server, stream):
    """Messages keep the subjects that they had when a transform is added, and are found by them."""
    await stream.publish(7, "a")
    await stream.oracle.update_stream(
        stream.name, subject_transform={"src": stream.subject("a"), "dest": stream.subject("b")}
    )
    await stream.publish(3, "a")
    for token, count in (("a", 7), ("b", 3)):
        assert len(BatchRead(server, stream, subjects=stream.subject(token)).rows) == count
