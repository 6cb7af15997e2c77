"""A producer whose log takes values at once: the answers come later. With other logs it is tested in `test_kits`."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import ClosedError, JetStreamError, ProducerFencedError, RequestTimeoutError
from jsclient.protocol.topics.record import Kind
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.topics.memory_log import MemoryLog
from jsclient.topics.notifiers.log_iteration import Newest
from jsclient.topics.notifiers.log_producer import LogProducer
from tests.support.virtual import settle, virtual


class AtOnceLog(MemoryLog):
    """Takes values at once, and answers a second later. ``lost``: how many of the next answers are lost."""

    def __init__(self):
        super().__init__("a")
        self.sent = []
        self.lost = 0

    def append_now(self, data, *, expected, msg_id, timeout, stored):
        self.sent.append((data, expected))
        self.tasks.start(self._store(data, expected, msg_id, stored), "store a value")
        return True

    async def _store(self, data, expected, msg_id, stored):
        await asyncio.sleep(1)
        try:
            position = await self.append(data, expected=expected, msg_id=msg_id)
        except JetStreamError as error:
            stored(error)
            return
        if self.lost:
            self.lost -= 1
            stored(RequestTimeoutError("publish", 2.0))
        else:
            stored(position.seq)

    async def values(self):
        return [record.data for record in (await self.history(0, 100, 10**6)).records]


def producer_of(log, **options):
    return LogProducer(log, Newest(None, 0), JsonCodec(), **options)


@virtual
async def test_value_is_sent_by_the_call():
    log = AtOnceLog()
    member = producer_of(log).publish(Kind.VALUE, 1)
    assert log.sent == [(b"1", 0)]
    assert await member == 1


@virtual
async def test_values_follow_each_other():
    log = AtOnceLog()
    producer = producer_of(log)
    members = [producer.publish(Kind.VALUE, number) for number in range(4)]
    assert log.sent == [(b"0", 0)]
    assert await asyncio.gather(*members) == [1, 2, 3, 4]
    assert log.sent == [(b"0", 0), (b"1", 1), (b"2", 2), (b"3", 3)]
    assert log.open == set()


@virtual
async def test_lost_answer_stores_no_value_twice():
    log = AtOnceLog()
    log.lost = 1
    producer = producer_of(log)
    members = [producer.publish(Kind.VALUE, number) for number in range(3)]
    assert await asyncio.gather(*members) == [1, 2, 3]
    assert await log.values() == [b"0", b"1", b"2"]


@virtual
async def test_end_follows_values():
    log = AtOnceLog()
    producer = producer_of(log)
    value, end = producer.publish(Kind.VALUE, 1), producer.publish(Kind.FINISH, "done")
    assert (await value, await end) == (1, 2)
    with pytest.raises(ClosedError):
        producer.publish(Kind.VALUE, 2)


@virtual
async def test_other_producer_is_detected():
    log = AtOnceLog()
    mine, other = producer_of(log), producer_of(log)
    await other.publish(Kind.VALUE, "theirs")
    with pytest.raises(ProducerFencedError):
        await mine.publish(Kind.VALUE, "mine")


@virtual
async def test_call_without_a_loop_changes_nothing():
    log = AtOnceLog()
    producer = producer_of(log)
    with pytest.raises(RuntimeError):
        await asyncio.get_running_loop().run_in_executor(None, producer.publish, Kind.VALUE, 1)
    assert await producer.publish(Kind.VALUE, 2) == 1
    assert await log.values() == [b"2"]


@virtual
async def test_cancelled_waits_leave_nothing():
    log = AtOnceLog()
    member = producer_of(log).publish(Kind.VALUE, 1)
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(member), 0.01)
    assert member.waiters == []
    assert await member == 1


@virtual
async def test_closing_waits_for_values_in_flight():
    log = AtOnceLog()
    producer = producer_of(log)
    members = [producer.publish(Kind.VALUE, number) for number in range(4)]
    await producer.abandon()  # for two seconds, in which two values are stored
    await settle()
    outcomes = await asyncio.gather(*members, return_exceptions=True)
    assert outcomes[0] == 1
    assert isinstance(outcomes[-1], ClosedError)
