"""A plain message, and the answer to it, which goes to inboxes only."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import jsclient
from jsclient import ConfigError, InvalidNameError, MaxPayloadError


async def one(core: Any, subject: str, *, reply: str = "", **options: Any) -> Any:
    """Publish a message, and receive it."""
    async with core.subscribe(subject, **options) as sub:
        await core.publish(subject, b"data", headers={"A": "1"}, reply=reply)
        return await sub.next(5)


async def test_fields(core: Any, subject: str) -> None:
    message = await one(core, subject, reply="_INBOX.x")
    assert (message.subject, message.data, message.reply) == (subject, b"data", "_INBOX.x")
    assert message.headers == {"A": "1"}
    assert (message.header("A"), message.header("a"), message.header("B", "c")) == ("1", None, "c")
    assert (message.status, message.error) == (0, None)
    assert subject in repr(message)


async def test_size(js: Any, subject: str) -> None:
    message = await one(js.core, subject)
    assert message.size == len(subject) + len("NATS/1.0\r\nA: 1\r\n\r\n") + 4


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.API.STREAM.PURGE.ORDERS",
        "$SYS.REQ.USER.INFO",
        "$KV.a.b",
        "orders.new",
        "_INBOX",
        "_INBOX.*",
    ],
)
async def test_answers_no_other_subject(js: Any, oracle: Any, subject: str, reply: str) -> None:
    """A stranger chooses the reply subject, and the answer would go there with our permissions."""
    async with js.core.subscribe(subject) as sub:
        await js.core.flush()
        await oracle.nc.publish(subject, b"", reply=reply)
        message = await sub.next(5)
        with pytest.raises(InvalidNameError, match="reply_prefixes"):
            await message.respond(b"")


async def test_reply_prefixes(js: Any, subject: str) -> None:
    """For requesters that have inboxes of another form."""
    message = await one(
        js.core, subject, reply=f"{subject}-answers.1", reply_prefixes=[f"{subject}-answers."]
    )
    async with js.core.subscribe(f"{subject}-answers.*") as answers:
        await message.respond(b"ok")
        assert (await answers.next(5)).data == b"ok"


async def test_own_inbox_prefix(server: Any, connect: Any, subject: str) -> None:
    """Inboxes like our own are inboxes."""
    js = await connect(server, inbox_prefix="ann.inbox")

    async def answer(request: Any) -> None:
        await request.respond(b"ok")

    async with js.core.subscribe(subject, callback=answer):
        assert (await js.core.request(subject)).data == b"ok"


async def test_no_reply_subject(js: Any, subject: str) -> None:
    message = await one(js.core, subject)
    with pytest.raises(ConfigError, match="no reply subject"):
        await message.respond(b"")


async def test_bad_answers(js: Any, subject: str) -> None:
    message = await one(js.core, subject, reply="_INBOX.x")
    with pytest.raises(ConfigError, match="bytes"):
        await message.respond("text")
    with pytest.raises(InvalidNameError):
        await message.respond(b"", headers={"a": "b\n"})
    with pytest.raises(MaxPayloadError):
        await message.respond(bytes(2**20 + 1))


async def test_several_answers(js: Any, subject: str) -> None:
    """Nothing limits how often a request is answered."""

    async def answer(request: Any) -> None:
        for number in range(3):
            await request.respond(b"%d" % number)

    async with js.core.subscribe(subject, callback=answer):
        replies = [reply.data async for reply in js.core.request_many(subject, max_messages=3)]
    assert replies == [b"0", b"1", b"2"]


async def test_other_account(own_server: Any, connect: Any, subject: str) -> None:
    """The reply subject of a request from another account is not an inbox."""
    own = await own_server(
        config={
            "accounts": {
                "A": {"users": [{"user": "a", "password": "x"}], "exports": [{"service": subject}]},
                "B": {
                    "users": [{"user": "b", "password": "x"}],
                    "imports": [{"service": {"account": "A", "subject": subject}}],
                },
            }
        }
    )
    here = await connect(own.url.replace("nats://", "nats://a:x@"))
    there = await connect(own.url.replace("nats://", "nats://b:x@"))

    async def answer(request: Any) -> None:
        await request.respond(b"ok")

    async with here.core.subscribe(subject, callback=answer):
        await here.core.flush()
        assert (await there.core.request(subject)).data == b"ok"


async def test_error_of_service(js: Any, subject: str) -> None:
    async def answer(request: Any) -> None:
        code = request.data.decode()
        await request.respond(b"", headers={"Nats-Service-Error": "no", "Nats-Service-Error-Code": code})

    async with js.core.subscribe(subject, callback=answer):
        for code, number in ((b"404", 404), (b"none", 500), (b"99999999999", 500)):
            error = (await js.core.request(subject, code)).error
            assert (error.code, error.description) == (number, "no")
            assert isinstance(error, jsclient.ServiceError)


async def test_not_copied(js: Any, subject: str) -> None:
    message = await one(js.core, subject)
    for call in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="answered"):
            call(message)


async def test_names_of_nats_py(js: Any, subject: str) -> None:
    message = await one(js.core, subject)
    with pytest.raises(AttributeError, match="delivers at most once"):
        await message.ack()
