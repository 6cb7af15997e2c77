"""`read_jetstream`: its rows, its range, its refusals, and that it cleans up. DuckDB reads it, too."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from integration.kit.judge.leaks import no_leaks
from jsclient.arrow import read_jetstream
from jsclient.errors import (
    AuthenticationError,
    ClosedError,
    ConfigError,
    ConnectError,
    HistoryTruncatedError,
    PositionInvalidError,
)
from jsclient.tables.session import _loop_threads

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def duckdb():
    """Imported late: what `conftest.py` has frozen by then, DuckDB reports as leaks at the end of the process."""
    return importlib.import_module("duckdb")


def numbers(first, last):
    return list(range(first, last + 1))


def sequences(server, stream, options=(), **arguments):
    settings = {"servers": server.url, **dict(options)}
    table = read_jetstream(settings, stream.name, columns=["sequence"], **arguments).read_all()
    return table["sequence"].to_pylist()


def in_small_batches(server):
    """More is left in the server than is read by a few batches."""
    return {"servers": server.url, "batchRows": "10", "fetchMaxBytes": "20k", "readMode": "consumer"}


# --- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("L39")
async def test_messages_as_they_are(server, oracle, stream):
    await stream.publish(20)
    await oracle.publish(stream.subject("h"), b"\x00\xff", headers={"Kind": "odd"})
    stored = [(one.seq, one.subject, one.payload) for one in await stream.messages()]
    with read_jetstream(server.url, stream.name) as reader:
        assert reader.schema.names == ["subject", "data", "headers", "stream", "sequence", "timestamp"]
        rows = reader.read_all().to_pylist()
    assert [(row["sequence"], row["subject"], row["data"]) for row in rows] == stored
    assert [row["headers"] for row in rows] == [None] * 20 + [[("Kind", ["odd"])]]
    assert {row["stream"] for row in rows} == {stream.name}
    assert all(datetime.now(UTC) - row["timestamp"] < timedelta(minutes=1) for row in rows)


async def test_chosen_columns(server, stream):
    await stream.publish(3)
    reader = read_jetstream(server.url, stream.name, columns=["timestamp_ns", "stream_created", "sequence"])
    rows = reader.read_all().to_pylist()
    assert [list(row) for row in rows] == [["timestamp_ns", "stream_created", "sequence"]] * 3
    assert rows[0]["timestamp_ns"] / 1e9 > rows[0]["stream_created"].timestamp()


async def test_batches(server, stream):
    await stream.publish(100)
    with read_jetstream({"servers": server.url, "batchRows": "30"}, stream.name) as reader:
        batches = list(reader)
    assert max(batch.num_rows for batch in batches) <= 30
    assert sum(batch.num_rows for batch in batches) == 100
    assert list(reader) == []


@pytest.mark.parametrize("config", [{"allow_direct": True}, {}], ids=["by direct get", "by consumer"])
async def test_from_one_place_to_another(server, oracle, make_stream, config):
    stream = await make_stream(**config)
    await stream.publish(50)
    assert sequences(server, stream) == numbers(1, 50)
    assert sequences(server, stream, start=11, end=40) == numbers(11, 40)
    assert sequences(server, stream, start=51) == sequences(server, stream, start="now") == []
    times = [
        (await oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": seq}))["message"]["time"]
        for seq in (11, 41)
    ]
    assert sequences(server, stream, start=times[0], end=times[1]) == numbers(11, 40)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert sequences(server, stream, end=later) == numbers(1, 50)


async def test_end_is_fixed_by_the_call(server, stream):
    await stream.publish(5)
    reader = read_jetstream(server.url, stream.name, columns=["sequence"])
    await stream.publish(5)
    assert reader.read_all().num_rows == 5


async def test_filters(server, stream):
    for token in "abc":
        await stream.publish(10, token)
    assert sequences(server, stream, subjects=stream.subject("b")) == numbers(11, 20)
    two = [stream.subject("a"), stream.subject("c")]
    assert sequences(server, stream, subjects=two) == numbers(1, 10) + numbers(21, 30)


async def test_several_streams(server, oracle, make_stream):
    one, other = sorted([await make_stream(), await make_stream()], key=lambda stream: stream.name)
    await one.publish(5)
    await other.publish(7)
    rows = read_jetstream(server.url, f"{other.name},{one.name}").read_all().to_pylist()
    assert [row["stream"] for row in rows] == [one.name] * 5 + [other.name] * 7


async def test_empty_stream(server, stream):
    reader = read_jetstream(server.url, stream.name, columns=["sequence", "data"])
    table = reader.read_all()
    assert (table.num_rows, table.column_names) == (0, ["sequence", "data"])
    await stream.publish(5)
    await stream.purge()
    assert sequences(server, stream) == []


async def test_user_and_password(own_server, oracle_for, monkeypatch):
    own = await own_server(config={"authorization": {"users": [{"user": "ann", "password": "secret-one"}]}})
    judge = await oracle_for(own, user="ann", password="secret-one")
    await judge.create_stream("ORDERS", ["orders"])
    await judge.publish("orders", b"1")
    monkeypatch.setenv("ANNS", "secret-one")
    options = {"servers": own.url, "user": "ann", "passwordEnv": "ANNS"}
    assert read_jetstream(options, "ORDERS").read_all().num_rows == 1
    with pytest.raises(AuthenticationError):
        read_jetstream({**options, "user": "bob"}, "ORDERS")


# --- losses --------------------------------------------------------------------------------------------------


async def test_removed_messages(server, oracle, stream):
    await stream.publish(50)
    await oracle.purge(stream.name, seq=21)
    with pytest.raises(
        HistoryTruncatedError, match=r'messages 5 to 20 .* removed .* start="first"'
    ) as caught:
        sequences(server, stream, start=5)
    assert (caught.value.wanted, caught.value.first_available) == (5, 21)
    assert sequences(server, stream, start="first") == numbers(21, 50)
    assert sequences(server, stream, {"failOnDataLoss": "false"}, start=5) == numbers(21, 50)


async def test_removed_before_it_is_read(server, oracle, stream):
    await stream.publish(50)
    reader = read_jetstream(server.url, stream.name)
    await oracle.purge(stream.name, seq=21)
    with pytest.raises(HistoryTruncatedError):
        reader.read_all()


READ_BY = {
    "next": list,
    "read_all": lambda reader: reader.read_all(),
    "stream": lambda reader: pa.RecordBatchReader.from_stream(reader).read_all(),
}


@pytest.mark.parametrize("how", READ_BY)
async def test_failed_reader_does_not_end(server, oracle, stream, how):
    """Asked again after an error, it is not as if it had read all."""
    await stream.publish(50)
    with read_jetstream(server.url, stream.name) as reader:
        await oracle.purge(stream.name, seq=21)
        with pytest.raises((HistoryTruncatedError, pa.ArrowInvalid), match="removed"):
            READ_BY[how](reader)
        for again in (lambda: next(reader), reader.read_all, reader.__arrow_c_stream__):
            with pytest.raises(ClosedError, match="ended with an error"):
                again()


async def test_recreated_before_it_is_read(server, oracle, stream):
    await stream.publish(50)
    reader = read_jetstream(server.url, stream.name)
    await stream.delete()
    await oracle.create_stream(stream.name, [stream.all])
    await stream.publish(50)
    with pytest.raises(PositionInvalidError, match="recreated"):
        reader.read_all()


# --- what is left --------------------------------------------------------------------------------------------


async def test_nothing_remains(server, oracle, stream):
    await stream.publish(3000)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        read_jetstream(server.url, stream.name)
        assert len(sequences(server, stream)) == 3000
        with pytest.raises(ConfigError, match="ends at sequence 3000"):
            sequences(server, stream, start=5000)


@pytest.mark.parametrize("end", ["close", "with", "error", "discard"])
async def test_early_end_leaves_nothing(server, oracle, stream, end):
    await stream.publish(3000)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        reader = read_jetstream(in_small_batches(server), stream.name)
        assert next(reader).num_rows <= 10
        if end == "close":
            reader.close()
            reader.close()
        elif end == "discard":
            del reader
        else:
            try:
                with reader:
                    if end == "error":
                        raise LookupError
            except LookupError:
                pass


async def test_discarded_by_the_loop(server, oracle, stream):
    """Garbage collection runs in any thread, including the thread of the connections, which cannot wait for itself."""
    await stream.publish(3000)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        readers = [read_jetstream(in_small_batches(server), stream.name)]
        next(readers[0])
        [thread] = _loop_threads.values()
        thread.loop.call_soon_threadsafe(readers.clear)


async def test_two_readers_one_connection(server, stream):
    """The first reader to end does not close the connection of the other."""
    await stream.publish(3000)
    one, other = (read_jetstream(in_small_batches(server), stream.name) for _ in range(2))
    next(one)
    first = next(other).num_rows
    one.close()
    assert first + other.read_all().num_rows == 3000


async def test_without_pyspark_in_new_process(server, stream):
    """A reader that is still open when the process ends is not an error."""
    await stream.publish(3000)
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from jsclient.arrow import read_jetstream, scan_jetstream\n"
        f"given = {in_small_batches(server)!r}\n"
        f"print(scan_jetstream(given, {stream.name!r}).collect().height)\n"
        f"left = read_jetstream(given, {stream.name!r})\n"
        "print(next(left).num_rows > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["3000", "True"], "")


# --- other libraries -----------------------------------------------------------------------------------------


@pytest.mark.covers("L39")
async def test_duckdb(duckdb, server, oracle, stream):
    await stream.publish(1000, "a")
    await stream.publish(500, "b")
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        orders = duckdb.from_arrow(read_jetstream(server.url, stream.name))
        actual = orders.aggregate("subject, count(*), sum(sequence)").order("subject").fetchall()
    assert actual == [
        (stream.subject("a"), 1000, sum(range(1, 1001))),
        (stream.subject("b"), 500, sum(range(1001, 1501))),
    ]


async def test_limit_of_duckdb(duckdb, server, oracle, stream):
    await stream.publish(3000)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        orders = read_jetstream(in_small_batches(server), stream.name)
        assert duckdb.sql("select sequence from orders limit 3").fetchall() == [(1,), (2,), (3,)]
    with pytest.raises(ClosedError, match="the reader was closed"):
        next(orders)


async def test_reader_is_read_once(duckdb, server, stream):
    """A relation of DuckDB runs its query at each call. The second time no row remains, so there is not a result."""
    await stream.publish(50)
    orders = read_jetstream(server.url, stream.name)
    relation = duckdb.sql("select count(*) from orders")
    assert relation.fetchall() == [(50,)]
    with pytest.raises((ClosedError, duckdb.Error), match="has ended: call read_jetstream again"):
        relation.fetchall()
    with pytest.raises(ClosedError, match="has ended"):
        orders.read_all()


async def test_error_met_by_duckdb(duckdb, server, oracle, stream):
    await stream.publish(50)
    orders = read_jetstream(server.url, stream.name)
    await oracle.purge(stream.name, seq=21)
    with pytest.raises(duckdb.Error, match="the first sequence that can be read is 21"):
        duckdb.sql("select count(*) from orders").fetchall()
    with pytest.raises(ClosedError, match="ended with an error"):
        next(orders)


@pytest.mark.parametrize(
    ("first", "says"), [("all", "has ended"), ("released", "was closed"), ("in part", "another Arrow stream")]
)
async def test_second_arrow_stream(server, oracle, stream, first, says):
    """It raises an error, and does not seem to be empty."""
    await stream.publish(3000)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        orders = read_jetstream(in_small_batches(server), stream.name)
        one, other = (pa.RecordBatchReader.from_stream(orders) for _ in range(2))
        rows = one.read_all().num_rows if first == "all" else one.read_next_batch().num_rows
        if first == "released":
            one.close()
        with pytest.raises(pa.lib.ArrowException, match=says):
            other.read_all()
        if first == "in part":
            rows += one.read_all().num_rows
        assert (rows == 3000) == (first != "released")


async def test_closed_while_read(server, stream):
    await stream.publish(3000)
    orders = read_jetstream(in_small_batches(server), stream.name)
    assert next(orders).num_rows < 3000
    orders.close()
    for _ in range(2):
        with pytest.raises(ClosedError, match="the reader was closed"):
            next(orders)


async def test_read_by_two_threads(server, stream):
    """The second read is refused, and the first read continues."""
    await stream.publish(3000)
    orders = read_jetstream(in_small_batches(server), stream.name)
    refused = threading.Event()

    def read_too(batches):
        for batch in batches:
            other = threading.Thread(target=refuse)
            yield batch
            other.start()
            other.join()

    def refuse():
        with pytest.raises(ValueError, match="already executing"):
            orders.read_all()
        refused.set()

    orders._batches = read_too(orders._batches)
    assert sum(batch.num_rows for batch in orders) == 3000
    assert refused.is_set()


async def test_arrow_stream(server, stream):
    await stream.publish(20)
    assert pa.table(read_jetstream(server.url, stream.name)).num_rows == 20
    assert pl.DataFrame(read_jetstream(server.url, stream.name)).height == 20


async def test_refused(server, stream):
    await stream.publish(50)
    with pytest.raises(ConfigError, match="start is 0"):  # before a connection is opened
        read_jetstream("nats://127.0.0.1:1", stream.name, start=0)
    with pytest.raises(ConnectError):
        read_jetstream("nats://127.0.0.1:1", stream.name)
    with pytest.raises(ConfigError, match="stream 'NOTHING' does not exist"):
        read_jetstream(server.url, "NOTHING")
    with pytest.raises(ConfigError, match=r"'other\.>' can match no message"):
        read_jetstream(server.url, stream.name, subjects="other.>")
    with pytest.raises(ConfigError, match=r"^start is 60, but stream .* ends at sequence 50"):
        read_jetstream(server.url, stream.name, start=60)
    with pytest.raises(ConfigError, match=r"^end is 51, but stream .* ends at sequence 50"):
        read_jetstream(server.url, stream.name, end=51)
