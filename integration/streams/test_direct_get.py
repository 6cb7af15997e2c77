"""Stored messages read directly, one or many: the messages, the end, the refusals. Source: ADR-31."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.consumers.test_poison_messages import store_raw
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient import Ending

DIRECT = "$JS.API.DIRECT.GET.>"
batches = pytest.mark.server(">=2.11")


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def near(tap: Proxy, connect: Any, oracle: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.fixture
async def own(oracle: Any, make_stream: Any) -> OwnStream:
    return await make_stream(allow_direct=True, allow_rollup_hdrs=True)


@pytest.fixture
async def stream(near: Any, own: OwnStream) -> Any:
    """The handle. The stream has 1 to 10: odd numbers on `odd`, even numbers on `even`."""
    for number in range(1, 11):
        await near.publish(own.subject("odd" if number % 2 else "even"), b"m%d" % number)
    return await near.stream(own.name)


async def seqs(batch: Any) -> list[int]:
    return [message.seq async for message in batch]


# --- one message -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [False, True])
async def test_by_sequence_last_next(tap: Proxy, stream: Any, own: OwnStream, direct: bool) -> None:
    """Row 139: seq, last, next, not found."""
    requests = {"direct": direct}
    message = await stream.get_message(3, **requests)
    assert (message.seq, message.subject, message.data) == (3, own.subject("odd"), b"m3")
    assert abs(datetime.now(UTC) - message.time) < timedelta(minutes=5)
    assert message.time_ns // 1000 == round(message.time.timestamp() * 1_000_000)
    assert message.num_pending is None
    assert (await stream.get_last_message(own.subject("odd"), **requests)).seq == 9
    assert (await stream.get_last_message(own.all, **requests)).seq == 10
    assert (await stream.get_next_message(own.subject("even"), **requests)).seq == 2
    assert (await stream.get_next_message(own.all, 7, **requests)).seq == 7
    for missing in (
        stream.get_message(11, **requests),
        stream.get_last_message(own.subject("other"), **requests),
        stream.get_next_message(own.subject("odd"), 10, **requests),
    ):
        with pytest.raises(jsclient.MessageNotFoundError) as caught:
            await missing
        assert (caught.value.code, caught.value.err_code) == (404, 10037)
    assert bool(tap.sent(DIRECT)) is direct
    assert bool(tap.sent("$JS.API.STREAM.MSG.GET.>")) is not direct


@pytest.mark.parametrize("direct", [False, True])
async def test_headers_come_back_as_they_given(near: Any, stream: Any, own: OwnStream, direct: bool) -> None:
    """Row 139: headers intact, those too that the server adds to its answer."""
    headers = {"Mine": ["1", "2"], "Nats-Subject": "mine", "Nats-Num-Pending": "77", "Empty": ""}
    ack = await near.publish(own.subject("h"), b"x", headers=headers)
    message = await stream.get_message(ack.seq, direct=direct)
    assert (message.subject, message.seq, message.data) == (own.subject("h"), ack.seq, b"x")
    assert message.headers.get_all("Mine") == ["1", "2"]
    assert (message.headers["Nats-Subject"], message.headers["Empty"]) == ("mine", "")
    if not direct:
        assert message.headers["Nats-Num-Pending"] == "77"


async def test_not_allowed_refused(tap: Proxy, near: Any, make_stream: Any, oracle: Any) -> None:
    """Row 139: no stream. Servers before 2.12 leave such a request without a word."""
    plain = await make_stream()
    await plain.publish(2)
    stream = await near.stream(plain.name)
    with pytest.raises(jsclient.ConfigError, match="allow_direct"):
        await stream.get_message(1, direct=True)
    with pytest.raises(jsclient.ConfigError, match="allow_direct"):
        await seqs(stream.get_batch(2))
    assert tap.sent(DIRECT) == []
    await oracle.update_stream(plain.name, allow_direct=True)
    assert (await stream.get_message(1, direct=True)).seq == 1  # the handle looks again
    await plain.delete()
    with pytest.raises(jsclient.JetStreamError):
        await within(10, stream.get_message(1, direct=True), "a direct get of a stream that is gone")


async def test_over_connection_of_nats_py(natspy_js: Any, stream: Any, own: OwnStream) -> None:
    theirs = await natspy_js.stream(own.name)
    assert (await theirs.get_message(4, direct=True)).data == b"m4"
    with pytest.raises(jsclient.MessageNotFoundError):
        await theirs.get_message(44, direct=True)


# --- many ----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@batches
async def test_batches_continue(tap: Proxy, stream: Any, own: OwnStream) -> None:
    batch = stream.get_batch(4)
    assert (batch.ending, batch.count) == (None, 0)
    actual = [message async for message in batch]
    assert [(m.seq, m.data, m.num_pending) for m in actual] == [(n, b"m%d" % n, 10 - n) for n in range(1, 5)]
    assert actual[2].subject == own.subject("odd")
    assert (batch.ending, batch.count, batch.num_pending, batch.last_seq) == (Ending.FULL, 4, 6, 4)
    page = stream.get_batch(4, seq=batch.last_seq + 1)
    assert await seqs(page) == [5, 6, 7, 8]
    page = stream.get_batch(4, seq=page.last_seq + 1)
    assert await seqs(page) == [9, 10]
    assert (page.ending, page.num_pending, page.last_seq) == (Ending.NO_MESSAGES, 0, 10)
    page = stream.get_batch(4, seq=page.last_seq + 1)
    assert await seqs(page) == []
    assert (page.ending, page.count, page.last_seq) == (Ending.NO_MESSAGES, 0, 0)
    assert await seqs(stream.get_batch(1)) == [1]
    assert len(tap.sent(DIRECT)) == 5


@batches
async def test_batch_by_subject_time_and_bytes(stream: Any, own: OwnStream) -> None:
    assert await seqs(stream.get_batch(3, subject=own.subject("even"))) == [2, 4, 6]
    assert await seqs(stream.get_batch(9, seq=5, subject=own.subject("*"))) == [5, 6, 7, 8, 9, 10]
    sixth = await stream.get_message(6)
    by_time = stream.get_batch(100, start_time=sixth.time, subject=own.subject("even"))
    assert (await seqs(by_time))[-3:] == [6, 8, 10]
    assert await seqs(stream.get_batch(9, start_time=datetime(2199, 1, 1, tzinfo=UTC))) == []
    small = stream.get_batch(9, max_bytes=1)
    assert await seqs(small) == [1]
    assert (small.ending, small.num_pending) == (Ending.MAX_BYTES, 9)


@batches
async def test_deleted_messages_passed_over(stream: Any) -> None:
    for seq in (1, 2, 5, 10):
        await stream.delete_message(seq)
    batch = stream.get_batch(4)
    assert await seqs(batch) == [3, 4, 6, 7]
    assert await seqs(stream.get_batch(4, seq=batch.last_seq + 1)) == [8, 9]


@batches
async def test_last_messages_of_subjects(near: Any, stream: Any, own: OwnStream) -> None:
    odd, even = own.subject("odd"), own.subject("even")
    last = stream.get_last_messages([odd, even])
    assert [(m.seq, m.subject) async for m in last] == [(9, odd), (10, even)]
    assert (last.ending, last.num_pending, last.up_to_seq) == (Ending.NO_MESSAGES, 0, 10)
    assert await seqs(stream.get_last_messages(odd)) == [9]
    assert await seqs(stream.get_last_messages(own.all, up_to_seq=5)) == [4, 5]
    sixth = await stream.get_message(6)
    until = stream.get_last_messages(own.all, up_to_time=sixth.time + timedelta(microseconds=1))
    assert set(await seqs(until)) <= {5, 6, 7}
    page = stream.get_last_messages(own.all, batch=1)
    assert await seqs(page) == [9]
    assert (page.ending, page.num_pending, page.up_to_seq) == (Ending.FULL, 1, 10)
    await near.publish(odd, b"11")  # as of one moment: this is not in it
    remainder = stream.get_last_messages(own.all, batch=1, seq=page.last_seq + 1, up_to_seq=page.up_to_seq)
    assert await seqs(remainder) == [10]
    none = stream.get_last_messages(own.subject("none"))
    assert await seqs(none) == []
    assert (none.ending, none.up_to_seq) == (Ending.NO_MESSAGES, 0)


@batches
async def test_up_to_seq_is_known_at_the_end(stream: Any, own: OwnStream, tap: Proxy) -> None:
    """A program that follows from there would otherwise read everything again."""
    last = stream.get_last_messages(own.all)
    with pytest.raises(jsclient.NotReadyError, match="after the iteration has ended, which has not begun"):
        _ = last.up_to_seq
    async for _ in last:
        with pytest.raises(jsclient.NotReadyError, match="which is not at its end"):
            _ = last.up_to_seq
    assert last.up_to_seq == 10
    tap.drop_frames(match.published(DIRECT), count=2)  # it is sent again once
    failed = stream.get_last_messages(own.all, timeout=0.3)
    with pytest.raises(jsclient.RequestTimeoutError):
        await seqs(failed)
    with pytest.raises(jsclient.NotReadyError, match="which ended as 'silent'"):
        _ = failed.up_to_seq
    with pytest.raises(jsclient.NotReadyError, match="get_last_messages"):
        _ = stream.get_batch(5).up_to_seq


async def test_awaited_batch_says_how_it_is_read(stream: Any) -> None:
    for batch in (stream.get_batch(5), stream.get_last_messages(">")):
        with pytest.raises(TypeError, match="DirectBatch is read with 'async for'"):
            await batch


@batches
async def test_too_many_subjects_named(near: Any, stream: Any, own: OwnStream) -> None:
    await asyncio.gather(*(near.publish(own.subject("many", number), timeout=60) for number in range(1025)))
    with pytest.raises(jsclient.TooManyResultsError):
        await seqs(stream.get_last_messages(own.subject("many", "*")))
    assert len(await seqs(stream.get_batch(2000, subject=own.subject("many", "*")))) == 1025


@batches
async def test_headers_in_a_batch(near: Any, stream: Any, own: OwnStream) -> None:
    for number in range(3):
        await near.publish(own.subject("h"), b"x", headers={"N": str(number), "Nats-Sequence": "mine"})
    actual = [message async for message in stream.get_batch(9, subject=own.subject("h"))]
    assert [(m.seq, m.headers["N"], m.headers["Nats-Sequence"]) for m in actual] == [
        (11, "0", "mine"),
        (12, "1", "mine"),
        (13, "2", "mine"),
    ]


@batches
async def test_batch_over_connection_of_nats_py(natspy_js: Any, stream: Any, own: OwnStream) -> None:
    theirs = await natspy_js.stream(own.name)
    assert await seqs(theirs.get_batch(6)) == [1, 2, 3, 4, 5, 6]
    assert await seqs(theirs.get_last_messages(own.all)) == [9, 10]


@batches
async def test_cannot_work_refused_before_wire(tap: Proxy, stream: Any) -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    for arguments in (
        {"batch": 0},
        {"batch": True},
        {"batch": 1, "seq": 0},
        {"batch": 1, "seq": 1, "start_time": noon},
        {"batch": 1, "start_time": datetime(2030, 1, 1)},  # noqa: DTZ001  that is what is refused
        {"batch": 1, "subject": "a..b"},
        {"batch": 1, "max_bytes": 0},
    ):
        with pytest.raises(jsclient.ConfigError):
            stream.get_batch(**arguments)
    for arguments in (
        {"subjects": []},
        {"subjects": "a b"},
        {"subjects": ["a", 7]},
        {"subjects": "a", "batch": 0},
        {"subjects": "a", "up_to_seq": 1, "up_to_time": noon},
    ):
        with pytest.raises(jsclient.ConfigError):
            stream.get_last_messages(**arguments)
    assert tap.sent(DIRECT) == []


# --- what goes wrong -----------------------------------------------------------------------------------------


@batches
@pytest.mark.parametrize("lost", [1, 3, 4])
async def test_message_lost_on_way_no_hole(tap: Proxy, stream: Any, lost: int) -> None:
    tap.drop_frames(match.match(op="MSG", direction=match.TO_CLIENT, header=("Nats-Sequence", str(lost))))
    batch = stream.get_batch(4)
    results: list[int] = []
    with pytest.raises(jsclient.ProtocolError, match="lost"):
        await _into(results, batch)
    assert results == list(range(1, lost))


async def _into(sequences: list[int], batch: Any) -> None:
    async for message in batch:
        sequences.append(message.seq)  # noqa: PERF401  what came before an error counts


@batches
async def test_lost_end_times_out(tap: Proxy, stream: Any) -> None:
    tap.drop_frames(match.with_status("204"))
    results: list[int] = []
    batch = stream.get_batch(4, timeout=2.0)
    with pytest.raises(jsclient.RequestTimeoutError):
        await _into(results, batch)
    assert (results, batch.ending, batch.last_seq) == ([1, 2, 3, 4], Ending.SILENT, 4)


@batches
async def test_lost_connection_after_some(tap: Proxy, stream: Any) -> None:
    tap.cut_inside_frame(predicate=match.match(op="MSG", header=("Nats-Sequence", "3")))
    results: list[int] = []
    batch = stream.get_batch(4)
    with pytest.raises(jsclient.DisconnectedError):
        await within(30, _into(results, batch), "the iteration")
    assert (results, batch.ending, batch.last_seq) == ([1, 2], Ending.DISCONNECTED, 2)
    # The next request waits for the connection.
    assert await seqs(stream.get_batch(3, seq=batch.last_seq + 1)) == [3, 4, 5]


@pytest.mark.parametrize("direct", [False, True])
async def test_status_lines_stored(server: Any, stream: Any, own: OwnStream, direct: bool) -> None:
    """Clients may store header blocks that look like an answer of the server without a message."""
    blocks = [f"NATS/1.0 {status}\r\n\r\n".encode() for status in ("503", "404 Message Not Found", "408")]
    await store_raw(server.url, [(own.subject("x").encode(), block, b"") for block in blocks])

    async def stored() -> bool:
        return bool((await own.state())["messages"] == 10 + len(blocks))

    await eventually(stored, what="the messages")
    for seq in range(11, 11 + len(blocks)):
        assert (await stream.get_message(seq, direct=direct)).seq == seq
        assert (await stream.get_next_message(">", seq, direct=direct)).seq == seq


@batches
@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("408 Bad Request", jsclient.BadRequestError),
        ("412 Required Api Level", jsclient.BadRequestError),
        ("413 Too Many Results", jsclient.TooManyResultsError),
        ("429 Too Many Requests", jsclient.StatusError),
        ("500 no idea", jsclient.StatusError),
        ("503", jsclient.NoRespondersError),
    ],
)
async def test_refusal_raised_with_status(
    tap: Proxy, stream: Any, status: str, error: type[jsclient.StatusError]
) -> None:
    tap.drop_frames(match.published(DIRECT))
    for asking in (seqs(stream.get_batch(4)), stream.get_message(1, direct=True)):
        since = len(tap.frames)
        task = asyncio.create_task(asking)
        request = await tap.wait_for(match.published(DIRECT), since=since)
        tap.inject_message(request.reply, status=status)
        with pytest.raises(error) as caught:
            await within(30, task, "the refusal")
        assert caught.value.code == int(status[:3])


@batches
@pytest.mark.parametrize("header", ["Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Last-Sequence"])
async def test_nonsense_answer(tap: Proxy, stream: Any, header: str) -> None:
    tap.modify_frames(
        match.match(op="MSG", direction=match.TO_CLIENT, header=("Nats-Sequence", "3")),
        lambda frame: frame.raw.replace(header.encode(), header.encode()[:-1] + b"?"),
    )
    with pytest.raises(jsclient.ProtocolError):
        await seqs(stream.get_batch(4))


@batches
async def test_iteration_left_leaves_nothing(
    near: Any, stream: Any, own: OwnStream, oracle: Any, server: Any, tap: Proxy
) -> None:
    connection = near._connection
    listeners = len(connection._listeners)
    async with no_leaks(oracle=oracle, streams=[own.name], monitor=server.monitor):
        async for message in stream.get_batch(10):
            if message.seq == 3:
                break
        assert await seqs(stream.get_batch(2)) == [1, 2]
        tap.drop_frames(match.published(DIRECT))
        reading = asyncio.create_task(seqs(stream.get_batch(2)))
        await tap.wait_for(lambda frame: frame.fate == "dropped")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    await eventually(lambda: len(connection._listeners) == listeners, what="no listener left")


@batches
async def test_closing_connection_ends_iteration(
    tap: Proxy, connect: Any, stream: Any, own: OwnStream
) -> None:
    js = await connect(tap)
    theirs = await js.stream(own.name)
    dropped = tap.drop_frames(match.with_status("204"))
    reading = asyncio.create_task(seqs(theirs.get_batch(2)))
    await dropped.wait()
    await js.close()
    with pytest.raises(jsclient.ClosedError):
        await within(30, reading, "the iteration")
