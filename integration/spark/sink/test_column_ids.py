"""Ids from a column: two rows that share one are stored as one only if they are equal. No Spark here."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.sink import MAPS, plan_of, stored, write
from integration.kit.judge.streams import OwnStream
from jsclient.errors import ConfigError
from jsclient.spark.sink.ledger import LedgerLocation, ensure_bucket
from jsclient.spark.sink.partition_writer import Outcome, WritePlan
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.sink.shared_rows import refuse_shared
from jsclient.spark.sink.spark_writer import Written
from jsclient.spark.task_context import Task

pytestmark = pytest.mark.covers("L26")

Row = tuple[str, str, bytes]  # id, subject, payload


def plan(**options: str) -> WritePlan:
    return plan_of(ids="column", columns="subject,msg_id", **options)


def rows(*of: Row) -> pa.RecordBatch:
    ids, subjects, payloads = zip(*of, strict=True)
    return pa.record_batch(
        {"msg_id": pa.array(ids), "subject": pa.array(subjects), "data": pa.array(payloads, pa.binary())}
    )


async def end(server: Any, *outcomes: Outcome) -> None:
    """What the driver does at the commit."""
    options = plan(servers=server.url).options
    written = [Written(number, -1, outcome) for number, outcome in enumerate(outcomes)]
    await asyncio.to_thread(refuse_shared, written, options)


# --- two rows of one task --------------------------------------------------------------------------------


async def test_one_id_for_two_subjects(connect: Any, server: Any, stream: OwnStream) -> None:
    """No row of the batch is written, and the error names both rows."""
    js = await connect(server)
    batch = rows(
        ("1", stream.subject("a"), b"x"), ("2", stream.subject("a"), b"y"), ("1", stream.subject("b"), b"x")
    )
    with pytest.raises(RowError, match=r"row 2 .*column 'msg_id'.*row 0 has the same id '1'.* subject"):
        await write(js, plan(expectedStream=stream.name), batch)
    assert await stored(stream) == []


async def test_one_id_for_two_payloads(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    good = rows(("0", stream.subject("a"), b"0"))
    batch = rows(("1", stream.subject("a"), b"x"), ("1", stream.subject("a"), b"y"))
    with pytest.raises(RowError, match=r"row 2 .*row 1 has the same id '1'.* payload") as raised:
        await write(js, plan(), good, batch)
    assert (raised.value.row, raised.value.stored) == (2, 1)
    assert await stored(stream) == [b"0"]


async def test_one_id_for_two_headers(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    headers = pa.array([[("a", ["1"])], [("a", ["2"])]], MAPS)
    batch = rows(("1", stream.subject("a"), b"x"), ("1", stream.subject("a"), b"x"))
    batch = batch.append_column("headers", headers)
    with pytest.raises(RowError, match=r"row 1 .*row 0 has the same id '1'.* headers"):
        await write(js, plan_of(ids="column", columns="subject,msg_id,headers"), batch)


async def test_one_id_in_two_parts(connect: Any, server: Any, stream: OwnStream) -> None:
    """The first row is stored before the second is known. The stream drops the second, and the task notices."""
    js = await connect(server)
    first, second = rows(("1", stream.subject("a"), b"x")), rows(("1", stream.subject("b"), b"x"))
    with pytest.raises(RowError, match=r"row 1 .*'1'.*message 1 of stream .*subject is '\S+\.a'"):
        await write(js, plan(), first, second)
    assert await stored(stream) == [b"x"]


async def test_equal_rows_are_one(connect: Any, server: Any, stream: OwnStream) -> None:
    """They are equal in id, subject and payload: wherever they are, one message is stored."""
    js = await connect(server)
    row = ("1", stream.subject("a"), b"x")
    first = await write(js, plan(), rows(row, row), rows(row))
    second = await write(js, plan(), rows(row), task=Task(1, 0))
    assert (first.rows, first.duplicates, second.duplicates) == (3, 2, 1)
    await end(server, first, second)
    assert await stored(stream) == [b"x"]


async def test_one_id_in_two_streams(connect: Any, server: Any, stream: OwnStream, make_stream: Any) -> None:
    """Each stream has separate ids, so both rows are stored, even if the batch is repeated."""
    js, other = await connect(server), await make_stream()
    batch = rows(("1", stream.subject("a"), b"x"), ("1", other.subject("a"), b"y"))
    for attempt in (0, 1):
        outcome = await write(js, plan(), batch, batch, task=Task(0, attempt))
        await end(server, outcome)
    assert (await stored(stream), await stored(other)) == ([b"x"], [b"y"])


# --- rows of two tasks, of two writes --------------------------------------------------------------------


async def test_one_id_in_two_tasks(connect: Any, server: Any, stream: OwnStream) -> None:
    """An earlier attempt may have stored another payload, so only the driver can decide. The commit names both rows."""
    js = await connect(server)
    first = await write(js, plan(), rows(("0", stream.subject("a"), b"0"), ("1", stream.subject("a"), b"x")))
    second = await write(js, plan(), rows(("1", stream.subject("a"), b"y")), task=Task(1, 0))
    with pytest.raises(ConfigError, match=r"row 1 of partition 0 and row 0 of partition 1 .*id"):
        await end(server, first, second)
    again = await write(js, plan(), rows(("1", stream.subject("a"), b"y")), task=Task(1, 1))
    with pytest.raises(ConfigError, match="only one of them is stored"):
        await end(server, first, again)


@pytest.mark.parametrize("removed", [False, True])
async def test_one_of_many_shared_messages(
    connect: Any, server: Any, oracle: Any, stream: OwnStream, *, removed: bool
) -> None:
    """Many equal rows are one message each. The driver reads them all, or counts rows if the message is gone."""
    js, number = await connect(server), 100
    batch = [(f"{one}", stream.subject("a"), b"%d" % one) for one in range(number)]
    first = await write(js, plan(), rows(*batch))
    equal = await write(js, plan(), rows(*batch), task=Task(1, 0))
    await end(server, first, equal)
    other = [*batch[:-1], (f"{number - 1}", stream.subject("a"), b"y")]
    second = await write(js, plan(), rows(*other), task=Task(1, 0))
    if removed:
        await oracle.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": number})
    with pytest.raises(ConfigError, match=r"row 99 of partition 0 and row 99 of partition 1 .*id") as caught:
        await end(server, first, second)
    assert ("as message 100 of stream" in str(caught.value)) is not removed


async def test_two_writes_to_two_subjects(connect: Any, server: Any, stream: OwnStream) -> None:
    """As two sinks with one column of ids: the second write says so, and each repetition of it."""
    js = await connect(server)
    of = [(f"{number}", b"%d" % number) for number in range(50)]
    await write(js, plan(), rows(*((one, stream.subject("first"), data) for one, data in of)))
    batch = rows(*((one, stream.subject("second"), data) for one, data in of))
    for attempt in (0, 1):
        with pytest.raises(RowError, match=r"row 0 .*'0'.*message 1 of stream .*subject is '\S+\.first'"):
            await write(js, plan(), batch, task=Task(0, attempt))
    assert len(await stored(stream)) == 50


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_repetition_with_other_payloads(
    connect: Any, server: Any, make_stream: Any, retention: str
) -> None:
    """Rows with the current time have other payloads when they are repeated: the id says that they are the same."""
    js, stream = await connect(server), await make_stream(retention=retention)
    for attempt in (0, 1):
        batch = rows(*((f"{n}", stream.subject("a"), b"%d at %d" % (n, attempt)) for n in range(40)))
        outcome = await write(js, plan(), batch, task=Task(0, attempt))
        await end(server, outcome)
    assert (outcome.duplicates, outcome.unseen) == (40, "")
    assert await stored(stream) == [b"%d at 0" % n for n in range(40)]


async def test_ledger_with_another_subject(connect: Any, server: Any, oracle: Any, make_stream: Any) -> None:
    """A ledger also skips rows by their ids, but not rows of another subject."""
    js, stream = await connect(server), await make_stream()
    location = LedgerLocation(f"col_{stream.prefix}", "query", stream.name, "run-1")
    await ensure_bucket(js, location.bucket, 1)
    try:
        with_ledger = plan_of(
            ids="column",
            columns="subject,msg_id",
            ledger=location,
            exactlyOnce="ledger",
            expectedStream=stream.name,
        )
        await write(js, with_ledger, rows(("1", stream.subject("a"), b"x")))
        again = await write(js, with_ledger, rows(("1", stream.subject("a"), b"x")), task=Task(0, 1))
        assert again.skipped == 1
        with pytest.raises(RowError, match=r"row 0 .*'1'.*message 1 of stream .*subject is '\S+\.a'"):
            await write(js, with_ledger, rows(("1", stream.subject("b"), b"x")), task=Task(0, 2))
    finally:
        await oracle.delete_stream(f"KV_{location.bucket}")


# --- ids in kept headers ---------------------------------------------------------------------------------


def with_headers(*of: Row) -> pa.RecordBatch:
    """The ids are in headers, like the ids of copied messages."""
    batch = rows(*of)
    maps = pa.array([[("a", ["1"]), *([("Nats-Msg-Id", [one])] if one else [])] for one, _, _ in of], MAPS)
    return pa.record_batch({"subject": batch["subject"], "data": batch["data"], "headers": maps})


def keeping() -> WritePlan:
    return plan_of(ids="none", columns="subject,headers", headers="keep", exactlyOnce="none")


async def test_kept_id_for_two_rows(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    without = [("", stream.subject("a"), b"%d" % number) for number in range(3)]
    one, other = ("1", stream.subject("a"), b"x"), ("1", stream.subject("b"), b"x")
    with pytest.raises(RowError, match=r"row 4 .*column 'headers'.*row 3 has the same id '1'"):
        await write(js, keeping(), with_headers(*without, one, ("1", stream.subject("a"), b"y")))
    with pytest.raises(RowError, match=r"row 1 .*column 'headers'.*'1'.*message 1 of stream .*Nats-Msg-Id"):
        await write(js, keeping(), with_headers(one), with_headers(other))


async def test_kept_ids_of_two_tasks(connect: Any, server: Any, stream: OwnStream) -> None:
    """Rows without an id are distinct rows."""
    js, without = await connect(server), ("", stream.subject("a"), b"0")
    for attempt in (0, 1):
        batch = with_headers(without, ("1", stream.subject("a"), b"x"))
        first = await write(js, keeping(), batch, task=Task(0, attempt))
        await end(server, first)
    other = with_headers(without, ("1", stream.subject("a"), b"y"))
    second = await write(js, keeping(), other, task=Task(1, 0))
    with pytest.raises(ConfigError, match="row 1 of partition 0 and row 1 of partition 1"):
        await end(server, first, second)
    assert sorted(await stored(stream)) == [b"0", b"0", b"0", b"x"]


# --- what cannot be looked at ----------------------------------------------------------------------------


async def test_user_may_not_look(own_server: Any, oracle_for: Any, make_stream: Any, connect: Any) -> None:
    """The rows count as stored, and the outcome says why this was not checked."""
    rights = {"publish": {"deny": ["$JS.API.STREAM.INFO.>"]}}
    users = [{"user": "ann", "password": "x", "permissions": rights}, {"user": "judge", "password": "x"}]
    own = await own_server(config={"authorization": {"users": users}})
    stream = await make_stream(oracle=await oracle_for(own.url.replace("nats://", "nats://judge:x@")))
    js = await connect(own, user="ann", password="x")
    batch = rows(("1", stream.subject("a"), b"x"))
    assert (await write(js, plan(), batch)).unseen == ""
    assert "STREAM.INFO" in (await write(js, plan(), batch, task=Task(0, 1))).unseen


async def test_message_is_gone(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    batch = rows(("1", stream.subject("a"), b"x"))
    await write(js, plan(), batch)
    await (await js.stream(stream.name)).purge()
    assert "has removed" in (await write(js, plan(), batch, task=Task(0, 1))).unseen


# --- accounts in which messages are stored under other subjects, or cannot be read ----------------------------

MAPPED = """
accounts {
    A { jetstream: enabled, users: [{user: u, password: p}], mappings: { "orders.*": "v2.orders.$1" } }
}
"""


async def test_mapped_subjects_are_no_other_rows(connect: Any, own_server: Any) -> None:
    """A repeated row is stored under the subject that the account maps it to."""
    server = await own_server(config=MAPPED)
    js = await connect(server, user="u", password="p")
    await js.create_stream("OUT", ["v2.>"], duplicate_window=120)
    batch = rows(("1", "orders.a", b"x"), ("2", "orders.b", b"y"))
    for attempt in (0, 1):
        outcome = await write(js, plan(), batch, task=Task(0, attempt))
    assert outcome.duplicates == 2
    assert "mapped" in outcome.unseen
    assert (await (await js.stream("OUT")).info()).state.messages == 2


GUESTS = """
accounts {
    A { jetstream: enabled, users: [{user: u, password: p}], exports: [{service: "orders.>"}] }
    G { users: [{user: g, password: p}], imports: [{service: {account: A, subject: "orders.>"}}] }
}
"""


async def test_guest_without_jetstream_repeats_rows(connect: Any, own_server: Any) -> None:
    """Who may publish to a stream of another account cannot read it, so the repetitions are not compared."""
    server = await own_server(config=GUESTS)
    owner, guest = (
        await connect(server, user="u", password="p"),
        await connect(server, user="g", password="p"),
    )
    await owner.create_stream("OUT", ["orders.>"], duplicate_window=120)
    batch = rows(("1", "orders.a", b"x"), ("2", "orders.b", b"y"))
    for attempt in (0, 1):
        outcome = await write(guest, plan(), batch, task=Task(0, attempt))
    assert outcome.duplicates == 2
    assert "cannot be read" in outcome.unseen
