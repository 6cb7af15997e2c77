"""How a worker settles its messages: acks, retries, and what a handler decided itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from jsclient import (
    ConsumerConfig,
)
from jsclient.consumers.worker.settling import DeadLetters, dead_lettered
from jsclient.errors import ConfigError, NoMatchingStreamError
from jsclient.protocol.consumers.worker.dead_letter import Origin
from jsclient.protocol.events import (
    ErrorRaised,
    HandlerFailed,
)
from tests.consumers.worker.kit import ALIVE, Handler, nak, working
from tests.support.fake import SILENCE, connected
from tests.support.strategies import STREAM, data
from tests.support.virtual import settle, virtual


@virtual
async def test_fails_tried_again_after_pause_grows():
    handler = Handler()
    async with working(handler) as work:
        for deliveries in (1, 2, 3):
            await work.deliver(data(1, delivered=deliveries))
            handler.end(1, error=ValueError("busy"))
            await settle()
        assert work.connection.acks() == [nak(0.5), nak(1.0), nak(2.0)]
        reports = work.connection.told(HandlerFailed)
        assert [(event.attempt, event.retry_in) for event in reports] == [(1, 0.5), (2, 1.0), (3, 2.0)]
        assert {(event.stream, event.consumer, event.subject) for event in reports} == {
            (STREAM, "worker", "orders.new")
        }
        assert (work.worker.counts.failed, work.worker.counts.retried) == (3, 3)


@virtual
@pytest.mark.row(113)
async def test_backoff_of_consumer_left_to_server():
    """A nak would be at once, and a nak with a delay is off by what the server adds."""
    handler = Handler()
    async with working(handler, config=ConsumerConfig(backoff=[3.0, 9.0], max_deliver=5)) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [ALIVE]
        assert work.connection.told(HandlerFailed)[0].retry_in == 3.0
        await asyncio.sleep(20)
        assert work.connection.acks() == [ALIVE]  # it is not kept alive any more


@virtual
async def test_a_delay_of_ones_own():
    handler = Handler()
    async with working(handler, retry_delay=lambda attempt: 10.0 * attempt) as work:
        await work.deliver(data(1, delivered=4))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [nak(40.0)]


@virtual
async def test_delay_function_may_raise():
    handler = Handler()
    async with working(handler, retry_delay=lambda attempt: 1 / 0) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [nak(0.5)]
        (event,) = work.connection.told(ErrorRaised)
        assert "ZeroDivisionError" in str(event.error)


@virtual
@pytest.mark.parametrize("raises", [False, True])
async def test_message_settled_by_handler_is_not_settled_again(raises):
    async def handler(message):
        await message.nak(delay=5)
        if raises:
            raise ValueError

    async with working(handler, max_deliver=1) as work:
        await work.deliver(data(1))
        assert work.connection.acks() == [nak(5.0)]
        counts = work.worker.counts
        assert (counts.handled, counts.failed, counts.terminated) == ((0, 1, 0) if raises else (1, 0, 0))
        assert len(work.connection.told(HandlerFailed)) == raises


@virtual
async def test_ack_may_be_one_server_confirms():
    handler = Handler(waits=False)
    async with working(handler, ack_sync=True) as work:
        await work.deliver(data(1))
        (ack,) = work.connection.to("$JS.ACK.")
        assert ack.reply
        assert work.worker.counts.handled == 0
        work.connection.deliver(ack.reply, [(ack.reply.encode(), b"", b"", b"")])
        await settle()
        assert work.worker.counts.handled == 1


@virtual
async def test_ack_never_confirmed_reported():
    handler = Handler(waits=False)
    async with working(handler, ack_sync=True) as work:
        await work.deliver(data(1))
        await asyncio.sleep(20)
        assert len(work.connection.told(ErrorRaised)) == 3
        assert (work.worker.counts.handled, work.worker.counts.unsettled) == (0, 1)


@pytest.mark.parametrize("where", ["dead.>", ""])
def test_event_of_a_dead_letter_names_its_origin(where):
    origin = Origin(STREAM, "worker", "orders.new", 7, 1, 3)
    event = dead_lettered(origin, ValueError("bad"), 2, where)
    assert (event.stream, event.consumer, event.subject, event.stream_seq) == (
        STREAM,
        "worker",
        "orders.new",
        7,
    )
    assert (event.attempt, event.dead_letter, str(event.error)) == (2, where, "bad")


@virtual
@pytest.mark.parametrize(
    ("streams", "filters", "error"),
    [
        (["DEAD"], [">"], None),
        ([], [">"], NoMatchingStreamError),
        ([STREAM], ["orders.>"], None),
        ([STREAM], ["dead.>"], ConfigError),
        ([STREAM], [], ConfigError),
        (SILENCE, [">"], None),
    ],
)
async def test_subject_of_dead_letters_is_stored_elsewhere(streams, filters, error):
    async with connected() as (js, connection):
        answers = [SILENCE] * 5 if streams is SILENCE else [{"streams": streams}]
        connection.api.on("STREAM.NAMES", *answers)
        source = SimpleNamespace(context=js._context, stream=STREAM, consumer="worker", emit=js._context.emit)
        letters = DeadLetters(source, "dead.>")
        config = ConsumerConfig(filter_subjects=filters)
        if error is None:
            await letters.check_subject(config)
        else:
            with pytest.raises(error):
                await letters.check_subject(config)
