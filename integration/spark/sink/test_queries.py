"""The sink in Spark: exact counts and sets through failures of tasks, replays and restarts."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.streams import OwnStream
from integration.kit.spark.sessions import finish
from jsclient.spark.task_context import activate

ROWS, FILES = 600, 3
"""Rows of a query's input, in so many files; one of them is one micro-batch."""


@pytest.fixture
def numbers_in(spark: Any, tmp_path: Path) -> Callable[..., Any]:
    """A streaming DataFrame with the numbers below `ROWS`, each so often, a third of them in each batch."""

    def frame(times: int = 1) -> Any:
        where = tmp_path / f"numbers-{times}"
        if not where.exists():
            where.mkdir()
            each = ROWS // FILES
            for number in range(FILES):
                ids = [one for one in range(number * each, (number + 1) * each) for _ in range(times)]
                file = where / f"{number}.json"
                file.write_text("".join(f'{{"id": {one}}}\n' for one in ids))
                os.utime(file, (1_700_000_000 + number,) * 2)  # Spark reads them in the order of their times
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1")
        return stream.json(str(where))

    return frame


def rows_for(stream: OwnStream, frame: Any) -> Any:
    """Numbers as messages, with a few subjects."""
    return frame.selectExpr(f"concat('{stream.prefix}.s', id % 7) as subject", "cast(id as string) as data")


@pytest.fixture
def run(spark: Any, server: Any, checkpoint: Path) -> Callable[..., Any]:
    """Run a streaming DataFrame into a stream until all rows are written. Again it continues from the checkpoint."""

    async def start(stream: OwnStream, frame: Any, **options: str) -> Any:
        arguments = {
            "servers": server.url,
            "expectedStream": stream.name,
            "checkpointLocation": str(checkpoint),
            **options,
        }

        def go() -> Any:
            activate(spark)
            query = (
                frame.writeStream.format("jetstream").options(**arguments).trigger(availableNow=True).start()
            )
            finish(query)
            return query

        return await asyncio.to_thread(go)

    return start


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died between the last task and the commit: a restart replays this batch."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)


async def numbers_of(stream: OwnStream) -> Counter[int]:
    return Counter(int(message.payload) for message in await stream.messages())


def once(times: int = 1) -> Counter[int]:
    return Counter(dict.fromkeys(range(ROWS), times))


@pytest.fixture
async def short(oracle: Any, make_stream: Any) -> OwnStream:
    """A stream that forgets message ids at once."""
    stream: OwnStream = await make_stream(duplicate_window=100_000_000)
    return stream


@pytest.fixture
async def ledger(short: OwnStream, oracle: Any) -> Any:
    name = f"ledger_{short.prefix}"
    yield {"exactlyOnce": "ledger", "ledger": name}
    await oracle.delete_stream(f"KV_{name}", missing_ok=True)


# --- streaming -------------------------------------------------------------------------------------------


@pytest.mark.covers("L25")
@pytest.mark.full
async def test_query_stores_each_row_once(
    stream: OwnStream, numbers_in: Any, run: Any, checkpoint: Path
) -> None:
    """Three batches. A restart stores nothing, the replay of the last batch stores nothing either."""
    query = await run(stream, rows_for(stream, numbers_in()))
    assert query.lastProgress["batchId"] == FILES - 1
    assert await numbers_of(stream) == once()
    subjects = Counter(message.subject for message in await stream.messages())
    assert subjects == Counter(stream.subject(f"s{number % 7}") for number in range(ROWS))
    await run(stream, rows_for(stream, numbers_in()))
    forget_last_commit(checkpoint)
    await run(stream, rows_for(stream, numbers_in()))
    assert await numbers_of(stream) == once()


@pytest.mark.full
async def test_replay_without_ids_stores_twice(
    stream: OwnStream, numbers_in: Any, run: Any, checkpoint: Path
) -> None:
    """The reason for ids: with exactlyOnce=none the rows of the batch are stored twice, no others."""
    await run(stream, rows_for(stream, numbers_in()), exactlyOnce="none")
    forget_last_commit(checkpoint)
    await run(stream, rows_for(stream, numbers_in()), exactlyOnce="none")
    actual = await numbers_of(stream)
    assert sorted(set(actual.values())) == [1, 2]
    assert sum(actual.values()) == ROWS + ROWS // FILES


