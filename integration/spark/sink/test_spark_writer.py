"""The writers of the sink, called as Spark calls them: refusals, warnings, and the report at the end."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from jsclient.errors import ConfigError
from jsclient.spark.options.sink import SinkOptions
from jsclient.spark.sink import spark_writer as sink
from jsclient.spark.sink.partition_writer import Outcome
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.sink.spark_writer import JetStreamBatchWriter, JetStreamStreamWriter, Written
from jsclient.spark.source import JetStreamSource
from jsclient.spark.task_context import Task

QUERY = "0d9b1e0c-34a1-4a53-a7a1-0a3f4b6c7d8e"
ROWS = "subject string, data binary"


TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "map<string,array<string>>": MapType(StringType(), ArrayType(StringType())),
}


def schema_of(ddl: str) -> StructType:
    """Spark reads DDL in its JVM only."""
    schema = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        schema.add(name, TYPES[kind])
    return schema


def writer_of(
    server: Any, schema: str = ROWS, kind: Any = JetStreamStreamWriter, **options: str
) -> JetStreamStreamWriter:
    arguments = {"servers": getattr(server, "url", server), "timeout": "2", **options}
    return kind(SinkOptions.parse(arguments), schema_of(schema))


async def sent(writer: Any) -> Any:
    """As a task gets it. Spark's calls block."""
    return await asyncio.to_thread(lambda: pickle.loads(pickle.dumps(writer)))


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "current_task", lambda: Task(2, 0))
    monkeypatch.setattr(sink, "epoch_of", lambda: (QUERY, 7))
    monkeypatch.setattr(sink, "_looked", {})


# --- on the driver ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "options", "reported"),
    [
        ("subject string", {}, "one column 'data' or 'value'.*columns are: subject"),
        ("subject string, data int", {}, "'data' is int"),
        ("subject string, data string, value string", {}, "one column"),
        ("data string", {}, "no column 'subject'"),
        ("subject int, data string", {}, "'subject' is int"),
        ("subject string, data string, headers map<string,int>", {}, "'headers' is map<string,int>"),
        ("subject string, data string, msg_id bigint", {}, "'msg_id' is bigint"),
        ("subject string, data string", {"dedup": "column"}, "no column 'msg_id'"),
        ("subject string, data string, msg_id string", {"dedup": "content"}, "omit the option"),
    ],
)
def test_schema_is_refused(schema: str, options: dict[str, str], reported: str) -> None:
    """Before there is a connection, or a task."""
    with pytest.raises(ConfigError, match=reported):
        writer_of("nats://127.0.0.1:1", schema, **options)


@pytest.mark.parametrize(
    "schema",
    [
        "value string, subject string, headers map<string,string>",
        "subject string, data binary, headers map<string,array<string>>, stream string, sequence bigint",
        "msg_id string, data string, subject string",
    ],
)
def test_schema_is_taken(schema: str) -> None:
    """Columns that the sink does not know, such as columns of the source, are ignored."""
    writer_of("nats://127.0.0.1:1", schema)


async def test_no_such_stream(server: Any, stream: Any) -> None:
    """By name, by subject, and a subject that the stream does not take."""
    with pytest.raises(ConfigError, match=r"'NONE' of option 'expectedStream' does not exist"):
        await sent(writer_of(server, expectedStream="NONE"))
    with pytest.raises(ConfigError, match=r"no stream takes the subject 'no\.one' of option 'subject'"):
        await sent(writer_of(server, "data string", subject="no.one"))
    with pytest.raises(ConfigError, match=f"its subjects are {stream.prefix}"):
        await sent(writer_of(server, subject="no.one", expectedStream=stream.name))


async def test_ledger_to_know_stream(server: Any, oracle: Any, make_stream: Any) -> None:
    with pytest.raises(ConfigError, match="'expectedStream' is missing"):
        await sent(writer_of(server, exactlyOnce="ledger"))
    queue = await make_stream(retention="workqueue")
    with pytest.raises(ConfigError, match="workqueue retention"):
        await sent(writer_of(server, exactlyOnce="ledger", expectedStream=queue.name))
    newest = await make_stream(max_msgs_per_subject=2)
    with pytest.raises(ConfigError, match="keeps 2 messages of a subject only"):
        await sent(writer_of(server, exactlyOnce="ledger", expectedStream=newest.name))


