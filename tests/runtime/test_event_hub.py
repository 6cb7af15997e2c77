"""Events reach the user apart from what emits them, and are logged otherwise."""

from __future__ import annotations

import asyncio
import logging
import re

import msgspec
import pytest

from jsclient._runtime import event_hub
from jsclient._runtime.event_hub import EventHub, EventLog
from jsclient.protocol import events
from jsclient.protocol.events import (
    AcksLost,
    DeadLettered,
    HandlerFailed,
    HeartbeatMissed,
    Reconnected,
    SlowConsumer,
)
from tests.support.virtual import settle, virtual


def event(number: int = 1) -> HeartbeatMissed:
    return HeartbeatMissed(stream="ORDERS", silent_for=float(number))


@virtual
async def test_events_in_order_later():
    got = []
    hub = EventHub(got.append)
    for number in range(5):
        hub.emit(event(number))
    assert got == []
    await settle()
    assert got == [event(number) for number in range(5)]


@virtual
async def test_coroutine_function_may_take_time():
    got = []

    async def on_event(which):
        await asyncio.sleep(3600)
        got.append(which)

    hub = EventHub(on_event)
    hub.emit(event(1))
    hub.emit(event(2))
    await asyncio.sleep(4000)
    assert got == [event(1), event(2)]


@virtual
async def test_on_event_error_logged(caplog):
    got = []

    def on_event(which):
        got.append(which)
        raise RuntimeError("mine")

    async def later(which):
        raise RuntimeError("mine too")

    hub = EventHub(on_event)
    hub.emit(event(1))
    hub.emit(event(2))
    await settle()
    assert len(got) == 2
    assert caplog.text.count("on_event raised") == 2
    for number in (1, 2):
        assert str(event(number)) in caplog.text, "the event itself is not lost"
    caplog.clear()
    EventHub(later).emit(event(3))
    await settle()
    assert "mine too" in caplog.text


def test_default_logging_levels(caplog):
    caplog.set_level(logging.INFO, "jsclient")
    hub = EventHub(None)
    hub.emit(event())
    hub.emit(Reconnected(url="nats://x"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert caplog.messages == [
        "no message and no heartbeat for 1 s (stream 'ORDERS')",
        "reconnected to nats://x",
    ]
    assert [record.name for record in caplog.records] == ["jsclient.consumer", "jsclient.connection"]
    assert (caplog.records[0].event, caplog.records[0].stream) == ("HeartbeatMissed", "ORDERS")


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (AcksLost(count=75, resent=75), "INFO"),
        (AcksLost(count=75, resent=74), "WARNING"),
        (DeadLettered(error=ValueError("x")), "ERROR"),
    ],
)
def test_levels(caplog, event, level):
    caplog.set_level(logging.DEBUG, "jsclient")
    EventHub(None).emit(event)
    assert [record.levelname for record in caplog.records] == [level]


def test_each_event_can_be_logged(caplog):
    caplog.set_level(logging.DEBUG, "jsclient")
    hub = EventHub(None)
    kinds = [getattr(events, name) for name in events.__all__]
    for kind in kinds:
        required = [field.name for field in msgspec.structs.fields(kind) if field.required]
        named = {name: "x" for name in ("subject", "dead_letter") if name in kind.__struct_fields__}
        hub.emit(kind(**{**dict.fromkeys(required, 1), **named}))
    assert len(caplog.records) == len(kinds)
    for message in caplog.messages:
        assert not re.search(r"''|None|\w\(|\(stream ''", message), message


def failure(error, number):
    try:
        raise error
    except Exception as caught:  # noqa: BLE001  the type is the test's matter
        return HandlerFailed(
            stream="S", consumer="c", error=caught, subject="s.a", stream_seq=number, attempt=1, retry_in=0.5
        )


def test_failures_of_a_kind_logged_at_doublings(caplog):
    """In an outage a worker wrote 32,000 lines in 5 s, each failure with its traceback."""
    caplog.set_level(logging.INFO, "jsclient")
    hub = EventHub(None)
    for number in range(1, 1001):
        hub.emit(failure(ConnectionError("the database is away"), number))
    hub.emit(failure(ValueError("another kind"), 1001))
    assert [bool(record.exc_info) for record in caplog.records] == [True, *[False] * 9, True]
    counts = [record.count for record in caplog.records if hasattr(record, "count")]
    assert counts == [2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert "(512 failures with ConnectionError so far)" in caplog.text


def test_rare_failures_each_logged(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(event_hub.time, "monotonic", lambda: clock[0])
    hub = EventHub(None)
    for number in range(5):
        clock[0] += 61.0
        hub.emit(failure(ValueError("once in a while"), number))
    assert [bool(record.exc_info) for record in caplog.records] == [True] * 5


@virtual
async def test_flood_bounded_and_loss_logged(caplog):
    got = []
    hub = EventHub(got.append)
    for number in range(5000):
        hub.emit(event(number))
    await settle()
    assert len(got) == 1000
    assert got[-1] == event(4999)
    assert "too slow" in caplog.text


@virtual
async def test_close_delivers_then_cancels():
    got = []

    async def on_event(which):
        got.append(which)
        await asyncio.Event().wait()

    hub = EventHub(on_event)
    hub.emit(event())
    await hub.close()
    assert got == [event()]


# --- the events of one subscription --------------------------------------------------------------------------


@virtual
async def test_reader_gets_old_and_new_events():
    log = EventLog()
    log.add_event(event(1))

    async def read():
        return [item async for item in log.read_events()]

    readers = [asyncio.ensure_future(read()) for _ in range(2)]
    await settle()
    log.add_event(event(2))
    log.add_event(event(3))
    await settle()
    log.add_event(event(4))
    log.close()
    for reader in readers:
        assert await reader == [event(number) for number in (1, 2, 3, 4)]
    assert await read() == [event(number) for number in (1, 2, 3, 4)]


@virtual
async def test_only_last_thousand_events_are_stored():
    log = EventLog()
    for number in range(2500):
        log.add_event(event(number))
    log.close()
    assert [item async for item in log.read_events()] == [event(number) for number in range(1500, 2500)]


@virtual
async def test_cancelled_reader_loses_none():
    log = EventLog()
    reader = log.read_events()
    waiting = asyncio.ensure_future(anext(reader))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slow = SlowConsumer(dropped=1, first_stream_seq=1, last_stream_seq=1)
    log.add_event(slow)
    log.close()
    assert [item async for item in log.read_events()] == [slow]
