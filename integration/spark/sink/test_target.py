"""A target that cannot take the rows: the error has limit, row and remedy. When the target is mended and the batch is
written again, every row is stored once. No Spark here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.sink import numbers, plan_of, stored, write
from integration.kit.judge.oracle import OracleError
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient.errors import ConfigError
from jsclient.spark.sink.partition_writer import PartitionWriter
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.sink.target import look
from jsclient.spark.task_context import Task

pytestmark = pytest.mark.covers("L29", "L30")

ROWS, LARGE = 60, 41  # rows of a batch, and the number of the row that is larger than the others


def batch_of(stream: OwnStream) -> pa.RecordBatch:
    payloads = numbers(1, ROWS)
    payloads[LARGE - 1] += b" " * 500
    subjects = [stream.subject(number % 5) for number in range(1, ROWS + 1)]
    return pa.record_batch({"subject": pa.array(subjects), "data": pa.array(payloads, pa.binary())})


async def refused(
    js: Any, stream: OwnStream, reported: str, *, row: int | None = None, **options: str
) -> int:
    """Write the batch, and check the error. Returns the number of rows that are stored."""
    with pytest.raises(RowError, match=reported) as raised:
        await write(js, plan_of(**{"retries": "0", **options}), batch_of(stream))
    error = raised.value
    assert error.partition == 0
    assert error.subject == stream.subject((error.row + 1) % 5)
    assert row is None or error.row == row
    assert error.unknown == 0
    assert f"{error.stored} rows are stored" in str(error)
    return error.stored


async def is_whole_when_repeated(js: Any, stream: OwnStream, known: int, **options: str) -> None:
    outcome = await write(js, plan_of(**options), batch_of(stream), task=Task(0, 1))
    assert (outcome.rows, outcome.duplicates) == (ROWS, known)
    assert sorted(data.strip() for data in await stored(stream)) == sorted(numbers(1, ROWS))


@dataclass(frozen=True)
class Limit:
    config: Mapping[str, Any]  # of the target
    message_part: str
    mended: Mapping[str, Any]  # the config that takes the rows
    stored: int | None = None  # rows that fit, or None for some
    row: int | None = None  # the first that does not
    options: Mapping[str, str] = field(default_factory=dict)


NEW = {"discard": "new"}
LIMITS = {
    "max_msgs": Limit({**NEW, "max_msgs": 20}, "its max_msgs: raise max_msgs", {"max_msgs": -1}, 20, 20),
    "max_bytes": Limit({**NEW, "max_bytes": 3000}, "its max_bytes: raise max_bytes", {"max_bytes": -1}),
    "max_msgs_per_subject": Limit(
        {**NEW, "max_msgs_per_subject": 3, "discard_new_per_subject": True},
        "its max_msgs_per_subject: raise max_msgs_per_subject",
        {"max_msgs_per_subject": -1, "discard_new_per_subject": False},
        15,
        15,
    ),
    "max_msg_size": Limit(
        {"max_msg_size": 300}, "raise max_msg_size of the stream", {"max_msg_size": -1}, ROWS - 1, LARGE - 1
    ),
    "no subjects of its own": Limit(
        {"subjects": ["elsewhere.{}"]}, "create a stream with this subject", {"subjects": ["{}.>"]}, 0, 0
    ),
}


@pytest.mark.parametrize("case", LIMITS)
async def test_limit(connect: Any, server: Any, make_stream: Any, oracle: Any, case: str) -> None:
    js, limit = await connect(server), LIMITS[case]
    stream = await make_stream()
    await oracle.update_stream(stream.name, **with_prefix(stream, limit.config))
    known = await refused(js, stream, limit.message_part, row=limit.row)
    assert known == (await stream.state())["messages"]
    assert limit.stored is None or known == limit.stored
    await oracle.update_stream(stream.name, **with_prefix(stream, limit.mended))
    await is_whole_when_repeated(js, stream, known)


def with_prefix(stream: OwnStream, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: [one.format(stream.prefix) for one in value] if key == "subjects" else value
        for key, value in config.items()
    }


@pytest.mark.parametrize("harm", ["missing", "sealed", "mirror", "sources only"])
async def test_no_target(connect: Any, server: Any, stream: OwnStream, oracle: Any, harm: str) -> None:
    """No row is stored. With a stream that takes the subjects, all is."""
    js, reports = await connect(server), "create a stream with this subject"
    if harm == "sealed":
        await oracle.update_stream(stream.name, sealed=True)
        reports = f"stream '{stream.name}'.* is sealed, .*write to another"
    else:
        await stream.delete()
        others = [{"name": f"origin_{stream.prefix}"}]
        if harm != "missing":
            config = {"mirror": others[0]} if harm == "mirror" else {"sources": others}
            await oracle.create_stream(stream.name, [], storage="memory", **config)
    assert await refused(js, stream, reports, row=0, expectedStream=stream.name) == 0
    await oracle.delete_stream(stream.name, missing_ok=True)
    await oracle.create_stream(stream.name, [stream.all], storage="memory")
    await is_whole_when_repeated(js, stream, 0, expectedStream=stream.name)


async def test_deleted_during_the_write(connect: Any, server: Any, stream: OwnStream, oracle: Any) -> None:
    js, half = await connect(server), ROWS // 2
    writer = PartitionWriter(js, plan_of(retries="0", ackTimeout="1"), Task(0, 0))
    batch = batch_of(stream)
    await writer.write(batch.slice(0, half))
    await writer._bulk.settle()
    await stream.delete()

    async def publish_remaining() -> None:
        await writer.write(batch.slice(half))
        await writer.finish()

    with pytest.raises(RowError, match=rf"row {half} .*create a stream .* {half} rows are stored"):
        await publish_remaining()
    await writer.close()
    await oracle.create_stream(stream.name, [stream.all], storage="memory")
    await is_whole_when_repeated(js, stream, 0)


async def test_subjects_of_another_stream(
    connect: Any, server: Any, stream: OwnStream, make_stream: Any, oracle: Any
) -> None:
    """The stream of the option exists, but another stream has the subjects."""
    js, expected = await connect(server), await make_stream()
    reports = "'expectedStream' has this subject.*name that one"
    assert await refused(js, stream, reports, row=0, expectedStream=expected.name) == 0
    await is_whole_when_repeated(js, stream, 0, expectedStream=stream.name)


# --- limits of account and server, rights ----------------------------------------------------------------


async def reload(own: Any, config: dict[str, Any]) -> None:
    own.reload(config)
    await eventually(lambda: "Reloaded server configuration" in own.log, 20, "the new configuration")


def account(**limits: int) -> dict[str, Any]:
    return {"accounts": {"A": {"users": [{"user": "ann", "password": "x"}], "jetstream": limits}}}


async def test_limit_of_account(connect: Any, own_server: Any, oracle_for: Any, make_stream: Any) -> None:
    own = await own_server(config=account(max_mem=4000, max_file=4000))
    url = own.url.replace("nats://", "nats://ann:x@")
    stream, js = await make_stream(oracle=await oracle_for(url)), await connect(url)
    known = await refused(js, stream, "resource limits exceeded for account.* max_mem.*raise the limit")
    assert 0 < known == (await stream.state())["messages"]
    await reload(own, account(max_mem=400_000, max_file=4000))
    await is_whole_when_repeated(js, stream, known)


def users(**rights: Any) -> dict[str, Any]:
    ann = (
        {"user": "ann", "password": "x", "permissions": rights}
        if rights
        else {"user": "ann", "password": "x"}
    )
    return {"authorization": {"users": [ann, {"user": "judge", "password": "x"}]}}


async def settled_count(js: Any, stream: OwnStream) -> int:
    """The number of stored messages once the stream has handled everything that was written to it.

    The writer has no acks to wait for: the server may still read from its connection, and messages that it read wait in
    the queue of the stream. A message that the stream refuses goes through the same queue, after them.
    """
    await js.ping()
    with pytest.raises(OracleError, match="wrong last sequence"):
        await stream.oracle.publish(
            stream.subject("refused"), headers={"Nats-Expected-Last-Sequence": "999999"}
        )
    return int((await stream.state())["messages"])


RIGHTS = {
    "subjects": ({"publish": {"deny": ["*.3"]}}, "row 2 .*let the user publish to the subjects of the rows"),
    "inbox": ({"subscribe": {"deny": ["_INBOX.>"]}}, "let the user subscribe to its inbox"),
}


@pytest.mark.parametrize("case", RIGHTS)
async def test_without_rights(
    connect: Any, own_server: Any, oracle_for: Any, make_stream: Any, case: str
) -> None:
    rights, reports = RIGHTS[case]
    own = await own_server(config=users(**rights))
    stream = await make_stream(oracle=await oracle_for(own.url.replace("nats://", "nats://judge:x@")))
    js = await connect(own, user="ann", password="x")
    with pytest.raises(RowError, match=reports):
        await write(js, plan_of(retries="0", ackTimeout="1"), batch_of(stream))
    known = await settled_count(js, stream)
    await js.close()
    await reload(own, users())
    await is_whole_when_repeated(await connect(own, user="ann", password="x"), stream, known)


async def test_without_rights_to_the_api(
    connect: Any, own_server: Any, oracle_for: Any, make_stream: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows can be written without the API of JetStream. A ledger needs it, so a query with one does not start."""
    own = await own_server(config=users(publish={"deny": ["$JS.API.>"]}))
    stream = await make_stream(oracle=await oracle_for(own.url.replace("nats://", "nats://judge:x@")))
    js = await connect(own, user="ann", password="x")
    options = {"expectedStream": stream.name, "exactlyOnce": "ledger"}
    with pytest.raises(ConfigError, match=r"STREAM\.INFO.*a ledger needs the JetStream API"):
        await look(js, plan_of(**options).options, plan_of().shape, ids="content")
    with caplog.at_level(logging.WARNING, "jsclient.spark"):
        await look(js, plan_of(expectedStream=stream.name).options, plan_of().shape, ids="content")
    assert "not known for how long the target remembers message ids" in caplog.text
    await is_whole_when_repeated(js, stream, 0, expectedStream=stream.name)


