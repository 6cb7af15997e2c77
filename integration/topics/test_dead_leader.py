"""A request that a dead leader does not answer is repeated long before the timeout of the connection is over."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kit.judge.waiting import within
from integration.kit.network.wire import TO_CLIENT, Frame


def is_creation(frame: Frame) -> bool:
    """The answer to a request for a consumer."""
    return frame.direction == TO_CLIENT and b"consumer_create_response" in frame.payload


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("direct", [True, False], ids=["feed", "page"])
async def test_lost_answer_is_no_stand_still(
    proxy: Any, connect: Any, oracle: Any, make_stream: Any, direct: bool
) -> None:
    """A quarter of the 16 s of the connection, at first, for the consumer of a feed and for the consumer of a page."""
    stream = await make_stream(allow_direct=direct)
    tap = await proxy()
    js = await connect(tap, timeout=16.0)
    await js.publish(stream.subject("a"), b"1")
    lost = tap.drop_frames(is_creation, count=1)
    async with js.topic(stream.subject("a"), stream=stream.name).each(start="first") as reader:
        assert (await within(14, reader.next(), "the first record")).data == b"1"
        await js.publish(stream.subject("a"), b"2")
        assert (await within(14, reader.next(), "the second record")).data == b"2"
    assert lost.count == 1
