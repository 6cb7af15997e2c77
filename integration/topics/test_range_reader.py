"""Reading a range of a stream to its end: exact, or an error that says what was lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import number_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from jsclient.tables.range_reader import ConsumerRange, DirectRange

WAYS = pytest.mark.parametrize(
    "way", [ConsumerRange, pytest.param(DirectRange, marks=pytest.mark.server(">=2.11"))]
)


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def opened(js: Any, stream: OwnStream, way: Any, first: int, last: int, **options: Any) -> Any:
    return way(await js.stream(stream.name), first, last, **options)


def numbers(messages: list[Any]) -> list[int]:
    """Of what either way gives."""
    return [number_of(frame[3]) for frame in messages]


async def read_all(reader: Any, expected: int = 1000) -> list[int]:
    """The numbers in all messages."""

    async def read() -> list[int]:
        got: list[int] = []
        try:
            while messages := await reader.read_messages(expected):
                got += numbers(messages)
        finally:
            await reader.close()
        return got

    return await within(20, read(), "reading a range")


@WAYS
@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1, 3000, range(1, 3001)),
        (17, 17, [17]),
        (100, 2000, range(100, 2001)),
        (2990, 9999, range(2990, 3001)),
        (3001, 9999, []),
        (5, 4, []),
    ],
)
async def test_range_gives_lies_between_ends(
    js: Any, server: Any, oracle: Any, make_stream: Any, way: Any, first: int, last: int, expected: Any
) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(3000)
    await js.account_info()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        assert await read_all(await opened(js, stream, way, first, last)) == [*expected]


@WAYS
async def test_deleted_messages_at_every_place(js: Any, oracle: Any, make_stream: Any, way: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(60)
    missing = {1, 2, 3, 20, 21, 40, 58, 59}
    for seq in missing:
        await stream.oracle.delete_message(stream.name, seq)
    for first, last in [(4, 60), (19, 22), (20, 21), (40, 40), (57, 60), (58, 59), (22, 57)]:
        reader = await opened(js, stream, way, first, last)
        assert await read_all(reader) == [n for n in range(first, last + 1) if n not in missing]
    await stream.oracle.delete_message(stream.name, 60)
    assert await read_all(await opened(js, stream, way, 50, 60)) == [50, 51, 52, 53, 54, 55, 56, 57]


@WAYS
async def test_filter_few_messages_pass(js: Any, oracle: Any, make_stream: Any, way: Any) -> None:
    stream = await make_stream(allow_direct=True)
    for part in range(4):
        await stream.publish(500, "many", first=part * 501 + 1)
        await stream.publish(1, "few", first=part * 501 + 501)
    subjects = [stream.subject("few")]
    assert await read_all(await opened(js, stream, way, 1, 2004, subjects=subjects)) == [
        501,
        1002,
        1503,
        2004,
    ]
    assert await read_all(await opened(js, stream, way, 502, 2003, subjects=subjects)) == [1002, 1503]
    assert await read_all(await opened(js, stream, way, 502, 1001, subjects=subjects)) == []


async def test_several_filters(js: Any, stream: OwnStream) -> None:
    for number, token in enumerate("abcabcabc", 1):
        await stream.publish(1, token, first=number)
    subjects = [stream.subject("a"), stream.subject("c")]
    assert await read_all(await opened(js, stream, ConsumerRange, 2, 9, subjects=subjects)) == [3, 4, 6, 7, 9]
    assert await read_all(await opened(js, stream, ConsumerRange, 2, 8, subjects=subjects)) == [3, 4, 6, 7]


@WAYS
async def test_messages_beyond_request(js: Any, oracle: Any, make_stream: Any, way: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(12, size=300_000)
    reader = await opened(js, stream, way, 1, 12, max_bytes=1000)
    assert await read_all(reader) == [*range(1, 13)]


async def test_no_more_asked_for_than_range_holds(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(5000)
    assert await read_all(await opened(near, stream, ConsumerRange, 1001, 2000)) == [*range(1001, 2001)]
    delivered = [frame for frame in tap.received() if (frame.reply or "").startswith("$JS.ACK.")]
    assert len(delivered) == 1000


@pytest.mark.core_cases(1)
@WAYS
async def test_lost_messages_asked_again(
    tap: Any, near: Any, oracle: Any, make_stream: Any, way: Any
) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(1000, size=16)
    chance = random.Random(7)
    lossy = tap.drop_frames(lambda frame: frame.payload.endswith(b"...") and chance.random() < 0.05)
    assert await read_all(await opened(near, stream, way, 1, 1000)) == [*range(1, 1001)]
    assert lossy.count > 10


@WAYS
async def test_removed_before_read_reported(js: Any, oracle: Any, make_stream: Any, way: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(100)
    await stream.oracle.purge(stream.name, seq=31)
    with pytest.raises(jsclient.HistoryTruncatedError) as caught:
        await read_all(await opened(js, stream, way, 11, 90))
    assert (caught.value.first_available, caught.value.wanted) == (31, 11)
    reports = await opened(js, stream, way, 11, 90, check_loss=False)
    assert await read_all(reports) == [*range(31, 91)]
    await stream.purge()
    with pytest.raises(jsclient.HistoryTruncatedError) as caught:
        await read_all(await opened(js, stream, way, 50, 90))
    assert (caught.value.first_available, caught.value.wanted) == (101, 50)


@WAYS
async def test_removed_while_read_reported(js: Any, oracle: Any, make_stream: Any, way: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(100, size=50_000)
    reader = await opened(js, stream, way, 1, 100, max_bytes=1000)
    first = numbers(await reader.read_messages(1))
    assert len(first) < 50, "the rest is not yet asked for"
    await stream.oracle.purge(stream.name, seq=96)
    with pytest.raises(jsclient.HistoryTruncatedError) as caught:
        await read_all(reader)
    assert caught.value.first_available == 96
    assert len(first) < (caught.value.wanted or 0) < 96


@WAYS
async def test_another_stream_under_name_not_read(js: Any, oracle: Any, make_stream: Any, way: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(10)
    created = (await (await js.stream(stream.name)).info()).created
    await stream.delete()
    await stream.oracle.create_stream(stream.name, [stream.all], allow_direct=True)
    await stream.publish(10)
    with pytest.raises(jsclient.PositionInvalidError, match="was recreated"):
        await read_all(await opened(js, stream, way, 1, 10, created=created))


async def test_server_restarts_in_middle(own_server: Any, connect: Any, oracle_for: Any) -> None:
    """Every message once, though connection and consumer are created again."""
    server = await own_server()
    oracle = await oracle_for(server)
    stream = await OwnStream.create(oracle, "restart", storage="file", allow_direct=True)
    await stream.publish(20_000, size=100)
    js = await connect(server)
    reader = await opened(js, stream, ConsumerRange, 1, 20_000, max_bytes=64 * 1024)
    got = numbers(await reader.read_messages(100))
    await server.kill()
    await server.start()
    got += await read_all(reader)
    assert got == [*range(1, 20_001)]


@pytest.mark.server(">=2.11")
async def test_lagging_replica_continues(js: Any, oracle: Any, make_stream: Any) -> None:
    """Like a lagging replica of a cluster, it answers that the stream has ended. The leader knows better."""

    class Lagging(DirectRange):
        ends = 0

        async def _page(self) -> Any:
            frames, ending = await super()._page()
            known = [frame for frame in frames if number_of(frame[3]) <= self.ends * 20]
            if len(known) < len(frames):
                self.ends += 1
                return known, jsclient.Ending.NO_MESSAGES
            return frames, ending

    stream = await make_stream(allow_direct=True)
    await stream.publish(100)
    reader = await opened(js, stream, Lagging, 1, 100)
    assert await read_all(reader) == [*range(1, 101)]
    assert reader.ends == 5
