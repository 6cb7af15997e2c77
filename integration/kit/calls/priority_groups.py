"""Pull consumers with priority groups, for their tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.kit.judge.reading import take
from integration.kit.judge.streams import OwnStream
from integration.kit.network.asking import answers_to

NEXT = "$JS.API.CONSUMER.MSG.NEXT.>"
GROUP = "jobs"
RACES = 200


async def grouped(js: Any, stream: OwnStream, policy: str, name: str = "c", **fields: Any) -> Any:
    """The handle of a consumer with a priority group. Made if it is not there."""
    fields = {"ack_wait": 60, "mem_storage": True, **fields}
    handle = await js.stream(stream.name)
    return await handle.ensure_consumer(
        durable_name=name, priority_groups=[GROUP], priority_policy=policy, **fields
    )


async def two(connect: Any, proxy: Any, stream: OwnStream, policy: str, **fields: Any) -> Any:
    """Two clients of one consumer: (handle, tap, events) of each."""
    results = []
    for _ in range(2):
        tap, events = await proxy(), []
        js = await connect(tap, on_event=events.append)
        results.append((await grouped(js, stream, policy, **fields), tap, events))
    return results


def pull_requests(tap: Any, since: int = 0) -> list[dict[str, Any]]:
    """The bodies of the pull requests, in order."""
    return [json.loads(frame.payload) for frame in tap.sent(NEXT, since)]


def pins(tap: Any, since: int = 0) -> list[str | None]:
    """The pin that each request showed."""
    return [one.get("id") for one in pull_requests(tap, since)]


async def pinned_id(stream: OwnStream, name: str = "c") -> str:
    """Who is pinned, as the server has it. Empty: no one."""
    (group,) = (await stream.consumer_info(name))["priority_groups"]
    return str(group.get("pinned_client_id", ""))


async def asks(way: str, handle: Any, count: int, *, expires: float = 10, **options: Any) -> list[Any]:
    """`count` messages by fetch, next or messages."""
    if way == "fetch":
        return [*await handle.fetch(count, expires=expires, **options)]
    if way == "next":
        return [await handle.next(expires, **options) for _ in range(count)]
    async with handle.messages(max_messages=count, expires=expires, **options) as reader:
        return await take(reader, count)


WAYS = pytest.mark.parametrize("way", ["fetch", "next", "messages"])


async def unknown(tap: Any, near: Any, stream: OwnStream) -> Any:
    """A subscription that could not look at its consumer, as without the right to."""

    def refuse(frame: Any) -> bytes:
        error = {"code": 503, "err_code": 10008, "description": "not now"}
        raw: bytes = frame.but(payload=json.dumps({"error": error}).encode()).raw
        return raw

    rule = tap.modify_frames(answers_to(tap, "CONSUMER.INFO.>"), refuse)
    sub = await near.pull_subscribe(stream=stream.name, consumer="c")
    rule.remove()
    return sub
