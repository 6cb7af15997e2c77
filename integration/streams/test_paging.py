"""The lists of a stream and of an account that have more than one page. Source: ADR-1, ADR-37.

Rows 136 to 138 of the conformance suite.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import jsclient
from integration.kit.clients.foreign import flushed
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.asking import body
from integration.kit.network.proxy import Proxy


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, timeout=60.0)


async def test_streams_in_pages(own_server: Any, proxy: Any, connect: Any, oracle_for: Any) -> None:
    """Row 136: 256 infos and 1,024 names are the server's pages."""
    own = await own_server()
    oracle, tap = await oracle_for(own, timeout=30.0), await proxy(own)
    js = await connect(tap, timeout=60.0)
    expected = [f"S{number:04}" for number in range(1030)]

    async def make(names: list[str]) -> None:
        for name in names:
            await oracle.create_stream(name, [f"s.{name}"], storage="memory")

    await asyncio.gather(*(make(expected[first::8]) for first in range(8)))
    assert sorted([name async for name in js.stream_names()]) == expected
    assert sorted([info.name async for info in js.streams()]) == expected
    assert [body(frame)["offset"] for frame in tap.sent("$JS.API.STREAM.NAMES")] == [0, 1024]
    assert [body(frame)["offset"] for frame in tap.sent("$JS.API.STREAM.LIST")] == [0, 256, 512, 768, 1024]


async def test_subjects_in_pages(js: Any, tap: Proxy, oracle: Oracle, make_stream: Any) -> None:
    """Row 137: past the server's 100,000. At that limit nats-py and others stop silently."""
    stream = await make_stream(no_ack=True)
    for number in range(100_005):
        await oracle.nc.publish(f"{stream.prefix}.{number}", b"")
        if number % 5000 == 0:
            await flushed(oracle.nc)
    await flushed(oracle.nc)

    async def stored() -> bool:
        return (await stream.state())["messages"] == 100_005

    await eventually(stored, 120, "the messages, which nobody acks")
    handle = await js.stream(stream.name)
    info = await handle.info(subjects_filter=">")
    assert len(info.state.subjects) == info.state.num_subjects == 100_005
    assert set(info.state.subjects.values()) == {1}
    requests = [body(frame) for frame in tap.sent("$JS.API.STREAM.INFO.>") if frame.payload]
    assert [request.get("offset", 0) for request in requests] == [0, 100_000]
    actual = [item async for item in handle.subjects(f"{stream.prefix}.*")]
    assert len(actual) == 100_005
    assert dict(actual) == info.state.subjects


