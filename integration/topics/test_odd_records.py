"""Records with header blocks that no client writes: every reader of a topic gets past them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import jsclient
from integration.consumers.test_poison_messages import store_raw
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient.events import RecordSkipped

pytestmark = pytest.mark.usefixtures("oracle")

BLOCKS: list[tuple[str, bytes]] = [
    ("no line end", b"NATS/1.0"),
    ("one line end", b"NATS/1.0\r\n"),
    ("no version", b"XXXX\r\n\r\n"),
    ("two bytes", b"NA"),
    ("only an empty line", b"\r\n"),
    ("a status", b"NATS/1.0 409 Consumer Deleted\r\n\r\n"),
    ("an end of batch", b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1\r\n\r\n"),
    ("no responders", b"NATS/1.0 503\r\n\r\n"),
    ("an unfinished line", b"NATS/1.0\r\nA: 1\r\nB: 22"),
    ("a forged sequence", b"NATS/1.0\r\nNats-Sequence: x\r\nNats-Subject: y\r\n\r\n"),
    ("a forged stream", b"NATS/1.0\r\nNats-Stream: x\r\nNats-Subject: y\r\n\r\n"),
    ("lines after the end", b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n"),
    ("not UTF-8", b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n"),
]
odd_blocks = pytest.mark.parametrize(
    "block", [block for _, block in BLOCKS], ids=[name for name, _ in BLOCKS]
)
DATA = [b"1", b"2", b"3", b"4", b"5"]


async def stored(server: Any, stream: OwnStream, block: bytes, *, values: list[bytes] = DATA) -> str:
    """Store five records of which the third has this header block. Their subject."""
    subject = stream.subject("a")
    blocks = [b"", b"", block, b"", b""]
    await store_all(
        server, stream, [(subject.encode(), own, data) for own, data in zip(blocks, values, strict=True)]
    )
    return subject


async def store_all(server: Any, stream: OwnStream, records: list[tuple[bytes, bytes, bytes]]) -> None:
    """Publish them as raw bytes and wait until the stream has them."""
    end = (await stream.state())["last_seq"] + len(records)
    await store_raw(server.url, records)

    async def all_stored() -> bool:  # a PONG does not say so
        return bool((await stream.state())["last_seq"] >= end)

    await eventually(all_stored, what=f"{len(records)} records")


async def first(source: Any, count: int = 5) -> list[bytes]:
    got: list[bytes] = []
    async for record in source:
        got.append(record.data)
        if len(got) == count:
            break
    return got


@pytest.mark.core_cases(20)
@odd_blocks
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "consumer"])
@pytest.mark.parametrize("push", ["republish", "consumer", None])
async def test_each_and_since_read_odd_blocks(
    server: Any, js: Any, make_stream: Any, block: bytes, direct: bool, push: Any
) -> None:
    stream = await make_stream(allow_direct=direct, republish={"src": ">", "dest": "pushed.>"})
    subject = stream.subject("a")
    topic = js.topic(subject, stream=stream.name)
    async with topic.each("now", push=push, quiet=0.3) as live:
        await stored(server, stream, block)
        assert await within(10, first(live), "five live records") == DATA
    async with topic.each(push=push) as reader:
        assert await within(10, first(reader, 2), "two records") == DATA[:2]
        token = reader.position.to_json()
    assert await within(10, first(topic.since(token, push=push), 3), "the others") == DATA[2:]


@pytest.mark.core_cases(8)
@odd_blocks
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "leader"])
async def test_latest_and_events_read_odd_blocks(
    server: Any, js: Any, make_stream: Any, block: bytes, direct: bool
) -> None:
    stream = await make_stream(allow_direct=direct, republish={"src": ">", "dest": "pushed.>"})
    subject = stream.subject("a")
    await store_all(server, stream, [(subject.encode(), b"", b"0"), (subject.encode(), block, b"odd")])
    topic = js.topic(subject, stream=stream.name)
    async with topic.latest() as latest:
        assert (await latest.next(5)).data == b"odd"
        await js.publish(subject, b"2")
        assert (await latest.next(5)).data == b"2"
        await store_raw(server.url, [(subject.encode(), block, b"pushed")])
        assert (await latest.next(5)).data == b"pushed"
    history = js.events(subject, stream=stream.name).history()
    assert [event.data for event in await history] == [b"0", b"odd", b"2", b"pushed"]


@pytest.mark.server(">=2.11")  # batches of stored messages
@pytest.mark.parametrize(
    "block", [*(block for _, block in BLOCKS), b"N"]
)  # on a stream that republishes, servers end
async def test_direct_gets_read_odd_blocks(server: Any, js: Any, make_stream: Any, block: bytes) -> None:
    stream = await make_stream(allow_direct=True)
    subject = await stored(server, stream, block)
    handle = await js.stream(stream.name)
    batch = handle.get_batch(10)
    actual = [(message.seq, message.subject, message.data) async for message in batch]
    assert actual == [(seq, subject, data) for seq, data in enumerate(DATA, 1)]
    assert (await handle.get_message(3, direct=True)).data == b"3"
    assert (await handle.get_message(3)).data == b"3"
    await js.publish(subject, b"6")
    assert [message.seq async for message in handle.get_last_messages(subject)] == [6]


async def values(source: Any) -> AsyncIterator[Any]:
    async for value in source:
        yield value


@pytest.mark.core_cases(5)
@odd_blocks
async def test_kits_read_odd_blocks(server: Any, js: Any, make_stream: Any, block: bytes) -> None:
    stream = await make_stream(allow_direct=True, republish={"src": ">", "dest": "pushed.>"})
    kit = await js.subscription_kit(stream.subject("a"), stream=stream.name)
    await kit.publication.update_state(1)
    subject = await stored(server, stream, block)
    kit = await js.subscription_kit(subject, stream=stream.name)
    notifiers = await js.notifier_kit(subject, stream=stream.name)
    await kit.publication.update_state(2)
    await stored(server, stream, block)
    await kit.publication.finish("end")
    assert await within(5, notifiers.notifier.completion(), "the end") == "end"
    await stored(server, stream, block)
    assert [value async for value in kit.subscription] == [1, 2]
    with pytest.raises(jsclient.ClosedError):
        await (await js.subscription_kit(subject, stream=stream.name)).publication.update_state(3)


@pytest.mark.parametrize(
    "odd",
    [b"{", b"[" * 200_000, b"\xff", b'"\xff"'],
    ids=["no JSON", "too deep", "no UTF-8", "text that is no UTF-8"],
)
async def test_kits_pass_over_values_not_json(
    server: Any, js: Any, events: list[Any], make_stream: Any, odd: bytes
) -> None:
    stream = await make_stream(allow_direct=True, republish={"src": ">", "dest": "pushed.>"})
    subject = stream.subject("a")
    for number, data in enumerate([b"1", b"2", odd, b"4", odd]):
        await js.publish(subject, data, msg_id=f"jsc-other:{number}")
    kit = await js.subscription_kit(subject, stream=stream.name)
    notifiers = await js.notifier_kit(subject, stream=stream.name)
    reading = aiter(notifiers.notifier)
    updates = js.make_notifier(await notifiers.notifier.get_sharable_notifier_internals())
    waiting = updates.get_update_since()
    await kit.publication.update_state(6)
    assert (await within(5, waiting, "a value")).value == 6
    assert await within(5, anext(reading), "a value") == 6
    await kit.publication.finish("end")
    assert [value async for value in kit.subscription] == [1, 2, 4, 6]
    await eventually(lambda: any(isinstance(one, RecordSkipped) for one in events), what="an event")
    skipped = [one for one in events if isinstance(one, RecordSkipped)]
    assert {(one.stream, one.stream_seq, one.count) for one in skipped} >= {(stream.name, 3, 1)}
    assert all(isinstance(one.error, jsclient.ProtocolError) for one in skipped)
