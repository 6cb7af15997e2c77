"""Queue mode with consumers at their limits: each message is a row once, or the consumer is refused for a reason."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.judge.waiting import eventually
from jsclient.errors import ConfigError

COUNT, BATCH = 120, 50


def ns(seconds):
    return int(seconds * 1e9)


@pytest.fixture
async def queue(server, make_stream):
    """`await queue(max_batch=1)`: a query on a stream with 120 messages, by a consumer with this configuration."""
    results = []

    async def create(**config):
        stream = await make_stream(allow_direct=True)
        await stream.publish(COUNT)
        config = json.loads(json.dumps(config).replace("$SUBJECTS", stream.all))
        await stream.create_consumer("q", **{"ack_policy": "explicit", "durable_name": "q", **config})
        query = QueueQuery(server, stream, "q", {"maxMessagesPerTrigger": BATCH}, ("sequence", "data"))
        results.append(query)
        return query

    yield create
    for query in results:
        await query.stop()


# The configuration of a consumer, and the most rows of a batch.
AT_LIMITS = {
    "ack pending below a batch": ({"max_ack_pending": 10}, 10),
    "one ack pending": ({"max_ack_pending": 1}, 1),
    "one delivery": ({"max_deliver": 1}, BATCH),
    "backoff": ({"max_deliver": 3, "backoff": [ns(1), ns(2)]}, BATCH),
    "one message a pull": ({"max_batch": 1}, BATCH),
    "short pulls": ({"max_expires": ns(0.05)}, BATCH),
    "one pull": ({"max_waiting": 1}, BATCH),
    "few bytes a pull": ({"max_bytes": 300}, BATCH),
    "fewer bytes than a message": ({"max_bytes": 10}, 1),
    "short ack_wait": ({"ack_wait": ns(0.3)}, BATCH),
    "headers only": ({"headers_only": True}, BATCH),
    "last of each subject": ({"deliver_policy": "last_per_subject", "filter_subject": "$SUBJECTS"}, BATCH),
    "all at once": (
        {"max_ack_pending": 10, "max_batch": 3, "max_expires": ns(0.2), "max_waiting": 1, "max_bytes": 100},
        10,
    ),
}


@pytest.mark.core_cases(4)
@pytest.mark.covers("L20")
@pytest.mark.parametrize("which", AT_LIMITS)
async def test_consumer_at_its_limits(queue, which):
    config, most = AT_LIMITS[which]
    query = await queue(**config)
    expected = [COUNT] if "deliver_policy" in config else [*range(1, COUNT + 1)]
    sizes = []
    while rows := await query.batch():
        sizes.append(len(rows))
        assert all(row["data"] for row in rows)
    assert sorted(query.column("sequence")) == expected
    assert max(sizes) <= most
    info = await query.stream.consumer_info("q")
    assert (info["num_pending"], info["num_ack_pending"], info["num_redelivered"]) == (0, 0, 0)
    await query.stream.publish(5, first=COUNT + 1)
    assert sum(await query.drain()) == 5


@pytest.mark.covers("L20", "L24")
async def test_batch_longer_than_short_ack_wait(queue):
    """Its claims are kept alive, with one delivery at most: no one else gets them, and all are acked."""
    query = await queue(ack_wait=ns(3), max_deliver=1)
    partitions = await query.plan()
    await asyncio.sleep(6.5)  # the batch: longer than twice ack_wait
    query.commit(await query.read(partitions))
    while await query.batch():
        pass
    assert sorted(query.column("sequence")) == [*range(1, COUNT + 1)]
    info = await query.stream.consumer_info("q")
    assert (info["num_ack_pending"], info["num_redelivered"], info["ack_floor"]["stream_seq"]) == (
        0,
        0,
        COUNT,
    )


@pytest.mark.covers("L20")
async def test_only_pull_is_of_another_client(queue, oracle):
    """`max_waiting` is 1 and another client waits: the query continues when its request has ended."""
    query = await queue(max_waiting=1)
    assert sum(await query.drain()) == COUNT
    inbox = oracle.nc.new_inbox()
    await oracle.nc.subscribe(inbox)  # the server forgets the request of a client that does not listen
    requests = json.dumps({"batch": 1, "expires": ns(3)}).encode()
    await oracle.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{query.stream.name}.q", requests, reply=inbox)
    await query.stream.until_asked("q")
    query.available_now = False

    async def claimed():
        await query.batch()
        return len(query.rows) == COUNT + 5

    assert await query.batch() is None
    await query.stream.publish(5, first=COUNT + 1)
    await eventually(claimed, 15, "5 messages")


@pytest.mark.covers("L20")
async def test_paused_consumer_is_reported(queue, caplog):
    """A query that gets nothing says why, once for each pause. It continues when the consumer is resumed."""
    query = await queue(pause_until="2099-01-01T00:00:00Z")
    with caplog.at_level(logging.WARNING, logger="jsclient.spark"):
        assert await query.drain() == []
        for _ in range(3):
            assert await query.batch() is None
    reports = [record.getMessage() for record in caplog.records if "is paused" in record.getMessage()]
    assert len(reports) == 2, "once by each of the two runs"
    assert "is paused until 2099-01-01" in reports[0]
    assert f"none of its {COUNT} pending messages is delivered before it is resumed" in reports[0]
    await query.stream.oracle.api(f"CONSUMER.PAUSE.{query.stream.name}.q", {})
    assert sum(await query.drain()) == COUNT


REFUSED = {
    "push": ({"deliver_subject": "push.it"}, "is a push consumer"),
    "push of a group": ({"deliver_subject": "push.it", "deliver_group": "g"}, "is a push consumer"),
    "overflow": ({"priority_groups": ["A"], "priority_policy": "overflow"}, "has priority groups"),
    "pinned": (
        {"priority_groups": ["A"], "priority_policy": "pinned_client", "priority_timeout": ns(5)},
        "has priority groups",
    ),
    "acks all": ({"ack_policy": "all"}, "has the ack policy 'all'"),
    "acks none": ({"ack_policy": "none"}, "has the ack policy 'none'"),
}


@pytest.mark.covers("L20")
@pytest.mark.parametrize("which", REFUSED)
async def test_other_consumers_refused(queue, which):
    config, why = REFUSED[which]
    query = await queue(**config)
    with pytest.raises(ConfigError, match=rf"option 'consumer': 'q' of stream .* {why}"):
        await query.batch()
    assert (await query.stream.consumer_info("q"))["num_pending"] == COUNT
