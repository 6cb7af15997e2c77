"""A process that produces, or consumes values that another process shares. It reports on stdout, as lines of JSON.

python -m integration.kit.clients.kit_process URL newest|every DESCRIPTOR
python -m integration.kit.clients.kit_process URL produce SUBJECT FIRST
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import jsclient


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def consume(iterable: Any) -> None:
    iterator = aiter(iterable)
    say(ready=True)
    try:
        async for value in iterator:
            say(value=value)
        say(finished=iterator.completion)
    except jsclient.IterationFailed as failed:
        say(failed=failed.reason)


async def produce(js: Any, subject: str, first: int) -> None:
    """Numbers, one after the other, until someone ends it or this process."""
    updater, _ = await js.notifier_kit(subject)
    say(ready=True)
    number = first
    while True:
        try:
            await updater.update_state(number)
        except jsclient.JetStreamError as error:
            say(refused=type(error).__name__)
            return
        say(stored=number)
        number += 1


async def main(url: str, what: str, *arguments: str) -> None:
    async with jsclient.connect(url, on_event=lambda _: None) as js:
        match what:
            case "newest":
                await consume(js.make_notifier(json.loads(arguments[0])))
            case "every":
                await consume(js.make_subscription(json.loads(arguments[0])))
            case "produce":
                await produce(js, arguments[0], int(arguments[1]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
