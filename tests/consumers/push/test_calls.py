"""The Python calls of a message that a callback receives. They are what it costs, so they must not grow unnoticed."""

from __future__ import annotations

import asyncio

from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.calls import Calls
from tests.support.fake import connected
from tests.support.strategies import data
from tests.support.virtual import virtual

NO_ACKS = ConsumerConfig(ack_policy="none", flow_control=True, idle_heartbeat=5.0)
MESSAGES = 1000


@virtual
async def test_callback():
    """Messages that have arrived together are handled in runs, without any other call for each message."""
    async with connected() as (js, connection):
        seen: list[int] = []
        done = asyncio.Event()

        async def callback(message) -> None:
            seen.append(message.metadata.stream_seq)
            if len(seen) == MESSAGES:
                done.set()

        sub = await js.subscribe("orders.new", callback=callback, config=NO_ACKS)
        await asyncio.sleep(0.1)
        with Calls() as calls:
            connection.deliver(sub.subject, [data(number) for number in range(1, MESSAGES + 1)])
            await done.wait()
        assert seen == list(range(1, MESSAGES + 1))
        for name in ("Message.metadata", "read_jsack", "_reading_with.<locals>.read"):  # called above
            for key in [key for key in calls.by_name if key.endswith(f": {name}")]:
                del calls.by_name[key]
        assert calls.each(MESSAGES) < 0.25, calls
