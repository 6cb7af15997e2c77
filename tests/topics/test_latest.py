"""The reader of the newest record: the records it skips, how it ends, and its state after a cancelled read."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import ClosedError, IterationFailed, RequestTimeoutError
from jsclient.protocol.topics.record import Kind, Record
from jsclient.topics.latest import LatestReader, OneSubject
from tests.support.fake import connected
from tests.support.virtual import settle, virtual


class Source:
    """The newest record is what the test says."""

    def __init__(self, *, ends: bool = True) -> None:
        self.ends, self.record, self.closed = ends, None, False
        self.changed = asyncio.Condition()

    async def put(self, seq: int, kind: Kind = Kind.VALUE, data: bytes = b"x") -> None:
        async with self.changed:
            self.record = Record(seq=seq, kind=kind, data=data)
            self.changed.notify_all()

    async def newest(self) -> Record:
        return await self.record_after(0)

    async def record_after(self, seen: int) -> Record:
        async with self.changed:
            await self.changed.wait_for(lambda: self.record is not None and self.record.seq > seen)
            return self.record

    async def close(self) -> None:
        self.closed = True


def reader(js, source: Source) -> LatestReader:
    async def find() -> Source:
        await asyncio.sleep(1)
        return source

    return LatestReader(find, js._context)


@virtual
async def test_skips_what_it_was_too_slow_for():
    async with connected() as (js, _):
        source = Source()
        latest = reader(js, source)
        await source.put(1)
        assert (await latest.next()).seq == 1
        for seq in (2, 3, 4):
            await source.put(seq)
        assert (await latest.next()).seq == 4
        assert (await latest.current()).seq == 4, "again"
        with pytest.raises(RequestTimeoutError):
            await latest.next(5)
        await latest.close()
        assert source.closed


@pytest.mark.parametrize(("kind", "completion"), [(Kind.FINISH, b'"done"'), (Kind.FAIL, None)])
@virtual
async def test_end_is_never_skipped(kind, completion):
    async with connected() as (js, _):
        source = Source()
        latest = reader(js, source)
        await source.put(3, kind, b'"done"')
        if kind is Kind.FINISH:
            assert [record async for record in latest] == []
        else:
            with pytest.raises(IterationFailed):
                await latest.next()
        assert latest.completion == completion
        await latest.close()


@virtual
async def test_end_of_one_subject_among_several_is_a_record():
    async with connected() as (js, _):
        source = Source(ends=False)
        await source.put(3, Kind.FINISH)
        latest = reader(js, source)
        assert (await latest.next()).is_last
        await latest.close()


@virtual
async def test_cancelled_read_continues_to_open():
    async with connected() as (js, _):
        source = Source()
        await source.put(1)
        latest = reader(js, source)
        with pytest.raises(RequestTimeoutError):
            await latest.next(0.6)
        start = asyncio.get_running_loop().time()
        assert (await latest.next(0.6)).seq == 1
        assert asyncio.get_running_loop().time() - start == pytest.approx(0.4)
        await latest.close()


@virtual
async def test_close_ends_the_loop_also_while_it_opens():
    async with connected() as (js, _):
        latest = reader(js, Source())
        reading = asyncio.ensure_future(anext(latest))
        await settle()
        await latest.close()
        with pytest.raises(StopAsyncIteration):
            await reading
        with pytest.raises(ClosedError):
            await latest.next()


@virtual
async def test_one_subject_says_when_it_waits():
    """A stalled stream is looked for only while a caller waits."""

    class Notifier:
        seen = 7

        async def record_after(self, seen):
            assert watch.waits()
            if seen is None:
                raise ClosedError("over")
            return Record(seq=seen + 1)

    class Watch:
        asks = 0
        closed = False

        def asked(self):
            self.asks += 1

        def close(self):
            self.closed = True

    class Log:
        def stall_watch(self, *, progress, waits):
            watch.progress, watch.waits = progress, waits
            return watch

    watch = Watch()
    source = OneSubject(Notifier(), Log())
    assert (await source.record_after(3)).seq == 4
    with pytest.raises(ClosedError):
        await source.newest()
    assert (watch.asks, watch.waits(), watch.progress()) == (2, False, 7)
    await source.close()
    assert watch.closed
