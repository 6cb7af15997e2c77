"""The calls of run() that are refused before a worker starts, and several readers of one subscription."""

from __future__ import annotations

import pytest

from jsclient import (
    ClosedError,
    ConfigError,
    ConsumerConfig,
)
from jsclient.consumers.worker.run import Running
from tests.consumers.worker.kit import Handler
from tests.support.fake import connected
from tests.support.virtual import noting, settle, virtual


@virtual
async def test_bad_arguments_refused():
    async with connected() as (js, _):
        sub = await js.subscribe("orders.new", callback=Handler())
        with pytest.raises(ConfigError, match="callback"):
            sub.run(Handler())
        other = await js.subscribe("orders.new")
        with pytest.raises(ConfigError, match="concurrency"):
            other.run(Handler(), concurrency=0)
        with pytest.raises(ConfigError, match="handler"):
            other.run(None)
        worker = other.run(Handler())
        with pytest.raises(ConfigError, match="worker"):
            other.run(Handler())
        await settle()
        worker.stop()
        await worker
        with pytest.raises(ClosedError):
            other.run(Handler())
        unacked = await js.subscribe("orders.new", config=ConsumerConfig(ack_policy="none"))
        with pytest.raises(ConfigError, match="explicit"):
            await unacked.run(Handler())
        pull = await js.pull_subscribe("orders.new")
        await pull.unsubscribe()
        with pytest.raises(ClosedError):
            pull.run(Handler())


@virtual
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stop_signals": 15}, "stop_signals"),
        ({"stop_signals": [True]}, "stop_signals"),
        ({"stop_signals": "TERM"}, "stop_signals"),
        ({"key": noting([])}, "key is a coroutine function"),
        ({"key": 7}, "key is int"),
        ({"retry_delay": noting([])}, "retry_delay is a coroutine function"),
        ({"grace": -1}, "grace"),
        ({"concurency": 2}, "concurency"),
    ],
)
async def test_invalid_option_starts_nothing(options, match):
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        before = len(connection.sent)
        with pytest.raises((ConfigError, TypeError), match=match):
            sub.run(Handler(), **options)
        await settle()
        assert len(connection.sent) == before
        assert isinstance(sub, Running)
        assert sub._workers() == []


@virtual
async def test_second_reader_is_warned_of_once(caplog):
    async with connected() as (js, _):
        sub = await js.pull_subscribe("orders.new")
        first = sub.run(Handler())
        assert caplog.records == []
        second, third = sub.run(Handler()), sub.run(Handler())
        assert [record.name for record in caplog.records] == ["jsclient.worker"]
        assert sub._workers() == [first, second, third]
        await sub.drain()
        assert sub._workers() == []
