"""Rows copied from one stream to another: headers that the server reads as commands are dropped, unless kept."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.sink import MAPS, plan_of, rows_of, stored, write
from integration.kit.judge.streams import OwnStream
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.sink.spark_writer import Written, report_dropped_headers

COMMANDS = {
    "Nats-TTL": "1h",
    "nats-ttl": "1h",
    "Nats-Expected-Stream": "ANOTHER",
    "Nats-Expected-Last-Sequence": "77",
    "Nats-Rollup": "all",
    "Nats-Incr": "+1",
    "Nats-Batch-Id": "batch",
    "Nats-Batch-Sequence": "3",
    "Nats-Schedule": "@at 2030-01-01T00:00:00Z",
    "Nats-Required-Api-Level": "99",
}


def copied_rows(stream: OwnStream) -> pa.RecordBatch:
    """A row for each command, beside a header of the message's own."""
    maps = [[("a", [name]), (name, [value])] for name, value in COMMANDS.items()]
    return rows_of(stream, 1, len(maps), headers=pa.array(maps, MAPS))


@pytest.mark.covers("L28")
@pytest.mark.parametrize("ids", ["content", "none"])
async def test_commands_dropped(connect: Any, server: Any, stream: OwnStream, ids: str) -> None:
    js = await connect(server)
    outcome = await write(js, plan_of(columns="subject,headers", ids=ids), copied_rows(stream))
    assert len(await stored(stream)) == len(COMMANDS)
    for seq, name in enumerate(COMMANDS, 1):
        message = await (await js.stream(stream.name)).get_message(seq)
        assert [pair for pair in message.headers.pairs() if pair[0] != "Nats-Msg-Id"] == [("a", name)]
    assert outcome.dropped_headers == frozenset(COMMANDS)


@pytest.mark.covers("L28")
async def test_commands_kept(connect: Any, server: Any, stream: OwnStream) -> None:
    """With ``headers=keep`` the server obeys them."""
    js = await connect(server)
    maps = pa.array([[("Nats-Expected-Stream", ["ANOTHER"])]], MAPS)
    plan = plan_of(columns="subject,headers", headers="keep")
    with pytest.raises(RowError, match="expected stream does not match"):
        await write(js, plan, rows_of(stream, 1, 1, headers=maps))
    maps = pa.array([[("Nats-Expected-Stream", [stream.name])]], MAPS)
    outcome = await write(js, plan, rows_of(stream, 1, 1, headers=maps))
    message = await (await js.stream(stream.name)).get_message(1)
    assert message.headers["Nats-Expected-Stream"] == stream.name
    assert outcome.dropped_headers == frozenset()


async def test_dropped_headers_reported_once(
    connect: Any, server: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture
) -> None:
    js = await connect(server)
    outcome = await write(js, plan_of(columns="subject,headers"), copied_rows(stream))
    caplog.set_level(logging.WARNING, "jsclient.spark")
    reports: set[str] = set()
    for batch in ("batch 1", "batch 2"):
        report_dropped_headers(batch, [Written(0, 1, outcome)], reports)
    (text,) = caplog.messages
    assert text.startswith("batch 1: headers of the server were dropped from the rows: Nats-Batch-Id, ")
    assert "headers=keep" in text


@pytest.mark.covers("L28")
@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("atomic", [True, False])
async def test_atomic_batch_copied(connect: Any, server: Any, make_stream: Any, atomic: bool) -> None:
    """Its rows are not a batch again. By default the copy has them all. With ``headers=keep`` the error says why."""
    js = await connect(server)
    source, target = await make_stream(allow_atomic=True), await make_stream(allow_atomic=atomic)
    async with js.batch() as batch:
        for number in range(1, 4):
            await batch.publish(source.subject(), b"%d" % number)
    stored_headers = [(await (await js.stream(source.name)).get_message(seq)).headers for seq in range(1, 4)]
    maps = pa.array([[(name, [value]) for name, value in one.pairs()] for one in stored_headers], MAPS)
    assert "Nats-Batch-Id" in stored_headers[0]
    rows = rows_of(target, 1, 3, headers=maps)
    with pytest.raises(RowError, match=r"column 'headers': Nats-Batch-Id makes .* 0 rows are stored"):
        await write(js, plan_of(columns="subject,headers", headers="keep"), rows)
    await write(js, plan_of(columns="subject,headers"), rows)
    assert len(await stored(target)) == 3
