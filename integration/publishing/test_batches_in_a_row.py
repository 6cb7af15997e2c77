"""Atomic batches one after another: once a batch was accepted on a subject, the next ones do not wait for the answer to
their first message. If it is a refusal, a later call raises it, and no message is stored. Source: ADR-50.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import Frame
from tests.support.calls import Calls

pytestmark = pytest.mark.server(">=2.12")

_FIRST_ANSWER = match.match(op="MSG", direction=match.TO_CLIENT, payload=b"")


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def near(tap: Proxy, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.fixture
async def stream(near: Any, oracle: Oracle, make_stream: Any) -> OwnStream:
    """A stream that has accepted a batch of two messages."""
    stream = await make_stream(allow_atomic=True)
    await batch_of(near, stream, 2)
    return stream


def _refuses(frame: Frame) -> bool:
    return frame.direction == match.TO_CLIENT and b'"error"' in frame.payload


async def batch_of(js: Any, stream: OwnStream, count: int, **options: Any) -> Any:
    async with js.batch(**options) as batch:
        for number in range(count):
            await batch.publish(stream.subject("a"), b"%d" % number)
    return batch.ack


async def messages(stream: OwnStream) -> int:
    return (await stream.state())["messages"]


async def test_first_answer_is_not_awaited(tap: Proxy, near: Any, stream: OwnStream) -> None:
    held = tap.hold_frames(_FIRST_ANSWER)
    ack = await within(30, batch_of(near, stream, 100), "a batch whose first answer is late")
    assert (ack.count, ack.seq, await messages(stream)) == (100, 102, 102)
    assert held.count == 1
    held.release()
    assert (await batch_of(near, stream, 3)).seq == 105


async def test_calls_and_writes_of_a_batch(near: Any, stream: OwnStream) -> None:
    """A message is two calls, and its command waits for others. The commit goes out with the last ones, at once."""
    await batch_of(near, stream, 2)
    connection = near._context.connection
    writes: list[int] = []
    write = connection.transport.write

    def noted(data: bytes) -> None:
        writes.append(data.count(b"HPUB "))
        write(data)

    connection.transport.write = noted
    with Calls() as small:
        await batch_of(near, stream, 2)
    assert writes == [2], "the first message and the commit"
    writes.clear()
    with Calls() as large:
        await batch_of(near, stream, 302)
    assert large.each(1) - small.each(1) < 2.2 * 300, large
    assert sum(writes) == 302
    assert 3 <= len(writes) <= 5, "a write for each `PIECE` bytes, and one for the rest with the commit"


async def test_turns_of_a_batch(near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop turns for the answers and to resume the caller, not for each message."""
    turns = 0
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        pytest.skip("only the loops of asyncio show their turns, uvloop's do not")
    run_once = loop._run_once  # type: ignore[attr-defined]

    def counted() -> None:
        nonlocal turns
        turns += 1
        run_once()

    monkeypatch.setattr(loop, "_run_once", counted)
    counts = []
    for _ in range(5):
        before = turns
        await batch_of(near, stream, 100)
        counts.append(turns - before)
    assert min(counts) <= 4, counts


async def test_plain_messages_after_a_cut_are_not_stored(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """Messages that wait to be written when the connection is lost. The end of the batch says so."""
    batch = near.batch()
    for number in range(5):
        await batch.publish(stream.subject("a"), b"%d" % number)
    near._context.connection._lose(OSError("cut"))
    for _ in range(2):
        with pytest.raises((jsclient.BatchAbandonedError, jsclient.ClosedError)):
            await batch.publish(stream.subject("a"), b"lost")
    with pytest.raises((jsclient.BatchAbandonedError, jsclient.ClosedError)):
        await batch.commit()
    await eventually(lambda: near.is_connected)
    assert await messages(stream) == 2
    assert (await batch_of(near, stream, 3)).count == 3


async def test_lost_first_answer_does_not_matter(tap: Proxy, near: Any, stream: OwnStream) -> None:
    tap.drop_frames(_FIRST_ANSWER)
    assert (await batch_of(near, stream, 5, timeout=5.0)).seq == 7


async def test_switched_off_is_the_error(tap: Proxy, near: Any, oracle: Oracle, stream: OwnStream) -> None:
    await oracle.update_stream(stream.name, allow_atomic=False)
    before = len(tap.frames)
    batch = near.batch()
    await batch.publish(stream.subject("a"))
    await batch.publish(stream.subject("a"))
    await tap.wait_for(_refuses, 60, before)
    await near.ping(60)  # its answer follows the refusal
    with pytest.raises(jsclient.BatchNotEnabledError):
        await batch.publish(stream.subject("a"))
    assert batch.is_closed
    with pytest.raises(jsclient.ClosedError):
        await batch.publish(stream.subject("a"))
    late = near.batch()  # from now on the answer to the first message is awaited
    await late.publish(stream.subject("a"))
    with pytest.raises(jsclient.BatchNotEnabledError):
        await late.publish(stream.subject("a"))
    assert await messages(stream) == 2


async def test_commit_of_switched_off(near: Any, oracle: Oracle, stream: OwnStream) -> None:
    await oracle.update_stream(stream.name, allow_atomic=False)
    with pytest.raises(jsclient.BatchNotEnabledError):
        await batch_of(near, stream, 10)
    assert await messages(stream) == 2


async def test_deleted_stream_is_the_error(near: Any, oracle: Oracle, stream: OwnStream) -> None:
    await oracle.delete_stream(stream.name)
    with pytest.raises(jsclient.NoRespondersError):
        await batch_of(near, stream, 10)
    batch = near.batch()
    await batch.publish(stream.subject("a"))
    await batch.publish(stream.subject("a"))
    await near.ping(60)  # its answer follows the refusal
    with pytest.raises(jsclient.NoRespondersError):
        await batch.publish(stream.subject("a"))
    assert batch.is_closed


async def test_too_many_batches_named(near: Any, stream: OwnStream) -> None:
    """The server takes 50 open batches a stream."""
    batches = [near.batch() for _ in range(51)]
    for batch in batches:
        await batch.publish(stream.subject("a"), b"1")
        await batch.publish(stream.subject("a"), b"2")
    # Before 2.14 the server has no error code for this.
    with pytest.raises((jsclient.TooManyBatchesError, jsclient.BatchIncompleteError)):
        await batches[-1].commit()
    for batch in batches:
        await batch.abandon()

    async def one_more() -> bool:
        return (await batch_of(near, stream, 2)).count == 2

    await eventually(one_more, what="abandoned batches are dropped")


async def test_lost_connection_stores_none(tap: Proxy, near: Any, stream: OwnStream) -> None:
    tap.hold_frames(_FIRST_ANSWER)
    batch = near.batch()
    for _ in range(3):
        await batch.publish(stream.subject("a"))
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected)
    with pytest.raises(jsclient.BatchAbandonedError, match="nothing was stored"):
        await batch.publish(stream.subject("a"))
    await tap.accept()
    await eventually(lambda: near.is_connected)
    assert await messages(stream) == 2
    assert (await batch_of(near, stream, 2)).count == 2