@pytest.mark.covers("L25")
@pytest.mark.parametrize("dedup", ["content", pytest.param("none", marks=pytest.mark.full)])
async def test_failing_task_retried(
    spark: Any, server: Any, stream: OwnStream, tmp_path: Path, dedup: str
) -> None:
    """Half a partition is published when the task fails: its next attempt stores the rest. Without ids the first half
    is stored twice, which shows that it had been published."""
    marker = tmp_path / "failed-once"

    url, name = server.url, stream.name

    def fail_once(data: str) -> str:
        if data == "280" and not marker.exists():
            import time

            from jsclient.tables.server_options import ServerOptions
            from jsclient.tables.session import session

            marker.touch()
            js, deadline = session(ServerOptions((url,))), time.monotonic() + 120
            while not js.run(js.js.stream(name)).cached_info.state.messages and time.monotonic() < deadline:
                time.sleep(0.05)
            raise RuntimeError("this attempt fails")
        return data.rjust(2000, "0")  # on its way out of Python and out of Spark it is collected by 64 KiB

    from pyspark.sql.functions import udf

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        numbers = spark.range(0, ROWS, numPartitions=1)  # what is stored is of the task that fails
        failing = udf(fail_once, "string", useArrow=False)
        rows = rows_for(stream, numbers).select("subject", failing("data").alias("data"))
        writer = rows.write.format("jetstream").mode("append")

        def save() -> None:
            activate(spark)
            writer.options(servers=server.url, dedup=dedup).save()

        await asyncio.to_thread(save)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert marker.exists()
    actual = await numbers_of(stream)
    assert set(actual) == set(range(ROWS))
    if dedup == "none":
        again = [number for number, times in actual.items() if times == 2]
        assert again
        assert max(again) < 300
    else:
        assert actual == once()


