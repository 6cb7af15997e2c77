"""The tables of docs/howto/spark-operating.md: the behaviour of a query that is restarted with other options, or
from an older checkpoint.

With the calls that Spark makes, and without Spark. Of a change while a batch is not committed, `sink/test_replanned.py`
shows more.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.calls.sink import numbers, plan_of, rows_of, stored, write
from integration.kit.calls.source import Query, Rows
from integration.kit.judge.streams import OwnStream
from jsclient.errors import PositionInvalidError
from jsclient.spark.sink.ledger import LedgerLocation, ensure_bucket
from jsclient.spark.sink.ledger_rules import CheckpointBehindError

pytest.importorskip("pyspark.sql.streaming.datasource")

GETS = pytest.mark.server(">=2.11")
FIRST, MORE = 20, 10


async def alternating(stream: OwnStream, first: int, last: int) -> None:
    """Numbered messages, odd ones on the subject a, even ones on b."""
    for number in range(first, last + 1):
        await stream.publish(1, "a" if number % 2 else "b", first=number)


async def restarted(server: Any, stream: OwnStream, before: dict[str, Any], after: dict[str, Any]) -> Query:
    """The rows of a query in a second run with other options, of messages that are published between the runs."""
    await alternating(stream, 1, FIRST)
    first = Query(server, stream, startingOffsets="earliest", **filled(before, stream))
    await asyncio.to_thread(first.drain)
    await alternating(stream, FIRST + 1, FIRST + MORE)
    second = Query(server, stream, **filled(after if STARTS & {*after} else {**EARLIEST, **after}, stream))
    second.offsets = first.offsets[-1:]
    await asyncio.to_thread(second.drain)
    return second


def filled(options: dict[str, Any], stream: OwnStream) -> dict[str, Any]:
    return {
        name: value.format(prefix=stream.prefix) if name == "subjects" else value
        for name, value in options.items()
    }


EARLIEST = {"startingOffsets": "earliest"}
STARTS = {"startingOffsets", "startingSequence", "startingTimestamp"}
A, B = {"subjects": "{prefix}.a"}, {"subjects": "{prefix}.b"}
NEW = [*range(FIRST + 1, FIRST + MORE + 1)]
ODD, EVEN = NEW[::2], NEW[1::2]

READ = [
    ({}, {}, NEW),
    ({}, {"startingOffsets": "latest"}, NEW),
    ({}, {"startingSequence": 3}, NEW),
    ({}, {"startingTimestamp": "2026-01-31T12:00:00Z"}, NEW),
    ({}, A, ODD),
    (B, A, ODD),
    (A, {}, [FIRST, *NEW]),  # it had read up to the last odd one
    ({}, {"readMode": "consumer"}, NEW),
    pytest.param({}, {"readMode": "direct"}, NEW, marks=GETS),
    ({}, {"failOnDataLoss": False, "pollIntervalMs": 10, "fetchMaxBytes": 4096, "batchRows": 3}, NEW),
    ({"maxMessagesPerTrigger": 8}, {"maxBytesPerTrigger": "1m"}, NEW),
    ({"minOffsetsPerTrigger": 5}, {}, NEW),
    ({"consumer": "progress"}, {}, NEW),
    ({}, {"consumer": "progress"}, NEW),
    ({"consumer": "progress"}, {"consumer": "other"}, NEW),
]


def name_of(options: Any) -> str | None:
    return (
        ",".join(f"{name}={value}" for name, value in options.items()) if isinstance(options, dict) else None
    )


@pytest.mark.covers("L14")
@pytest.mark.parametrize(("before", "after", "expected"), READ, ids=name_of)
async def test_read_after_change(
    server: Any, make_stream: Any, before: dict[str, Any], after: dict[str, Any], expected: list[int]
) -> None:
    """The checkpoint decides at which position the query continues, whatever start the options name."""
    stream = await make_stream(allow_direct=True)
    assert (await restarted(server, stream, before, after)).sequences == expected


async def test_limits_from_next_batch_on(server: Any, stream: OwnStream) -> None:
    query = await restarted(server, stream, {"maxMessagesPerTrigger": 8}, {"maxMessagesPerTrigger": 4})
    assert [len(rows) for rows in query.batches] == [4, 4, 2]


async def test_other_address_and_columns(server: Any, proxy: Any, stream: OwnStream) -> None:
    await alternating(stream, 1, FIRST)
    first = Query(server, stream, startingOffsets="earliest")
    await asyncio.to_thread(first.drain)
    await alternating(stream, FIRST + 1, FIRST + MORE)
    second = Query(await proxy(), stream, columns=("sequence", "headers"), includeHeaders=True)
    second.offsets = first.offsets[-1:]
    await asyncio.to_thread(second.drain)
    assert [row["sequence"] for row in second.rows] == NEW
    assert second.rows[0].keys() == {"sequence", "headers"}


async def test_other_way_to_the_stream(own_server: Any, oracle_for: Any) -> None:
    """Another user, a domain, and the prefix of that domain."""
    users = [{"user": name, "password": "hush"} for name in ("ann", "bob")]
    own = await own_server(config={"authorization": {"users": users}, "jetstream": {"domain": "hub"}})
    oracle = await oracle_for(own.url.replace("nats://", "nats://ann:hush@"))
    stream = await OwnStream.create(oracle, "ways", allow_direct=True)
    offsets: list[Any] = []
    for number, options in enumerate(
        ({"user": "ann"}, {"user": "bob"}, {"user": "bob", "domain": "hub"}, {"prefix": "$JS.hub.API"})
    ):
        await alternating(stream, 10 * number + 1, 10 * number + 10)
        arguments = {"user": "ann", "password": "hush", **EARLIEST, **options}
        query = Query(own, stream, **arguments)
        query.offsets = offsets
        await asyncio.to_thread(query.drain)
        assert query.sequences == [*range(10 * number + 1, 10 * number + 11)]
        offsets = query.offsets[-1:]


async def test_batch_again_with_other_filter(server: Any, stream: OwnStream) -> None:
    """The batch has the range of the checkpoint. The filter is today's."""
    await alternating(stream, 1, FIRST)
    query = Query(server, stream, startingOffsets="earliest", maxMessagesPerTrigger=8)
    reader = query.reader()
    start = query.start(reader)
    end = query.ask(reader, start)
    narrow = Query(server, stream, subjects=stream.subject("a"), maxMessagesPerTrigger=3)
    parts: list[Rows] = await asyncio.to_thread(lambda: narrow.replay(narrow.reader(), start, end))
    assert [row["sequence"] for part in parts for row in part] == [1, 3, 5, 7]


