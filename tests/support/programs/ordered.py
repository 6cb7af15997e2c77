"""Read a log in order, save the position with the results, and resume from it."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

import jsclient
from jsclient import JetStream, OrderedConsumer, OrderedSubscription


class Saved(TypedDict):
    total: int
    position: int


def load(path: Path) -> Saved:
    if not path.exists():
        return {"total": 0, "position": 0}
    saved: Saved = json.loads(path.read_text())
    return saved


async def add_up(js: JetStream, path: Path, count: int) -> Saved:
    saved = load(path)
    reader: OrderedConsumer
    async with js.ordered_consumer(
        "LOG", filter_subject="log.*", opt_start_seq=saved["position"] + 1, description="adds up"
    ) as reader:
        for _ in range(count):
            msg = await reader.next(timeout=5)
            saved["total"] += int(msg.data)
        saved["position"] = reader.position
    path.write_text(json.dumps(saved))
    return saved


async def main(url: str) -> None:
    async with jsclient.connect(url) as js:
        await js.create_stream("LOG", ["log.*"])
        await js.publish_many("log.a", (b"%d" % number for number in range(1, 11)))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "saved.json"
            first, second = await add_up(js, path, 4), await add_up(js, path, 6)
        sub: OrderedSubscription = await js.subscribe("log.*", ordered=True)
        oldest = await sub.next(timeout=5)
        await sub.drain()
        print(first["total"], second["total"], second["position"], oldest.metadata.stream_seq)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
