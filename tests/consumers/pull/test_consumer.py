"""A consumer as a handle: the requests about it, and what an answer changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jsclient.consumers.pull.consumer import Consumer
from jsclient.errors import ConfigError, ConsumerNotFoundError
from tests.support.fake import Refusal, connected
from tests.support.strategies import CONSUMER, info
from tests.support.virtual import virtual

API = "$JS.API.CONSUMER"


def handle(js) -> Consumer:
    return Consumer(js._context, info())


@virtual
async def test_it_is_named_and_not_pickled():
    async with connected() as (js, _):
        consumer = handle(js)
        assert (consumer.stream, consumer.name, repr(consumer)) == (
            "ORDERS",
            CONSUMER,
            "<Consumer ORDERS/worker>",
        )
        with pytest.raises(TypeError):
            consumer.__reduce__()


@virtual
async def test_info_is_remembered():
    async with connected() as (js, connection):
        connection.api.has(CONSUMER, max_deliver=7)
        consumer = handle(js)
        assert consumer.config.max_deliver is None
        await consumer.info()
        assert consumer.config.max_deliver == consumer.cached_info.config.max_deliver == 7
        connection.api.consumers.clear()
        with pytest.raises(ConsumerNotFoundError):
            await consumer.info()


@virtual
async def test_pause_until_a_time_or_for_a_duration():
    async with connected() as (js, connection):
        consumer, until = handle(js), datetime(2100, 1, 1, tzinfo=UTC)
        connection.api.on(
            "CONSUMER.PAUSE", {"paused": True, "pause_until": "2100-01-01T00:00:00Z"}, {"paused": False}
        )
        assert await consumer.pause(until) == until
        assert connection.to(f"{API}.PAUSE.ORDERS.worker")[0].json == {"pause_until": "2100-01-01T00:00:00Z"}
        assert await consumer.pause(timedelta(seconds=1)) is None, "its end is in the past"
        connection.api.on("CONSUMER.PAUSE", {"paused": False})
        await consumer.resume()
        assert connection.sent[-1].json == {}
        for wrong in (0, -1, "soon", datetime(2100, 1, 1)):  # noqa: DTZ001  without a time zone
            with pytest.raises(ConfigError):
                await consumer.pause(wrong)
        assert len(connection.sent) == 3


def reset_answer(seq: int) -> dict:
    return {"stream_name": "ORDERS", "name": CONSUMER, "config": {"ack_policy": "all"}, "reset_seq": seq}


@virtual
async def test_reset_to_a_sequence_of_the_stream():
    async with connected() as (js, connection):
        connection.api.has(CONSUMER)
        connection.api.last_seq = 10
        consumer = handle(js)
        for seq in (12, 0, -1, True):
            with pytest.raises(ConfigError):
                await consumer.reset(seq)
        assert connection.to(f"{API}.RESET") == []
        connection.api.on("CONSUMER.RESET", reset_answer(11), reset_answer(3))
        assert await consumer.reset(11) == 11
        assert await consumer.reset() == 3
        assert [sent.json for sent in connection.to(f"{API}.RESET.ORDERS.worker")] == [{"seq": 11}, {}]
        assert consumer.config.ack_policy == "all"


@pytest.mark.parametrize(
    ("version", "call"),
    [
        ("2.10.29", lambda consumer: consumer.pause(5)),
        ("2.13.0", lambda consumer: consumer.reset()),
        ("2.10.29", lambda consumer: consumer.unpin("A")),
    ],
)
@virtual
async def test_older_server_is_not_asked(version, call, monkeypatch):
    async with connected() as (js, connection):
        monkeypatch.setattr(type(connection), "server_version", version)
        with pytest.raises(ConfigError, match=version):
            await call(handle(js))
        assert connection.sent == []


@virtual
async def test_unpin_and_delete():
    async with connected() as (js, connection):
        consumer = handle(js)
        connection.api.on("CONSUMER.UNPIN", {})
        await consumer.unpin("A")
        assert connection.to(f"{API}.UNPIN.ORDERS.worker")[0].json == {"group": "A"}
        with pytest.raises(ConfigError):
            await consumer.unpin("a b")
        await consumer.delete()
        assert connection.deleted() == [CONSUMER]
        connection.api.on("CONSUMER.DELETE", Refusal(10014, 404, "consumer not found"))
        with pytest.raises(ConsumerNotFoundError):
            await consumer.delete()
