"""Stop a worker cleanly on SIGINT and SIGTERM: it finishes the messages it has received; the rest stay on the server.

python examples/05_graceful_stop.py [url]      # press Ctrl-C, or wait 3 seconds
"""

import asyncio
import contextlib
import signal
import sys

import jsclient
from jsclient.server import NatsServer


async def main(url: str | None = None) -> None:
    stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def request_stop(why: str) -> None:
        if not stop.done():
            stop.set_result(why)

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, request_stop, signum.name)

    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url))
        await js.ensure_stream("STOP_TASKS", subjects=["stop.tasks"], storage="memory")
        for number in range(1000):
            await js.publish("stop.tasks", b"task %d" % number)
        done = 0

        async def handle(msg: jsclient.Message) -> None:
            nonlocal done
            await asyncio.sleep(0.01)  # simulated work, which a drain does not interrupt
            done += 1

        sub = await js.subscribe(
            "stop.tasks",
            queue="crew",
            callback=handle,
            max_pending=20,  # at most 20 messages are left to finish on stop
            delete_on_close=False,  # the consumer outlives this worker
        )
        print("working", flush=True)
        asyncio.get_running_loop().call_later(3.0, request_stop, "time limit")
        print("stop:", await stop, flush=True)
        await sub.drain(timeout=10.0)
        print(f"done and acked: {done}; consumer {sub.consumer!r} remains for the next worker")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
