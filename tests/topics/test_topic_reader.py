"""The reader of a topic on a log in this process: one record at a time, its position, and its end."""

from __future__ import annotations

import pytest

from jsclient.errors import IterationFailed
from jsclient.protocol.topics.record import Kind
from jsclient.topics.log_reader import open_reader
from jsclient.topics.memory_log import MemoryLog
from jsclient.topics.topic_reader import TopicReader
from tests.support.virtual import settle, virtual


async def log_of(count: int, end: Kind | None = Kind.FINISH) -> MemoryLog:
    log = MemoryLog("a")
    for number in range(count):
        await log.append(b"%d" % number)
    if end is not None:
        await log.append(b"the end", kind=end)
    return log


@pytest.mark.covers("T1", "T4")
@virtual
async def test_each_record_moves_the_position_and_frees_its_bytes():
    log = await log_of(5)
    reader = TopicReader(await open_reader(log, push=None, quiet=1.0))
    seqs = []
    async for record in reader:
        seqs.append(record.seq)
        assert reader.position == (await log.extent()).end.at(record.seq, record.time_ns)
    assert seqs == [1, 2, 3, 4, 5]
    assert reader.completion == b"the end"
    assert reader._reader.tracker._queue.pending_bytes == 0
    await reader.close()


@virtual
async def test_failed_topic_raises_at_its_end():
    reader = TopicReader(await open_reader(await log_of(2, Kind.FAIL), push=None, quiet=1.0))
    assert [(await anext(reader)).data, (await anext(reader)).data] == [b"0", b"1"]
    with pytest.raises(IterationFailed, match="the end"):
        await anext(reader)
    assert reader.completion is None
    await reader.close()


@virtual
async def test_full_queue_is_filled_again_by_single_records():
    """A queue of four requests more records when half of it was taken one by one."""
    reader = TopicReader(await open_reader(await log_of(50), push=None, quiet=1000.0, max_pending=4))
    await settle()
    assert reader.pending == 4
    assert [record.seq async for record in reader] == [*range(1, 51)]
    await reader.close()
