"""Messages that cannot be handled are stored as dead letters, and are only then terminated."""

from __future__ import annotations

import asyncio
import json

import pytest

from jsclient import (
    ConfigError,
    ConsumerConfig,
    NoMatchingStreamError,
    Reject,
)
from jsclient.protocol.events import (
    DeadLettered,
    DeadLetterFailed,
    HandlerFailed,
)
from jsclient.protocol.wire.headers import parse_headers
from tests.consumers.worker.kit import ALIVE, NAK, TERM, Handler, Stored, seqs, working
from tests.support.fake import Refusal, connected
from tests.support.strategies import STREAM, data
from tests.support.virtual import settle, virtual


@virtual
async def test_last_delivery_dead_letters():
    handler = Handler()
    async with working(handler, max_deliver=3, dead_letter="dead.>") as work:
        stored = Stored(work)
        await work.deliver(
            data(7, delivered=3, payload=b"poison", header=b"NATS/1.0\r\nNats-Msg-Id: a\r\nx: y\r\n\r\n")
        )
        handler.end(7, error=ValueError("no such\r\ncustomer"))
        await settle()
        (letter,) = stored.letters
        assert (letter.subject, letter.payload) == ("dead.orders.new", b"poison")
        headers = parse_headers(letter.header)[1]
        assert headers["x"] == "y"
        assert headers["Dead-Letter-Nats-Msg-Id"] == "a"
        assert headers["Nats-Msg-Id"].startswith("dead-letter.ORDERS.worker.7.")
        assert headers["Dead-Letter-Error"] == "ValueError"
        assert headers["Dead-Letter-Reason"] == "no such customer"
        assert headers["Dead-Letter-Deliveries"] == "3"
        assert work.connection.acks() == [b"+TERM ValueError: no such customer"]
        subjects = [subject for _, subject in work.connection.log]
        assert subjects.index("dead.orders.new") < subjects.index(work.connection.to("$JS.ACK.")[0].subject)
        (event,) = work.connection.told(DeadLettered)
        assert (event.stream_seq, event.attempt, event.dead_letter) == (7, 3, "dead.orders.new")
        assert work.connection.told(HandlerFailed)[0].retry_in is None
        assert work.worker.counts.dead_lettered == 1


@virtual
async def test_rejected_message_goes_there_at_once():
    handler = Handler()
    async with working(handler, dead_letter="dead") as work:
        stored = Stored(work)
        await work.deliver(data(1))
        handler.end(1, error=Reject("no such customer"))
        await settle()
        headers = parse_headers(stored.letters[0].header)[1]
        assert (headers["Dead-Letter-Error"], headers["Dead-Letter-Reason"]) == ("Reject", "no such customer")
        assert work.connection.acks() == [b"+TERM Reject: no such customer"]


@virtual
async def test_without_subject_terminated_and_reported():
    handler = Handler()
    async with working(handler, max_deliver=1) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError("bad"))
        await settle()
        assert work.connection.acks() == [b"+TERM ValueError: bad"]
        (event,) = work.connection.told(DeadLettered)
        assert (event.dead_letter, str(event.error)) == ("", "bad")
        assert work.worker.counts.terminated == 1


@virtual
@pytest.mark.parametrize("mode", ["refuse", "silent"])
async def test_cannot_be_stored_not_terminated(mode):
    handler = Handler()
    async with working(handler, max_deliver=1, dead_letter="dead") as work:
        stored = Stored(work)
        stored.mode = mode
        await work.deliver(data(1))
        handler.end(1, error=ValueError("bad"))
        await asyncio.sleep(6)
        assert len(work.connection.told(DeadLetterFailed)) >= 1
        assert seqs(work.connection, TERM) == []
        stored.mode = "store"
        await asyncio.sleep(20)
        assert seqs(work.connection, TERM) == [1]
        assert {parse_headers(letter.header)[1]["Dead-Letter-Reason"] for letter in stored.letters} == {"bad"}
        assert len({parse_headers(letter.header)[1]["Nats-Msg-Id"] for letter in stored.letters}) == 1
        assert handler.seen == [1]  # it is not handled again meanwhile


