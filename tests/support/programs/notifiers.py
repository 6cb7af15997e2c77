"""Share progress with a notifier and lines with a subscription, through descriptors in JSON."""

from __future__ import annotations

import asyncio
import json
import sys

import jsclient
from jsclient import IterationFailed, JetStream, StreamNotifierKit, StreamSubscriptionKit


async def watch(js: JetStream, descriptor: str) -> int:
    states = aiter(js.make_notifier(json.loads(descriptor)))
    async for state in states:
        if not isinstance(state, dict):
            raise TypeError(state)
    rows: int = states.completion["rows"]
    return rows


async def follow(js: JetStream, descriptor: str) -> list[str]:
    lines = js.make_subscription(json.loads(descriptor))
    try:
        return [line async for line in lines]
    except IterationFailed as error:
        return [str(error.reason)]


async def main(url: str) -> None:
    local, here = jsclient.make_notifier_kit({"rows": 0})
    local.finish({"rows": 1})
    async with jsclient.connect(url) as js, jsclient.connect(url) as elsewhere:
        progress: StreamNotifierKit = await js.notifier_kit("progress.etl", initial={"rows": 0})
        updater, notifier = progress
        descriptor = json.dumps(await notifier.get_sharable_notifier_internals())
        watching = asyncio.create_task(watch(elsewhere, descriptor))
        seq: int = await updater.update_state({"rows": 10})
        record = await notifier.get_update_since()
        await updater.finish({"rows": 20})

        lines: StreamSubscriptionKit = await js.subscription_kit("lines.etl", storage="memory")
        publication, subscription = lines
        descriptor = json.dumps(await subscription.get_sharable_subscription_internals())
        for line in ("extract", "load"):
            publication.update_state(line)
        await publication.finish("done")
        print(
            await here.completion(),
            seq,
            record.value["rows"],
            await watching,
            await follow(elsewhere, descriptor),
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