async def test_row_larger_than_the_server_takes(
    connect: Any, own_server: Any, oracle_for: Any, make_stream: Any
) -> None:
    own = await own_server(config={"max_payload": 400})
    stream = await make_stream(oracle=await oracle_for(own.url))
    js = await connect(own)
    known = await refused(js, stream, "column 'data'.*raise max_payload of the server", row=LARGE - 1)
    assert known == LARGE - 1
    await js.close()
    await reload(own, {"max_payload": 4000})
    await is_whole_when_repeated(await connect(own), stream, known)


async def test_frozen_server(connect: Any, own_server: Any, oracle_for: Any, make_stream: Any) -> None:
    """Whether the rows are stored is unknown. They are, once the server continues, and are not stored again."""
    own = await own_server()
    stream, js = await make_stream(oracle=await oracle_for(own.url)), await connect(own)
    own.pause()
    try:
        with pytest.raises(
            RowError, match=r"'ackTimeout' and 'retries' give more time.*of \d+ more"
        ) as raised:
            await write(js, plan_of(retries="0", ackTimeout="0.5", servers=own.url), batch_of(stream))
    finally:
        own.resume()
    assert (raised.value.stored, raised.value.unknown) == (0, ROWS)
    outcome = await write(js, plan_of(), batch_of(stream), task=Task(0, 1))
    assert outcome.rows == ROWS
    assert sorted(data.strip() for data in await stored(stream)) == sorted(numbers(1, ROWS))


