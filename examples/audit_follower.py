"""An audit follower: it keeps one token beside its results, and goes on where it was, a week later too.

python examples/audit_follower.py [url]
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path

import jsclient
from jsclient.server import NatsServer


class Ledger:
    """Results and the position behind them, stored together: one cannot be there without the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        stored = json.loads(path.read_text()) if path.exists() else {"results": [], "token": None}
        self.results: list[int] = stored["results"]
        self.token: str | None = stored["token"]

    def save(self, results: list[int], position: jsclient.Position) -> None:
        self.results, self.token = self.results + results, position.to_json()
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"results": self.results, "token": self.token}))
        fresh.replace(self.path)


async def follow(js: jsclient.JetStream, path: Path, until: int) -> None:
    """What a process does from its start to its end."""
    ledger = Ledger(path)
    since = jsclient.Position.from_json(ledger.token) if ledger.token else "first"
    async with await js.events("audit.logins").subscribe(since) as sub:
        async for events in sub.batches():
            ledger.save([int(event.data) for event in events], sub.position)
            if ledger.results[-1] >= until:
                return


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ledger.json"
        js = await stack.enter_async_context(jsclient.connect(url))
        await js.create_stream("AUDIT", subjects=["audit.>"], allow_direct=True, max_msgs=5000)
        stack.push_async_callback(js.delete_stream, "AUDIT")

        for first, last in ((1, 10), (11, 4000)):  # between the two, a week away
            async with js.publisher() as pub:
                for number in range(first, last + 1):
                    await pub.publish("audit.logins", b"%d" % number)
            await follow(js, path, until=last)
            print(f"has 1 to {last}, each once: {Ledger(path).results == [*range(1, last + 1)]}")

        async with js.publisher() as pub:  # away for longer than the stream keeps records
            for number in range(4001, 9501):
                await pub.publish("audit.logins", b"%d" % number)
        try:
            await follow(js, path, until=9500)
        except jsclient.HistoryTruncatedError as error:
            print(f"too late: {error.wanted} is gone, the first that can be read is {error.first_available}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
