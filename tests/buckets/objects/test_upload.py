"""Storing chunks on a fake connection, in virtual time: chunks in flight, progress, and the state after a failure."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.buckets.objects.upload import ChunkUpload, named_refusal, report_progress
from jsclient.errors import (
    ApiError,
    BucketFullError,
    BucketSealedError,
    ConfigError,
    DisconnectedError,
    PublishError,
    RequestTimeoutError,
)
from jsclient.protocol.buckets.object_content import ChunkSplitter
from jsclient.protocol.events import ErrorRaised, HandlerFailed, PublishFailed
from jsclient.protocol.wire.headers import parse_headers
from tests.publishing.kit import answer, now, payloads, published
from tests.support.fake import connected
from tests.support.virtual import settle, virtual

SUBJECT = "$O.b.C.NUID"
MIB = 1024 * 1024
FULL = {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}
SEALED = {"code": 400, "err_code": 10109, "description": "invalid operation on sealed stream"}
OTHER = {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}


class Removal:
    """Removes the chunks, or fails as the test says. It knows when it was called."""

    def __init__(self, *errors) -> None:
        self.errors = list(errors)
        self.called: list[float] = []

    async def __call__(self) -> None:
        self.called.append(now())
        if self.errors:
            raise self.errors.pop(0)


class Chunks:
    """The chunks of one object. The bucket has as many as the test says, or as many as were sent."""

    subject = SUBJECT

    def __init__(self, remove_all, number) -> None:
        self.remove_all = remove_all
        self.removed: list[int] = []
        self.number = number

    async def remove(self, seq) -> None:
        self.removed.append(seq)

    async def count(self) -> int:
        return self.number()


def upload_of(
    js, chunk_size=4, *, remove=None, progress=None, total=None, timeout=5.0, number=None
) -> ChunkUpload:
    splitter = ChunkSplitter(chunk_size)
    return ChunkUpload(
        js._context,
        Chunks(remove or Removal(), lambda: splitter.chunks if number is None else number),
        splitter,
        timeout=timeout,
        progress=progress,
        total=total,
    )


async def reported(connection) -> list[Exception]:
    """The errors that were reported as events, which takes a turn of the loop."""
    await settle()
    return [event.error for event in connection.told(ErrorRaised)]


async def started(upload, source) -> asyncio.Task:
    task = asyncio.ensure_future(upload.run(source))
    await settle()
    return task


def acks(connection, *numbers) -> None:
    for number in numbers:
        answer(connection, published(connection)[number])


async def acked(connection, task) -> None:
    """Ack whatever arrives until the task is done."""
    count = 0
    while not task.done():
        for sent in published(connection)[count:]:
            answer(connection, sent)
            count += 1
        await settle(3)
    await task


# --- storing ---------------------------------------------------------------------------------------------------


@virtual
async def test_chunks():
    async with connected() as (js, connection):
        upload = upload_of(js)
        await acked(connection, await started(upload, [b"ab", b"cdefghij", b"k"]))
        assert payloads(connection) == [b"abcd", b"efgh", b"ijk"]
        assert {sent.subject for sent in published(connection)} == {SUBJECT}
        headers = [dict(parse_headers(sent.header)[1]) for sent in published(connection)]
        assert headers == [{"Nats-Msg-Id": f"NUID-{number}"} for number in (1, 2, 3)]
        assert (upload.splitter.size, upload.splitter.chunks) == (11, 3)
        assert upload._publisher.is_closed


@virtual
async def test_nothing_to_store():
    async with connected() as (js, connection):
        await upload_of(js).run(b"")
        assert published(connection) == []


@virtual
async def test_ends_with_the_last_ack():
    async with connected() as (js, connection):
        task = await started(upload_of(js), b"abcdef")
        acks(connection, 0)
        await settle()
        assert not task.done()
        acks(connection, 1)
        await task


@pytest.mark.parametrize(("chunk_size", "in_flight"), [(5 * MIB, 2), (3 * MIB, 2), (2 * MIB, 4)])
@virtual
async def test_window(chunk_size, in_flight):
    """8 MiB are in flight, and two chunks at least."""
    async with connected() as (js, connection):
        connection.limit = 6 * MIB
        task = await started(upload_of(js, chunk_size), [b"\0" * chunk_size] * (in_flight + 1))
        assert len(published(connection)) == in_flight
        acks(connection, 0)
        await settle()
        assert len(published(connection)) == in_flight + 1
        acks(connection, *range(1, in_flight + 1))
        await task


@virtual
async def test_most_chunks_in_flight():
    async with connected() as (js, connection):
        task = await started(upload_of(js, 1), b"\0" * 4100)
        await settle(5000)
        assert len(published(connection)) == 4096
        await acked(connection, task)


@virtual
async def test_lost_ack():
    """The chunk is sent again with the same id."""
    async with connected() as (js, connection):
        task = await started(upload_of(js, timeout=60.0), b"abc")
        while len(published(connection)) == 1:
            await asyncio.sleep(0.1)
        first, again = published(connection)
        assert (again.payload, again.header) == (b"abc", first.header)
        acks(connection, 1)
        await task


async def stored_as(connection, task, *sequences) -> None:
    """Ack as many of the publishes as there are sequences, and then, in the order in which they come, all others."""
    for number, seq in enumerate(sequences):
        answer(connection, published(connection)[number], {"stream": "OBJ_b", "seq": seq})
    await settle(5)
    seq, count = 100, len(sequences)
    while not task.done():
        for sent in published(connection)[count:]:
            seq += 1
            answer(connection, sent, {"stream": "OBJ_b", "seq": seq})
            count += 1
        await settle(3)


@pytest.mark.parametrize(
    ("sequences", "again", "removed"),
    [
        ((1, 2, 3), [], []),
        ((5, 3, 4), [b"efgh", b"ij"], [3, 4]),
        ((5, 3, 6), [b"efgh", b"ij"], [3, 6]),
        ((1, 7, 2), [b"ij"], [2]),
        ((1, 9, 2), [b"ij"], [2]),
    ],
)
@virtual
async def test_chunks_stored_in_another_order(sequences, again, removed):
    """Those from the first misplaced one on are removed and stored again, with new ids."""
    async with connected() as (js, connection):
        upload = upload_of(js)
        task = await started(upload, b"abcdefghij")
        await stored_as(connection, task, *sequences)
        await task
        assert payloads(connection) == [b"abcd", b"efgh", b"ij", *again]
        assert upload._target.removed == removed
        ids = [dict(parse_headers(sent.header)[1])["Nats-Msg-Id"] for sent in published(connection)]
        assert len(ids) == len(set(ids))


@virtual
async def test_order_that_is_never_right():
    async with connected() as (js, connection):
        task = await started(upload_of(js), b"abcdefgh")
        answer(connection, published(connection)[0], {"stream": "OBJ_b", "seq": 1000})
        count = 1
        while not task.done():
            for sent in published(connection)[count:]:
                answer(connection, sent, {"stream": "OBJ_b", "seq": count})
                count += 1
            await settle(3)
        with pytest.raises(PublishError, match="20 times"):
            await task


@virtual
async def test_chunk_stored_twice():
    """The bucket has forgotten the id of a chunk that was sent again."""
    async with connected() as (js, connection):
        task = await started(upload_of(js, timeout=60.0, number=2), b"abc")
        while len(published(connection)) == 1:
            await asyncio.sleep(0.1)
        acks(connection, 1)
        with pytest.raises(PublishError, match="1 chunk was sent, and the bucket has 2"):
            await task


@virtual
async def test_timeout():
    async with connected() as (js, _):
        begin = now()
        with pytest.raises(RequestTimeoutError):
            await upload_of(js, timeout=7.0).run(b"abc")
        assert now() - begin == pytest.approx(7.0, abs=1.5)


@virtual
async def test_bad_content():
    async with connected() as (js, connection):
        with pytest.raises(ConfigError, match="piece of int"):
            await upload_of(js).run([b"abcde", 5])
        assert payloads(connection) == [b"abcd"]


# --- progress --------------------------------------------------------------------------------------------------


@virtual
async def test_progress():
    """Progress is reported in the order of the chunks, whichever is acked first."""
    async with connected() as (js, connection):
        reported = []
        upload = upload_of(js, progress=lambda *numbers: reported.append(numbers), total=10)
        task = await started(upload, b"abcdefghij")
        acks(connection, 1)
        await settle()
        assert reported == []
        acks(connection, 0)
        await settle()
        assert reported == [(4, 10), (8, 10)]
        acks(connection, 2)
        await task
        assert reported[2:] == [(10, 10)]


@virtual
async def test_progress_while_it_sends():
    async with connected() as (js, connection):
        reported = []
        more = asyncio.Event()

        async def source():
            yield b"abcd"
            await more.wait()
            yield b"efgh"
            await asyncio.Event().wait()

        task = await started(upload_of(js, progress=lambda *numbers: reported.append(numbers)), source())
        acks(connection, 0)
        await settle()
        more.set()
        await settle()
        assert reported == [(4, None)]
        task.cancel()
        await asyncio.wait({task})
        await settle()


@virtual
async def test_progress_that_fails():
    async with connected() as (js, connection):

        def fail(done, total):
            raise ValueError(f"{done} of {total}")

        await acked(connection, await started(upload_of(js, progress=fail, total=6), b"abcdef"))
        assert [str(event.error) for event in connection.told(HandlerFailed)] == ["4 of 6", "6 of 6"]


@virtual
async def test_no_progress():
    async with connected() as (js, connection):
        report_progress(js._context, None, 1, 2)
        await settle()
        assert connection.told(HandlerFailed) == []


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "kind"), [(FULL, BucketFullError), (SEALED, BucketSealedError), (OTHER, ApiError)]
)
def test_named_refusal(refusal, kind):
    error = ApiError(refusal["code"], refusal["err_code"], refusal["description"], "OBJ_b", "c", "advice")
    named = named_refusal(error)
    assert type(named) is kind
    assert (named is error) == (kind is ApiError)
    fields = ("code", "err_code", "description", "stream", "consumer", "advice")
    assert [getattr(named, field) for field in fields] == [getattr(error, field) for field in fields]


def test_description_alone_is_no_reason():
    error = ApiError(400, 10052, "maximum bytes")
    assert named_refusal(error) is error


@pytest.mark.parametrize(("refusal", "kind"), [(FULL, BucketFullError), (SEALED, BucketSealedError)])
@virtual
async def test_refused_chunk(refusal, kind):
    async with connected() as (js, connection):
        remove = Removal()
        upload = upload_of(js, remove=remove)
        task = await started(upload, b"abc")
        answer(connection, published(connection)[0], {"error": refusal})
        with pytest.raises(kind) as caught:
            await task
        assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)
        await upload.undo()
        assert remove.called == [], "nothing was stored"
        assert upload._publisher.is_closed


@virtual
async def test_refusal_ends_the_reading():
    """Nothing further is read from the source."""
    async with connected() as (js, connection):
        read = []

        def source():
            for piece in (b"abcd", b"efgh", b"ijkl"):
                read.append(piece)
                yield piece
                if len(read) == 1:
                    answer(connection, published(connection)[0], {"error": FULL})

        with pytest.raises(BucketFullError):
            await upload_of(js).run(source())
        assert read == [b"abcd", b"efgh"]


# --- undoing ---------------------------------------------------------------------------------------------------


async def failed_upload(js, connection, remove, *, is_acked=True) -> ChunkUpload:
    """An upload whose first chunk is sent, and whose source then fails."""
    upload = upload_of(js, remove=remove)
    with pytest.raises(ConfigError):
        await upload.run([b"abcd", None])
    if is_acked:
        acks(connection, 0)
        await settle()
    return upload


@virtual
async def test_undo_before_anything_is_sent():
    async with connected() as (js, _):
        remove = Removal()
        upload = upload_of(js, remove=remove)
        with pytest.raises(ConfigError):
            await upload.run([None])
        await upload.undo()
        assert remove.called == []
        assert upload._publisher.is_closed


@virtual
async def test_undo_removes():
    async with connected() as (js, connection):
        remove = Removal()
        upload = await failed_upload(js, connection, remove)
        begin = now()
        await upload.undo()
        assert remove.called == [begin]
        assert await reported(connection) == []
        assert upload._publisher.is_closed


@virtual
async def test_undo_after_some_chunks():
    """The first is stored, and the others are refused. That is raised once, and no event repeats it."""
    async with connected() as (js, connection):
        remove = Removal()
        upload = upload_of(js, remove=remove)
        task = await started(upload, b"abcdefghij")
        acks(connection, 0)
        for sent in published(connection)[1:]:
            answer(connection, sent, {"error": FULL})
        with pytest.raises(BucketFullError):
            await task
        await upload.undo()
        await settle()
        assert len(remove.called) == 1
        assert connection.told(PublishFailed) == []


@virtual
async def test_cancelled_upload():
    """The outcome of the chunk is still learned. Here the chunk was not stored."""
    async with connected() as (js, connection):
        remove = Removal()
        upload = upload_of(js, remove=remove)
        task = await started(upload, b"abc")
        task.cancel()
        await asyncio.wait({task})
        answer(connection, published(connection)[0], {"error": FULL})
        await upload.undo()
        assert remove.called == []


@virtual
async def test_undo_waits_for_what_is_in_flight():
    """What is stored after the removal would remain."""
    async with connected() as (js, connection):
        remove = Removal()
        upload = await failed_upload(js, connection, remove, is_acked=False)
        undoing = asyncio.ensure_future(upload.undo())
        await settle()
        assert remove.called == []
        acks(connection, 0)
        await undoing
        assert len(remove.called) == 1


@virtual
async def test_undo_waits_for_a_while():
    async with connected() as (js, _):
        remove = Removal()
        upload = upload_of(js, remove=remove, timeout=300.0)
        with pytest.raises(ConfigError):
            await upload.run([b"abcd", None])
        begin = now()
        await upload.undo()
        assert remove.called == [pytest.approx(begin + 30)]


@virtual
async def test_undo_of_an_unknown_outcome():
    """A chunk that was not acked may be stored."""
    async with connected() as (js, connection):
        remove = Removal()
        upload = upload_of(js, remove=remove)
        with pytest.raises(RequestTimeoutError):
            await upload.run(b"abc")
        await upload.undo()
        assert len(remove.called) == 1
        assert await reported(connection) == []


@virtual
async def test_undo_tries_again():
    async with connected() as (js, connection):
        remove = Removal(RequestTimeoutError("purge", 5.0), DisconnectedError("lost"))
        upload = await failed_upload(js, connection, remove)
        begin = now()
        await upload.undo()
        assert [moment - begin for moment in remove.called] == pytest.approx([0, 0.25, 0.5])
        assert await reported(connection) == []


@virtual
async def test_undo_gives_up():
    async with connected() as (js, connection):
        error = RequestTimeoutError("purge", 5.0)
        remove = Removal(*[error] * 1000)
        upload = await failed_upload(js, connection, remove)
        begin = now()
        await upload.undo()
        assert now() - begin == pytest.approx(30, abs=0.3)
        assert now() - begin < 30
        assert await reported(connection) == [error]


@virtual
async def test_refused_removal_is_final():
    async with connected() as (js, connection):
        error = ApiError(400, 10052, "no")
        remove = Removal(error)
        upload = await failed_upload(js, connection, remove)
        await upload.undo()
        assert len(remove.called) == 1
        assert await reported(connection) == [error]


@virtual
async def test_undo_waits_for_the_connection():
    async with connected() as (js, connection):
        remove = Removal()
        upload = await failed_upload(js, connection, remove)
        connection.disconnect()
        undoing = asyncio.ensure_future(upload.undo())
        await asyncio.sleep(10)
        assert remove.called == []
        connection.reconnect()
        await undoing
        assert len(remove.called) == 1


@virtual
async def test_undo_on_a_closed_connection():
    async with connected() as (js, connection):
        remove = Removal(DisconnectedError("closed"))
        upload = await failed_upload(js, connection, remove)
        begin = now()
        connection.abort()
        await upload.undo()
        assert now() - begin < 1
        assert len(await reported(connection)) == 1


@virtual
async def test_cancelled_undo_goes_on():
    async with connected() as (js, connection):
        remove = Removal()
        upload = await failed_upload(js, connection, remove, is_acked=False)
        undoing = asyncio.ensure_future(upload.undo())
        await settle()
        undoing.cancel()
        await asyncio.wait({undoing})
        assert undoing.cancelled()
        acks(connection, 0)
        await settle()
        assert len(remove.called) == 1
