"""Requests with several replies: each way in which they end."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from integration.kit.clients.readers import FAST
from integration.kit.judge.waiting import eventually
from jsclient import ClosedError, DisconnectedError, NoRespondersError, PermissionDeniedError


async def responders(stack: AsyncExitStack, core: Any, subject: str, count: int) -> None:
    """Start responders, each of which answers with its number."""
    for number in range(count):

        async def answer(request: Any, number: int = number) -> None:
            await request.respond(b"%d" % number)

        await stack.enter_async_context(core.subscribe(subject, callback=answer))
    await core.flush()


async def read(replies: Any) -> list[int]:
    return sorted([int(reply.data) async for reply in replies])


async def test_ends_at_timeout(core: Any, subject: str) -> None:
    async with AsyncExitStack() as stack:
        await responders(stack, core, subject, 3)
        for timeout in (0.3, 1.0, 5.0, 20.0):  # all come in time, if the machine has any
            numbers = await read(core.request_many(subject, timeout=timeout))
            if len(numbers) == 3:
                break
        assert numbers == [0, 1, 2]


async def test_ends_at_stall(core: Any, subject: str) -> None:
    async with AsyncExitStack() as stack:
        await responders(stack, core, subject, 3)
        begin = time.monotonic()
        assert await read(core.request_many(subject, stall=0.3, timeout=60)) == [0, 1, 2]
        assert time.monotonic() - begin < 30


async def test_ends_at_number(core: Any, subject: str) -> None:
    async with AsyncExitStack() as stack:
        await responders(stack, core, subject, 3)
        assert len(await read(core.request_many(subject, max_messages=2, timeout=60))) == 2


@pytest.mark.parametrize("sentinel", [True, lambda reply: reply.data == b"end"])
async def test_ends_at_sentinel(core: Any, subject: str, sentinel: Any) -> None:
    async def answer(request: Any) -> None:
        for data in (b"1", b"2", b"" if sentinel is True else b"end", b"3"):
            await request.respond(data)

    async with core.subscribe(subject, callback=answer):
        assert await read(core.request_many(subject, sentinel=sentinel, timeout=60)) == [1, 2]


async def test_failing_sentinel_raised(js: Any, subject: str) -> None:
    async with AsyncExitStack() as stack:
        await responders(stack, js.core, subject, 1)
        replies = js.core.request_many(subject, sentinel=lambda reply: 1 / 0, timeout=60)
        with pytest.raises(ZeroDivisionError):
            await replies.next()


async def test_no_responders(core: Any, subject: str) -> None:
    replies = core.request_many(subject, timeout=60)
    with pytest.raises(NoRespondersError, match=subject):
        await replies.next()
    with pytest.raises(ClosedError):
        await replies.next()
    assert [reply async for reply in replies] == []


async def test_no_reply(core: Any, subject: str) -> None:
    async with core.subscribe(subject):
        assert await read(core.request_many(subject, timeout=0.1)) == []


async def test_nothing_sent_before_read(js: Any, subject: str) -> None:
    async with js.core.subscribe(subject) as sub:
        js.core.request_many(subject)
        await js.core.flush()
        assert sub.received == 0


async def test_left_early(js: Any, oracle: Any, subject: str) -> None:
    """After ``async with`` the subscription to the replies is gone."""
    async with AsyncExitStack() as stack:
        await responders(stack, js.core, subject, 3)
        async with js.core.request_many(subject, timeout=60) as replies:
            async for _ in replies:
                break
        assert replies.is_closed
        with pytest.raises(ClosedError):
            await replies.next()


async def test_cancelled_read_loses_nothing(js: Any, subject: str) -> None:
    async with js.core.subscribe(subject) as requests:
        replies = js.core.request_many(subject, timeout=60, max_messages=2)
        waiting = asyncio.create_task(replies.next())
        request = await requests.next(5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await request.respond(b"1")
        await request.respond(b"2")
        assert await read(replies) == [1, 2]
        assert requests.received == 1, "the request is sent once"


async def test_connection_lost(own_server: Any, connect: Any, subject: str) -> None:
    """Answers that have arrived are returned first."""
    own = await own_server()
    js = await connect(own, **FAST)
    async with AsyncExitStack() as stack:
        await responders(stack, js.core, subject, 2)
        replies = js.core.request_many(subject, timeout=60)
        numbers = [int((await replies.next()).data)]
        await js.core.flush()
        await own.kill()
        await eventually(lambda: not js.is_connected)
        numbers.append(int((await replies.next()).data))
        assert sorted(numbers) == [0, 1]
        with pytest.raises(DisconnectedError, match=subject):
            await replies.next()
        await own.start()


async def test_denied(own_server: Any, connect: Any) -> None:
    user = {"user": "ann", "password": "x", "permissions": {"publish": {"deny": ["secret"]}}}
    own = await own_server(config={"authorization": {"users": [user]}})
    js = await connect(own.url.replace("nats://", "nats://ann:x@"))
    with pytest.raises(PermissionDeniedError, match="secret"):
        await js.core.request_many("secret", timeout=60).next()


async def test_closed_while_waiting(server: Any, connect: Any, subject: str) -> None:
    js = await connect(server)
    await js.core.subscribe(subject)
    waiting = asyncio.create_task(js.core.request_many(subject, timeout=60).next())
    await js.core.flush()
    await asyncio.sleep(0)
    await js.close()
    with pytest.raises(ClosedError):
        await waiting
