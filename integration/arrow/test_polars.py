"""`scan_jetstream`: the rows of a lazy frame, and how little is read for a query."""

from __future__ import annotations

import polars as pl
import pytest

from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.waiting import eventually
from integration.kit.servers.monitor import connections
from jsclient.arrow import polars as room
from jsclient.arrow import scan_jetstream
from jsclient.errors import ConfigError, HistoryTruncatedError

ENGINES = pytest.mark.parametrize("engine", ["in-memory", "streaming"])


@pytest.fixture
def planned(monkeypatch):
    """The columns of each read."""
    seen = []

    def plan(options, columns):
        seen.append(columns)
        return plan_tasks(options, columns)

    plan_tasks = room.plan_tasks
    monkeypatch.setattr(room, "plan_tasks", plan)
    return seen


@pytest.mark.covers("L39")
async def test_messages_as_they_are(server, oracle, stream):
    await stream.publish(20)
    await oracle.publish(stream.subject("h"), b"\x00\xff", headers={"Kind": "odd"})
    stored = [(one.seq, one.subject, one.payload) for one in await stream.messages()]
    frame = scan_jetstream(server.url, stream.name).collect()
    assert frame.select("sequence", "subject", "data").rows() == stored
    assert frame["headers"].is_null().sum() == 20
    assert frame.schema == scan_jetstream(server.url, stream.name).collect_schema()


@ENGINES
async def test_only_needed_columns_are_read(server, stream, planned, engine):
    await stream.publish(100, "a")
    await stream.publish(100, "b")
    scan = scan_jetstream(server.url, stream.name)
    assert scan.select(pl.len()).collect(engine=engine).item() == 200
    expected = scan.filter(pl.col("subject") == stream.subject("b")).select("sequence", "stream")
    actual = expected.collect(engine=engine)
    assert actual.columns == ["sequence", "stream"]
    assert actual["sequence"].to_list() == list(range(101, 201))
    assert [len(columns) for columns in planned] == [1, 3]


@ENGINES
async def test_each_collect_reads_what_is_there(server, stream, engine):
    await stream.publish(10)
    total = scan_jetstream(server.url, stream.name, start=3).select(pl.col("sequence").sum())
    assert total.collect(engine=engine).item() == sum(range(3, 11))
    await stream.publish(5)
    assert total.collect(engine=engine).item() == sum(range(3, 16))


@ENGINES
async def test_limit_ends_the_reading(server, oracle, stream, engine):
    await stream.publish(3000)
    options = {"servers": server.url, "batchRows": "10", "fetchMaxBytes": "20k", "readMode": "consumer"}
    scan = scan_jetstream(options, stream.name)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        assert scan.head(25).collect(engine=engine)["sequence"].to_list() == list(range(1, 26))
        assert scan.slice(20, 5).collect(engine=engine)["sequence"].to_list() == list(range(21, 26))
        even = scan.head(25).filter(pl.col("sequence") % 2 == 0).select("sequence")  # the limit comes first
        assert even.collect(engine=engine)["sequence"].to_list() == list(range(2, 25, 2))


@ENGINES
async def test_limit_after_a_filter(server, stream, engine):
    """Polars discards the scan when it is next called."""
    await stream.publish(3000)
    options = {"servers": server.url, "batchRows": "10", "fetchMaxBytes": "20k", "readMode": "consumer"}
    even = scan_jetstream(options, stream.name).filter(pl.col("sequence") % 2 == 0).select("sequence").head(3)
    assert even.collect(engine=engine)["sequence"].to_list() == [2, 4, 6]

    async def ended():
        pl.DataFrame({"any": [1]}).height  # noqa: B018  a call
        open_ones = await connections(server.monitor)
        return (
            all(name != "jsclient-arrow" for name, _ in open_ones.values())
            and not await stream.consumer_names()
        )

    await eventually(ended, what="the end of the reading")


@ENGINES
async def test_join_of_two_scans(server, oracle, stream, engine):
    await stream.publish(2000)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        one, other = (scan_jetstream(server.url, stream.name, start=start) for start in (1, 1001))
        joined = one.select("sequence", "data").join(other.select("sequence", "subject"), on="sequence")
        assert sorted(joined.collect(engine=engine)["sequence"]) == list(range(1001, 2001))


async def test_errors(server, oracle, stream):
    with pytest.raises(ConfigError, match="start is 0"):
        scan_jetstream("nats://127.0.0.1:1", stream.name, start=0)
    await stream.publish(50)
    await oracle.purge(stream.name, seq=21)
    with pytest.raises((HistoryTruncatedError, pl.exceptions.ComputeError), match="messages 5 to 20"):
        scan_jetstream(server.url, stream.name, start=5).collect()
