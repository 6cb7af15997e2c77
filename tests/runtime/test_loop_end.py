"""What is awaited when the event loop ends, and what is not."""

from __future__ import annotations

import asyncio

from jsclient._runtime.loop_end import LoopEnd


def test_awaited_after_all_tasks():
    """A task that is started while `asyncio.run` waits for the others can be ended."""
    order, late = [], []

    async def end():
        order.append("the loop ends")
        late[0].cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def slow():
        try:
            await asyncio.sleep(3600)
        finally:
            late.append(asyncio.get_running_loop().create_task(asyncio.sleep(3600)))
            order.append("the task ends")

    async def main():
        loop_end = LoopEnd(end)
        loop_end.watch()
        loop_end.watch()
        task = asyncio.create_task(slow())
        await asyncio.sleep(0)
        return loop_end, task

    asyncio.run(main())
    assert order == ["the task ends", "the loop ends"]
    assert late[0].cancelled()


def test_forgotten():
    order = []

    async def end():
        order.append("the loop ends")

    async def main():
        loop_end = LoopEnd(end)
        loop_end.stop_watching()
        loop_end.watch()
        loop_end.stop_watching()

    asyncio.run(main())
    assert order == []
