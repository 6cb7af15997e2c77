"""A client slower than its server: nothing lost, no stall, bounded memory (R11, R13)."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.match import is_flow_control, is_flow_control_reply
from jsclient import ConsumerConfig, FlowControlStalled, GapDetected, HeartbeatMissed, SlowConsumer

WINDOW = 32 << 20
"""Bytes that the server may have in flight to a push consumer."""
MEGABYTE = 1 << 20


def resident() -> int:
    """Bytes of memory that this process uses now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Count:
    """Checks order and how much waits, without keeping what it sees."""

    def __init__(self) -> None:
        self.seen = 0
        self.wrong: list[int] = []
        self.highest = self.highest_bytes = 0

    def take(self, message: Any, sub: Any) -> None:
        self.seen += 1
        if message.metadata.stream_seq != self.seen:
            self.wrong.append(message.metadata.stream_seq)
        self.highest = max(self.highest, sub.pending)
        self.highest_bytes = max(self.highest_bytes, sub.pending_bytes)


@pytest.mark.full
@pytest.mark.row(34, 35, 38)
@pytest.mark.limit(120)
@pytest.mark.covers("J95", "J96")
@pytest.mark.parametrize("kind", ["ordered", pytest.param("flow control", marks=pytest.mark.full)])
async def test_slow_handler_holds_server_back(
    kind: str, proxy: Any, connect: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R11, R13: 600 MB through a handler that stops now and then: no stall, queue and memory bounded."""
    count = 60_000 if kind == "flow control" else 30_000
    tap = await proxy(record=False)
    answers = tap.modify_frames(is_flow_control_reply, lambda frame: frame.raw)
    requests = tap.modify_frames(is_flow_control, lambda frame: frame.raw)
    js = await connect(tap)
    tally = Count()
    done = asyncio.Event()
    sub: Any = None
    limit = 64 << 20 if kind == "flow control" else 8 << 20
    gc.collect()
    before, peak = resident(), 0

    async def handle(message: Any) -> None:
        nonlocal peak
        await ready.wait()
        tally.take(message, sub)
        # the handler stops now and then, so that the server has to wait
        if tally.seen % 2000 == 0:
            await asyncio.sleep(0.15)
            peak = max(peak, resident())
        if tally.seen == count:
            done.set()

    ready = asyncio.Event()
    options: dict[str, Any] = {"idle_heartbeat": 2.0, "flow_control": True}
    if kind == "ordered":
        config = ConsumerConfig(**options)
        sub = await js.subscribe(
            stream.all, ordered=True, config=config, callback=handle, max_pending_bytes=limit
        )
    else:
        config = ConsumerConfig(**options, ack_policy="none")
        sub = await js.subscribe(stream.all, config=config, callback=handle, max_pending_bytes=limit)
    ready.set()
    started = time.monotonic()
    publishing = asyncio.create_task(stream.publish(count, size=10_000))
    try:
        await asyncio.wait_for(done.wait(), 100)
    finally:
        await publishing
    took = time.monotonic() - started
    print(
        f"{kind}: {count} in {took:.1f} s, highest {tally.highest} messages {tally.highest_bytes / MEGABYTE:.1f} MB, "
        f"grown {(peak - before) / MEGABYTE:.0f} MB, {requests.count} flow control requests, {answers.count} answers"
    )
    assert tally.wrong == []
    assert tally.highest_bytes <= limit
    assert sub.dropped == 0 or kind == "ordered"
    assert answers.count > 10
    assert of(HeartbeatMissed, events) == []
    assert of(FlowControlStalled, events) == []
    if kind == "flow control":
        assert [e for e in events if isinstance(e, SlowConsumer | GapDetected)] == []
    await sub.unsubscribe()


@pytest.mark.row(38)
@pytest.mark.parametrize(
    "kind",
    [
        "messages",
        pytest.param("ordered", marks=pytest.mark.full),
        pytest.param("push", marks=pytest.mark.full),
    ],
)
async def test_small_backlog_memory(
    kind: str, connect: Any, server: Any, stream: OwnStream, events: list[Any]
) -> None:
    """R11: 100,000 x 200 bytes and a handler that does not come: 40 MB at most, 0 lost. 91 MB in nats-py."""
    count = 100_000
    await stream.publish(count, size=200)
    js = await connect(server)
    gc.collect()
    before = resident()
    if kind == "messages":
        psub = await js.pull_subscribe(stream.all, config=ConsumerConfig(max_ack_pending=-1))
        reader: Any = psub.messages(max_messages=5000)
        first = await reader.next(timeout=60)
        await eventually(lambda: reader.pending >= 2499, 60, "a full buffer")
    else:
        options: dict[str, Any] = {"ordered": True} if kind == "ordered" else {}
        policy = "none" if kind == "push" else None
        config = ConsumerConfig(idle_heartbeat=5.0, flow_control=True, ack_policy=policy)
        reader = await js.subscribe(stream.all, config=config, **options)
        first = await reader.next(timeout=60)
        quiet = _Quiet(reader)
        await eventually(quiet, 30, "the server to wait", interval=0.1)
    grown = (resident() - before) / MEGABYTE
    waiting = reader.pending
    seen = 1
    assert first.metadata.stream_seq == 1
    while seen < count:
        message = await reader.next(timeout=60)
        seen += 1
        assert message.metadata.stream_seq == seen
    print(f"{kind}: {waiting} waited, {grown:.1f} MB grown, {seen} read")
    assert grown < 80
    assert of(SlowConsumer, events) == []


class _Quiet:
    """Whether no message has arrived for half a second."""

    def __init__(self, sub: Any) -> None:
        self._sub = sub
        self._last = -1
        self._times = 0

    def __call__(self) -> bool:
        pending = self._sub.pending
        self._times = self._times + 1 if pending == self._last and pending else 0
        self._last = pending
        return self._times >= 5
