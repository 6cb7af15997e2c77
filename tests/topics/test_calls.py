"""The Python calls of a record that waits in a reader. They are what it costs, so they must not grow unnoticed."""

from __future__ import annotations

import pytest

from jsclient.topics.log_reader import LogReader, open_reader
from jsclient.topics.memory_log import MemoryLog
from jsclient.topics.topic_reader import TopicReader
from tests.support.calls import Calls
from tests.support.virtual import settle, virtual

RECORDS = 1000


@pytest.mark.parametrize(("make", "calls_each"), [(lambda reader: reader, 2), (TopicReader, 2)])
@virtual
async def test_async_for(make, calls_each):
    """One call is the step of the loop, the other takes the record from the queue."""
    log = MemoryLog("a")
    for number in range(RECORDS):
        await log.append(b"%d" % number)
    reader: LogReader | TopicReader = make(await open_reader(log, push=None, quiet=1.0))
    await settle()
    assert reader.pending == RECORDS
    with Calls() as calls:
        for _ in range(RECORDS):
            await anext(reader)
    assert calls.each(RECORDS) == calls_each, calls
    assert reader.position == (await log.extent()).end
    await reader.close()
