"""Rows that cannot be published: the error names the row, and says what became of the others. No Spark here."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.sink import MAPS, numbers, plan_of, rows_of, stored, write
from integration.kit.judge.streams import OwnStream
from jsclient.errors import ConfigError, JetStreamError
from jsclient.spark.sink import partition_writer as writing
from jsclient.spark.sink.row_error import RowError

# --- bad rows --------------------------------------------------------------------------------------------


BAD = {
    "null subject": ({"subject": None}, r"column 'subject': it is null"),
    "space in a subject": ({"subject": "a b"}, r"subject 'a b'.*column 'subject'"),
    "wildcard": ({"subject": "a.*"}, r"wildcard"),
    "null payload": ({"data": None}, r"column 'data': it is null"),
    "line break in a header": ({"headers": [("a", ["b\r\nc"])]}, r"column 'headers'.*'a'"),
    "header without a value": ({"headers": [("a", [None])]}, r"column 'headers'.*'a'"),
    "header that is null": ({"headers": [("a", None)]}, r"column 'headers'.*'a'"),
    "header with a bad name": ({"headers": [("a b", ["c"])]}, r"column 'headers'.*'a b'"),
    "null id": ({"msg_id": None}, r"column 'msg_id': it is null"),
    "empty id": ({"msg_id": ""}, r"column 'msg_id': it is empty"),
    "line break in an id": ({"msg_id": "a\nb"}, r"column 'msg_id': it holds a control"),
    "space before an id": ({"msg_id": " 7"}, r"column 'msg_id': it has spaces around it.*trim"),
    "space behind an id": ({"msg_id": "7 "}, r"column 'msg_id': it has spaces around it.*trim"),
    "id of spaces": ({"msg_id": "  "}, r"column 'msg_id': it has spaces around it.*trim"),
    "request to JetStream": (
        {"subject": "$JS.API.STREAM.PURGE.X"},
        r"column 'subject'.*is a request to the server",
    ),
    "request to a domain": ({"subject": "$JS.hub.API.STREAM.PURGE.X"}, r"column 'subject'.*is a request"),
    "request to the system": ({"subject": "$SYS.REQ.SERVER.PING"}, r"column 'subject'.*is a request"),
}


@pytest.mark.covers("L29")
@pytest.mark.parametrize("case", BAD)
async def test_bad_row(connect: Any, server: Any, stream: OwnStream, case: str) -> None:
    """The error names row, column and reason, and counts the stored rows. No row after it is stored."""
    js = await connect(server)
    change, reports = BAD[case]
    good = {"subject": stream.subject("x"), "data": b"d", "headers": [], "msg_id": "7"}
    rows = [{**good, "msg_id": f"{number}"} for number in range(20)]
    rows[12] = {**rows[12], **change}
    types = {"subject": pa.string(), "data": pa.binary(), "headers": MAPS, "msg_id": pa.string()}
    bad = pa.record_batch({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()})
    before = pa.record_batch(
        {name: pa.array([good[name]] * 5, kind) for name, kind in types.items() if name != "msg_id"}
        | {"msg_id": pa.array([f"b{n}" for n in range(5)])}
    )
    with pytest.raises(RowError, match=reports) as raised:
        await write(js, plan_of(ids="column", columns="subject,headers,msg_id"), before, bad)
    error = raised.value
    assert (error.partition, error.row, error.stored, error.unknown) == (0, 17, 5, 0)
    assert (await stream.state())["messages"] == 5


@pytest.mark.covers("L29")
async def test_row_larger_than_server_takes(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    data = [b"1", b"2", b"x" * (js._context.connection.max_payload + 1), b"4"]
    batch = pa.record_batch({"subject": [stream.subject("a")] * 4, "data": pa.array(data)})
    with pytest.raises(RowError, match=r"row 2 .*max_payload.* 2 rows are stored"):
        await write(js, plan_of(), batch)
    assert await stored(stream) == [b"1", b"2"]


@pytest.mark.full
@pytest.mark.covers("L29", "L30")
async def test_row_without_a_stream(connect: Any, server: Any, stream: OwnStream) -> None:
    """It is tried again, then the error names it. The others of its window are stored."""
    js = await connect(server)
    subjects = [stream.subject("a"), "nobody.listens", stream.subject("a")]
    batch = pa.record_batch({"subject": subjects, "data": pa.array(numbers(1, 3))})
    with pytest.raises(RowError, match=r"row 1 .*'nobody.listens'.*create a stream.* 2 rows are stored"):
        await write(js, plan_of(retries="1"), batch)
    assert await stored(stream) == [b"1", b"3"]


@pytest.mark.covers("L29")
async def test_row_that_the_stream_refuses(
    connect: Any, server: Any, oracle: Any, make_stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused for good is not tried again."""

    async def again(tries: int) -> None:
        raise AssertionError("it is tried again")

    monkeypatch.setattr(writing, "_pause", again)
    js = await connect(server)
    stream = await make_stream(max_msg_size=120)
    batch = pa.record_batch(
        {"subject": [stream.subject("a")] * 3, "data": pa.array([b"1", b"x" * 200, b"3"])}
    )
    with pytest.raises(RowError, match=r"row 1 .*max_msg_size.* 2 rows are stored"):
        await write(js, plan_of(), batch)


