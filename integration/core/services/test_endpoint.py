"""An endpoint: the abilities of its handler, and its counters."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually
from jsclient import HandlerFailed, InvalidNameError, ServiceError, SlowConsumer


async def test_counts(js: Any, subject: str) -> None:
    async def handler(request: Any) -> None:
        await asyncio.sleep(0.01)
        if request.data:
            raise ServiceError(400, "no\nway", b"because")
        await request.respond()

    async with js.core.add_service("s", "1.0.0") as service:
        endpoint = await service.add_endpoint("e", handler, subject=subject)
        for data in (b"", b"", b"x"):
            reply = await js.core.request(subject, data)
        await eventually(lambda: endpoint.stats().num_requests == 3)
        stats = endpoint.stats()
        assert (stats.name, stats.subject, stats.queue_group) == ("e", subject, "q")
        assert (stats.num_requests, stats.num_errors, stats.last_error) == (3, 1, "400: no way")
        assert stats.processing_time >= 0.03
        assert stats.average_processing_time == pytest.approx(stats.processing_time / 3)
        service.reset()
        stats = endpoint.stats()
        assert (stats.num_requests, stats.num_errors, stats.processing_time) == (0, 0, 0)
    assert reply.error is not None
    assert (reply.error.code, reply.error.description, reply.data) == (400, "no way", b"because")


async def test_failing_handler(js: Any, events: list[Any], subject: str) -> None:
    """The requester learns that it failed, but not what the exception says."""

    async def handler(request: Any) -> None:
        raise ValueError("password 123")

    async with js.core.add_service("s", "1.0.0") as service:
        await service.add_endpoint("e", handler, subject=subject)
        error = (await js.core.request(subject)).error
    assert (error.code, error.description) == (500, "the handler failed: ValueError")
    (event,) = of(HandlerFailed, events)
    assert (event.subject, repr(event.error)) == (subject, "ValueError('password 123')")


async def test_failing_handler_without_reply(js: Any, events: list[Any], subject: str) -> None:
    async def handler(request: Any) -> None:
        raise ServiceError(400, "no")

    async with js.core.add_service("s", "1.0.0") as service:
        endpoint = await service.add_endpoint("e", handler, subject=subject)
        await js.core.publish(subject)
        await eventually(lambda: endpoint.stats().num_errors == 1)
    assert of(HandlerFailed, events) == []


async def test_reply_subject_of_stranger(js: Any, oracle: Any, events: list[Any], subject: str) -> None:
    """The answer would be published with our permissions. It is refused, and reported."""

    async def handler(request: Any) -> None:
        await request.respond(b"x")

    async with js.core.add_service("s", "1.0.0") as service:
        endpoint = await service.add_endpoint("e", handler, subject=subject)
        await js.core.flush()
        await oracle.nc.publish(subject, b"", reply="$JS.API.STREAM.PURGE.ORDERS")
        await eventually(lambda: endpoint.stats().num_errors == 1)
    assert {type(event.error) for event in of(HandlerFailed, events)} == {InvalidNameError}


async def test_plain_handler_in_threads(js: Any, subject: str) -> None:
    barrier = threading.Barrier(3, timeout=30)
    loop = asyncio.get_running_loop()

    def handler(request: Any) -> None:
        barrier.wait()  # three at once, or none
        asyncio.run_coroutine_threadsafe(request.respond(request.data), loop).result(30)

    async with js.core.add_service("s", "1.0.0") as service:
        await service.add_endpoint("e", handler, subject=subject, concurrency=3)
        requests = [js.core.request(subject, b"%d" % n, timeout=30) for n in range(6)]
        assert [reply.data for reply in await asyncio.gather(*requests)] == [b"%d" % n for n in range(6)]


async def test_one_at_a_time(js: Any, subject: str) -> None:
    numbers: list[int] = []

    async def handler(request: Any) -> None:
        await asyncio.sleep(0)
        numbers.append(int(request.data))

    async with js.core.add_service("s", "1.0.0") as service:
        await service.add_endpoint("e", handler, subject=subject, concurrency=1)
        for number in range(100):
            await js.core.publish(subject, b"%d" % number)
    assert numbers == list(range(100)), "leaving the block handles what has arrived"


async def test_too_many_requests_reported(js: Any, events: list[Any], subject: str) -> None:
    release = asyncio.Event()

    async def handler(request: Any) -> None:
        await release.wait()

    async with js.core.add_service("s", "1.0.0") as service:
        endpoint = await service.add_endpoint("e", handler, subject=subject, concurrency=2, max_pending=5)
        for _ in range(100):
            await js.core.publish(subject)
        await js.core.flush()
        await eventually(lambda: bool(of(SlowConsumer, events)))
        assert 3 <= endpoint.pending <= 5, "two are handled"
        release.set()
    assert of(SlowConsumer, events)[0].subject == subject
