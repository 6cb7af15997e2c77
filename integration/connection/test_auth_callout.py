"""A server that asks a service of its operator who a client is: accepted, refused, and without an answer."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import nkeys
import pytest

import jsclient
from integration.connection.test_handshakes import user_of
from integration.kit.clients.readers import FAST as QUICK
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.waiting import eventually
from integration.kit.servers.creds import Key
from jsclient import AuthenticationError, ErrorRaised, Reconnected

FAST = {**QUICK, "connect_timeout": 20.0}

CANARY = "canary-callout"


class Callout:
    """The service. It accepts the token `CANARY`, as user ann of account APP, while `open` is set."""

    def __init__(self, timeout: int = 20) -> None:
        self.timeout = timeout  # seconds for which the server waits for an answer
        self.issuer = Key.make(nkeys.PREFIX_BYTE_ACCOUNT)
        self.open = self.answers = True
        self.asked: list[dict[str, Any]] = []

    @property
    def config(self) -> dict[str, Any]:
        auth = {"issuer": self.issuer.public, "auth_users": ["auth"], "account": "AUTH"}
        return {
            "accounts": {
                "AUTH": {"users": [{"user": "auth", "password": "auth"}]},
                "APP": {"jetstream": "enabled"},
            },
            "authorization": {"timeout": self.timeout, "auth_callout": auth},
        }

    async def answer(self, message: Any) -> None:
        request = json.loads(_part(message.data.decode().split(".")[1]))["nats"]
        self.asked.append(request["connect_opts"])
        if not self.answers:
            return
        user, server = request["user_nkey"], request["server_id"]["id"]
        if self.open and request["connect_opts"].get("auth_token") == CANARY:
            claims = {"subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
            verdict = {"jwt": self.issuer.sign(user, "user", audience="APP", **claims)}
        else:
            verdict = {"error": "not today"}
        await message.respond(
            self.issuer.sign(user, "authorization_response", audience=server, **verdict).encode()
        )


def _part(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@asynccontextmanager
async def serving(own: Any, callout: Callout) -> AsyncIterator[None]:
    nc = await nats.connect(own.url, user="auth", password="auth", allow_reconnect=False)
    try:
        await nc.subscribe("$SYS.REQ.USER.AUTH", cb=callout.answer)
        await nc.flush()
        yield
    finally:
        await nc.close()


async def test_accepted_refused_and_accepted_again(own_server: Any, connect: Any, events: list[Any]) -> None:
    callout = Callout()
    own = await own_server(config=callout.config)
    async with serving(own, callout):
        js = await connect(own.url, token=CANARY, **FAST)
        assert (await js.account_info()).streams == 0
        with pytest.raises(AuthenticationError, match="refused the credentials"):
            await jsclient.connect(own.url, token="other", connect_timeout=20.0)
        # The service changes its mind, and the server forgets the connection.
        callout.open = False
        js._connection.transport.abort()
        refused = await wait_for_event(ErrorRaised, events)
        assert isinstance(refused.error, AuthenticationError)
        assert CANARY not in str(events)
        callout.open = True
        await wait_for_event(Reconnected, events)
        await js.account_info()
    assert callout.asked[0]["auth_token"] == CANARY


async def test_all_that_was_given_reaches_the_service(own_server: Any, connect: Any) -> None:
    """A user, a password, a token and a name: the service decides by them."""
    callout = Callout()
    own = await own_server(config=callout.config)
    async with serving(own, callout):
        js = await connect(own.url, token=CANARY, user="ann", password="x", name="billing", **FAST)
        assert await user_of(js) != ""
    given = {"auth_token": CANARY, "user": "ann", "pass": "x", "name": "billing"}
    assert callout.asked[-1] | given == callout.asked[-1]


@pytest.mark.full
async def test_service_without_an_answer(own_server: Any) -> None:
    callout = Callout(timeout=2)
    callout.answers = False
    own = await own_server(config=callout.config)
    async with serving(own, callout):
        with pytest.raises(AuthenticationError):
            await jsclient.connect(own.url, token=CANARY, connect_timeout=15.0)
        await eventually(lambda: callout.asked, what="a question")
