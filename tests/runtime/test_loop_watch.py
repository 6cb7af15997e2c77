"""How long a handler blocked the event loop, and with which message."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime.loop_watch import LoopWatch, longest
from tests.support.virtual import virtual


@pytest.mark.parametrize(
    ("handled", "seconds", "message"),
    [
        ([(10.2, "a")], 1.8, "a"),  # it started after the loop was free last, and still runs
        ([(7.0, "a")], 2.0, "a"),  # it waited, then it blocked
        ([(7.0, "a"), (8.0, "b")], 2.0, None),  # either of them
        ([(7.0, "a"), (8.0, "b"), (10.5, "c")], 1.5, "c"),
        ([(10.6, "c"), (7.0, "a")], 1.4, "c"),
        ([(10.0, "a"), (10.3, "b"), (11.9, "c")], 1.6, "b"),
        ([(10.0, "a"), (10.5, "b"), (11.0, "c"), (11.5, "d")], 2.0, None),  # together
        ([], 2.0, None),
    ],
)
def test_longest_block(handled, seconds, message):
    assert longest(10.0, 12.0, handled) == (pytest.approx(seconds), message)


class HandlerCounts:
    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.running = {}
        self.reports = []
        self.watch = LoopWatch(
            lambda: [(began, message) for message, began in self.running.items()],
            lambda *reported: self.reports.append(reported),
        )

    def start(self, message):
        now = self.loop.time()
        if now >= self.watch.due:
            self.watch.check_loop(now)
        self.running[message] = now


@virtual
async def test_each_block_reported_with_its_message():
    handlers = HandlerCounts()
    for number, seconds in enumerate([0.9, 1.5, 0.2, 1.25, 1.0, 1.1], 1):
        handlers.start(number)
        handlers.loop.advance(seconds)
        await asyncio.sleep(0.01)
        del handlers.running[number]
    assert [(round(seconds, 2), times, message) for seconds, times, message in handlers.reports] == [
        (1.5, 1, 2),
        (1.25, 2, 4),
        (1.1, 4, 6),
    ]
    handlers.watch.close()


@virtual
async def test_waits_between_are_no_blocks():
    handlers = HandlerCounts()
    handlers.start("a")
    await asyncio.sleep(3600)
    handlers.loop.advance(1.3)
    await asyncio.sleep(0.01)
    ((seconds, times, message),) = handlers.reports
    assert (times, message) == (1, "a")
    assert 1.3 <= seconds <= 1.45
    handlers.running.clear()
    await asyncio.sleep(1)
    handlers.loop.advance(100)  # something else blocks, while no handler runs
    handlers.start("b")
    await asyncio.sleep(0.5)
    assert len(handlers.reports) == 1
    handlers.watch.close()


@virtual
async def test_no_timer_while_nothing_is_handled():
    handlers = HandlerCounts()
    handlers.start("a")
    handlers.running.clear()
    await asyncio.sleep(1)
    assert handlers.watch.due < handlers.loop.time()
    assert not handlers.loop._scheduled
