"""A stream whose name is not ASCII, as other clients can create it: read and written like any other."""

from __future__ import annotations

import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.calls.source import BatchRead, Query, options_of, read_all
from integration.kit.judge.oracle import number_of
from integration.kit.judge.streams import OwnStream
from integration.spark.log.test_checkpoint import command
from jsclient.arrow import read_jetstream
from jsclient.spark.log.batch import LogBatchReader
from jsclient.tables.source_options import SourceOptions

NAMES = ["Bücher", "日本", "a😀"]


@pytest.fixture
async def named_stream(oracle):
    """`await foreign("né", ...)`: a stream with exactly this name."""
    results = []

    async def create(name, **config):
        own = OwnStream(oracle, name, f"t{len(results)}{name.encode().hex()}")
        results.append(own)
        await oracle.create_stream(name, storage="memory", subjects=[own.all], **config)
        return own

    yield create
    for own in results:
        await own.delete()


def numbers(rows):
    return sorted(number_of(row["data"]) for row in rows)


@pytest.mark.covers("L1", "L9", "L15")
@pytest.mark.parametrize("name", NAMES)
async def test_stream_with_any_name_is_read(server, named_stream, name):
    stream = await named_stream(name, allow_direct=True)
    await stream.publish(300)
    for mode in ("consumer", "direct", "auto"):
        rows = BatchRead(server, stream, columns=("data", "stream"), readMode=mode).rows
        assert (numbers(rows), {row["stream"] for row in rows}) == ([*range(1, 301)], {name}), mode
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=200)
    assert [len(batch) for batch in query.drain()] == [200, 100]
    await stream.publish(5, first=301)
    assert [numbers(batch) for batch in query.drain()] == [[*range(301, 306)]]
    assert read_jetstream(server.url, name).read_all().num_rows == 305
    await stream.create_consumer("q", ack_policy="explicit")
    queue = QueueQuery(server, stream, "q", {}, ("data", "reply"))
    assert numbers(await queue.batch()) == [*range(1, 306)]
    assert await queue.plan() is None
    assert (await stream.consumer_info("q"))["num_ack_pending"] == 0
    await queue.stop()


@pytest.mark.covers("L9")
async def test_pattern_reads_streams_with_any_name(server, named_stream):
    one, other = await named_stream("würfe_1"), await named_stream("würfe_zwei_né")
    for stream in (one, other):
        await stream.publish(3)
    options = SourceOptions.parse({"servers": server.url, "streamPattern": "würfe_*"}, streaming=False)
    reader = LogBatchReader(options, ("stream", "data"))
    rows = [row for part in read_all(reader, reader.partitions()) for row in part]
    assert [row["stream"] for row in rows] == [one.name] * 3 + [other.name] * 3
    options = options_of(server, f"{one.name},{other.name}")
    reader = LogBatchReader(SourceOptions.parse(options, streaming=False), ("stream",))
    assert sum(map(len, read_all(reader, reader.partitions()))) == 6


@pytest.mark.full
@pytest.mark.covers("L1", "L25", "L35")
async def test_copied_with_ledger_and_offsets(server, spark, oracle, named_stream, in_thread, checkpoint):
    """From one such stream to another, with a ledger, in two runs. The command names the stream that was read."""
    source, target = await named_stream("Größe"), await named_stream("мир")
    options = {"servers": server.url, "stream": source.name, "startingOffsets": "earliest"}
    sink = {"servers": server.url, "subject": target.subject("copy"), "expectedStream": target.name}

    def copy():
        frame = spark.readStream.format("jetstream").options(**options).load()
        writer = frame.select("data").writeStream.format("jetstream").options(**sink, exactlyOnce="ledger")
        writer.option("checkpointLocation", str(checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    for first in (1, 501):
        await source.publish(500, first=first)
        await in_thread(copy)
    assert sorted(number_of(message.payload) for message in await target.messages()) == [*range(1, 1001)]
    code, shown, _ = await in_thread(command, checkpoint, server=server)
    state = shown["sources"][0]["stream"]
    assert (code, state["name"], state["lag"]) == (0, source.name, 0)
    code, shown, _ = await in_thread(
        command, checkpoint, "--stream", source.name, "--rewind-to", "901", "--force", server=server
    )
    assert (code, shown["rewound"]["first"]) == (0, 901)