REFUSED = {
    "id": ("x" * 70_000, {}, "64k.*msg_id and headers shorter"),
    "ttl": ("1", {"Nats-TTL": "1h"}, "allow_msg_ttl"),
    "bad ttl": ("1", {"Nats-TTL": "soon"}, "invalid per-message TTL.*the header Nats-TTL"),
    "rollup": ("1", {"Nats-Rollup": "all"}, "allow_rollup_hdrs"),
    "schedule": ("1", {"Nats-Schedule": "@at 2030-01-01T00:00:00Z"}, "allow_msg_schedules"),
    "counter": ("1", {"Nats-Incr": "+1"}, "allow_msg_counter"),
    "last id": ("1", {"Nats-Expected-Last-Msg-Id": "z"}, "leave out those named Nats-Expected"),
}


@pytest.mark.covers("L29")
@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("case", REFUSED)
async def test_command_that_the_stream_refuses(
    connect: Any, server: Any, stream: OwnStream, case: str
) -> None:
    """Kept headers that the stream does not allow, and an id that is too long: the row is named, with the remedy."""
    js, (one, headers, reports) = await connect(server), REFUSED[case]
    await write(js, plan_of(), rows_of(stream, 1, 1))
    batch = rows_of(
        stream,
        2,
        2,
        msg_id=pa.array([one]),
        headers=pa.array([list(headers.items())], pa.map_(pa.string(), pa.string())),
    )
    plan = plan_of(ids="column", columns="subject,msg_id,headers", headers="keep")
    with pytest.raises(RowError, match=f"row 0 .*{reports}.* 0 rows are stored"):
        await write(js, plan, batch)
    assert await stored(stream) == [b"1"]


async def test_subjects_that_differ_by_case(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    subjects = [stream.subject(one) for one in ("a", "A", "ä", "Ä")]
    for _ in range(2):
        await write(js, plan_of(), pa.record_batch({"subject": subjects, "data": pa.array([b"x"] * 4)}))
    assert [one.subject for one in await stream.messages()] == subjects


async def test_another_stream_than_expected(connect: Any, server: Any, stream: OwnStream) -> None:
    js = await connect(server)
    with pytest.raises(RowError, match=r"'expectedStream' .* 0 rows are stored"):
        await write(js, plan_of(expectedStream="OTHER"), rows_of(stream, 1, 3))
    assert (await write(js, plan_of(expectedStream=stream.name), rows_of(stream, 1, 3))).rows == 3


@pytest.mark.covers("L30")
async def test_rows_may_not_be_published(connect: Any, own_server: Any) -> None:
    """Permission denied: at once, with the fix."""
    rights = {"publish": {"deny": ["no.>"]}}
    own = await own_server(
        config={"authorization": {"users": [{"user": "ann", "password": "x", "permissions": rights}]}}
    )
    js = await connect(own.url.replace("nats://", "nats://ann:x@"))
    batch = pa.record_batch({"subject": ["no.a"], "data": pa.array([b"1"])})
    with pytest.raises(RowError, match=r"row 0 .*let the user publish"):
        await write(js, plan_of(), batch)


async def test_frozen_server_named(connect: Any, own_server: Any, oracle_for: Any) -> None:
    own = await own_server()
    await (await oracle_for(own)).create_stream("OUT", ["out"])
    js = await connect(own)
    plan = plan_of(servers=own.url, ackTimeout="0.5", retries="0")
    own.pause()
    try:
        batch = pa.record_batch({"subject": ["out"], "data": pa.array([b"1"])})
        with pytest.raises(RowError, match=rf"the server or the network \({own.url}\) was too slow"):
            await write(js, plan, batch)
    finally:
        own.resume()


async def test_errors_are_ours(connect: Any, server: Any, stream: OwnStream) -> None:
    """Code that catches the errors of jsclient also catches the errors of rows."""
    js = await connect(server)
    with pytest.raises(JetStreamError):
        await write(js, plan_of(expectedStream="OTHER"), rows_of(stream, 1, 1))


async def test_connection_of_somebody_else(natspy_js: Any) -> None:
    """Columns are written past nats-py: refused over a connection that it opened."""
    with pytest.raises(ConfigError, match=r"connection that `jsclient\.connect` opened"):
        await write(natspy_js, plan_of(), pa.record_batch({"subject": ["a"], "data": pa.array([b"1"])}))
