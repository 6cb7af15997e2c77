"""Every row has its own id: rows of two writes, two subjects or two tasks are not taken for one another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.streams import OwnStream
from integration.kit.spark.sessions import finish
from jsclient.spark import publish_batch
from jsclient.spark.task_context import activate

ROWS, BATCHES = 400, 2


@pytest.fixture
def for_each(spark: Any, checkpoint: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run ``foreachBatch`` with a function over the numbers below `ROWS`, in `BATCHES` batches."""
    where = tmp_path / "numbers"
    where.mkdir()
    for number in range(BATCHES):
        ids = range(number * ROWS // BATCHES, (number + 1) * ROWS // BATCHES)
        (where / f"{number}.json").write_text("".join(f'{{"id": {one}}}\n' for one in ids))

    async def start(write: Callable[[Any, int], None]) -> None:
        def go() -> None:
            activate(spark)
            stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").json(str(where))
            rows = stream.selectExpr("id", "cast(id % 10 as string) as data").repartition(2, "id")
            options = {"checkpointLocation": str(checkpoint)}
            finish(rows.writeStream.foreachBatch(write).options(**options).trigger(availableNow=True).start())

        await asyncio.to_thread(go)

    return start


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died between the last write and the commit: a restart replays this batch."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)


async def subjects_of(stream: OwnStream) -> Counter[str]:
    return Counter(message.subject for message in await stream.messages())


@pytest.mark.covers("L26")
async def test_batch_to_two_subjects(
    server: Any, stream: OwnStream, for_each: Callable[..., Any], checkpoint: Path
) -> None:
    """The same rows, written to one subject and then to another: both are stored, also when it is replayed."""
    first, second, options = stream.subject("first"), stream.subject("second"), {"servers": server.url}

    def write(batch: Any, batch_id: int) -> None:
        for subject in (first, second):
            publish_batch(batch, {**options, "subject": subject}, batch_id=batch_id)

    await for_each(write)
    forget_last_commit(checkpoint)
    await for_each(write)
    assert await subjects_of(stream) == {first: ROWS, second: ROWS}


@pytest.mark.covers("L26")
async def test_batch_to_one_subject_twice(
    server: Any, stream: OwnStream, for_each: Callable[..., Any], checkpoint: Path
) -> None:
    """Equal rows of two writes of one batch are distinct rows."""
    subject, options = stream.subject("all"), {"servers": server.url}

    def write(batch: Any, batch_id: int) -> None:
        for remainder in (0, 1):
            rows = batch.where(f"id % 2 = {remainder}").selectExpr("'x' as data")
            publish_batch(rows, {**options, "subject": subject}, batch_id=batch_id)

    await for_each(write)
    forget_last_commit(checkpoint)
    await for_each(write)
    assert await subjects_of(stream) == {subject: ROWS}


@pytest.mark.covers("L26")
@pytest.mark.full
async def test_one_subject_by_option_and_by_column(
    server: Any, stream: OwnStream, for_each: Callable[..., Any], checkpoint: Path
) -> None:
    """Writes of one batch to one subject are kept apart however they name the subject, its stream and the server."""
    subject, other = stream.subject("all"), stream.subject("other")
    options = {"servers": server.url}
    named = {"servers": f"{server.url},{server.url}", "expectedStream": stream.name}

    def write(batch: Any, batch_id: int) -> None:
        rows = batch.selectExpr("data")
        publish_batch(rows, {**options, "subject": other}, batch_id=batch_id)
        publish_batch(rows, {**options, "subject": subject}, batch_id=batch_id)
        publish_batch(rows, {**named, "subject": subject}, batch_id=batch_id)
        column = rows.selectExpr("data", f"'{subject}' as subject")
        publish_batch(column, options, batch_id=batch_id)

    await for_each(write)
    forget_last_commit(checkpoint)
    await for_each(write)
    assert await subjects_of(stream) == {subject: 3 * ROWS, other: ROWS}


@pytest.mark.covers("L26")
@pytest.mark.full
async def test_batch_with_one_id_for_two_subjects(
    server: Any, stream: OwnStream, for_each: Callable[..., Any]
) -> None:
    """The second write of the batch names a row and the message that has its id. With the subject in the id, both
    are stored."""
    subjects, options, failed = (
        [stream.subject("first"), stream.subject("second")],
        {"servers": server.url},
        [],
    )

    def write(batch: Any, batch_id: int) -> None:
        rows = batch.selectExpr("cast(id as string) as msg_id", "data")
        try:
            for subject in subjects:
                publish_batch(rows, {**options, "subject": subject}, batch_id=batch_id)
        except Exception as error:  # noqa: BLE001  Spark's, whatever its class
            failed.append(str(error))
            rows = batch.selectExpr(f"concat(id, ':{subjects[1]}') as msg_id", "data")
            publish_batch(rows, {**options, "subject": subjects[1]}, batch_id=batch_id)

    await for_each(write)
    assert len(failed) == BATCHES
    assert all("column 'msg_id'" in one and f"subject is '{subjects[0]}'" in one for one in failed)
    assert await subjects_of(stream) == {subjects[0]: ROWS, subjects[1]: ROWS}


@pytest.mark.full
async def test_write_repeated_after_error(
    server: Any, stream: OwnStream, for_each: Callable[..., Any]
) -> None:
    """A write that failed and is repeated within the function is the same write."""
    subject, options, failed = stream.subject("all"), {"servers": server.url}, []

    def write(batch: Any, batch_id: int) -> None:
        rows = batch.selectExpr("data", "id")
        try:
            bad = rows.selectExpr(f"if(id = 1, 'a b', '{subject}') as subject", "data")
            publish_batch(bad, options, batch_id=batch_id)
        except Exception as error:  # noqa: BLE001  Spark's, whatever its class
            failed.append(error)
            good = rows.selectExpr(f"'{subject}' as subject", "data")
            publish_batch(good, options, batch_id=batch_id)

    await for_each(write)
    assert len(failed) == 1
    assert await subjects_of(stream) == {subject: ROWS}


# --- dedup=source ----------------------------------------------------------------------------------------


def two_rows_of(spark: Any, stream: OwnStream, subject: str) -> Any:
    """Rows made from 40 messages, and in another task a second row of three of them."""
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    numbers = spark.range(1, 41, numPartitions=2).selectExpr("id as sequence", "cast(id as string) as data")
    again = numbers.repartition(3).where("sequence in (3, 17, 40)")
    one = numbers.selectExpr("*", f"'{stream.subject('first')}' as subject")
    other = again.selectExpr("*", f"'{subject}' as subject")
    from pyspark.sql.functions import lit

    return one.union(other).withColumn("stream", lit("IN")).withColumn("stream_created", lit(moment))


async def save(spark: Any, frame: Any, **options: str) -> None:
    def go() -> None:
        activate(spark)
        frame.write.format("jetstream").mode("append").options(**options).save()

    await asyncio.to_thread(go)


@pytest.mark.covers("L26")
async def test_two_subjects_of_one_message(spark: Any, server: Any, stream: OwnStream) -> None:
    """Rows made from one message that go to different subjects are both stored, once."""
    frame = two_rows_of(spark, stream, stream.subject("second"))
    for _ in range(2):
        await save(spark, frame, servers=server.url, dedup="source")
    assert await subjects_of(stream) == {stream.subject("first"): 40, stream.subject("second"): 3}


@pytest.mark.covers("L26")
async def test_two_rows_of_one_message_in_two_tasks(spark: Any, server: Any, stream: OwnStream) -> None:
    """One of them is not stored, so the write fails, whenever it is repeated, and names both tasks."""
    frame = two_rows_of(spark, stream, stream.subject("first"))
    for _ in range(2):
        with pytest.raises(
            Exception, match=r"rows of partitions \d+ and \d+ .* made from message IN\.\d+\."
        ) as raised:
            await save(spark, frame, servers=server.url, dedup="source")
        assert "dedup=content" in str(raised.value)
    assert await subjects_of(stream) == {stream.subject("first"): 40}


# --- dedup=column ----------------------------------------------------------------------------------------


@pytest.mark.covers("L26")
@pytest.mark.full
async def test_two_rows_with_one_id_in_two_tasks(spark: Any, server: Any, stream: OwnStream) -> None:
    """Equal rows are one message. Of two different ones, one is not stored, so the write fails and names both."""
    numbers = spark.range(0, 40, numPartitions=2)
    rows = numbers.selectExpr("cast(id % 20 as string) as msg_id", "cast(id % 20 as string) as data")
    await save(spark, rows, servers=server.url, subject=stream.subject("equal"))
    other = numbers.selectExpr("concat('b', id % 39) as msg_id", "cast(id as string) as data")
    for _ in range(2):
        with pytest.raises(
            Exception, match=r"row 0 of partition 0 and row 19 of partition 1 have the same message id.*'b0'"
        ):
            await save(spark, other, servers=server.url, subject=stream.subject("other"))
    assert await subjects_of(stream) == {stream.subject("equal"): 20, stream.subject("other"): 39}
