"""Follow an audit log: store one token with the results, and resume from it at any later time.

python examples/09_audit_follower.py [url]
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path

import jsclient
from jsclient.server import NatsServer


def load(path: Path) -> tuple[list[int], str | None]:
    return tuple(json.loads(path.read_text())) if path.exists() else ([], None)


def save(path: Path, results: list[int], token: str) -> None:
    """Store the results and the position after them in one file, atomically."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps([results, token]))
    fresh.replace(path)


async def follow(js: jsclient.JetStream, path: Path, until: int) -> list[int]:
    """Load the results, read events up to ``until``, and save the results after each batch."""
    results, token = load(path)
    async with js.events("audit.logins").subscribe(token or "first") as sub:
        async for events in sub.batches():
            results += [int(event.data) for event in events]
            save(path, results, sub.position.to_json())
            if results[-1] >= until:
                break
    return results


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ledger.json"
        js = await stack.enter_async_context(jsclient.connect(url))
        await js.create_stream("AUDIT", subjects=["audit.>"], allow_direct=True, max_msgs=5000)
        stack.push_async_callback(js.delete_stream, "AUDIT")

        for first, last in ((1, 10), (11, 4000), (4001, 9500)):  # the follower is offline in between
            async with js.publisher() as pub:
                for number in range(first, last + 1):
                    await pub.publish("audit.logins", b"%d" % number)
            try:
                print(f"1 to {last}, each once: {await follow(js, path, last) == [*range(1, last + 1)]}")
            except jsclient.HistoryTruncatedError as error:  # offline for too long
                print(f"{error.wanted} is gone, the first available is {error.first_available}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
