"""A request that only reads is repeated when its answer is lost. One that changes something is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.match import delivered, published
from jsclient import ClosedError, DisconnectedError, RequestTimeoutError

Ask = Callable[[Any, Any, Any], Awaitable[Any]]


async def _names(js: Any, *_: Any) -> Any:
    return [name async for name in js.stream_names()]


QUESTIONS: dict[str, Ask] = {
    "INFO": lambda js, *_: js.account_info(),
    "STREAM.NAMES": _names,
    "STREAM.INFO.>": lambda _, stream, __: stream.info(),
    "CONSUMER.INFO.>": lambda _, __, consumer: consumer.info(),
    "STREAM.MSG.GET.>": lambda _, stream, __: stream.get_message(1),
    "DIRECT.GET.>": lambda _, stream, __: stream.get_message(1, direct=True),
}


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("question", QUESTIONS)
async def test_question_whose_answer_is_lost_is_asked_again(
    question: str, proxy: Any, connect: Any, oracle: Any, make_stream: Any
) -> None:
    """A leader that dies with the answer: it took the whole timeout, 20 s."""
    stream: OwnStream = await make_stream(allow_direct=True)
    await stream.publish(1)
    await stream.create_consumer("c")
    tap = await proxy()
    js = await connect(tap, timeout=20.0, inbox_prefix="_INBOX_q")  # it is repeated after 5 s
    handle = await js.stream(stream.name)
    consumer = await handle.consumer("c")
    rule = tap.drop_frames(delivered("_INBOX_q.>"), count=1)
    started = time.monotonic()
    await QUESTIONS[question](js, handle, consumer)
    assert rule.count == 1
    assert 4.5 < time.monotonic() - started < 18
    requests = [frame for frame in tap.frames if published(f"$JS.API.{question}")(frame)]
    first, second = requests[-2:]
    assert (first.reply, first.payload) == (second.reply, second.payload)


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("question", QUESTIONS)
async def test_question_is_asked_again_after_a_reconnect(
    question: str, own_server: Any, connect: Any
) -> None:
    """The server dies with the request, and another start answers it."""
    own = await own_server()
    js = await connect(own, timeout=120.0)  # it is repeated after 30 s, and at the reconnect
    stream = await js.create_stream("S", ["s"], allow_direct=True)
    consumer = await stream.create_consumer(durable_name="c")
    await js.publish("s", b"1")
    own.pause()
    asking = asyncio.ensure_future(QUESTIONS[question](js, stream, consumer))
    await eventually(lambda: bool(js._context.requests._waiting), what="the request is in flight")
    await own.kill()
    await eventually(lambda: not js.is_connected, what="the connection is lost")
    await own.start()
    await within(25, asking, "the answer")
    assert js._context.requests._waiting == js._context.requests._repeated == {}


async def test_a_change_fails_with_the_connection(own_server: Any, connect: Any) -> None:
    own = await own_server()
    js = await connect(own, timeout=20.0)
    stream = await js.create_stream("S", ["s"])
    own.pause()
    purging = asyncio.ensure_future(stream.purge())
    await eventually(lambda: bool(js._context.requests._waiting), what="the request is in flight")
    await own.kill()
    with pytest.raises(DisconnectedError):
        await within(15, purging, "the error")


async def test_questions_end_with_close(own_server: Any, connect: Any) -> None:
    own = await own_server()
    js = await connect(own, timeout=60.0)
    own.pause()
    asking = asyncio.ensure_future(js.account_info())
    await eventually(lambda: bool(js._context.requests._waiting), what="the request is in flight")
    await own.kill()
    await eventually(lambda: not js.is_connected, what="the connection is lost")
    await js.close()
    with pytest.raises(ClosedError):
        await within(30, asking, "the error")


async def test_answers_after_the_first_are_dropped(proxy: Any, connect: Any, stream: OwnStream) -> None:
    tap = await proxy()
    js = await connect(tap, timeout=4.0, inbox_prefix="_INBOX_q")
    await js.account_info()
    rule = tap.hold_frames(delivered("_INBOX_q.>"))
    asking = js.account_info()
    with pytest.raises(RequestTimeoutError):
        await asking
    rule.release()
    rule.remove()
    assert (await (await js.stream(stream.name)).info()).config.name == stream.name
    assert js._context.requests._waiting == js._context.requests._repeated == {}


async def test_a_change_is_not_repeated(proxy: Any, connect: Any, stream: OwnStream) -> None:
    tap = await proxy()
    js = await connect(tap, timeout=5.0, inbox_prefix="_INBOX_q")
    handle = await js.stream(stream.name)
    tap.drop_frames(delivered("_INBOX_q.>"))
    with pytest.raises(RequestTimeoutError):
        await handle.purge()
    assert len([frame for frame in tap.frames if published("$JS.API.STREAM.PURGE.>")(frame)]) == 1
