"""A stream that has all the consumers that it may have: readers of topics need none."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient.events import ErrorRaised


@pytest.mark.server(">=2.11")  # older ones have no direct gets of several messages
async def test_topic_read_at_the_limit(js: Any, oracle: Any, make_stream: Any, events: list[Any]) -> None:
    """It is told, and records come soon: not only when the quiet timer of 30 s is over."""
    stream = await make_stream(max_consumers=1, allow_direct=True)
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    async with js.topic(stream.subject("a"), stream=stream.name).each() as reader:
        for number in range(3):
            await js.publish(stream.subject("a"), b"%d" % number)
            assert (await reader.next(timeout=15)).data == b"%d" % number
    (told,) = [event for event in events if isinstance(event, ErrorRaised)]
    assert told.error.err_code == 10026
