"""Several streams whose subjects change: filters that begin to match a stream, or match it no longer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import pytest

from integration.kit.calls.source import Query
from integration.kit.judge.waiting import eventually
from jsclient.errors import ConfigError, HistoryTruncatedError, PositionInvalidError

COLUMNS = ("stream", "sequence", "subject")


class Streams:
    """Streams with a common prefix, in names and subjects."""

    def __init__(self, oracle, server):
        self._oracle, self._server = oracle, server
        self.prefix = f"CH{secrets.token_hex(4)}"

    async def make(self, name, *subjects, **config):
        await self._call("CREATE", name, subjects, config)

    async def fill(self, **counts):
        """Make a stream for each subject, with the name of the subject, and store messages in it."""
        for subject, count in counts.items():
            await self.make(subject.upper(), subject)
            await self.publish(subject, count)

    async def update(self, name, *subjects):
        await self._call("UPDATE", name, subjects, {})

    async def _call(self, verb, name, subjects, config):
        whole = f"{self.prefix}_{name}"
        options = {
            "name": whole,
            "subjects": [f"{self.prefix}.{one}" for one in subjects],
            "storage": "memory",
        }
        await self._oracle.api(f"STREAM.{verb}.{whole}", {**options, "allow_direct": True, **config})

    async def delete(self, name):
        await self._oracle.api(f"STREAM.DELETE.{self.prefix}_{name}", {})

    async def purge(self, name):
        await self._oracle.api(f"STREAM.PURGE.{self.prefix}_{name}", {})

    async def publish(self, subject, count):
        for _ in range(count):
            await self._oracle.nc.request(f"{self.prefix}.{subject}", b"x", timeout=5)

    async def end(self):
        for name in "ABC":
            with contextlib.suppress(Exception):  # it may not exist
                await self.delete(name)

    def query(self, *names, subjects="", **options):
        """A query of these streams, or of all by pattern without names."""
        filters = ",".join(f"{self.prefix}.{one}" for one in subjects.split(",") if one)
        arguments = {"startingOffsets": "earliest", "columns": COLUMNS, "pollIntervalMs": 1, **options}
        query = Query(self._server, ",".join(f"{self.prefix}_{name}" for name in names), **arguments)
        if filters:
            query._options["subjects"] = filters
        if not names:
            del query._options["stream"]
            query._options["streamPattern"] = f"{self.prefix}_*"
        return query

    def read(self, rows):
        """Stream, sequence and subject of each row."""
        return sorted((row["stream"][-1], row["sequence"], row["subject"].rpartition(".")[2]) for row in rows)


@pytest.fixture
async def streams(oracle, server):
    created = Streams(oracle, server)
    yield created
    await created.end()


def messages(stream, first, last, subject):
    return [(stream, seq, subject) for seq in range(first, last + 1)]


def planned(query):
    """Plan the first batch: its start and its end."""
    reader = query.reader()
    start = query.start(reader)
    return start, query.ask(reader, start)


def go(query, reader, start):
    """Read all messages, in a query that continues. Return the last offset."""
    for _ in range(20):
        if (end := query.ask(reader, start)) == start:
            return end
        query.batch(reader, start, end)
        start = end
    raise AssertionError("the query has no offset")


# --- a filter begins to match --------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("mode", ["auto", "consumer"])
async def test_subject_moves_to_another_stream(streams, restart, mode):
    """A message of it is in a batch with others. It is read, and read again if the batch is run again."""
    await streams.fill(a=5, b=5)
    query = streams.query("A", "B", subjects="a,b", readMode=mode)
    reader = query.reader()
    end = go(query, reader, query.start(reader))
    await streams.update("B", "other")
    await streams.update("A", "a", "b")
    await streams.publish("b", 5)
    await streams.publish("a", 5)
    go(query, query.reader() if restart else reader, end)
    expected = [*messages("A", 1, 5, "a"), *messages("A", 6, 10, "b"), *messages("A", 11, 15, "a")]
    assert streams.read(query.rows) == [*expected, *messages("B", 1, 5, "b")]
    for offsets, parts in zip(query.offsets, query.parts, strict=True):
        assert query.replay(query.reader(), *offsets) == parts


async def test_subject_moves_between_plan_and_tasks(streams):
    await streams.make("A", "a", "x")
    await streams.make("B", "b")
    await streams.publish("a", 5)
    query = streams.query("A", "B", subjects="a,b,x")
    reader = query.reader()
    start = query.start(reader)
    await streams.publish("x", 5)
    await streams.update("A", "a")

    def end():
        actual = query.ask(reader, start)
        return actual["streams"][f"{streams.prefix}_A"]["seq"] == 10 and actual

    assert len(query.batch(reader, start, await eventually(end))) == 10


@pytest.mark.parametrize("start", ["latest", "earliest"])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("pattern", [False, True])
async def test_stream_that_no_filter_could_match(streams, start, restart, pattern):
    """It is read from the first message that a filter matches."""
    await streams.fill(a=0, b=3)
    query = streams.query(*(() if pattern else "AB"), subjects="a", startingOffsets=start)
    reader = query.reader()
    begin = query.start(reader)
    await streams.publish("a", 1)
    end = go(query, reader, begin)
    await streams.update("A", "z")
    await streams.update("B", "a", "b")
    await streams.publish("a", 5)
    await streams.publish("b", 5)
    go(query, query.reader() if restart else reader, end)
    assert streams.read(query.rows) == [("A", 1, "a"), *messages("B", 4, 8, "a")]
    for offsets, parts in zip(query.offsets, query.parts, strict=True):
        if offsets is not query.offsets[0]:
            assert query.replay(query.reader(), *offsets) == parts


async def test_held_query_reads_what_began_to_match(streams):
    await streams.fill(a=1, b=0)
    query = streams.query("A", "B", subjects="a")
    await asyncio.to_thread(query.drain)
    await streams.update("A", "z")
    await streams.update("B", "a")
    await streams.publish("a", 5)
    await asyncio.to_thread(query.drain)
    assert query.drain() == []
    assert streams.read(query.rows)[-5:] == messages("B", 1, 5, "a")


@pytest.mark.server(">=2.11")
async def test_read_mode_is_checked_again(streams):
    """A work queue is read by direct get, which has one filter."""
    await streams.make("A", "a", retention="workqueue")
    await streams.make("B", "b")
    query = streams.query("A", "B", subjects="a,b")
    reader = query.reader()
    end = go(query, reader, query.start(reader))
    await streams.update("B", "other")
    await streams._call("UPDATE", "A", ("a", "b"), {"retention": "workqueue"})
    await streams.publish("b", 1)
    with pytest.raises(ConfigError, match="more than one filter"):
        go(query, reader, end)


# --- a stream that no filter matches has no losses -----------------------------------------------------------


async def test_other_messages_may_expire(streams):
    await streams.make("A", "a")
    await streams.make("B", "b", max_msgs=3)
    await streams.publish("b", 2)
    await streams.publish("a", 2)
    query = streams.query("A", "B", subjects="a")
    reader = query.reader()
    end = go(query, reader, query.start(reader))
    await streams.publish("b", 10)
    end = go(query, reader, end)
    await streams.publish("b", 10)
    end = go(query, query.reader(), end)
    await streams.update("A", "z")
    await streams._call("UPDATE", "B", ("a", "b"), {"max_msgs": 3})
    await streams.publish("a", 2)
    go(query, query.reader(), end)
    assert streams.read(query.rows) == [*messages("A", 1, 2, "a"), *messages("B", 23, 24, "a")]


@pytest.mark.parametrize("restart", [False, True])
async def test_deleted_or_recreated(streams, restart):
    await streams.fill(a=2, b=5)
    query = streams.query(subjects="a")
    reader = query.reader()
    end = go(query, reader, query.start(reader))
    await streams.delete("B")
    await streams.make("B", "b")
    end = go(query, query.reader() if restart else reader, end)
    await streams.delete("B")
    reader = query.reader() if restart else reader
    end = go(query, reader, end)
    await streams.publish("a", 2)
    end = go(query, reader, end)
    assert streams.read(query.rows) == messages("A", 1, 4, "a")


async def test_idle_offset_stays(streams):
    await streams.fill(a=2, b=0)
    query = streams.query("A", "B", subjects="a")
    reader = query.reader()
    end = go(query, reader, query.start(reader))
    await streams.publish("b", 5)
    assert query.ask(reader, end) == query.ask(query.reader(), end) == end


# --- no filter matches a stream that was read ----------------------------------------------------------------


@pytest.mark.parametrize("pattern", [False, True])
async def test_recreated_with_another_subject_is_a_loss(streams, pattern):
    await streams.fill(a=5, b=5)
    names = () if pattern else "AB"
    query = streams.query(*names, subjects="a,b")
    start, end = planned(query)
    await streams.delete("A")
    await streams.make("A", "z")
    with pytest.raises(PositionInvalidError, match="was recreated"):
        query.replay(query.reader(), start, end)
    with pytest.raises(PositionInvalidError, match="was recreated"):
        query.ask(query.reader(), end)
    tolerant = streams.query(*names, subjects="a,b", failOnDataLoss=False)
    assert [len(part) for part in tolerant.replay(tolerant.reader(), start, end)] == [0, 5]
    if pattern:
        assert tolerant.ask(tolerant.reader(), end) == end
    else:
        with pytest.raises(ConfigError, match="can match no message of the streams"):
            tolerant.ask(tolerant.reader(), end)


async def test_purged_and_subject_changed_is_a_loss(streams):
    await streams.fill(a=5, b=0)
    query = streams.query("A", "B", subjects="a,b")
    start, end = planned(query)
    await streams.update("A", "z")
    await streams.purge("A")
    with pytest.raises(HistoryTruncatedError, match="messages 1 to 5"):
        query.replay(query.reader(), start, end)


async def test_option_changed_so_that_nothing_matches(streams, caplog):
    await streams.fill(a=5, b=5)
    query = streams.query("A", "B")
    start, end = planned(query)
    changed = streams.query("A", "B", subjects="b")
    with pytest.raises(ConfigError, match=r"no filter can match a message of stream .* sequences 1 to 5"):
        changed.replay(changed.reader(), start, end)
    tolerant = streams.query("A", "B", subjects="b", failOnDataLoss=False)
    assert [len(part) for part in tolerant.replay(tolerant.reader(), start, end)] == [0, 5]
    assert "sequences 1 to 5" in caplog.text
    assert changed.ask(changed.reader(), end) == end
