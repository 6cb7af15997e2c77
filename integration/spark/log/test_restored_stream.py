"""A stream whose files are restored from an older copy is noticed, also when it has grown past the position again."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from integration.kit.calls.source import Query
from integration.kit.judge.streams import OwnStream
from jsclient.errors import PositionInvalidError

pytestmark = pytest.mark.covers("L12")

RESTORED = r"(has other messages than|ends at sequence 160, but it had message 200).* from a backup"


class Restorable:
    """A stream in a file store, of which a copy can be made and put back."""

    def __init__(self, server: Any, stream: OwnStream, files: Path) -> None:
        self.server, self.stream = server, stream
        self._files, self._copy = files, files.with_name("copy")

    async def copy(self) -> None:
        await self._stopped(lambda: shutil.copytree(self._files, self._copy))

    async def restore(self) -> None:
        def put_back() -> None:
            shutil.rmtree(self._files)
            shutil.copytree(self._copy, self._files)

        await self._stopped(put_back)

    async def _stopped(self, work: Callable[[], object]) -> None:
        await self.server.stop()
        work()
        await self.server.start()


@pytest.fixture
async def restorable(
    own_server: Callable[..., Awaitable[Any]], oracle_for: Any, tmp_path: Path
) -> Restorable:
    """100 messages, of which there is a copy, then 100 more."""
    files = tmp_path / "files"
    server = await own_server(store_dir=files)
    stream = await OwnStream.create(await oracle_for(server), "restored", storage="file", allow_direct=True)
    await stream.publish(100)
    created = Restorable(server, stream, files)
    await created.copy()
    await stream.publish(100, first=101)
    return created


def numbers(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def payloads(query: Query) -> list[int]:
    return [int(row["data"]) for row in query.rows]


@pytest.mark.parametrize("grown", [60, 100, 300])
async def test_grown_again_is_an_error(restorable: Restorable, grown: int) -> None:
    """The query has read 150 of 200 messages. After the restoration the stream ends at 160, 200 or 400."""
    query = await half_read(restorable)
    await restorable.restore()
    await restorable.stream.publish(grown, first=1001)
    with pytest.raises(PositionInvalidError, match=RESTORED):
        query.drain()


@pytest.mark.parametrize("grown", [60, 300])
async def test_batch_of_restored_stream_not_replayed(restorable: Restorable, grown: int) -> None:
    query = await half_read(restorable)
    await restorable.restore()
    await restorable.stream.publish(grown, first=1001)
    with pytest.raises(PositionInvalidError, match=RESTORED):
        query.replay(query.reader(), *query.offsets[-1])


async def test_tolerant_query_reads_all_new_messages(
    restorable: Restorable, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues after the last message that the copy had."""
    query = await half_read(restorable, failOnDataLoss=False)
    await restorable.restore()
    await restorable.stream.publish(300, first=1001)
    with caplog.at_level(logging.WARNING, "jsclient.spark"):
        query.drain()
    assert payloads(query) == [*numbers(1, 150), *numbers(1001, 1300)]
    assert "from a backup" in caplog.text
    await restorable.stream.publish(5, first=2001)
    query.drain()
    assert payloads(query)[-5:] == numbers(2001, 2005)


async def test_restored_under_running_query(restorable: Restorable) -> None:
    query = await half_read(restorable)
    reader, (_, end) = query.reader(), query.offsets[-1]
    query.ask(reader, end)
    await restorable.restore()
    await restorable.stream.publish(300, first=1001)
    with pytest.raises(PositionInvalidError, match=RESTORED):
        query.ask(reader, end)


async def test_copy_that_has_all_is_read_on(restorable: Restorable) -> None:
    """No message is lost if the copy has all messages that the query read."""
    await restorable.restore()
    query = Query(restorable.server, restorable.stream, startingOffsets="earliest")
    query.drain()
    await restorable.restore()
    await restorable.stream.publish(50, first=1001)
    query.drain()
    assert payloads(query) == [*numbers(1, 100), *numbers(1001, 1050)]


async def test_stream_that_goes_on_is_no_other(restorable: Restorable) -> None:
    """A restarted server, and messages that were removed, including the last message read."""
    query = await half_read(restorable)
    await restorable.server.stop()
    await restorable.server.start()
    await restorable.stream.oracle.api(f"STREAM.MSG.DELETE.{restorable.stream.name}", {"seq": 200})
    await restorable.stream.publish(10, first=201)
    query.drain()
    assert payloads(query) == [*numbers(1, 199), *numbers(201, 210)]


async def half_read(restorable: Restorable, **options: Any) -> Query:
    """A query that has read 150 messages of 200."""
    query = Query(
        restorable.server,
        restorable.stream,
        startingOffsets="earliest",
        maxMessagesPerTrigger=150,
        **options,
    )
    reader = query.reader()
    start = query.start(reader)
    query.batch(reader, start, query.ask(reader, start))
    return query
