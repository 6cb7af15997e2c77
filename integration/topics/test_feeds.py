"""The feeds of a reader of a topic: a consumer whose creation is not answered, and large pages of history."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kit.clients.topics import has_push, publish, read, republishing
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient.topics.log_reader import open_reader
from jsclient.topics.stream_log import find_log


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


async def test_unanswered_consumer_creation(
    connect: Any, proxy: Any, js: Any, oracle: Any, stream: OwnStream
) -> None:
    near = await proxy()
    far = await connect(near, timeout=3.0)
    lost = near.drop_frames(lambda frame: b"consumer_create_response" in frame.payload, 1)
    async with far.topic(stream.subject("a")).each("now", push="consumer", quiet=600) as reader:
        await has_push(reader)
        assert lost.count == 1
        await publish(js.topic(stream.subject("a")), 1, 2)
        assert await read(reader, 1) == [1]

        async def one_is_there() -> bool:  # before 2.11 a second consumer reads the history, and ends
            return len(await stream.consumer_names()) == 1

        await eventually(one_is_there, what="one consumer")


async def test_large_records_stay_within_bounds(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream()
    for number in range(40):
        await js.publish(stream.subject("a"), b"%d" % number + b" " * 200_000)
    log = await find_log(js._context, stream.subject("a"))
    sizes: list[int] = []
    history = log.history

    async def measured(since: int, limit: int, max_bytes: int) -> Any:
        page = await history(since, limit, max_bytes)
        sizes.append(sum(record.size for record in page.records))
        return page

    log.history = measured  # type: ignore[method-assign]
    async with await open_reader(log, push=None, max_pending_bytes=1_000_000) as reader:
        assert await read(reader, 40) == [*range(40)]
    assert max(sizes) < 1_500_000
    assert sum(sizes) < 12_000_000, "nothing is read twice"
    async with await open_reader(log, push=None, max_pending_bytes=1000) as reader:
        assert await read(reader, 3) == [0, 1, 2], "one at a time, whatever its size"
