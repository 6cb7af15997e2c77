"""The newest record of a subject: requests for it, and pushes of one newer record."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import PermissionDeniedError
from jsclient.protocol.topics.position import Position
from jsclient.topics.notifiers.descriptors import NotifierDescriptor
from jsclient.topics.notifiers.newest import newest_log
from tests.support.fake import SILENCE, FakeConnection, Refusal, connected
from tests.support.virtual import virtual

ORIGIN = Position("S", "2026-01-01T00:00:00Z", 0)
TIME = "2026-11-23T00:00:00Z"


def at(*, subject: str = "a", republished: str = "live.a", direct: bool = False) -> NotifierDescriptor:
    return NotifierDescriptor(
        stream="S",
        subject=subject,
        codec="json",
        api_prefix="$JS.API",
        republished=republished,
        direct=direct,
    )


def push(connection: FakeConnection, seq: int, subject: str = "a", block: str = "") -> None:
    """The stream republishes a message, or another client pretends that it does."""
    block = block or (
        f"Nats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\nNats-Last-Sequence: {seq - 1}\r\n"
        f"Nats-Time-Stamp: {TIME}\r\n"
    )
    connection.deliver("live.a", [(b"live.a", b"", f"NATS/1.0\r\n{block}\r\n".encode(), b"%d" % seq)])


@virtual
async def test_only_the_direct_successor_is_believed():
    async with connected() as (js, connection):
        arrived = []
        log = newest_log(js._context, at(), quiet=10, origin=ORIGIN)
        for seq, subject, believed in ((4, "a", True), (5, "a", False), (4, "b", False), (3, "a", False)):
            await log.open_pushes(arrived.append)
            log.wait_for_newer(3)
            push(connection, seq, subject)
            assert (arrived[-1] is not None) is believed
            await log.close()
        assert connection.listening == []
        push(connection, 4)
        assert len(arrived) == 4, "nobody waits any more"


@virtual
async def test_push_that_is_none_is_a_reason_to_request():
    async with connected() as (js, connection):
        arrived = []
        log = newest_log(js._context, at(), quiet=10, origin=ORIGIN)
        await log.open_pushes(arrived.append)
        log.wait_for_newer(3)
        push(connection, 4, block="A: b\r\n")
        assert arrived == [None]
        await log.close()


@virtual
async def test_push_before_the_answer_waits_for_it():
    async with connected() as (js, connection):
        arrived = []
        log = newest_log(js._context, at(), quiet=10, origin=ORIGIN)
        await log.open_pushes(arrived.append)
        push(connection, 4)
        assert arrived == []
        log.wait_for_newer(3)
        assert arrived[0].seq == 4
        await log.close()


@virtual
async def test_denied_subscription_is_the_error():
    async with connected() as (js, connection):
        arrived = []
        log = newest_log(js._context, at(), quiet=10)
        await log.open_pushes(arrived.append)
        connection.inboxes[-1].denied = error = PermissionDeniedError("subscribe", "live.a")
        log.wait_for_newer(0)
        assert arrived == [error]
        await log.close()


MESSAGE = {"message": {"subject": "a", "seq": 7, "data": "Nw==", "time": TIME}}


@pytest.mark.parametrize(("answer", "seq"), [(MESSAGE, 7), (Refusal(10037, 404, "no message found"), None)])
@virtual
async def test_newest_record_of_the_leader(answer, seq):
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", answer)
        log = newest_log(js._context, at(), quiet=10, origin=ORIGIN)
        record = await log.read_newest()
        assert (record and record.seq) == seq
        assert [sent.json for sent in connection.to("$JS.API.STREAM.MSG.GET.S")] == [{"last_by_subj": "a"}]
        if record:
            assert record.position.stream == "S"


@virtual
async def test_leader_gets_request_if_no_replica_answers():
    async with connected(timeout=1.0) as (js, connection):
        connection.api.on("DIRECT.GET", SILENCE, SILENCE, SILENCE)
        connection.api.on("STREAM.MSG", MESSAGE)
        log = newest_log(js._context, at(direct=True), quiet=10, origin=ORIGIN)
        assert (await log.read_newest()).seq == 7
        assert connection.to("$JS.API.DIRECT.GET.S.a")


@virtual
async def test_incarnation_follows_the_stream():
    async with connected() as (js, connection):
        log = newest_log(js._context, at(), quiet=10, origin=ORIGIN)
        assert log.incarnation == "2026-01-01T00:00:00Z"
        connection.api.on("STREAM.MSG", MESSAGE)
        record = await log.read_newest()
        connection.api.stream_created = "2027-01-01T00:00:00Z"
        assert (
            (await log.placed_again(record)).position.incarnation == log.incarnation == "2027-01-01T00:00:00Z"
        )


@virtual
async def test_without_republishing_one_message_at_a_time_is_pulled():
    async with connected() as (js, connection):
        arrived = []
        log = newest_log(js._context, at(subject="orders.a", republished=""), quiet=10)
        await log.open_pushes(arrived.append)
        log.wait_for_newer(3)
        await asyncio.sleep(0.1)
        (created,) = connection.to("$JS.API.CONSUMER.CREATE.S")
        assert created.json["config"]["opt_start_seq"] == 4
        (pull,) = connection.pulls()
        assert pull.json["batch"] == 1
        await log.close()
        assert log in js._context.open, "the consumer is kept for a while"
        await js.close()
        assert connection.deleted()
