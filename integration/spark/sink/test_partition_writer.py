"""A partition is published: every row is stored once, whatever happens on the way. No Spark here."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.sink import MAPS, numbers, plan_of, rows_of, stored, write
from integration.kit.clients.readers import FAST
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient.spark.sink.partition_writer import Outcome, PartitionWriter
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.task_context import Task

# --- the ordinary case -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["content", "none"])
async def test_all_rows_stored_in_order(connect: Any, server: Any, stream: OwnStream, ids: str) -> None:
    """The outcome has rows and sequences. No subscription remains on the connection."""
    js = await connect(server)
    await js.ping()
    async with no_leaks(oracle=stream.oracle, streams=[stream.name], monitor=server.monitor):
        outcome = await write(
            js, plan_of(ids=ids, window="50"), rows_of(stream, 1, 700), rows_of(stream, 701, 1000)
        )
    assert outcome == Outcome(rows=1000, first_seq=1, last_seq=1000, streams=(stream.name,))
    assert await stored(stream) == numbers(1, 1000)
    messages = await stream.messages()
    assert [message.subject for message in messages[:5]] == [stream.subject(n % 5) for n in range(1, 6)]
    assert all((b"Nats-Msg-Id" in message.headers) == (ids != "none") for message in messages)


async def test_rows_again_in_another_order(connect: Any, server: Any, stream: OwnStream) -> None:
    """A task is repeated after a shuffle. Equal rows are counted, and no row is stored twice."""
    js = await connect(server)
    data = [b"%d" % (number % 40) for number in range(200)]

    def batch(payloads: list[bytes]) -> pa.RecordBatch:
        subjects = pa.array([stream.subject("a")] * len(payloads))
        return pa.record_batch({"subject": subjects, "data": pa.array(payloads, pa.binary())})

    first = await write(js, plan_of(), batch(data[:77]), batch(data[77:]))
    again = random.Random(1).sample(data, len(data))
    second = await write(js, plan_of(), batch(again[:120]), batch(again[120:]), task=Task(0, 1))
    assert (first.duplicates, second.duplicates, second.first_seq) == (0, 200, 0)
    assert Counter(await stored(stream)) == Counter(data)
    other = await write(js, plan_of(), batch(data), task=Task(1, 0))
    assert other.duplicates == 0
    assert (await stream.state())["messages"] == 400


@pytest.mark.covers("L27")
async def test_epoch_as_scope(connect: Any, server: Any, stream: OwnStream) -> None:
    """Rows that have moved to another partition are not stored again."""
    js = await connect(server)
    plan = plan_of(dedupScope="epoch")
    await write(js, plan, rows_of(stream, 1, 60), task=Task(0, 0))
    moved = await write(js, plan, rows_of(stream, 31, 100), task=Task(1, 0))
    assert moved.duplicates == 30
    assert sorted(await stored(stream)) == sorted(numbers(1, 100))


async def test_column_of_ids(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    plan = plan_of(ids="column", columns="subject,msg_id")
    for first, last, known in ((1, 10, 0), (4, 12, 7)):
        ids = pa.array([f"id-{number}" for number in range(first, last + 1)])
        outcome = await write(js, plan, rows_of(stream, first, last, msg_id=ids))
        assert (outcome.rows, outcome.duplicates) == (last - first + 1, known)
    assert await stored(stream) == numbers(1, 12)


@pytest.mark.covers("L28")
async def test_headers_go_out(connect: Any, server: Any, stream: OwnStream) -> None:
    """Both forms of maps, null, empty and repeated ones. The message id of a row that was read from a stream gives way
    to the sink's."""
    js = await connect(server)
    arguments = [{"a": ["1"]}, None, {}, {"a": ["1", "2"], "b": [""], "Nats-Msg-Id": ["old"]}]
    batch = rows_of(
        stream, 1, 4, headers=pa.array([None if g is None else list(g.items()) for g in arguments], MAPS)
    )
    await write(js, plan_of(columns="subject,headers"), batch.slice(0, 2), batch.slice(2, 2))
    plain = pa.array([[("c", "é")]], pa.map_(pa.string(), pa.string()))
    await write(js, plan_of(columns="subject,headers", ids="none"), rows_of(stream, 5, 5, headers=plain))
    messages = [await (await js.stream(stream.name)).get_message(seq) for seq in range(1, 6)]
    headers = [message.headers for message in messages]
    ids = [one.pop("Nats-Msg-Id", None) for one in headers]
    assert None not in ids[:4]
    assert "old" not in ids
    assert [dict(one.pairs()) if one else {} for one in headers[:3]] == [{"a": "1"}, {}, {}]
    assert headers[3].get_all("a") == ["1", "2"]
    assert headers[3]["b"] == ""
    assert (headers[4], ids[4]) == ({"c": "é"}, None)


