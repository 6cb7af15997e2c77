"""Whether a partition has a publisher that is alive."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import ConnectError, PermissionDeniedError
from jsclient.protocol.epochs.presence import write_presence
from jsclient.topics.epochs.presence import Presence, is_present
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual

SUBJECT = "t.0.alive"


def ask(connection: FakeConnection, reply: bytes, data: bytes) -> None:
    connection.deliver(SUBJECT, [(SUBJECT.encode(), reply, b"", data)])


@virtual
async def test_answers_inboxes_while_alive():
    alive = True
    async with connected() as (js, connection):
        presence = Presence(js._context, SUBJECT, lambda: alive)
        await presence.begin_answering()
        ask(connection, b"_INBOX.me", write_presence("ask"))
        assert [(sent.subject, sent.payload) for sent in connection.to("_INBOX")] == [
            ("_INBOX.me", write_presence("alive"))
        ]
        for reply, data in (
            (b"orders.new", write_presence("ask")),
            (b"", write_presence("ask")),
            (b"_INBOX.me", b"?"),
        ):
            ask(connection, reply, data)
        alive = False
        ask(connection, b"_INBOX.me", write_presence("ask"))
        assert len(connection.sent) == 1, "a stranger could choose any subject"
        await presence.end_answering()
        assert SUBJECT not in connection.listening
        await presence.end_answering()


@virtual
async def test_takeover_is_noticed_and_answered():
    taken = []
    async with connected() as (js, connection):
        presence = Presence(js._context, SUBJECT, lambda: True, lambda: taken.append(1))
        await presence.begin_answering()
        ask(connection, b"_INBOX.me", write_presence("ask"))
        assert taken == []
        ask(connection, b"_INBOX.me", write_presence("take"))
        assert taken == [1]
        assert len(connection.to("_INBOX.me")) == 2
        with connection.broken(ConnectError("broken")):
            ask(connection, b"_INBOX.me", write_presence("ask"))
        await presence.end_answering()


@pytest.mark.parametrize(
    ("answer", "present"), [(write_presence("alive"), True), (b"?", False), (None, False)]
)
@virtual
async def test_publisher_that_answers_is_present(answer, present):
    async with connected() as (js, connection):
        asking = asyncio.ensure_future(is_present(js._context, SUBJECT, "take"))
        await settle()
        (request,) = connection.to(SUBJECT)
        assert request.payload == write_presence("take")
        if answer is not None:
            connection.deliver(request.reply, [(request.reply.encode(), b"", b"", answer)])
        start = asyncio.get_running_loop().time()
        assert await asking is present
        assert asyncio.get_running_loop().time() - start == (0 if answer else 1.0)


@virtual
async def test_who_may_not_ask_takes_it_for_absent():
    async with connected() as (js, connection):
        with connection.broken(PermissionDeniedError("publish", SUBJECT)):
            assert not await is_present(js._context, SUBJECT)
