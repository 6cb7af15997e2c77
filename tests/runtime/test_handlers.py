"""How the user's functions are checked and called. These tests run in real threads, and wait only for them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from functools import partial

import pytest

from jsclient._runtime.handlers import (
    Threads,
    await_suspended,
    check_function,
    check_handler,
    check_plain,
    is_coroutine_function,
)
from jsclient.errors import ClosedError, ConfigError
from tests.support.virtual import virtual

NAME = contextvars.ContextVar("NAME", default="none")


async def coroutine(message): ...


def generator(message):
    yield message


async def async_generator(message):
    yield message


class Object:
    """It can be called, and its call is a coroutine."""

    async def __call__(self, message): ...


@pytest.mark.parametrize(
    ("function", "actual"),
    [(coroutine, True), (Object(), True), (print, False), (lambda message: None, False)],
)
def test_coroutine_function(function, actual):
    assert is_coroutine_function(function) is actual


@pytest.mark.parametrize(
    "handler", [coroutine, Object(), print, lambda message, *others: None, partial(max, 1), int]
)
def test_handlers_of_one_argument(handler):
    check_handler("callback", handler)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (None, "callback is NoneType: it must be a function of the message"),
        (7, "callback is int"),
        (generator, "generator function"),
        (async_generator, "generator function"),
        (lambda: None, "called with one argument, the message, and takes ()"),
        (lambda one, two: None, "takes (one, two)"),
        (lambda *, message: None, "takes"),
    ],
)
def test_other_handlers_are_refused(handler, words):
    with pytest.raises(ConfigError) as caught:
        check_handler("callback", handler)
    assert words in str(caught.value)


def test_coroutine_instead_of_a_function_is_explained():
    called = coroutine(1)
    with pytest.raises(ConfigError, match="it was called"):
        check_function("callback", called, "message")
    called.close()


def test_function_whose_result_is_used_at_once():
    check_plain("key", str)
    with pytest.raises(ConfigError, match="key is a coroutine function"):
        check_plain("key", coroutine)


def in_threads(test, count=2):
    """Run a test with threads that are closed at its end."""

    async def main():
        threads = Threads(count)
        try:
            await test(threads)
        finally:
            threads.close()

    asyncio.run(main())


def test_plain_function_runs_in_a_thread_with_the_context():
    async def test(threads):
        NAME.set("mine")
        thread, name, added = await threads.call(
            lambda one, two=0: (threading.current_thread(), NAME.get(), one + two), 1, two=2
        )
        assert thread is not threading.current_thread()
        assert thread.name.startswith("jsclient-handler")
        assert (name, added) == ("mine", 3)

    in_threads(test)


def test_awaitable_is_awaited_on_the_loop():
    async def test(threads):
        loop = asyncio.get_running_loop()

        async def on_loop():
            return asyncio.get_running_loop() is loop

        assert await threads.call(on_loop) is True

    in_threads(test)


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration(7), SystemExit(3), KeyboardInterrupt()])
def test_every_exception_reaches_the_caller(error):
    def fail():
        raise error

    async def test(threads):
        result, actual = await threads.begin_call(fail)
        assert (result, actual) == (None, error)
        assert await threads.call(int) == 0, "its thread goes on"

    in_threads(test, count=1)


@pytest.mark.parametrize("function", [generator, async_generator])
def test_generator_from_a_wrapper_is_an_error(function):
    async def test(threads):
        with pytest.raises(TypeError, match="leave yield out"):
            await threads.call(partial(function), 1)

    in_threads(test)


def test_number_of_threads_bounds_the_calls():
    running, most, lock = [0], [0], threading.Lock()

    def call():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1

    async def test(threads):
        await asyncio.gather(*(threads.call(call) for _ in range(50)))
        assert 1 <= most[0] <= 2

    in_threads(test)


def test_close_refuses_and_cancels_what_waits():
    release, calls = threading.Event(), []

    async def test(threads):
        first = threads.begin_call(release.wait)
        second = threads.begin_call(calls.append, 2)
        threads.close()
        release.set()
        assert await first == (True, None)
        with pytest.raises(asyncio.CancelledError):
            await second
        with pytest.raises(ClosedError):
            threads.begin_call(calls.append, 3)
        assert calls == []

    in_threads(test, count=1)


async def begin(coroutine):
    """Run a coroutine up to the point at which it waits, and await the rest."""
    return await await_suspended(coroutine, coroutine.send(None))


@virtual
async def test_suspended_coroutine_is_awaited():
    async def add(first: int) -> int:
        await asyncio.sleep(0)
        return first + await asyncio.sleep(0.001, 2)

    assert await begin(add(1)) == 3


@virtual
async def test_suspended_coroutine_is_cancelled_where_it_waits():
    steps: list[str] = []

    async def resist(times: int) -> str:
        for _ in range(times):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                steps.append("cancelled")
        steps.append("over")
        return "result"

    task = asyncio.create_task(begin(resist(2)))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    assert await task == "result"
    assert steps == ["cancelled", "cancelled", "over"]


@virtual
async def test_error_of_suspended_coroutine_is_raised():
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await begin(fail())
