"""What is logged without ``on_event``: sentences with a place, tracebacks, levels that mean something."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from jsclient import ConsumerConfig


@pytest.fixture
async def quiet(server: Any, caplog: pytest.LogCaptureFixture) -> Any:
    """A connection without ``on_event``."""
    caplog.set_level(logging.DEBUG, "jsclient")
    async with jsclient.connect(server.url) as js:
        yield js


async def logged(caplog: pytest.LogCaptureFixture, event: str) -> logging.LogRecord:
    async with asyncio.timeout(60):
        while True:
            for record in caplog.records:
                if getattr(record, "event", "") == event:
                    return record
            await asyncio.sleep(0.02)


async def test_connected(quiet: Any, server: Any, caplog: pytest.LogCaptureFixture) -> None:
    record = next(r for r in caplog.get_records("setup") if r.getMessage().startswith("connected"))
    assert (record.levelname, record.name) == ("INFO", "jsclient.connection")
    assert record.message == f"connected to {server.url}, nats-server {server.version}"


async def test_failing_callback(quiet: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture) -> None:
    await stream.publish(1, "a")

    def handle(msg: Any) -> None:
        raise KeyError("customer")

    async with quiet.subscribe(stream.all, callback=handle) as sub:
        record: Any = await logged(caplog, "HandlerFailed")
    assert record.exc_info[0] is KeyError
    assert "in handle" in caplog.text
    assert (record.levelname, record.name) == ("WARNING", "jsclient.worker")
    assert (record.stream, record.consumer, record.stream_seq) == (stream.name, sub.consumer, 1)
    position = f"(consumer {sub.consumer!r} of stream {stream.name!r})"
    assert "the handler failed message 1 on" in record.message
    assert record.message.endswith(f"KeyError('customer') {position}")


async def test_dead_letter(quiet: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture) -> None:
    await stream.publish(1, "a")

    async def handle(msg: Any) -> None:
        raise jsclient.Reject("odd")

    sub = await quiet.pull_subscribe(stream.all, config=ConsumerConfig(max_deliver=2))
    async with sub.run(handle):
        record = await logged(caplog, "DeadLettered")
    assert record.levelname == "ERROR"
    assert record.message.startswith("terminated message 1 on")
    assert "it will not be delivered again, and dead_letter= would store a copy (consumer" in record.message
    assert "''" not in record.message
    assert "the handler failed message 1 on" in caplog.text
    assert "Traceback" not in caplog.text


async def test_one_traceback_of_a_dead_letter(
    quiet: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture
) -> None:
    await stream.publish(1, "a")

    async def handle(msg: Any) -> None:
        raise KeyError("customer")

    sub = await quiet.pull_subscribe(stream.all, config=ConsumerConfig(max_deliver=1))
    async with sub.run(handle):
        await logged(caplog, "DeadLettered")
    assert caplog.text.count("Traceback") == 1
    assert (await logged(caplog, "HandlerFailed")).exc_info


async def test_traceback_of_a_dead_letter_alone(
    quiet: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings are not logged, so the traceback is with the error."""
    caplog.set_level(logging.ERROR, "jsclient")
    await stream.publish(2, "a")

    async def handle(msg: Any) -> None:
        if msg.metadata.stream_seq == 1:
            raise jsclient.Reject("odd")
        raise KeyError("customer")

    sub = await quiet.pull_subscribe(stream.all, config=ConsumerConfig(max_deliver=1))
    async with sub.run(handle):
        async with asyncio.timeout(60):
            while len(caplog.get_records("call")) < 2:
                await asyncio.sleep(0.02)
    first, second = caplog.get_records("call")
    assert (first.levelname, first.exc_info) == ("ERROR", None)
    assert second.exc_info is not None
    assert second.exc_info[0] is KeyError
    assert caplog.text.count("Traceback") == 1


async def test_reconnect_ends_the_warning(proxy: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "jsclient")
    tap = await proxy()
    async with jsclient.connect(tap.url):
        tap.cut()
        assert (await logged(caplog, "Reconnected")).levelname == "WARNING"
        assert (await logged(caplog, "Disconnected")).levelname == "WARNING"
