"""Failed publishes whose failures are never retrieved."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from jsclient import PublishesFailedError, PublishFailed
from jsclient.errors import (
    ApiError,
    DisconnectedError,
)
from tests.publishing.kit import add_outbox, answer, both, published, refuse
from tests.support.fake import connected
from tests.support.virtual import settle, virtual


@virtual
@both
async def test_failure_not_retrieved_in_time_event(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        pub = js.publisher(max_in_flight=10)
        saved = [await pub.publish("kept", b"%d" % n) for n in range(2)]
        for n in range(3):
            await pub.publish("dropped", b"%d" % n)
        await settle()
        for sent in published(connection):
            refuse(connection, sent)
        assert saved[0].exception() is not None
        await asyncio.sleep(9.9)
        assert connection.told(PublishFailed) == []
        await asyncio.sleep(0.2)
        (event,) = connection.told(PublishFailed)
        assert (event.subject, type(event.error), event.count) == ("kept", ApiError, 4)
        await asyncio.sleep(60)
        assert len(connection.told(PublishFailed)) == 1
        # A failure that was retrieved, before or after the event, is not raised.
        assert saved[1].exception() is not None
        await pub.publish("late")
        await settle()
        refuse(connection, published(connection)[-1])
        with pytest.raises(PublishesFailedError) as caught:
            await pub.flush()
        assert [subject for subject, _ in caught.value.failures] == ["late"]
        assert caught.value.told == 3
        assert "4 publishes failed" in str(caught.value)
        await pub.flush()
        await pub.close()
        assert len(connection.told(PublishFailed)) == 1


@virtual
@pytest.mark.parametrize("how", ["await", "result", "exception", "gather", "wait_for", "in a task"])
async def test_each_way_to_retrieve_failure_counts(how):
    async def wait(future: asyncio.Future[Any]) -> None:
        await future

    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            future = await pub.publish("a")
            early = asyncio.ensure_future(wait(future)) if how == "in a task" else None
            await settle()
            refuse(connection, published(connection)[0])
            with contextlib.suppress(ApiError):
                if how == "await":
                    await future
                elif how == "result":
                    future.result()
                elif how == "exception":
                    future.exception()
                elif how == "gather":
                    await asyncio.gather(future)
                elif how == "wait_for":
                    await asyncio.wait_for(future, 1)
                # the task has waited since before the failure
                elif early is not None:
                    await early
        assert connection.told(PublishFailed) == []


@virtual
async def test_cancelled_wait_keeps_failure():
    async with connected() as (js, connection):
        add_outbox(connection)
        pub = js.publisher()
        future = await pub.publish("a")
        waiting = asyncio.ensure_future(asyncio.wait([future]))
        await settle()
        waiting.cancel()
        refuse(connection, published(connection)[0])
        await settle()
        with pytest.raises(PublishesFailedError):
            await pub.flush()


@virtual
async def test_failures_beyond_limit_are_reported():
    async with connected() as (js, connection):
        add_outbox(connection)
        with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
            async with js.publisher(max_in_flight=500) as pub:
                for n in range(2500):
                    await pub.publish("a", b"%d" % n)
                    if n % 500 == 499:
                        await settle()
                        connection.disconnect()
                        connection.reconnect()
        events = connection.told(PublishFailed)
        assert {type(event.error) for event in events} == {DisconnectedError}
        assert len(caught.value.failures) + sum(event.count for event in events) == 2500
        assert caught.value.told == sum(event.count for event in events) == 1500
        assert len(events) < 20


@virtual
async def test_retrieved_not_raised():
    async with connected() as (js, connection):
        add_outbox(connection)
        futures = []
        async with js.publisher(max_in_flight=500) as pub:
            for n in range(5000):
                futures.append(await pub.publish("a", b"%d" % n))
                if n % 500 == 499:
                    await asyncio.sleep(1)
                    connection.disconnect()
                    connection.reconnect()
            await asyncio.sleep(30)
            results = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(error) for error in results} == {DisconnectedError}
        assert sum(event.count for event in connection.told(PublishFailed)) == 5000


@virtual
async def test_like_failures_one_event():
    async with connected() as (js, connection):
        add_outbox(connection)
        pub = js.publisher()
        for _ in range(6):
            await pub.publish("a")
        await settle()
        first, second, third, *others = published(connection)
        refuse(connection, first, 10077)
        refuse(connection, second, 10071)
        refuse(connection, third, 10077)
        for sent in others:
            answer(connection, sent, b"nonsense")
        await pub.close()
        await settle()
        event = sorted((type(e.error).__name__, e.count) for e in connection.told(PublishFailed))
        assert event == [("ApiError", 2), ("ProtocolError", 3), ("WrongLastSequenceError", 1)]


@virtual
@both
async def test_retrieved_failures_are_not_reported(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        async with js.publisher() as pub:
            futures = [await pub.publish("a") for _ in range(4)]
            looking = asyncio.gather(*futures[:2], return_exceptions=True)
            waited = asyncio.ensure_future(asyncio.wait_for(futures[2], 50))
            futures[3].add_done_callback(lambda future: future.exception())
            await settle()
            for sent in published(connection):
                refuse(connection, sent)
        await asyncio.gather(looking, waited, return_exceptions=True)
        assert connection.told(PublishFailed) == []


@virtual
async def test_future_cancelled_and_fails_no_news():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            future = await pub.publish("a")
            future.cancel()
            await settle()
            refuse(connection, published(connection)[0])
        assert pub.failed == 1
        assert connection.told(PublishFailed) == []
