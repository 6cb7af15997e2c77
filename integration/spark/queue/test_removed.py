"""Messages that a limit removes before a query claims them, or before it reads its claims, are reported."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.judge.oracle import number_of
from integration.spark.queue.test_claims import numbers, queue, seen
from jsclient.errors import HistoryTruncatedError

pytest.importorskip("pyspark.sql.streaming.datasource")

pytestmark = pytest.mark.covers("L18")
__all__ = ["queue"]  # the fixture

RETENTIONS = pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
SHORT = {"max_msgs": 100}


async def fill(query: QueueQuery, first: int, count: int) -> None:
    await query.stream.publish(count, first=first)


@RETENTIONS
@pytest.mark.parametrize("acks", ["batch", "manual"])
async def test_removed_before_first_claim_is_an_error(queue: Any, retention: str, acks: str) -> None:
    """The error comes again after a restart: no message is claimed until the user accepts the loss."""
    query = await queue(stream={"retention": retention, **SHORT}, ackOn=acks)
    await fill(query, 1, 250)
    for _ in range(2):
        with pytest.raises(
            HistoryTruncatedError, match=r"messages 1 to 150 of stream .* consumer 'q'.*'failOnDataLoss'"
        ):
            await query.plan()
        await query.stop()
    query.options["failOnDataLoss"] = "false"
    assert numbers(await query.batch()) == seen(151, 250)


@RETENTIONS
async def test_removed_between_two_batches(queue: Any, retention: str) -> None:
    query = await queue(stream={"retention": retention, **SHORT})
    await fill(query, 1, 50)
    assert len(await query.batch()) == 50
    assert await query.plan() is None
    await query.stop()
    await fill(query, 51, 250)
    with pytest.raises(HistoryTruncatedError, match="messages 51 to 200 "):
        await query.plan()


async def test_tolerant_query_counts_and_continues(queue: Any, caplog: pytest.LogCaptureFixture) -> None:
    query = await queue(stream=SHORT, failOnDataLoss="false")
    await fill(query, 1, 250)
    with caplog.at_level(logging.WARNING, "jsclient.spark"):
        rows = await query.batch()
    assert numbers(rows) == seen(151, 250)
    assert "messages 1 to 150 of stream" in caplog.text
    assert query._reader.reportLatestOffset()["lost"] == 150


async def test_running_query_sees_the_gap(queue: Any) -> None:
    """The query waits, and its first pull meets a stream that a burst has passed through."""
    query = await queue(stream={"retention": "limits", **SHORT}, count=10)
    assert len(await query.batch()) == 10
    await fill(query, 11, 200)
    with pytest.raises(HistoryTruncatedError, match="messages 11 to 110 "):
        await query.plan()


async def test_single_deleted_messages_are_no_loss(queue: Any, oracle: Any) -> None:
    query = await queue(stream={"retention": "limits"}, count=50)
    for seq in (20, 21, 40):
        await oracle.delete_message(query.stream.name, seq)
    rows = await query.batch()
    assert numbers(rows) == [number for number in seen(1, 50) if number not in (20, 21, 40)]


async def test_superseded_messages_are_no_loss(queue: Any) -> None:
    query = await queue(stream={"retention": "limits", "max_msgs_per_subject": 1})
    for number in range(1, 6):
        await query.stream.publish(1, "key", first=number)
    assert [number_of(row["data"]) for row in await query.batch()] == [5]


async def test_filters_match_nothing_removed(queue: Any) -> None:
    """Messages that a consumer with a filter has not delivered may have matched no filter."""
    query = await queue(stream={"retention": "limits", **SHORT}, consumer={"filter_subject": "*.mine"})
    await query.stream.publish(150, "yours")
    await query.stream.publish(5, "mine")
    assert len(await query.batch()) == 5


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_manual_query_claims_removed_before_read(queue: Any, retention: str) -> None:
    """No one can have acked a batch that was never read."""
    query = await queue(stream={"retention": retention, **SHORT}, count=60, ackOn="manual")
    partitions = await query.plan()
    await fill(query, 61, 80)  # removes 1 to 40
    with pytest.raises(Exception, match=r"(?s)claimed messages .* no longer exist.*'failOnDataLoss'"):
        await query.read(partitions)