# --- what the driver says before a task starts -----------------------------------------------------------


LOOKS = {
    "missing": (None, "does not exist: create it"),
    "sealed": ({"sealed": True}, "is sealed, .*write to another"),
    "without acks": ({"no_ack": True, "subjects": ["none.acked"]}, "does not ack.*no_ack=False"),
    "mirror": ({"mirror": {"name": "ORIGIN"}}, "is a mirror of 'ORIGIN'.*write to that"),
    "sources only": (
        {"sources": [{"name": "ORIGIN"}]},
        "has no subjects: give it subjects",
    ),
}


@pytest.mark.parametrize("case", LOOKS)
async def test_driver_looks_first(
    connect: Any, server: Any, stream: OwnStream, oracle: Any, case: str
) -> None:
    """Before the first row, and with the remedy, whether the rows have a column of subjects or not."""
    js, (config, reports) = await connect(server), LOOKS[case]
    if config is None or "sealed" not in config:
        await stream.delete()
    if config is not None and "sealed" in config:
        await oracle.update_stream(stream.name, **config)
    elif config is not None:
        await oracle.create_stream(stream.name, **{"subjects": [], "storage": "memory", **config})
    for subject, columns in ((stream.subject("a"), ""), (None, "subject")):
        plan = plan_of(subject=subject, columns=columns, expectedStream=stream.name)
        with pytest.raises(ConfigError, match=reports):
            await look(js, plan.options, plan.shape, ids="content")