@pytest.mark.covers("L25")
@pytest.mark.full
async def test_restart_behind_window_needs_ledger(
    short: OwnStream, ledger: dict[str, str], numbers_in: Any, run: Any, checkpoint: Path
) -> None:
    """The stream has forgotten the ids when the batch is replayed: the ledger has not. Rows that are equal and rows
    that come through a shuffle are among them. Switched off, the batch is stored twice."""
    frame = rows_for(short, numbers_in(2).repartition(2))
    await run(short, frame, **ledger)
    assert await numbers_of(short) == once(2)
    forget_last_commit(checkpoint)
    await asyncio.sleep(0.5)
    await run(short, frame, **ledger)
    assert await numbers_of(short) == once(2)
    forget_last_commit(checkpoint)
    await run(short, frame)
    assert sum((await numbers_of(short)).values()) == 2 * (ROWS + ROWS // FILES)


@pytest.mark.covers("L27")
@pytest.mark.full
async def test_replay_in_another_shape(
    short: OwnStream, ledger: dict[str, str], numbers_in: Any, run: Any, checkpoint: Path
) -> None:
    """Other partitions than before: exact with dedupScope=epoch, also after the window has passed."""
    options = {**ledger, "dedupScope": "epoch"}
    await run(short, rows_for(short, numbers_in().repartition(3)), **options)
    forget_last_commit(checkpoint)
    await asyncio.sleep(0.5)
    await run(short, rows_for(short, numbers_in().repartition(2, "id")), **options)
    assert await numbers_of(short) == once()


@pytest.mark.covers("L28")
@pytest.mark.full
async def test_rows_of_stream_into_another(
    spark: Any, server: Any, oracle: Any, make_stream: Any, run: Any, checkpoint: Path
) -> None:
    """From JetStream to JetStream with subjects, payloads and headers. The replay of a batch changes nothing."""
    source, target = await make_stream(), await make_stream()
    for number in range(60):
        headers = {"a": f"v{number}", "Nats-Msg-Id": f"old-{number}"} if number % 2 else None
        await oracle.publish(source.subject("x", number % 3), b"%d" % number, headers)
    read = spark.readStream.format("jetstream").options(
        servers=server.url, stream=source.name, startingOffsets="earliest", maxMessagesPerTrigger="25"
    )
    frame = read.load().selectExpr(
        f"replace(subject, '{source.prefix}', '{target.prefix}') as subject", "data", "headers", "sequence"
    )
    await run(target, frame)
    forget_last_commit(checkpoint)
    await run(target, frame)
    messages = await target.messages()
    assert sorted(int(message.payload) for message in messages) == list(range(60))
    for message in messages:
        number = int(message.payload)
        assert message.subject == target.subject("x", number % 3)
        assert (b"\r\na: v%d\r\n" % number in message.headers) == bool(number % 2)
        assert message.headers.count(b"Nats-Msg-Id") == 1
        assert b"old-" not in message.headers


# --- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.covers("L29")
@pytest.mark.full
async def test_bad_row_stops_the_query(
    stream: OwnStream, numbers_in: Any, run: Any, checkpoint: Path
) -> None:
    """The error of the query names the row, its column, and how much is stored. Mended, the query continues."""
    bad = numbers_in().selectExpr(
        f"if(id = 290, 'a b', '{stream.prefix}.a') as subject", "cast(id as string) as data"
    )
    with pytest.raises(Exception, match="RowError") as raised:
        await run(stream, bad)
    text = re.search(r"RowError: (.*)", str(raised.value))
    assert text is not None
    assert re.match(r"row \d+ of partition \d+ \(subject 'a b'\), column 'subject': ", text[1])
    assert "Of this partition 0 rows are stored" in text[1]
    assert sum((await numbers_of(stream)).values()) == ROWS // FILES
    await run(stream, rows_for(stream, numbers_in()))
    assert await numbers_of(stream) == once()


@pytest.mark.parametrize(
    ("columns", "options", "reported"),
    [
        (["cast(id as string) as data"], {}, "no column 'subject'"),
        (["'a' as subject", "id as data"], {}, "column 'data' is bigint"),
        (["'a' as subject"], {}, "one column 'data' or 'value'"),
        (["'a' as subject", "'x' as data"], {"windw": "1"}, "did you mean 'window'"),
        (["'a' as subject", "'x' as data"], {"expectedStream": "NO_SUCH"}, "'NO_SUCH' .* does not exist"),
    ],
)
def test_refused_on_the_driver(
    spark: Any, server: Any, columns: list[str], options: dict[str, str], reported: str
) -> None:
    """Before any task, by the name of column or option."""
    writer = spark.range(3).selectExpr(*columns).write.format("jetstream").mode("append")
    with pytest.raises(Exception, match=reported):
        writer.options(servers=server.url, **options).save()


def test_overwrite_is_refused(spark: Any, server: Any) -> None:
    frame = spark.range(3).selectExpr("'a' as subject", "'x' as data")
    with pytest.raises(Exception, match="append"):
        frame.write.format("jetstream").mode("overwrite").option("servers", server.url).save()


# --- publish_batch ---------------------------------------------------------------------------------------


@pytest.mark.full
async def test_publish_batch(
    server: Any, stream: OwnStream, numbers_in: Any, drain: Any, checkpoint: Path
) -> None:
    """In foreachBatch, from the executors: a batch that is replayed stores nothing twice, and two calls of one batch
    are two writes if they have two names."""
    from jsclient.spark import publish_batch

    options = {"servers": server.url, "expectedStream": stream.name}

    def publish(frame: Any, batch_id: int) -> None:
        publish_batch(rows_for(stream, frame), options, batch_id=batch_id)
        also = frame.where("id < 10").selectExpr(
            f"'{stream.prefix}.also' as subject", "cast(id as string) as data"
        )
        publish_batch(also, options, batch_id=batch_id, query="small numbers")

    expected = once() + Counter(range(10))
    await asyncio.to_thread(drain, numbers_in(), also=publish)
    assert await numbers_of(stream) == expected
    forget_last_commit(checkpoint)
    again = await asyncio.to_thread(drain, numbers_in(), also=publish)
    assert again.runs == [FILES - 1]
    assert await numbers_of(stream) == expected


async def test_publish_batch_of_a_frame(spark: Any, server: Any, stream: OwnStream) -> None:
    """Outside of a query the writer cannot know its query: the query must be named, or the batch has no identity."""
    from jsclient.errors import ConfigError
    from jsclient.spark import publish_batch

    frame = rows_for(stream, spark.range(0, ROWS, numPartitions=2))

    def calls() -> None:
        with pytest.raises(ConfigError, match="give query="):
            publish_batch(frame, server.url, batch_id=1)
        with pytest.raises(ConfigError, match="without batch_id"):
            publish_batch(frame, server.url, query="q")
        with pytest.raises(ConfigError, match="'window'"):
            publish_batch(frame, {"servers": server.url, "windw": "1"})
        publish_batch(frame, server.url, batch_id=1, query="q")
        publish_batch(frame, server.url, batch_id=1, query="q")

    await asyncio.to_thread(calls)
    assert await numbers_of(stream) == once()
    await asyncio.to_thread(publish_batch, frame, server.url)
    assert await numbers_of(stream) == once(2)


# --- Spark Connect ---------------------------------------------------------------------------------------


@pytest.mark.full
async def test_with_connect(server: Any, stream: OwnStream, connect_spark: Any, tmp_path: Path) -> None:
    """A streaming query whose batch is replayed. publish_batch asks for the values that Spark does not pass there."""
    code = """
    from jsclient.spark import publish_batch
    columns = f"'{prefix}.a' as subject", "cast(id as string) as data"
    spark.range(100).write.json(files)
    stream = spark.readStream.schema("id long").json(files).selectExpr(*columns)
    def run():
        writer = stream.writeStream.format("jetstream").options(checkpointLocation=checkpoint, **options)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        assert query.exception() is None, query.exception()
    run()
    import pathlib
    commits = pathlib.Path(checkpoint, "commits")
    [path.unlink() for path in commits.iterdir()]
    run()
    try:
        publish_batch(spark.range(1).selectExpr(*columns), options, batch_id=3)
    except Exception as error:
        result = str(error)
    """
    reports = await asyncio.to_thread(
        connect_spark,
        code,
        options={"servers": server.url, "expectedStream": stream.name},
        prefix=stream.prefix,
        files=str(tmp_path / "in"),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert "give query=" in reports
    assert await numbers_of(stream) == Counter(range(100))