@pytest.mark.covers("L14")
async def test_other_stream_refused(server: Any, make_stream: Any) -> None:
    """With failOnDataLoss off, all of the other stream is read."""
    stream, other = await make_stream(), await make_stream()
    await alternating(stream, 1, FIRST)
    await alternating(other, 1, 5)
    query = Query(server, stream, startingOffsets="earliest")
    await asyncio.to_thread(query.drain)
    for strict in (True, False):
        moved = Query(server, other, failOnDataLoss=strict)
        moved.offsets = query.offsets[-1:]
        if strict:
            with pytest.raises(PositionInvalidError, match=r"was recreated.*Use a new checkpoint"):
                await asyncio.to_thread(moved.drain)
        else:
            await asyncio.to_thread(moved.drain)
            assert moved.sequences == [1, 2, 3, 4, 5]


@pytest.mark.covers("L14")
async def test_other_mode_refused(server: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.create_consumer("q", max_ack_pending=1000)
    await alternating(stream, 1, FIRST)
    log = Query(server, stream, startingOffsets="earliest")
    await asyncio.to_thread(log.drain)
    queue = QueueQuery(server, stream, "q", available_now=True)
    await queue.drain()
    assert queue.committed is not None
    queue.committed, log.offsets = log.offsets[-1][1], [({}, queue.committed)]
    with pytest.raises(PositionInvalidError, match="not valid in mode 'queue'"):
        await queue.drain()
    with pytest.raises(PositionInvalidError, match="not valid in mode 'log'"):
        await asyncio.to_thread(log.drain)
    await queue.stop()


@pytest.mark.covers("L14")
@pytest.mark.parametrize("committed", [True, False])
async def test_other_consumer(server: Any, make_stream: Any, committed: bool) -> None:
    """Queue mode: a batch that was not committed cannot be repeated. Of one that was, the acks are not sent."""
    stream = await make_stream(allow_direct=True)
    for name in ("q", "r"):
        await stream.create_consumer(name, max_ack_pending=1000, ack_wait=60_000_000_000)
    await alternating(stream, 1, FIRST)
    query = QueueQuery(server, stream, "q")
    parts = await query.plan()
    assert parts is not None
    if committed:
        query.commit(await query.read(parts))
    await query.stop()
    query.consumer = "r"
    if committed:
        assert len(await query.batch() or []) == FIRST
        assert (await stream.consumer_info("q"))["num_ack_pending"] == FIRST
    else:
        with pytest.raises(PositionInvalidError, match="claims of the checkpoint"):
            await query.plan()
    await query.stop()


# --- the sink --------------------------------------------------------------------------------------------

ROWS = 40
SINK = [
    # ids and options before and after, and the rows of a batch that are stored twice if half of it was stored before
    ("content", {}, "content", {"ackTimeout": "5", "retries": "7", "window": "10", "windowBytes": "1m"}, 0),
    ("content", {}, "content", {"dedupScope": "epoch"}, ROWS // 2),
    ("content", {}, "none", {"exactlyOnce": "none"}, ROWS // 2),
    ("content", {"ledger": True}, "content", {}, 0),
    ("content", {}, "content", {"ledger": True}, 0),
]


@pytest.mark.parametrize(("ids", "before", "other", "after", "twice"), SINK)
@pytest.mark.parametrize("committed", [True, False])
async def test_write_after_change(
    connect: Any,
    server: Any,
    oracle: Any,
    stream: OwnStream,
    ids: str,
    before: dict[str, Any],
    other: str,
    after: dict[str, Any],
    twice: int,
    committed: bool,
) -> None:
    """A change between batches stores nothing twice. One while a batch is not committed does if it changes ids."""
    js = await connect(server)
    name = f"ledger_{stream.prefix}"
    await ensure_bucket(js, name, 1)

    def plan(ids: str, options: dict[str, Any], run: str, epoch: int) -> Any:
        location = LedgerLocation(name, "query", stream.name, run) if options.get("ledger") else None
        arguments = {key: value for key, value in options.items() if key != "ledger"}
        return plan_of(ids=ids, ledger=location, epoch=epoch, **arguments)

    try:
        await write(js, plan(ids, before, "run-1", 1), rows_of(stream, 1, ROWS if committed else ROWS // 2))
        if committed:
            await write(js, plan(other, after, "run-2", 2), rows_of(stream, ROWS + 1, 2 * ROWS))
            expected = 2 * ROWS
        else:
            await write(js, plan(other, after, "run-2", 1), rows_of(stream, 1, ROWS))
            expected = ROWS
    finally:
        await oracle.delete_stream(f"KV_{name}", missing_ok=True)
    rows = await stored(stream)
    assert sorted(set(rows)) == sorted(numbers(1, expected))
    assert len(rows) - expected == (0 if committed else twice)


@pytest.mark.parametrize(
    ("ids", "options"),
    [("source", {"dedup": "source"}), ("column", {}), ("content", {})],
)
async def test_batch_again_with_rows_of_other_filter(
    connect: Any, server: Any, make_stream: Any, ids: str, options: dict[str, str]
) -> None:
    """Half of its rows were stored before. The new filter has every second row."""
    js, source, target = await connect(server), await make_stream(), await make_stream()
    await source.publish(ROWS)
    _, [(_, rows)] = await batches_from(server, source, [], ROWS)
    plan = plan_of(ids=ids, columns="subject,msg_id" if ids == "column" else "subject", **options)
    await write(js, plan, messages_of(rows[: ROWS // 2], target))
    await write(js, plan, messages_of(rows[::2], target))
    messages = sorted(await stored(target))
    assert messages == sorted({*numbers(1, ROWS // 2), *(b"%d" % number for number in range(1, ROWS, 2))})


@pytest.mark.parametrize("change", ["subject", "payload", "headers"])
async def test_batch_again_with_other_rows(connect: Any, server: Any, stream: OwnStream, change: str) -> None:
    """Other messages are stored besides the messages of the first attempt."""
    js, half = await connect(server), ROWS // 2
    rows = rows_of(stream, 1, ROWS)
    if change == "headers":
        one = [[("run", "2")]] * ROWS
        rows = rows_of(stream, 1, ROWS, headers=pa.array(one, pa.map_(pa.string(), pa.string())))
    elif change == "subject":
        rows = rows.set_column(0, "subject", pa.array([stream.subject("other")] * ROWS))
    else:
        rows = rows.set_column(1, "data", pa.array([b"0%d" % n for n in range(1, ROWS + 1)], pa.binary()))
    await write(js, plan_of(), rows_of(stream, 1, half))
    await write(js, plan_of(columns="subject,headers" if change == "headers" else "subject"), rows)
    assert len(await stored(stream)) == ROWS + half


# --- an older checkpoint ---------------------------------------------------------------------------------

COLUMNS = ("data", "stream", "stream_created", "sequence")
RESTORED = [
    # ids, options, limit of a batch before and after, and whether rows are stored twice
    ("source", {"dedup": "source"}, 8, 5, False),
    ("column", {}, 8, 5, False),
    ("content", {}, 8, 8, False),
    ("content", {}, 8, 5, True),
    ("none", {"exactlyOnce": "none"}, 8, 8, True),
]


def messages_of(rows: Rows, target: OwnStream) -> pa.RecordBatch:
    columns = {
        "subject": pa.array([target.subject("a")] * len(rows)),
        "data": pa.array([row["data"] for row in rows], pa.binary()),
        "msg_id": pa.array([f"key-{row['sequence']}" for row in rows]),
        "stream": pa.array([row["stream"] for row in rows]),
        "stream_created": pa.array([row["stream_created"] for row in rows], pa.timestamp("us", tz="UTC")),
        "sequence": pa.array([row["sequence"] for row in rows], pa.int64()),
    }
    return pa.record_batch(columns)


async def batches_from(
    server: Any, source: OwnStream, offsets: list[Any], limit: int
) -> tuple[Query, list[tuple[int, Rows]]]:
    """The batches of a run that continues from these offsets, with their numbers."""
    query = Query(
        server,
        source,
        columns=COLUMNS,
        startingOffsets="earliest",
        maxMessagesPerTrigger=limit,
        minPartitions=1,
    )
    query.offsets = list(offsets)
    await asyncio.to_thread(query.drain)
    return query, [*enumerate(query.batches, start=len(offsets))]


@pytest.mark.covers("L14")
@pytest.mark.parametrize(("ids", "options", "limit", "other", "twice"), RESTORED)
async def test_older_checkpoint(
    connect: Any,
    server: Any,
    make_stream: Any,
    ids: str,
    options: dict[str, str],
    limit: int,
    other: int,
    twice: bool,
) -> None:
    """The checkpoint after the first of three batches is restored."""
    js, source, target = await connect(server), await make_stream(), await make_stream()
    await source.publish(FIRST)
    columns = "subject,msg_id" if ids == "column" else "subject"
    query, batches = await batches_from(server, source, [], limit)
    _, again = await batches_from(server, source, query.offsets[:1], other)
    for epoch, rows in [*batches, *again]:
        plan = plan_of(ids=ids, columns=columns, epoch=epoch, **options)
        await write(js, plan, messages_of(rows, target))
    rows = await stored(target)
    assert sorted(set(rows)) == sorted(numbers(1, FIRST))
    assert (len(rows) > FIRST) == twice


@pytest.mark.covers("L14", "L25")
async def test_older_checkpoint_with_ledger(connect: Any, server: Any, oracle: Any, make_stream: Any) -> None:
    """It is refused, or continues like a window."""
    js, source, target = await connect(server), await make_stream(), await make_stream()
    await source.publish(FIRST)
    name = f"ledger_{target.prefix}"
    await ensure_bucket(js, name, 1)

    def plan(run: str, epoch: int, *, strict: bool = True) -> Any:
        location = LedgerLocation(name, "query", target.name, run, strict)
        return plan_of(ledger=location, epoch=epoch, exactlyOnce="ledger", expectedStream=target.name)

    try:
        query, batches = await batches_from(server, source, [], 8)
        for epoch, rows in batches:
            await write(js, plan(f"run-{epoch}", epoch), messages_of(rows, target))
        _, again = await batches_from(server, source, query.offsets[:1], 5)
        with pytest.raises(CheckpointBehindError, match="was an older checkpoint restored"):
            await write(js, plan("restored", again[0][0]), messages_of(again[0][1], target))
        assert len(await stored(target)) == FIRST
        for epoch, rows in again:
            await write(js, plan(f"again-{epoch}", epoch, strict=False), messages_of(rows, target))
        assert len(await stored(target)) > FIRST
    finally:
        await oracle.delete_stream(f"KV_{name}", missing_ok=True)


@pytest.mark.covers("L14")
@pytest.mark.parametrize(
    ("retention", "strict", "old", "again"),
    [
        ("workqueue", True, False, None),
        ("workqueue", False, False, 0),
        ("workqueue", True, True, 0),
        ("limits", True, False, 8),
    ],
)
async def test_older_checkpoint_of_queue(
    server: Any, make_stream: Any, retention: str, strict: bool, old: bool, again: int | None
) -> None:
    """The batch that it has planned is repeated, though its messages are acked. No other one is."""
    stream = await make_stream(retention=retention, allow_direct=True)
    await stream.create_consumer("q", max_ack_pending=1000, ack_wait=60_000_000_000)
    await stream.publish(FIRST)
    options = {"maxMessagesPerTrigger": 8, "failOnDataLoss": str(strict).lower()}
    query = QueueQuery(server, stream, "q", options)
    parts = await query.plan()
    assert parts is not None
    backup = query.committed, query.logged
    query.commit(await query.read(parts))
    while await query.batch() is not None:
        pass
    await query.stop()
    query.committed, query.logged = backup
    # the batch was planned longer ago than the server remembers its claims
    if old:
        query.logged["at"] -= 120_000
    parts = await query.plan()
    if again is None:
        with pytest.raises(PositionInvalidError, match="no longer exist"):
            await query.read(parts or [])
    else:
        rows = await query.read(parts or [])
        assert len(rows) == again
        query.commit(rows)
        assert await query.batch() is None
    await query.stop()