async def test_short_window_is_warned_of(
    server: Any, oracle: Any, make_stream: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, when the query starts. Not when the ledger takes over."""
    stream = await make_stream(duplicate_window=5_000_000_000)
    await sent(writer_of(server, expectedStream=stream.name))
    await sent(writer_of(server, expectedStream=stream.name))
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert f"{stream.name!r} remembers message ids for 5 s" in caplog.text
    assert "exactlyOnce=ledger" in caplog.text
    caplog.clear()
    await sent(writer_of(server, expectedStream=stream.name, minDuplicateWindow="2", ackTimeout="0.1"))
    await sent(writer_of(server, expectedStream=stream.name, exactlyOnce="none"))
    assert not caplog.records
    await sent(writer_of(server, expectedStream=stream.name, minDuplicateWindow="2", ackTimeout="10"))
    assert "a row may be tried for 60 s" in caplog.text


async def test_target_may_not_be_looked_at(
    own_server: Any, oracle_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without rights to the API the window is unknown, which is reported, and rows are written. A ledger is refused."""
    rights = {"publish": {"deny": ["$JS.API.>"]}}
    users = [
        {"user": "ann", "password": "x", "permissions": rights},
        {"user": "judge", "password": "x"},
    ]
    own = await own_server(config={"authorization": {"users": users}})
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
    await oracle.create_stream("OUT", ["t.>"], storage="memory")
    as_ann = {"user": "ann", "password": "x", "expectedStream": "OUT"}
    writer = await sent(writer_of(own, **as_ann))
    assert "denies this user to publish to '$JS.API.STREAM.INFO.OUT'" in caplog.text
    assert "no record of the runs of a batch can be kept" in caplog.text
    rows = pa.record_batch({"subject": ["t.a"], "data": pa.array([b"1"])})
    written = await asyncio.to_thread(writer.write, iter([rows]))
    assert written.outcome.streams == ("OUT",)
    with pytest.raises(ConfigError, match="a ledger needs the JetStream API"):
        await sent(writer_of(own, **as_ann, exactlyOnce="ledger"))


async def test_bucket_of_another_kind(
    server: Any, stream: Any, oracle: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket that forgets its values keeps no record: a warning with ids that need it, an error with a ledger."""
    bucket = f"short_{stream.prefix}"
    await oracle.create_stream(f"KV_{bucket}", [f"$KV.{bucket}.>"], max_age=3_600_000_000_000)
    try:
        await sent(writer_of(server, expectedStream=stream.name, ledger=bucket))
        assert "no record of the runs of a batch can be kept" in caplog.text
        assert "not a bucket that keeps its values" in caplog.text
        with pytest.raises(ConfigError, match="not a bucket that keeps its values"):
            await sent(writer_of(server, expectedStream=stream.name, ledger=bucket, exactlyOnce="ledger"))
    finally:
        await oracle.delete_stream(f"KV_{bucket}")


async def test_write_without_key_needs_no_bucket(server: Any, stream: Any, bucket: str, oracle: Any) -> None:
    """It is never repeated. A write with a key can be, and looks up the target again."""
    options = {"expectedStream": stream.name, "ledger": bucket}
    await sent(writer_of(server, kind=JetStreamBatchWriter, **options))
    assert f"KV_{bucket}" not in await oracle.stream_names()
    await sent(writer_of(server, kind=JetStreamBatchWriter, **options, dedupKey="load"))
    assert f"KV_{bucket}" in await oracle.stream_names()


# --- in a task -------------------------------------------------------------------------------------------


async def test_task_writes(server: Any, stream: Any) -> None:
    writer = await sent(writer_of(server, expectedStream=stream.name))
    rows = [
        pa.record_batch({"subject": [stream.subject("a")] * 50, "data": pa.array([b"%d" % n for n in part])})
        for part in (range(50), range(50, 100))
    ]
    written = await asyncio.to_thread(writer.write, iter([rows[0], rows[0].slice(0, 0), rows[1]]))
    outcome = Outcome(rows=100, first_seq=1, last_seq=100, streams=(stream.name,))
    assert written == Written(2, 7, outcome, QUERY)
    assert pickle.loads(pickle.dumps(written)) == written


async def test_empty_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no connection."""
    writer = writer_of("nats://127.0.0.1:1")
    empty = pa.record_batch({"subject": pa.array([], pa.string()), "data": pa.array([], pa.binary())})
    assert await asyncio.to_thread(writer.write, iter([empty])) == Written(2, 7, Outcome(), QUERY)
    assert await asyncio.to_thread(writer.write, iter([])) == Written(2, 7, Outcome(), QUERY)


async def test_error_of_the_rows_before(server: Any, stream: Any) -> None:
    """An error that Spark raises while it computes the rows is raised unchanged. The connection is as before."""
    writer = await sent(writer_of(server, expectedStream=stream.name))
    rows = pa.record_batch({"subject": [stream.subject("a")] * 50, "data": pa.array([b"x"] * 50)})

    def batches() -> Any:
        yield rows
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(writer.write, batches())
    bad = pa.record_batch({"subject": ["a b"], "data": pa.array([b"x"])})
    with pytest.raises(RowError, match="row 50 of partition 2"):
        await asyncio.to_thread(writer.write, iter([rows, bad]))
    written = await asyncio.to_thread(writer.write, iter([rows]))
    assert (written.outcome.rows, written.outcome.duplicates) == (50, 50)


async def test_epoch_needed_for_ids_only(server: Any, stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Spark does not pass the epoch, ids of content are refused. A column of ids does not need the epoch."""

    def missing() -> Any:
        raise ConfigError("the local property is gone")

    monkeypatch.setattr(sink, "epoch_of", missing)
    rows = pa.record_batch({"subject": [stream.subject("a")], "data": pa.array([b"x"]), "msg_id": ["1"]})
    writer = await sent(writer_of(server, expectedStream=stream.name))
    with pytest.raises(ConfigError, match="is gone"):
        await asyncio.to_thread(writer.write, iter([rows]))
    writer = await sent(writer_of(server, f"{ROWS}, msg_id string", expectedStream=stream.name))
    assert (await asyncio.to_thread(writer.write, iter([rows]))).epoch == -1


# --- a batch that is repeated ----------------------------------------------------------------------------


async def run_of(
    server: Any, stream: Any, monkeypatch: pytest.MonkeyPatch, parts: dict[int, list[str]], **options: str
) -> None:
    """One run of a batch: its tasks and the commit."""
    writer, written = await sent(writer_of(server, **options)), []
    for number, data in parts.items():
        monkeypatch.setattr(sink, "current_task", lambda number=number: Task(number, 0))
        payloads = pa.array([one.encode() for one in data])
        rows = pa.record_batch({"subject": [stream.subject("a")] * len(data), "data": payloads})
        written.append(await asyncio.to_thread(writer.write, iter([rows])))
    await asyncio.to_thread(writer_of(server, **options).commit, written, 7)


@pytest.fixture
async def bucket(stream: Any, oracle: Any) -> Any:
    yield f"runs_{stream.prefix}"
    await oracle.delete_stream(f"KV_runs_{stream.prefix}", missing_ok=True)


@pytest.mark.covers("L27")
@pytest.mark.parametrize("named", [True, False], ids=["expectedStream", "by subject"])
async def test_rows_in_other_partitions(
    server: Any, stream: Any, monkeypatch: pytest.MonkeyPatch, bucket: str, named: bool
) -> None:
    """Each is stored once, and so are equal rows of several partitions, in whichever they are now."""
    options = {"ledger": bucket} | ({"expectedStream": stream.name} if named else {})
    await run_of(server, stream, monkeypatch, {0: ["a", "b", "b"], 1: ["b", "c"]}, **options)
    await run_of(server, stream, monkeypatch, {0: ["c", "b"], 1: ["b"], 2: ["a", "b", "d"]}, **options)
    messages = await stream.messages()
    assert sorted(message.payload for message in messages) == [b"a", b"b", b"b", b"b", b"c", b"d"]


@pytest.mark.covers("L27")
async def test_rows_that_cannot_be_compared(
    server: Any,
    make_stream: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    oracle: Any,
) -> None:
    """A work queue no longer has what was consumed. The first run says nothing, a repetition does."""
    monkeypatch.setattr(sink, "_reported_unchecked", set())
    queue = await make_stream(retention="workqueue")
    options = {"ledger": f"runs_{queue.prefix}", "expectedStream": queue.name}
    try:
        await run_of(server, queue, monkeypatch, {0: ["a"], 1: ["b"]}, **options)
        assert not caplog.records
        await run_of(server, queue, monkeypatch, {0: ["a"], 1: ["b"]}, **options)
    finally:
        await oracle.delete_stream(f"KV_runs_{queue.prefix}", missing_ok=True)
    assert "removes consumed messages (workqueue retention)" in caplog.text
    assert "dedupScope=epoch" in caplog.text
    assert len(await queue.messages()) == 2


@pytest.mark.covers("L27")
async def test_rows_of_an_old_run(
    server: Any,
    make_stream: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bucket: str,
) -> None:
    """It may have been another batch with the same name, which is reported with its time."""
    target = await make_stream(duplicate_window=1_000_000_000)
    options = {
        "ledger": bucket,
        "expectedStream": target.name,
        "minDuplicateWindow": "1",
        "ackTimeout": "0.1",
    }
    await run_of(server, target, monkeypatch, {0: ["a"]}, **options)
    await asyncio.sleep(1.2)  # the record has whole seconds
    caplog.clear()
    await run_of(server, target, monkeypatch, {0: ["a", "b"], 1: ["c"]}, **options)
    assert "batch 7 has rows that a run at 20" in caplog.text
    assert "needs another query= or dedupKey" in caplog.text
    assert sorted(message.payload for message in await target.messages()) == [b"a", b"b", b"c"]


# --- at the end ------------------------------------------------------------------------------------------


DONE = [
    Written(0, 7, Outcome(rows=100, first_seq=11, last_seq=150, streams=("OUT",))),
    Written(1, 7, Outcome(rows=50, duplicates=20, skipped=5, first_seq=12, last_seq=160, streams=("OUT",))),
    Written(2, 7, Outcome()),
]


def test_commit_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """One line, with counts and sequences."""
    caplog.set_level(logging.INFO, "jsclient.spark")
    writer_of("nats://127.0.0.1:1").commit(DONE, 7)
    assert caplog.messages == [
        "batch 7: 150 rows of 3 partitions are stored in OUT, sequences 11 to 160; "
        "25 of them were before (20 by the window, 5 by the ledger)"
    ]


def test_commit_is_received(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the environment says so, the line is on standard error. Spark's processes set up no log."""
    log = sink.log
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", False)
    writer = writer_of("nats://127.0.0.1:1")
    writer.commit(DONE, 7)
    assert not capsys.readouterr().err
    monkeypatch.setenv("JSCLIENT_SPARK_LOG", "INFO")
    try:
        writer.commit(DONE, 7)
        writer.commit(DONE, 7)
    finally:
        log.setLevel(logging.NOTSET)
    assert capsys.readouterr().err.count("batch 7: 150 rows") == 2


def test_commit_names_query(caplog: pytest.LogCaptureFixture) -> None:
    """Spark adds the name to the options of the sink."""
    caplog.set_level(logging.INFO, "jsclient.spark")
    options = {"servers": "nats://127.0.0.1:1", "queryName": "copy"}
    writer = JetStreamSource(options).streamWriter(schema_of(ROWS), overwrite=False)
    writer.commit(DONE, 7)
    writer.abort(DONE, 8)
    assert caplog.messages[0].startswith("query copy, batch 7: 150 rows of 3 partitions")
    assert caplog.messages[1].startswith("query copy, batch 8 failed.")


def test_commit_of_another_epoch() -> None:
    """Tasks have read another epoch than Spark reports: their ids are wrong, and the write ends."""
    with pytest.raises(ConfigError, match="batch 8 was written as 7"):
        writer_of("nats://127.0.0.1:1").commit(DONE, 8)


def test_strangers_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A replay with other rows in the partitions."""
    writer_of("nats://127.0.0.1:1").commit([Written(0, 7, Outcome(rows=5, unmatched=3))], 7)
    assert "3 messages that an earlier run has stored" in caplog.text
    assert "dedup=source" in caplog.text


def test_abort_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """What is stored stays, and what happens to it."""
    writer_of("nats://127.0.0.1:1").abort([*DONE[:1], None], 7)
    assert "100 rows of 1 partitions are stored in OUT" in caplog.text
    assert "not stored again" in caplog.text
    caplog.clear()
    writer_of("nats://127.0.0.1:1", exactlyOnce="none").abort([None], 7)
    assert "0 rows" in caplog.text
    assert "stored again when" in caplog.text


async def test_batch_forgets_its_ledger(server: Any, stream: Any, oracle: Any) -> None:
    """A batch write never comes again, so its keys go with its commit. The keys of a write with another key stay."""
    rows = pa.record_batch({"subject": [stream.subject("a")], "data": pa.array([b"x"])})
    bucket = f"forgets_{stream.prefix}"
    options = {"expectedStream": stream.name, "exactlyOnce": "ledger", "ledger": bucket}
    try:
        writer = await sent(writer_of(server, kind=JetStreamBatchWriter, **options))
        written = await asyncio.to_thread(writer.write, iter([rows]))
        assert (await oracle.state(f"KV_{bucket}"))["messages"] == 2
        await asyncio.to_thread(writer.commit, [written])
        assert (await oracle.state(f"KV_{bucket}"))["messages"] == 0
        writer = await sent(writer_of(server, kind=JetStreamBatchWriter, **options, dedupKey="job"))
        await asyncio.to_thread(writer.commit, [await asyncio.to_thread(writer.write, iter([rows]))])
        assert (await oracle.state(f"KV_{bucket}"))["messages"] == 3  # with the record of runs
    finally:
        await oracle.delete_stream(f"KV_{bucket}", missing_ok=True)
