"""The functions of jsclient that plain messages and requests call. Each step of a coroutine is a call."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.calls import Calls

COUNT = 200


async def test_publish(js: Any, oracle: Any, subject: str) -> None:
    """Apart from the first message in an iteration of the loop, each message takes one call."""
    core = js.core
    async with oracle.listen(subject) as arrived:
        await core.publish(subject, b"first")
        with Calls() as calls:
            for number in range(COUNT):
                await core.publish(subject, b"%d" % number)
        await core.flush()
        async with asyncio.timeout(60):
            while len(arrived) <= COUNT:
                await asyncio.sleep(0.01)
    assert [message.data for message in arrived] == [b"first", *(b"%d" % number for number in range(COUNT))]
    assert calls.each(COUNT) < 1.1, calls


async def test_requests_at_once(js: Any, subject: str) -> None:
    """A request needs no coroutine besides its own two."""
    core = js.core
    js._context.timeout = 60.0  # for a busy machine, and an argument would be counted

    async def answer(request: Any) -> None:
        await request.respond(request.data)

    async with core.subscribe(subject, callback=answer):
        await core.request(subject, b"first")
        counted = Calls()
        requests = [asyncio.create_task(core.request(subject, b"%d" % number)) for number in range(COUNT)]
        with counted:
            await asyncio.sleep(0)
        replies = await asyncio.gather(*requests)
    assert [reply.data for reply in replies] == [b"%d" % number for number in range(COUNT)]
    assert counted.each(COUNT) < 13, counted
