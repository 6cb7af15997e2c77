"""Faults of the network and of the server, with live traffic and every way of reading at once.

Counts have no allowance. A separate connection says what was stored.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.clients.readers import FAST, ORDERED, all_readers, told, wait_for_all
from integration.kit.clients.traffic import live
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.match import is_data
from integration.kit.network.wire import TO_CLIENT, TO_SERVER
from jsclient import (
    Disconnected,
    DisconnectedError,
    HeartbeatError,
    HeartbeatMissed,
    NoRespondersError,
    Reconnected,
    StreamReset,
)

MAX_ACK_PENDING = 1000


async def _stop_and_start(own: Any, tap: Any, js: Any) -> None:
    await own.stop()
    await asyncio.sleep(0.3)
    await own.start()


async def _kill_and_start(own: Any, tap: Any, js: Any) -> None:
    await own.kill()
    await asyncio.sleep(0.3)
    await own.start()


async def _freeze(own: Any, tap: Any, js: Any) -> None:
    own.pause()
    await asyncio.sleep(2.5)
    own.resume()


async def _reset(own: Any, tap: Any, js: Any) -> None:
    for _ in range(3):
        tap.cut()
        await _again(tap, js)


async def _fin(own: Any, tap: Any, js: Any) -> None:
    for _ in range(3):
        tap.close()
        await _again(tap, js)


async def _cut_inside_frames(own: Any, tap: Any, js: Any) -> None:
    for _ in range(3):
        rule = tap.cut_inside_frame(TO_CLIENT, after_bytes=3, predicate=is_data)
        await rule.wait()
        await _again(tap, js)


async def _cut_inside_acks(own: Any, tap: Any, js: Any) -> None:
    for _ in range(3):
        rule = tap.cut_inside_frame(TO_SERVER, after_bytes=2)
        await rule.wait()
        await _again(tap, js)


async def _stall(own: Any, tap: Any, js: Any) -> None:
    tap.stall()
    await asyncio.sleep(3.0)
    tap.unstall()


async def _half_open(own: Any, tap: Any, js: Any) -> None:
    tap.half_open()
    # The server is silent: only a PING without answer, or a missing heartbeat, can show that.
    await eventually(lambda: len(tap.links) > 1, 30.0, "the dead connection to be found")


async def _blackhole(own: Any, tap: Any, js: Any) -> None:
    tap.blackhole()
    await asyncio.sleep(0.5)
    tap.heal()
    await eventually(lambda: len(tap.links) > 1, 30.0, "the dead connection to be found")


async def _flapping(own: Any, tap: Any, js: Any) -> None:
    for _ in range(12):
        tap.cut()
        await asyncio.sleep(0.12)  # at any stage of the reconnect
    # On a slow machine all these cuts may have hit a single reconnect.
    for _ in range(3):
        await _again(tap, js)
        tap.cut()


async def _again(tap: Any, js: Any) -> None:
    links = len(tap.links)
    await eventually(lambda: js.is_connected and tap.open_links, 30.0, "the reconnect")
    await asyncio.sleep(0.2)  # some traffic between two faults
    assert len(tap.links) >= links


FAULTS = {
    "SIGTERM": (_stop_and_start, 1),
    "SIGKILL": (_kill_and_start, 1),
    "SIGSTOP": (_freeze, 0),
    "RST": (_reset, 3),
    "FIN": (_fin, 3),
    "frame cut": (_cut_inside_frames, 3),
    "ack cut": (_cut_inside_acks, 3),
    "stall": (_stall, 0),
    "half-open": (_half_open, 1),
    "black hole": (_blackhole, 1),
    "flapping": (_flapping, 3),
}
LONG = {"SIGTERM", "RST", "half-open", "black hole", "flapping"}


@pytest.mark.core_cases(3)
@pytest.mark.row(68, 79, 99, 109, 127)
@pytest.mark.covers("J93")
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.full] if fault in LONG else []) for fault in FAULTS],
)
async def test_no_reader_misses(
    fault: str, own_server: Any, oracle_for: Any, proxy: Any, connect: Any, events: list[Any]
) -> None:
    """R4, R5, R10, P22: lost 0. Ordered also repeated 0 and disordered 0. No repeat untold."""
    act, reconnects = FAULTS[fault]
    # A server that notices dead clients as fast as they notice it, or it would continue delivering to them.
    own = await own_server(config={"ping_interval": "1s", "ping_max": 1} if fault == "black hole" else None)
    oracle = await oracle_for(own, timeout=15.0)
    stream = await OwnStream.create(oracle, "net", storage="file")
    tap = await proxy(own)
    js = await connect(tap, **FAST)
    async with all_readers(js, stream) as tallies:
        async with live(oracle, stream.subject("x")) as feed:
            await eventually(lambda: all(t.seqs for t in tallies.values()), 60, "traffic before the fault")
            await act(own, tap, js)
            before = feed.published
            await eventually(lambda: feed.published > before + 100, 60, "traffic after the fault")
        last = (await stream.state())["last_seq"]
        await wait_for_all(tallies, last, 60)
    counts = {name: tally.counts(last) for name, tally in tallies.items()}
    print(fault, last, counts)
    # The fault was seen to act.
    if reconnects:
        assert len(told(events, Reconnected)) >= reconnects
        assert len(told(events, Disconnected)) >= reconnects
    else:
        assert told(events, HeartbeatMissed)
    # On a slow machine a reader may miss heartbeats more than once. Each time, all that is in flight may be repeated.
    outages = len(told(events, Reconnected)) + len(told(events, HeartbeatMissed))
    assert last >= feed.published >= 200
    for name in ORDERED:
        assert counts[name] == {"lost": 0, "repeated": 0, "disordered": 0, "untold": 0}, name
    for name, tally in tallies.items():
        count = counts[name]
        assert count["lost"] == 0, (name, counts)
        assert count["repeated"] <= MAX_ACK_PENDING * outages, (name, counts)
        # A server that is killed forgets deliveries it had not written down: it cannot announce those repeats.
        assert count["untold"] == 0 or fault == "SIGKILL", (name, counts)
        # Acks and fetches that met the fault said so by name. A server that shuts down answers 503 for a moment.
        assert {type(error) for error in tally.errors} <= {
            DisconnectedError,
            HeartbeatError,
            NoRespondersError,
        }
    assert not told(events, StreamReset)
