"""Several tasks wait for the messages of one ordered consumer, and share what has arrived."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.judge.waiting import within
from jsclient import ClosedError
from jsclient.consumers.ordered.puller import OrderedPuller
from jsclient.consumers.ordered.shared import SharedMessages
from jsclient.protocol.consumers.ordered import ordered_pull_config
from jsclient.protocol.models.consumer import ConsumerConfig


async def test_all_tasks_are_woken(js: Any, make_stream: Any) -> None:
    stream = await make_stream()
    puller = OrderedPuller(
        js._context,
        stream.name,
        ordered_pull_config(ConsumerConfig()),
        name_prefix=None,
        max_reset_attempts=None,
    )
    await puller.create_first_consumer()
    messages = SharedMessages(puller)
    assert messages.take_run(10) == []
    waiting = [asyncio.create_task(messages.wait_change()) for _ in range(3)]
    await asyncio.sleep(0)
    await js.publish(stream.subject("a"), b"1")
    await within(10, asyncio.gather(*waiting), "the wake-up of all tasks")
    assert [frame[3] for frame in messages.take_run(10)] == [b"1"]
    waiting = [asyncio.create_task(messages.wait_change()) for _ in range(3)]
    await asyncio.sleep(0)
    await puller.stop_reading()
    await within(10, asyncio.gather(*waiting), "the wake-up at the end")
    with pytest.raises(ClosedError):
        messages.take_run(10)