@virtual
async def test_unstorable_returned():
    handler = Handler()
    async with working(handler, max_deliver=1, dead_letter="dead") as work:
        Stored(work).mode = "refuse"
        await work.deliver(data(1))
        handler.end(1, error=ValueError("bad"))
        await asyncio.sleep(60)
        assert seqs(work.connection, TERM) == []
        assert seqs(work.connection, NAK) == [1]
        assert work.worker.counts.waiting == 0


@virtual
async def test_in_last_delivery_held_until_stored():
    """Given back it would not come again."""
    handler = Handler()
    async with working(handler, config=ConsumerConfig(max_deliver=2), dead_letter="dead") as work:
        stored = Stored(work)
        stored.mode = "refuse"
        await work.deliver(data(1, delivered=2))
        handler.end(1, error=ValueError("bad"))
        await asyncio.sleep(300)
        assert seqs(work.connection, NAK) == []
        assert len(seqs(work.connection, ALIVE)) >= 20
        stored.mode = "store"
        await asyncio.sleep(61)
        assert seqs(work.connection, TERM) == [1]


@virtual
async def test_unsurvived_is_dead_lettered():
    handler = Handler()
    async with working(handler, max_deliver=3, dead_letter="dead") as work:
        stored = Stored(work)
        await work.deliver(data(1, delivered=4))
        assert handler.seen == []
        assert "4 times" in parse_headers(stored.letters[0].header)[1]["Dead-Letter-Reason"]
        assert seqs(work.connection, TERM) == [1]


@virtual
async def test_advisory_of_server_makes_dead_letter():
    handler = Handler()
    async with working(handler, config=ConsumerConfig(max_deliver=2), dead_letter="dead") as work:
        stored = Stored(work)
        subject = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.ORDERS.worker"
        (inbox,) = [inbox for inbox in work.connection.inboxes if inbox.subject == subject]
        assert inbox.queue  # one of the workers is enough
        message = {"subject": "orders.new", "seq": 9, "data": "cG9pc29u", "time": "2026-01-01T00:00:00Z"}
        work.connection.api.on("STREAM.MSG", Refusal(10008, 503, "not available"), {"message": message})
        work.connection.api.delivered = 10
        names = {"stream": "ORDERS", "consumer": "worker"}
        text = json.dumps(names | {"stream_seq": 9, "deliveries": 2}).encode()
        work.connection.deliver(subject, [(subject.encode(), b"", b"", text)])
        await settle()
        assert len(work.connection.told(DeadLetterFailed)) == 1
        await asyncio.sleep(1)
        (letter,) = stored.letters
        assert letter.payload == b"poison"
        assert parse_headers(letter.header)[1]["Dead-Letter-Sequence"] == "9"
        assert work.connection.told(DeadLettered)[0].stream_seq == 9
        # what is in hand is settled by who has it
        work.connection.api.on("STREAM.MSG", {"message": message | {"seq": 10}})
        await work.deliver(data(10, delivered=2))
        text = json.dumps(names | {"stream_seq": 10, "deliveries": 2}).encode()
        work.connection.deliver(subject, [(subject.encode(), b"", b"", text)])
        await settle()
        handler.end(10)
        await settle()
        assert len(stored.letters) == 1
    assert subject not in work.connection.listening


@virtual
@pytest.mark.parametrize(
    ("streams", "filters", "error"),
    [
        ([], ["orders.new"], NoMatchingStreamError),
        ([STREAM], ["orders.new", "dead.x"], ConfigError),
        ([STREAM], [], ConfigError),
        ([STREAM], ["orders.new"], None),
        (["DEAD"], [], None),
        (None, [], None),  # it may not ask
    ],
)
async def test_bad_dead_subject_refused(streams, filters, error):
    async with connected() as (js, connection):
        connection.api.has("worker", filter_subjects=filters)
        sub = await js.pull_subscribe(stream=STREAM, consumer="worker")
        answer = {"streams": streams} if streams is not None else Refusal(10000, 403, "no")
        connection.api.on("STREAM.NAMES", answer)
        worker = sub.run(Handler(), dead_letter="dead.>")
        if error is None:
            await settle()
            worker.stop()
            await worker
        else:
            with pytest.raises(error):
                await worker
            assert not connection.pulls()