async def test_subjects_are_reported_by_filter(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 137, with pages of 2 in the place of 100,000."""
    await stream.publish(3, "a", "1")
    await stream.publish(1, "a", "2")
    await stream.publish(2, "a", "3")
    await stream.publish(1, "b")
    handle = await js.stream(stream.name)

    def cut(frame: Any) -> bytes:
        answer = json.loads(frame.payload)
        request = body(tap.sent("$JS.API.STREAM.INFO.>")[-1])
        subjects = sorted(answer["state"]["subjects"].items())
        offset = request.get("offset", 0)
        # The real server leaves out what was reported before, too.
        if offset and len(subjects) > 2:
            subjects = subjects[offset:]
        answer["state"]["subjects"] = dict(subjects[:2])
        raw: bytes = frame.but(payload=json.dumps(answer).encode()).raw
        return raw

    tap.modify_frames(lambda f: b'"subjects":{' in f.payload and f.direction == "to_client", cut)
    info = await handle.info(subjects_filter=stream.all)
    counts = {
        stream.subject("a", "1"): 3, stream.subject("a", "2"): 1, stream.subject("a", "3"): 2, stream.subject("b"): 1,
    }  # fmt: skip
    assert info.state.subjects == counts
    assert handle.cached_info == info
    assert info.state.messages == 7
    assert {name: count async for name, count in handle.subjects()} == counts
    some = [name async for name, _ in handle.subjects(stream.subject("a", "2"))]
    assert some == [stream.subject("a", "2")]
    assert [item async for item in handle.subjects("none.at.all")] == []
    assert (await handle.info(subjects_filter="none.at.all")).state.subjects == {}
    assert (await handle.info()).state.subjects is None
    with pytest.raises(jsclient.InvalidNameError):
        await anext(handle.subjects("a..b"))


async def test_deleted_messages_are_reported(js: Any, stream: OwnStream) -> None:
    """Row 137: how many always, and which, if that was asked for."""
    await stream.publish(10)
    handle = await js.stream(stream.name)
    for seq in (2, 3, 7):
        await handle.delete_message(seq)
    plain = await handle.info()
    assert (plain.state.num_deleted, plain.state.deleted, plain.state.subjects) == (3, None, None)
    detailed = await handle.info(deleted_details=True)
    assert (detailed.state.num_deleted, detailed.state.deleted) == (3, [2, 3, 7])
    both = await handle.info(deleted_details=True, subjects_filter=">")
    assert (both.state.deleted, both.state.subjects) == ([2, 3, 7], {stream.subject("x"): 7})


PURGES: list[Any] = [
    # 1-4 a, 5-8 b, 9-10 a: (arguments, removed, left)
    ({}, 10, []),
    ({"seq": 3}, 2, [3, 4, 5, 6, 7, 8, 9, 10]),
    ({"seq": 11}, 10, []),
    ({"seq": 99}, 10, []),
    ({"keep": 3}, 7, [8, 9, 10]),
    ({"keep": 99}, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ({"subject": "a"}, 6, [5, 6, 7, 8]),
    ({"subject": "*"}, 10, []),
    ({"subject": "none"}, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ({"subject": "a", "seq": 4}, 3, [4, 5, 6, 7, 8, 9, 10]),
    ({"subject": "a", "seq": 9}, 4, [5, 6, 7, 8, 9, 10]),
    ({"subject": "a", "seq": 10}, 5, [5, 6, 7, 8, 10]),
    ({"subject": "b", "seq": 3}, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ({"subject": "a", "keep": 1}, 5, [5, 6, 7, 8, 10]),
    ({"subject": "a", "keep": 6}, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ({"subject": "b", "keep": 3}, 1, [1, 2, 3, 4, 6, 7, 8, 9, 10]),
    ({"keep": 0}, 10, []),
    ({"subject": "a", "keep": 0}, 6, [5, 6, 7, 8]),
]


@pytest.mark.parametrize("storage", ["memory", "file"])
async def test_every_form_of_purge(js: Any, oracle: Oracle, make_stream: Any, storage: str) -> None:
    """Row 138: by sequence, by what to keep, by subject, and both."""
    for arguments, removed, remaining in PURGES:
        stream = await make_stream(storage=storage)
        for count, name in ((4, "a"), (4, "b"), (2, "a")):
            await stream.publish(count, name)
        handle = await js.stream(stream.name)
        requests = dict(arguments)
        if "subject" in requests:
            requests["subject"] = stream.subject(requests["subject"])
        assert await handle.purge(**requests) == removed, arguments
        assert [message.seq for message in await stream.messages()] == remaining, arguments
        # The numbers continue after the existing messages, and after the purged messages.
        assert (await js.publish(stream.subject("a"))).seq == max(11, arguments.get("seq", 0))


async def test_excludes_each_other_or_forbidden(
    js: Any, tap: Proxy, oracle: Oracle, make_stream: Any
) -> None:
    """Row 138: exclusions."""
    stream = await make_stream(deny_purge=True, deny_delete=True)
    await stream.publish(3)
    handle = await js.stream(stream.name)
    with pytest.raises(jsclient.ConfigError, match="seq and keep"):
        await handle.purge(seq=2, keep=2)
    with pytest.raises(jsclient.InvalidNameError):
        await handle.purge(subject="a..b")
    assert tap.sent("$JS.API.STREAM.PURGE.>") == []
    for call in (handle.purge(), handle.purge(seq=2), handle.delete_message(1)):
        with pytest.raises(jsclient.ApiError) as caught:
            await call
        assert caught.value.code in (400, 500)
        assert caught.value.err_code > 0
    assert (await stream.state())["messages"] == 3