async def without_leader(near: Any, oracle: Oracle, stream: OwnStream, timeout: float = 60.0) -> Any:
    """A batch of three messages. No stream accepted the first message, as in an election."""
    await oracle.delete_stream(stream.name)
    batch = near.batch(timeout=timeout)
    for number in range(1, 4):
        await batch.publish(stream.subject("a"), b"%d" % number)
    await near.ping(60)  # its answer follows the answer to the first message
    return batch


async def payloads(stream: OwnStream) -> list[bytes]:
    return [message.payload for message in await stream.messages()]


async def test_batch_is_sent_again_after_an_election(near: Any, oracle: Oracle, stream: OwnStream) -> None:
    batch = await without_leader(near, oracle, stream)
    await oracle.create_stream(stream.name, [stream.all], allow_atomic=True)
    await batch.publish(stream.subject("a"), b"4")
    assert (await batch.commit()).count == 4
    assert await payloads(stream) == [b"1", b"2", b"3", b"4"]


async def test_cancelled_while_it_is_sent_again(near: Any, oracle: Oracle, stream: OwnStream) -> None:
    """Without the message of the cancelled call, none is stored."""
    batch = await without_leader(near, oracle, stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(batch.publish(stream.subject("a"), b"4"), 0.3)
    assert batch.is_closed
    await oracle.create_stream(stream.name, [stream.all], allow_atomic=True)
    with pytest.raises(jsclient.ClosedError):
        await batch.publish(stream.subject("a"), b"5")
    assert await messages(stream) == 0


async def test_failure_while_it_is_sent_again_ends_it(near: Any, oracle: Oracle, stream: OwnStream) -> None:
    batch = await without_leader(near, oracle, stream, timeout=3.0)
    with pytest.raises((jsclient.NoRespondersError, jsclient.BatchAbandonedError)):
        await batch.publish(stream.subject("a"), b"4")
    assert batch.is_closed


async def test_error_of_commit_is_its_own(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """The first answer is lost. What the server says to the commit is the error, not that loss."""
    tap.drop_frames(_FIRST_ANSWER)
    batch = near.batch()
    await batch.publish(stream.subject("a"))
    await batch.publish(stream.subject("a"))
    with pytest.raises(jsclient.WrongLastSequenceError):
        await batch.commit(stream.subject("b"), expected_last_subject_seq=77)


async def test_first_message_lost_with_connection(tap: Proxy, near: Any, stream: OwnStream) -> None:
    batch = near.batch()
    held = tap.hold_frames(match.match(direction=match.TO_SERVER, subject=stream.subject("a")), count=1)
    for _ in range(2):
        await batch.publish(stream.subject("a"))
    await eventually(lambda: held.count == 1, what="the first message reached the proxy")
    tap.cut()
    await eventually(lambda: near.stats().reconnects == 1, what="the reconnect")
    with pytest.raises((jsclient.BatchAbandonedError, jsclient.BatchIncompleteError)):
        await batch.commit()
    assert await messages(stream) == 2


async def test_too_many_with_ack_every(near: Any, stream: OwnStream) -> None:
    batches = [near.batch() for _ in range(50)]
    for batch in batches:
        await batch.publish(stream.subject("a"))
        await batch.publish(stream.subject("a"))
    late = near.batch(ack_every=2)
    await late.publish(stream.subject("a"))
    await late.publish(stream.subject("a"))
    # Before 2.14 the server has no error code for this.
    with pytest.raises((jsclient.TooManyBatchesError, jsclient.BatchIncompleteError)) as caught:
        await late.publish(stream.subject("a"))
    if near.server_version >= "2.14":
        assert isinstance(caught.value, jsclient.TooManyBatchesError)
    for batch in batches:
        await batch.abandon()
