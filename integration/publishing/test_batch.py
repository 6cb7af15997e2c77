"""Atomic batches: all is stored or nothing, and the publisher learns which. Source: ADR-50.

Row 134 names the tests of nats.js that are matched here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy

pytestmark = pytest.mark.server(">=2.12")


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def near(tap: Proxy, connect: Any, oracle: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await make_stream(allow_atomic=True)


def numbers(tap: Proxy, stream: OwnStream) -> list[str | None]:
    """The messages that were sent, by their number in the batch. The commit is marked."""
    return [
        f"{frame.header('Nats-Batch-Sequence')}{'c' if frame.header('Nats-Batch-Commit') else ''}"
        for frame in tap.sent(stream.all)
    ]


async def stored(stream: OwnStream) -> list[bytes]:
    if not (await stream.state())["messages"]:
        return []
    return [message.payload for message in await stream.messages()]


async def batched(js: Any, *messages: Any, fail: Exception | None = None, **options: Any) -> Any:
    """Publish a batch of messages, each a subject or a subject and what else, then `fail`. The batch."""
    async with js.batch(**options) as batch:
        for message in messages:
            subject, arguments = (message, {}) if isinstance(message, str) else message
            await batch.publish(subject, **arguments)
        if fail is not None:
            raise fail
    return batch


async def slots_free(near: Any, stream: OwnStream) -> bool:
    """Whether the server has no open batch, so that it accepts the maximum number of new batches."""
    batches = [near.batch() for _ in range(50)]
    try:
        for batch in batches:
            await batch.publish(stream.subject("slot"))
            await batch.publish(stream.subject("slot"))
    except (jsclient.TooManyBatchesError, jsclient.BatchIncompleteError):
        return False
    finally:
        for batch in batches:
            await batch.abandon()
    return True


# --- stored ------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("count", [1, 2, 100])
async def test_leaving_block_stores_all_of(tap: Proxy, near: Any, stream: OwnStream, count: int) -> None:
    """Row 134: batch publisher - basics."""
    async with near.batch() as batch:
        for number in range(1, count + 1):
            assert await batch.publish(stream.subject(number), b"%d" % number) == number
        assert await stored(stream) == []
        assert batch.ack is None
        assert not batch.is_closed
    assert (batch.ack.stream, batch.ack.seq, batch.ack.count) == (stream.name, count, count)
    assert batch.ack.batch == batch.id
    assert (len(batch), batch.is_closed) == (count, True)
    assert await stored(stream) == [b"%d" % number for number in range(1, count + 1)]
    assert numbers(tap, stream) == [*map(str, range(1, count)), f"{count}c"]
    # The first and the commit are answered, nothing between is asked for.
    assert [bool(frame.reply) for frame in tap.sent(stream.all)].count(True) == min(count, 2)


async def test_commit_may_bring_last_message(tap: Proxy, near: Any, stream: OwnStream) -> None:
    batch = near.batch()
    await batch.publish(stream.subject("a"), b"1", headers={"Mine": "1"})
    await batch.publish(stream.subject("b"), b"2")
    ack = await batch.commit(stream.subject("c"), b"3", headers={"Mine": "3"}, ttl=None)
    assert (ack.count, batch.ack) == (3, ack)
    assert await stored(stream) == [b"1", b"2", b"3"]
    headers = [message.headers.decode() for message in await stream.messages()]
    assert ["Mine: 1" in headers[0], "Mine" in headers[1], "Mine: 3" in headers[2]] == [True, False, True]
    assert numbers(tap, stream) == ["1", "2", "3c"]


async def test_batch_of_one(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ack = await near.batch().commit(stream.subject("a"), b"1")
    assert (ack.seq, ack.count) == (1, 1)
    assert numbers(tap, stream) == ["1c"]


async def test_empty_commit_call(near: Any, stream: OwnStream) -> None:
    async with near.batch() as batch:
        await batch.publish(stream.subject("a"), b"1")
        ack = await batch.commit()
        assert ack.count == 1
        with pytest.raises(jsclient.ClosedError):
            await batch.publish(stream.subject("a"), b"2")
        with pytest.raises(jsclient.ClosedError):
            await batch.commit()
    assert batch.ack == ack
    assert await stored(stream) == [b"1"]


async def test_empty_batch_stores_nothing(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async with near.batch() as batch:
        pass
    assert (batch.ack, batch.is_closed) == (None, True)
    with pytest.raises(jsclient.ConfigError, match="empty"):
        await near.batch().commit()
    assert tap.sent(stream.all) == []


async def test_ack_every_waits_for_server(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async with near.batch(ack_every=20) as batch:
        for number in range(100):
            await batch.publish(stream.subject("a"), b"%d" % number)
    requests = [number for number, frame in enumerate(tap.sent(stream.all), start=1) if frame.reply]
    assert requests == [1, 20, 40, 60, 80, 100]
    assert batch.ack.count == 100


async def test_tasks_may_publish_at_same_time(near: Any, stream: OwnStream) -> None:
    async with near.batch(ack_every=3) as batch:
        arguments = await asyncio.gather(
            *(batch.publish(stream.subject("a"), b"%d" % number) for number in range(1, 51))
        )
    assert arguments == list(range(1, 51))
    assert await stored(stream) == [b"%d" % number for number in range(1, 51)]


async def test_messages_of_batch_lie_side_by_side(js: Any, near: Any, stream: OwnStream) -> None:
    async with near.batch() as batch:
        for number in range(10):
            await batch.publish(stream.subject("a"), b"batch")
            if number % 3 == 0:
                await js.publish(stream.subject("a"), b"alone")
    assert await stored(stream) == [b"alone"] * 4 + [b"batch"] * 10
    assert (batch.ack.seq, batch.ack.count) == (14, 10)


async def test_batch_on_nats_py(natspy_js: Any, stream: OwnStream) -> None:
    async with natspy_js.batch(ack_every=5) as batch:
        for number in range(12):
            await batch.publish(stream.subject("a"), b"%d" % number, headers={"Many": ["1", "2"]})
    assert batch.ack.count == 12
    assert len(await stored(stream)) == 12
    with pytest.raises(ZeroDivisionError):
        await batched(natspy_js, *[stream.subject("a")] * 12, fail=ZeroDivisionError())
    assert len(await stored(stream)) == 12


async def test_limit_thousand_messages(near: Any, stream: OwnStream) -> None:
    batch = await batched(near, *[stream.subject("a")] * 1000)
    assert batch.ack.count == 1000
    with pytest.raises(jsclient.BatchTooLargeError):
        await batched(near, *[stream.subject("a")] * 1001)
    assert (await stream.state())["messages"] == 1000


# --- nothing stored ----------------------------------------------------------------------------------------


async def test_exception_in_block_leaves_nothing(near: Any, stream: OwnStream) -> None:
    batch = near.batch()

    async def work() -> None:
        async with batch:
            for _ in range(5):
                await batch.publish(stream.subject("a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert (batch.ack, batch.is_closed) == (None, True)
    await batch.abandon()  # harmless
    with pytest.raises(jsclient.ClosedError):
        await batch.publish(stream.subject("a"))
    assert await stored(stream) == []


async def test_abandoned_batch_makes_room_at_once(near: Any, stream: OwnStream) -> None:
    """The server takes 50 open batches a stream. One that is left alone counts for 10 s."""
    for _ in range(60):
        batch = near.batch()
        await batch.publish(stream.subject("a"), b"1")
        await batch.publish(stream.subject("a"), b"2")
        await batch.abandon()
    assert await slots_free(near, stream)
    assert await stored(stream) == []


async def test_too_many_batches_named(near: Any, stream: OwnStream) -> None:
    batches = [near.batch() for _ in range(51)]
    for batch in batches:
        await batch.publish(stream.subject("a"), b"1")
    # At once, because the server drops a batch after 10 s without a message.
    await asyncio.gather(*(batch.publish(stream.subject("a"), b"2") for batch in batches[:-1]))
    # Before 2.14 the server has no error code for this.
    with pytest.raises((jsclient.TooManyBatchesError, jsclient.BatchIncompleteError)):
        await batches[-1].publish(stream.subject("a"), b"2")
    assert batches[-1].is_closed
    assert not batches[-2].is_closed
    for batch in batches:
        await batch.abandon()


async def test_not_enabled_named(tap: Proxy, near: Any, make_stream: Any) -> None:
    """Row 134: batch publisher - no atomics."""
    plain = await make_stream()
    batch = near.batch()
    await batch.publish(plain.subject("a"), b"1")
    with pytest.raises(jsclient.BatchNotEnabledError):
        await batch.publish(plain.subject("a"), b"2")
    with pytest.raises(jsclient.ClosedError):
        await batch.commit()
    with pytest.raises(jsclient.BatchNotEnabledError):
        await near.batch().commit(plain.subject("a"), b"1")
    assert await stored(plain) == []


async def test_two_streams_in_batch_store_nothing(near: Any, make_stream: Any) -> None:
    """Row 134: batch publisher - two streams."""
    one, two = await make_stream(allow_atomic=True), await make_stream(allow_atomic=True)
    with pytest.raises(jsclient.BatchIncompleteError):
        await batched(near, one.subject("a"), two.subject("a"), one.subject("a"))
    batch = near.batch(ack_every=1)
    await batch.publish(one.subject("a"))
    await batch.publish(two.subject("a"))
    with pytest.raises(jsclient.BatchIncompleteError):
        await batch.publish(one.subject("a"))
    with pytest.raises(jsclient.ClosedError):
        await batch.commit(one.subject("a"))
    assert (await stored(one), await stored(two)) == ([], [])


@pytest.mark.parametrize("dropped", [2, 3, 5])
async def test_message_lost_spoils_batch(tap: Proxy, near: Any, stream: OwnStream, dropped: int) -> None:
    """Row 134: batch publisher - out of sequence."""
    tap.drop_frames(match.match(op="PUB", header=("Nats-Batch-Sequence", str(dropped))))
    with pytest.raises(jsclient.BatchIncompleteError):
        await batched(near, *[stream.subject("a")] * 6)
    assert await stored(stream) == []
    assert await slots_free(near, stream)


async def test_message_comes_twice_spoils_batch(tap: Proxy, near: Any, stream: OwnStream) -> None:
    tap.duplicate_frames(match.match(op="PUB", header=("Nats-Batch-Sequence", "3")))
    with pytest.raises(jsclient.BatchIncompleteError):
        await batched(near, *[stream.subject("a")] * 6)
    assert await stored(stream) == []


async def test_last_sequence_checked_at_commit(near: Any, js: Any, stream: OwnStream) -> None:
    """Row 134: batch publisher - expect last seq."""
    one = stream.subject("a")
    with pytest.raises(jsclient.WrongLastSequenceError):
        await batched(near, (one, {"expected_last_seq": 5}), one)
    assert await stored(stream) == []
    async with near.batch() as batch:
        await batch.publish(stream.subject("a"), expected_last_seq=0)
        await batch.publish(stream.subject("b"), expected_last_subject_seq=0, expected_stream=stream.name)
    assert batch.ack.seq == 2
    batch = near.batch()
    await batch.publish(one, expected_last_seq=2)
    await batch.publish(one)
    await js.publish(stream.subject("b"))
    with pytest.raises(jsclient.WrongLastSequenceError):
        await batch.commit()
    with pytest.raises(jsclient.WrongLastSequenceError):
        await near.batch().commit(one, expected_last_subject_seq=2)
    assert (await stream.state())["last_seq"] == 3


async def test_stored_id_spoils_batch(near: Any, stream: OwnStream) -> None:
    one, two, three = ((stream.subject("a"), {"msg_id": number}) for number in ("1", "2", "3"))
    await batched(near, one, two)
    with pytest.raises(jsclient.BatchDuplicateError):
        await batched(near, three, two)
    assert (await stream.state())["last_seq"] == 2


async def test_streamless_no_responders(near: Any, stream: OwnStream) -> None:
    with pytest.raises(jsclient.NoRespondersError):
        await near.batch().commit("nobody.listens.here")
    batch = near.batch()
    await batch.publish("nobody.listens.here")
    with pytest.raises(jsclient.NoRespondersError):
        await batch.publish(stream.subject("a"))
    batch = near.batch()
    await batch.publish(stream.subject("a"))
    with pytest.raises(jsclient.NoRespondersError):
        await batch.commit("nobody.listens.here")
    assert batch.is_closed
    assert await stored(stream) == []


async def test_swallowed_failure_raised(near: Any, make_stream: Any) -> None:
    plain = await make_stream()

    async def work() -> None:
        async with near.batch() as batch:
            for _ in range(3):
                try:
                    await batch.publish(plain.subject("a"))
                except jsclient.JetStreamError:
                    pass

    with pytest.raises(jsclient.BatchNotEnabledError):
        await work()


BAD: list[Any] = [
    ({"subject": "a b"}, jsclient.InvalidNameError),
    ({"subject": "a.>"}, jsclient.InvalidNameError),
    ({"data": "text"}, jsclient.ConfigError),
    ({"data": bytes(2**20)}, jsclient.MaxPayloadError),
    ({"headers": {"Nats-Batch-Id": "x"}}, jsclient.ConfigError),
    ({"headers": {"Nats-Batch-Commit": "1"}}, jsclient.ConfigError),
    ({"headers": {"Nats-Expected-Last-Msg-Id": "x"}}, jsclient.ConfigError),
    ({"headers": {"Nats-Expected-Last-Sequence": "1"}}, jsclient.ConfigError),
    ({"headers": {"A": "1\r\n"}}, jsclient.InvalidNameError),
    ({"expected_last_seq": 1}, jsclient.ConfigError),
    ({"ttl": 0.1}, jsclient.ConfigError),
    ({"msg_id": ""}, jsclient.ConfigError),
]


@pytest.mark.parametrize(("given", "error"), BAD)
async def test_bad_message_keeps_batch(
    tap: Proxy, near: Any, stream: OwnStream, given: dict[str, Any], error: type[Exception]
) -> None:
    async with near.batch() as batch:
        await batch.publish(stream.subject("a"), b"1")
        with pytest.raises(error):
            await batch.publish(**{"subject": stream.subject("a"), **given})
        assert len(batch) == 1
        assert tap.sent(stream.all) == []
        await batch.publish(stream.subject("a"), b"2")
    assert batch.ack.count == 2


@pytest.mark.parametrize(
    "options", [{"ack_every": 0}, {"ack_every": True}, {"ack_every": 1.5}, {"timeout": 0}]
)
async def test_options_out_of_range_refused(near: Any, options: dict[str, Any]) -> None:
    with pytest.raises(jsclient.ConfigError):
        near.batch(**options)


# --- the connection ----------------------------------------------------------------------------------------


async def test_lost_connection_stores_none(tap: Proxy, near: Any, stream: OwnStream) -> None:
    batch = near.batch(ack_every=4)
    for _ in range(3):
        await batch.publish(stream.subject("a"))
    held = tap.hold_frames(match.match(op="MSG", direction=match.TO_CLIENT, payload=b""))
    publishing = asyncio.create_task(_publish(batch, stream, 5))
    await held.wait()
    tap.cut()
    with pytest.raises(jsclient.BatchAbandonedError, match="nothing was stored") as caught:
        await within(30, publishing, "the publish")
    assert isinstance(caught.value.__cause__, jsclient.DisconnectedError)
    held.release()
    await tap.wait_links(2)
    with pytest.raises(jsclient.ClosedError):
        await batch.publish(stream.subject("a"))
    assert await stored(stream) == []


async def _publish(batch: Any, stream: OwnStream, count: int) -> None:
    for _ in range(count):
        await batch.publish(stream.subject("a"))


async def test_offline_publish_abandons(tap: Proxy, near: Any, stream: OwnStream) -> None:
    batch, other = near.batch(), near.batch()
    for one in (batch, other):
        for _ in range(3):
            await one.publish(stream.subject("a"))
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, what="the disconnect")
    with pytest.raises(jsclient.BatchAbandonedError):
        await batch.publish(stream.subject("a"))
    with pytest.raises(jsclient.BatchAbandonedError):
        await other.commit()
    await tap.accept()
    await eventually(lambda: near.is_connected, what="the reconnect")
    assert await stored(stream) == []


async def test_lost_messages_spoil_batch(tap: Proxy, near: Any, stream: OwnStream) -> None:
    tap.drop_frames(match.match(op="PUB", header=("Nats-Batch-Sequence", "3")))
    batch = near.batch()
    for _ in range(5):
        await batch.publish(stream.subject("a"))
    tap.cut()
    await tap.wait_links(2)
    await eventually(lambda: near.is_connected, what="the reconnect")
    with pytest.raises(jsclient.BatchIncompleteError):
        await batch.commit(stream.subject("a"))
    assert await stored(stream) == []


@pytest.mark.parametrize("cut", [True, False])
async def test_answer_to_commit_lost_means_unknown(
    tap: Proxy, near: Any, stream: OwnStream, cut: bool
) -> None:
    batch = near.batch(timeout=60.0 if cut else 2.0)
    await batch.publish(stream.subject("a"), b"1")
    lost = tap.hold_frames(match.is_publish_ack)
    committing = asyncio.create_task(batch.commit(stream.subject("a"), b"2"))
    await lost.wait()
    if cut:
        tap.cut()
    with pytest.raises((jsclient.DisconnectedError, jsclient.RequestTimeoutError), match="unknown"):
        await within(30, committing, "the commit")
    assert batch.is_closed
    assert batch.ack is None
    assert not isinstance(committing.exception(), jsclient.PublishError)
    # It was stored, and the id in the headers is the proof.
    assert await stored(stream) == [b"1", b"2"]
    assert all(batch.id.encode() in message.headers for message in await stream.messages())
    with pytest.raises(jsclient.ClosedError):
        await batch.commit()


async def test_unanswered_first_abandons(tap: Proxy, near: Any, stream: OwnStream) -> None:
    tap.drop_frames(match.match(op="MSG", direction=match.TO_CLIENT, payload=b""))
    batch = near.batch(timeout=0.3)
    await batch.publish(stream.subject("a"))
    with pytest.raises(jsclient.BatchAbandonedError) as caught:
        await batch.publish(stream.subject("a"))
    assert isinstance(caught.value.__cause__, jsclient.RequestTimeoutError)
    assert await stored(stream) == []


async def test_cancelled_publish_abandons_batch(tap: Proxy, near: Any, stream: OwnStream) -> None:
    held = tap.hold_frames(match.match(op="MSG", direction=match.TO_CLIENT, payload=b""))
    batch = near.batch()
    await batch.publish(stream.subject("a"))
    publishing = asyncio.create_task(batch.publish(stream.subject("a")))
    await held.wait()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert batch.is_closed
    held.release()
    with pytest.raises(jsclient.ClosedError):
        await batch.commit()
    assert await stored(stream) == []


async def test_cancelled_block_makes_room(near: Any, stream: OwnStream) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with near.batch() as batch:
            await batch.publish(stream.subject("a"))
            await batch.publish(stream.subject("a"))
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await slots_free(near, stream)
    assert await stored(stream) == []


async def test_restart_stores_nothing(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    own = await own_server()
    js = await connect(own)
    oracle = await oracle_for(own)
    stream = await make_stream(oracle=oracle, allow_atomic=True, storage="file")
    batch = js.batch()
    for _ in range(4):
        await batch.publish(stream.subject("a"))
    await own.kill()
    await own.start()
    await eventually(lambda: js.is_connected, what="the reconnect")
    with pytest.raises((jsclient.BatchIncompleteError, jsclient.BatchAbandonedError)):
        await batch.commit(stream.subject("a"))
    assert (await js.publish(stream.subject("a"))).seq == 1


@pytest.mark.server(">=2.14")
async def test_batch_server_gave_up_stores_nothing(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    own = await own_server(config="jetstream { limits { batch { timeout: 50ms } } }")  # in place of 10 s
    js = await connect(own)
    oracle = await oracle_for(own)
    stream = await make_stream(oracle=oracle, allow_atomic=True)
    abandoned: list[Any] = []

    async def keep(message: Any) -> None:
        abandoned.append(message)

    await oracle.nc.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>", cb=keep)
    batch = js.batch()
    await batch.publish(stream.subject("a"))
    await batch.publish(stream.subject("a"))
    await eventually(lambda: abandoned, what="the server's patience to end")
    with pytest.raises(jsclient.BatchIncompleteError):
        await batch.commit(stream.subject("a"))
    assert await stored(stream) == []


async def test_nothing_stays_behind(near: Any, stream: OwnStream, oracle: Any, server: Any) -> None:
    await near.publish(stream.subject("a"))
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        await batched(near, stream.subject("a"), stream.subject("a"))
        with pytest.raises(ZeroDivisionError):
            await batched(near, stream.subject("a"), stream.subject("a"), fail=ZeroDivisionError())
        remaining = near.batch()
        await remaining.publish(stream.subject("a"))
        await remaining.publish(stream.subject("a"))
        await remaining.abandon()


# --- a server that stores what it does not understand ------------------------------------------------------


async def test_single_store_detected(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """Beyond a leaf node or in another domain, the stream's server may be older than the connected server."""
    answer = b'{"stream":"OLD","seq":7}'
    tap.modify_frames(
        match.match(op="MSG", direction=match.TO_CLIENT, payload=b""),
        lambda frame: frame.but(payload=answer).raw,
    )
    batch = near.batch()
    await batch.publish(stream.subject("a"))
    with pytest.raises(jsclient.BatchNotAtomicError) as caught:
        await batch.publish(stream.subject("a"))
    assert (caught.value.batch, caught.value.stream, caught.value.seq) == (batch.id, "OLD", 7)
    assert batch.is_closed


async def test_commit_stored_on_own_found_out(tap: Proxy, near: Any, stream: OwnStream) -> None:
    tap.modify_frames(match.is_publish_ack, lambda frame: frame.but(payload=b'{"stream":"OLD","seq":7}').raw)
    with pytest.raises(jsclient.BatchNotAtomicError):
        await near.batch().commit(stream.subject("a"))


@pytest.mark.parametrize("payload", [b"{}", b"nonsense", b'{"stream":"S","seq":1,"batch":"other","count":1}'])
async def test_nonsense_answer(tap: Proxy, near: Any, stream: OwnStream, payload: bytes) -> None:
    tap.modify_frames(match.is_publish_ack, lambda frame: frame.but(payload=payload).raw)
    with pytest.raises(jsclient.ProtocolError):
        await near.batch().commit(stream.subject("a"))