async def test_texts_and_defaults(connect: Any, server: Any, stream: OwnStream) -> None:
    """A payload may be text, a subject that is null has a default, a slice is read from its own place."""
    js = await connect(server)
    batch = pa.record_batch(
        {
            "subject": pa.array([None, stream.subject("a"), None, stream.subject("b")]),
            "value": pa.array(["null", "ä", "", "x"], pa.large_string()),
        }
    ).slice(1)
    await write(js, plan_of(subject=stream.subject("d"), data="value"), batch)
    messages = await stream.messages()
    assert [(one.subject, one.payload) for one in messages] == [
        (stream.subject("a"), "ä".encode()),
        (stream.subject("d"), b""),
        (stream.subject("b"), b"x"),
    ]
    fixed = pa.record_batch({"data": pa.array([b"1", b"2"])})
    await write(js, plan_of(subject=stream.subject("f"), columns=""), fixed)
    assert [one.subject for one in (await stream.messages())[3:]] == [stream.subject("f")] * 2


# --- faults ----------------------------------------------------------------------------------------------


@pytest.mark.covers("L25")
async def test_server_killed_in_the_middle(
    connect: Any, own_server: Any, oracle_for: Any, tmp_path: Any
) -> None:
    """The rows whose fate is unknown are sent again, and stored once."""
    own = await own_server()
    oracle = await oracle_for(own)
    await oracle.create_stream("OUT", ["t.>"], storage="file")
    stream = OwnStream(oracle, "OUT", "t")
    js = await connect(own, **FAST)
    writer = PartitionWriter(js, plan_of(window="200", retries="5"), Task(0, 0))

    async def fault() -> None:
        await eventually(lambda: writer._bulk.tally.stored > 3000, 60, "rows")
        await own.kill()
        await own.start()

    async with asyncio.TaskGroup() as group:
        group.create_task(fault())
        for first in range(1, 10_001, 1000):
            await writer.write(rows_of(stream, first, first + 999))
    outcome = await writer.finish()
    assert outcome.rows == 10_000
    assert outcome.resent > 0
    oracle = await oracle_for(own)
    actual = [message.payload for message in await oracle.messages("OUT")]
    assert sorted(actual) == sorted(numbers(1, 10_000))


async def test_stream_away_for_moment(connect: Any, server: Any, oracle: Any, make_stream: Any) -> None:
    """503 for longer than the retries of a publish: rows are sent again, and all are stored once."""
    js = await connect(server)
    stream = await make_stream()
    await oracle.update_stream(stream.name, subjects=[f"{stream.prefix}.elsewhere"])

    async def back() -> None:
        await asyncio.sleep(1.2)  # longer than the three tries of a publish
        await oracle.update_stream(stream.name, subjects=[stream.all])

    async with asyncio.TaskGroup() as group:
        group.create_task(back())
        outcome = await write(js, plan_of(window="20", retries="5"), rows_of(stream, 1, 100))
    assert outcome.rows == 100
    assert sorted(await stored(stream)) == sorted(numbers(1, 100))


async def test_subject_without_stream(connect: Any, server: Any, stream: OwnStream) -> None:
    """No stream accepts the row. The error comes soon, not after all retries, which take a minute with Spark's."""
    js = await connect(server)
    batch = pa.record_batch({"subject": ["no.one"] * 3, "data": pa.array([b"1"] * 3)})
    began = time.monotonic()
    with pytest.raises(RowError, match=r"row 0 .*create a stream with this subject"):
        await write(js, plan_of(retries="20"), batch)
    assert time.monotonic() - began < 20.0


@pytest.mark.covers("L30")
async def test_full_stream(connect: Any, server: Any, oracle: Any, make_stream: Any) -> None:
    """A stream that is full refuses for the moment: it is tried again, in vain here."""
    js = await connect(server)
    stream = await make_stream(max_msgs=10, discard="new")
    with pytest.raises(RowError, match=r"maximum messages.* 10 rows are stored"):
        await write(js, plan_of(retries="1"), rows_of(stream, 1, 30))


async def test_cancelled(connect: Any, server: Any, stream: OwnStream) -> None:
    """A task that is stopped leaves no subscription and no task on the connection."""
    js = await connect(server)
    await js.ping()
    batches = [rows_of(stream, 1, 5000) for _ in range(5)]
    async with no_leaks(oracle=stream.oracle, streams=[stream.name], monitor=server.monitor):
        work = asyncio.create_task(write(js, plan_of(window="1"), *batches))
        await eventually(_some(stream), 60, "a row")
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    assert work.cancelled()


def _some(stream: OwnStream) -> Any:
    async def is_stored() -> bool:
        return bool((await stream.state())["messages"])

    return is_stored
