"""The publisher of a chain on a fake connection, in virtual time: when it looks, waits, fails and ends."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jsclient._runtime.publish import publish
from jsclient.errors import ApiError, ClosedError, JetStreamError, ProtocolError, RequestTimeoutError
from jsclient.protocol.wire.headers import parse_headers
from jsclient.topics.publisher import ChainPublisher
from tests.support.fake import SILENCE, Refusal, Sent, connected
from tests.support.virtual import settle, virtual

SUBJECT = "orders.x"


class PublisherGround:
    """A chain on a fake connection, and the stream that the test plays: it takes what was sent when it is asked to."""

    def __init__(self, js: Any, connection: Any, chain: ChainPublisher) -> None:
        self.js, self.connection, self.chain = js, connection, chain
        self.stored: list[tuple[str, Sent]] = []
        self.taken = 0
        self.answer: Any = None  # instead of what a stream says
        self.replicas = 1
        connection.api.on("STREAM.INFO", *[self.info] * 100)
        connection.api.on("STREAM.MSG", *[self.get] * 100)

    def info(self, request: Any) -> Any:
        answer = type(self.connection.api)._stream_info(self.connection.api, request)
        answer["state"]["last_seq"] = len(self.stored)
        answer["config"]["num_replicas"] = self.replicas
        return answer

    def get(self, request: Any) -> Any:
        seq = request.json["seq"]
        message = self.stored[seq - 1][1]
        return {
            "message": {
                "subject": SUBJECT,
                "seq": seq,
                "data": base64.b64encode(message.payload).decode(),
                "hdrs": base64.b64encode(message.header).decode(),
                "time": "2026-01-01T00:00:00Z",
            }
        }

    @property
    def records(self) -> list[bytes]:
        return [message.payload for _, message in self.stored]

    def lose(self) -> None:
        """The published records do not arrive."""
        self.taken = len(self.published)

    @property
    def published(self) -> list[Sent]:
        return [message for message in self.connection.sent if message.subject == SUBJECT]

    def take(self) -> None:
        """The stream takes what was sent."""
        for message in self.published[self.taken :]:
            self.taken += 1
            answer = self.answer or self._take(message)
            self.connection.deliver(
                message.reply, [(message.reply.encode(), b"", b"", json.dumps(answer).encode())]
            )

    def _take(self, message: Sent) -> Any:
        headers = parse_headers(message.header)[1]
        seq, last = headers.get("Nats-Expected-Last-Sequence"), headers.get("Nats-Expected-Last-Msg-Id")
        fits = (seq is None or int(seq) == len(self.stored)) and (
            last is None or (self.stored and last == self.stored[-1][0])
        )
        if not fits:
            return {"error": {"code": 400, "err_code": 10070, "description": "wrong last msg ID"}}
        self.stored.append((headers["Nats-Msg-Id"], message))
        return {"stream": "ORDERS", "seq": len(self.stored)}

    async def append(self, data: bytes, **headers: Any) -> asyncio.Future[Any]:
        return await self.chain.append(SUBJECT, data, headers or None, lambda: None)

    async def run(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.05)):
            await asyncio.sleep(0.05)
            self.take()
            await settle()


@asynccontextmanager
async def ground(timeout: float = 30.0) -> AsyncIterator[PublisherGround]:
    async with connected() as (js, connection):
        stream = await js.stream("ORDERS")
        chain = ChainPublisher(js._context, stream, after=0, max_in_flight=100, timeout=timeout)
        yield PublisherGround(js, connection, chain)
        await chain.publisher.close()


@virtual
async def test_lost_record_is_sent_again_in_order():
    async with ground() as here:
        futures = [await here.append(b"%d" % number, Tag=["a", "b"]) for number in range(3)]
        here.take()
        futures += [await here.append(b"%d" % number) for number in range(3, 6)]
        here.lose()
        here.connection.disconnect()
        here.connection.reconnect()
        late = asyncio.ensure_future(here.append(b"6"))
        await here.run(2)
        futures.append(await late)
        await here.run(1)
        assert [future.result().seq for future in futures] == [*range(1, 8)]
        assert here.records == [b"%d" % number for number in range(7)]
        assert parse_headers(here.stored[0][1].header)[1].get_all("Tag") == ["a", "b"]


@virtual
async def test_repaired_chain_preserves_order():
    """It goes out under a link that is over: it is refused, and the next record must not take its place."""
    async with ground() as here:
        futures = [await here.append(b"1"), await here.append(b"2")]
        admission = here.chain.publisher.acks.admission
        admission._pausing, admission.clear = True, False  # as when the wire is slow
        third = asyncio.ensure_future(here.append(b"3"))
        await settle()
        assert here.chain.publisher.waiting == 1
        here.lose()
        here.connection.disconnect()
        here.connection.reconnect()
        await here.run(2)
        assert here.records == [b"1", b"2"]
        admission._paused()
        futures += [await third, await here.append(b"4"), await here.append(b"5")]
        await here.run(5)
        assert [future.result().seq for future in futures] == [1, 2, 3, 4, 5]
        assert here.records == [b"1", b"2", b"3", b"4", b"5"]


@virtual
async def test_loss_of_acked_records_ends_chain():
    """A stream in memory was restarted: the next record would have no predecessor."""
    async with ground(timeout=60) as here:
        for number in range(3):
            await here.append(b"%d" % number)
        await here.run(0.2)
        here.stored.clear()
        future = await here.append(b"3")
        await here.run(30)
        assert isinstance(future.exception(), ApiError | RequestTimeoutError)
        assert here.records == []
        with pytest.raises(ClosedError):
            await here.append(b"4")


@virtual
async def test_outdated_last_message_is_read_again():
    async with ground() as here:
        here.replicas = 3
        one = await here.append(b"1")
        await here.run(0.2)
        there, here.stored = here.stored, []  # a new leader that has not applied all
        two = await here.append(b"2")
        await here.run(1)
        here.stored = there
        await here.run(5)
        assert (one.result().seq, two.result().seq) == (1, 2)
        assert here.records == [b"1", b"2"]


@virtual
async def test_last_message_may_have_expired():
    async with ground() as here:
        one = await here.append(b"1")
        await here.run(0.2)
        here.connection.api.script["STREAM.MSG"] = [Refusal(10037, 404, "no message found")] * 20
        two = await here.append(b"2")
        here.lose()
        here.connection.disconnect()
        here.connection.reconnect()
        await here.run(3)
        assert (one.result().seq, two.result().seq) == (1, 2)


@virtual
async def test_full_stream_reported_at_once():
    async with ground() as here:
        here.answer = {"error": {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}}
        future = await here.append(b"1")
        await here.run(0.2)
        assert future.exception().err_code == 10077


@virtual
async def test_append_deadline_while_uncertain():
    async with ground(timeout=5.0) as here:
        future = await here.append(b"1")
        await asyncio.sleep(2.5)  # the chain is broken: no answer
        here.take()
        assert future.result().seq == 1
        here.connection.disconnect()
        began = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeoutError):
            await here.append(b"2")
        assert asyncio.get_running_loop().time() - began < 6
        here.connection.reconnect()
        await here.run(3)
        await here.append(b"2")
        await here.run(1)
        assert here.records == [b"1", b"2"]


@virtual
async def test_failed_check_of_stream_ends_chain():
    async with ground() as here:
        here.connection.api.script["STREAM.INFO"] = [Refusal(10000, 400, "no")] * 3
        future = await here.append(b"1")
        here.lose()
        await here.run(5)
        assert isinstance(future.exception(), RequestTimeoutError), "it may be there"
        assert isinstance(future.exception().__cause__, ApiError)
        with pytest.raises(ClosedError):
            await here.append(b"2")


@virtual
async def test_a_defect_in_mending_is_reported():
    async with ground() as here:
        here.chain._stream = None
        future = await here.append(b"1")
        here.lose()
        await here.run(5)
        assert isinstance(future.exception().__cause__, ProtocolError)
        assert here.chain._mending is None


@virtual
async def test_nothing_remains_when_ends_while_broken():
    async with ground() as here:
        future = await here.append(b"1")
        here.connection.disconnect()
        await asyncio.sleep(0.5)
        assert here.chain._mending is not None
        await here.chain.publisher.close()
        await settle()
        assert here.chain._mending is None
        assert isinstance(future.exception(), JetStreamError)
    async with ground() as here:
        future = await here.append(b"1")
        here.connection.disconnect()
        await asyncio.sleep(0.3)
        await here.connection.close()
        await asyncio.sleep(3)
        assert here.chain._mending is None
        assert isinstance(future.exception(), ClosedError)


@virtual
async def test_late_connection_keeps_time():
    async with connected() as (js, connection):
        connection.disconnect()
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(0.9, connection.reconnect)
        connection.api.script[SUBJECT] = [SILENCE] * 3
        with pytest.raises(RequestTimeoutError):
            await publish(js._context, SUBJECT, b"1", msg_id="a", timeout=1.0)
        assert loop.time() - began < 1.1
