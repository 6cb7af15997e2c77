"""The sources of a worker: what is requested from a pull consumer, and how a subscription is drained."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from jsclient import (
    ConsumerConfig,
)
from jsclient.consumers.worker.sources import PullSource, PushSource
from jsclient.errors import ClosedError, ConsumerDeletedError, PermissionDeniedError
from jsclient.protocol.events import (
    ErrorRaised,
)
from tests.consumers.worker.kit import Handler, working
from tests.support.fake import connected
from tests.support.strategies import CONSUMER, STREAM, data, status
from tests.support.virtual import settle, virtual


@virtual
async def test_requests_follow_the_speed():
    """While handlers return at once, requests grow. After a rest they are small again."""

    async def handler(message) -> None:
        pass

    async with working(handler, pull=True) as work:
        sizes = [work.connection.pulls()[-1].json["batch"]]
        delivered = 0
        while delivered < 2000:
            request = work.connection.pulls()[-1]
            sizes.append(request.json["batch"])
            await work.deliver(*(data(delivered + number) for number in range(1, sizes[-1] + 1)))
            delivered += sizes[-1]
        assert sizes[0] == 1
        assert max(sizes) > 100
        await asyncio.sleep(12)
        pending = work.connection.pulls()[-1].json["batch"]
        await work.deliver(status(408, "Request Timeout", Nats_Pending_Messages=pending))
        assert work.connection.pulls()[-1].json["batch"] <= 2


@virtual
async def test_pull_worker_limits_requests():
    """Asked for, waiting and handled together stay within ``concurrency + prefetch``."""
    handler = Handler()
    async with working(handler, pull=True, concurrency=4, prefetch=4) as work:
        requests = delivered = 0
        for _ in range(50):
            requests = sum(pull.json["batch"] for pull in work.connection.pulls())
            assert requests - len(handler.ended) <= 8
            while delivered < requests:
                delivered += 1
                await work.deliver(data(delivered))
            handler.end(*list(handler.running)[:3])
            await settle()
        assert delivered >= 100


class SourceReader:
    """The continuous reader that a pull source opens."""

    def __init__(self, **limits) -> None:
        self.limits = limits
        self.arrived: list = [1, 2]
        self.error: Exception = ClosedError("drained")

    @property
    def pending(self) -> int:
        return len(self.arrived)

    async def next(self):
        if not self.arrived:
            raise self.error
        return self.arrived.pop(0)

    def take_arrived(self, most: int) -> list:
        taken, self.arrived = self.arrived[:most], self.arrived[most:]
        return taken

    def resize(self, pull: int) -> None:
        self.limits["max_messages"] = pull

    async def drain(self) -> None: ...


def pull_source(js, readers: list) -> PullSource:
    def messages(**limits):
        readers.append(SourceReader(**limits))
        return readers[-1]

    source = PullSource(
        js._context, STREAM, CONSUMER, messages=messages, emit=js._context.emit, known=None, watch=None
    )
    source.open_source(SimpleNamespace(pull=10))
    return source


@virtual
async def test_reader_is_opened_with_the_first_message_and_ended_when_held():
    async with connected() as (js, _):
        readers: list[SourceReader] = []
        source = pull_source(js, readers)
        assert (source.pending, source.take_available(5), await source.hand_over(5)) == (0, [], [])
        assert await source.next() == 1
        assert (source.pending, source.take_available(5)) == (1, [2])
        source.resize(4)
        assert readers[0].limits["max_messages"] == 4
        readers[0].arrived = [3, 4]
        assert await source.hand_over(1) == [3, 4], "no message waits without a keep-alive"
        assert await source.next() == 1
        assert readers[1].limits["max_messages"] == 4
        assert await source.end_source(1.0) == [2]


@virtual
async def test_error_of_a_held_reader_is_raised_by_the_next_one():
    async with connected() as (js, _):
        readers: list[SourceReader] = []
        source = pull_source(js, readers)
        await source.next()
        readers[0].error = ConsumerDeletedError(409, "Consumer Deleted", False, STREAM, CONSUMER)
        assert await source.hand_over(1) == [2]
        with pytest.raises(ConsumerDeletedError):
            await source.next()


@virtual
async def test_limits_of_the_consumer_bound_the_requests():
    async with connected() as (js, connection):
        connection.api.has(max_expires=5_000_000_000, max_bytes=1000)
        readers: list[SourceReader] = []
        source = pull_source(js, readers)
        assert (await source.config()).max_expires == 5.0
        await source.next()
        assert readers[0].limits == {"max_messages": 10, "expires": 5.0, "max_bytes": 1000}


@virtual
async def test_without_permission_the_known_configuration_counts():
    async with connected() as (js, connection):
        source = pull_source(js, [])
        for known in (None, ConsumerConfig(max_deliver=3)):
            source.known = known
            with connection.broken(PermissionDeniedError("publish", "$JS.API.CONSUMER.INFO.ORDERS.worker")):
                if known is None:
                    with pytest.raises(PermissionDeniedError):
                        await source.config()
                else:
                    assert await source.config() is known


@virtual
async def test_subscription_hands_over_what_has_arrived_and_reports_statuses():
    async with connected() as (js, connection):
        ended, events = [], []
        sub = await js.subscribe("orders.new")

        async def receive_remaining(timeout):
            ended.append(timeout)
            await sub.drain()

        source = PushSource(
            js._context,
            sub.stream,
            sub.consumer,
            subscription=sub,
            emit=events.append,
            known=None,
            watch=None,
            receive_remaining=receive_remaining,
            over=lambda: None,
        )
        connection.deliver(sub.subject, [data(1), data(2), status(409, "Odd"), data(3)])
        assert source.drained
        assert source.pending == 3
        assert [message.metadata.stream_seq for message in await source.hand_over(1)] == [1]
        assert [message.metadata.stream_seq for message in source.take_available(1)] == [2]
        assert (await source.next()).metadata.stream_seq == 3
        assert [type(event) for event in events] == [ErrorRaised]
        connection.deliver(sub.subject, [data(4)])
        assert [message.metadata.stream_seq for message in await source.end_source(2.0)] == [4]
        assert ended == [2.0]
        assert not source.drained
        assert await source.end_source(2.0) == []
