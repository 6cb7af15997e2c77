"""Iterations whose members are records of a log: the records that count, and the position of a reader."""

from __future__ import annotations

import pytest

import jsclient
from jsclient.errors import ClosedError, ConfigError
from jsclient.protocol.topics.record import Kind, Record
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.topics.memory_log import MemoryLog
from jsclient.topics.notifiers.log_iteration import EntryReader, LogSubscription, newest_own, passable_reason
from tests.support.virtual import virtual


def own(number: int) -> str:
    """A message id as kits write it."""
    return f"jsc-abc:{number}"


async def filled(*values: bytes, events: list | None = None) -> MemoryLog:
    """A log with these values, which a kit has written unless they are in capitals."""
    log = MemoryLog("a", on_event=None if events is None else events.append)
    for number, value in enumerate(values, 1):
        await log.append(value, msg_id=own(number) if value.islower() or value.isdigit() else f"X{number}")
    return log


@pytest.mark.parametrize(
    ("reason", "passed"), [("text", "text"), (None, None), (ValueError("bad"), "ValueError: bad")]
)
def test_reason_that_can_be_encoded(reason, passed):
    assert passable_reason(reason) == passed


@virtual
async def test_records_of_others_are_skipped_and_reported_at_doubling():
    events = []
    log = await filled(b"1", *[b"X"] * 5, b"2", events=events)
    entries = EntryReader(JsonCodec())
    records = (await log.history(0, 100, 10**6)).records
    members = [entries.entry(record, log) for record in records]
    assert [member and (member.kind, member.value) for member in members] == [
        (Kind.VALUE, 1),
        *[None] * 5,
        (Kind.VALUE, 2),
    ]
    await log.close()
    assert [(event.stream_seq, event.count) for event in events] == [(2, 1), (3, 2), (5, 4)]
    assert "not written by a kit" in str(events[0].error)


@virtual
async def test_value_that_cannot_be_decoded_is_skipped_but_not_an_end():
    log = await filled()
    entries = EntryReader(JsonCodec())
    headers = {"Nats-Msg-Id": own(1)}
    assert entries.entry(Record(seq=1, data=b"?", headers=jsclient.Headers(headers)), log) is None
    with pytest.raises(jsclient.JetStreamError):
        entries.entry(Record(seq=2, data=b"?", kind=Kind.FINISH), log)
    member = entries.entry(Record(seq=3, data=b'"done"', kind=Kind.FINISH), log)
    assert (member.kind, member.value) == (Kind.FINISH, "done")


@pytest.mark.parametrize(
    ("values", "seq", "last_seq"),
    [((), None, 0), ((b"1", b"2"), 2, 2), ((b"1", b"X", b"X"), 1, 3), ((b"X",), None, 1)],
)
@virtual
async def test_newest_record_of_a_kit(values, seq, last_seq):
    newest = await newest_own(await filled(*values))
    assert (newest.record and newest.record.seq, newest.last_seq) == (seq, last_seq)


def subscription(log: MemoryLog, start, **options) -> LogSubscription:
    async def find():
        return log

    return LogSubscription(find, start, JsonCodec(), lambda position: position.seq, **options)


@virtual
async def test_reader_starts_after_a_position_and_moves_it():
    log = await filled(b"1", b"2", b"X", b"3")
    start = (await log.extent()).start
    source = subscription(log, start)
    reader = await source.reader(None)
    assert [(await reader.read_member()).value for _ in range(2)] == [1, 2]
    middle = reader.position
    assert (await reader.read_member()).value == 3
    assert await source.internals(None) == 0
    assert await source.internals(middle) == 2
    second = await source.reader(middle)
    assert (await second.read_member()).value == 3
    for one in (reader, second):
        await one.close()
    with pytest.raises(ClosedError):
        await reader.read_member()
    await log.close()


@virtual
async def test_end_is_read_again_and_counts_as_unread():
    log = await filled(b"1")
    await log.append(b'"done"', kind=Kind.FINISH)
    source = subscription(log, (await log.extent()).start)
    reader = await source.reader(None)
    assert (await reader.read_member()).value == 1
    before = reader.position
    for _ in range(2):
        end = await reader.read_member()
        assert (end.kind, end.value) == (Kind.FINISH, "done")
    assert reader.position == before
    await log.close()


def test_illegal_option_is_refused_now():
    with pytest.raises(ConfigError):
        LogSubscription(None, None, JsonCodec(), str, quiet=-1)
