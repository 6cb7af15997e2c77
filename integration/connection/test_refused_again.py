"""Credentials that are refused at a reconnect: the attempts go on, or end after as many refusals as were asked for."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.connection.test_identity import USER, pair, users
from integration.connection.test_secrets import texts
from integration.kit.clients.readers import FAST as QUICK
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.waiting import eventually, never
from integration.kit.servers.fake_server import FakeServer
from jsclient import AuthenticationError, ClosedError, ConfigError, ErrorRaised, Reconnected

FAST = {**QUICK, "connect_timeout": 20.0}


async def test_gives_up_after_two_refusals(own_server: Any, connect: Any, events: list[Any]) -> None:
    own = await own_server(config=users("ann", "bob"))
    js = await connect(own, **USER, **FAST, max_refusals=2)
    sub = await js.core.subscribe("a")
    own.reload(users("bob"))
    await eventually(lambda: js.is_closed, what="the end")
    with pytest.raises(ClosedError, match=r"refused the credentials: .* as max_refusals allows"):
        await js.ping()
    with pytest.raises(ClosedError):
        await sub.next(timeout=5)
    last = await wait_for_event(ErrorRaised, events, lambda event: isinstance(event.error, ClosedError))
    assert of(ErrorRaised, events)[-2:] == [
        await wait_for_event(ErrorRaised, events, lambda event: isinstance(event.error, AuthenticationError)),
        last,
    ]
    assert [
        text for event in of(ErrorRaised, events) for text in texts(event.error) if "secret-one" in text
    ] == []
    own.reload(users("ann", "bob"))
    await never(lambda: of(Reconnected, events), 0.5, "a reconnect of a connection that was closed")
    await js.close()


async def test_other_failures_do_not_count(connect: Any, events: list[Any]) -> None:
    """A refusal, a server that is full, a refusal: no two refusals in a row."""
    async with FakeServer() as fake:
        js = await connect(fake.url, token="x", max_refusals=2, **FAST)
        # One answer for each attempt: the client may make a second attempt before this test looks again.
        fake.next_greetings.extend(
            [
                b"-ERR 'Authorization Violation'\r\n",
                b"-ERR 'maximum connections exceeded'\r\n",
                b"-ERR 'Authorization Violation'\r\n",
            ]
        )
        fake.drop()
        await wait_for_event(Reconnected, events)
        assert len(fake.clients) == 5
        assert not js.is_closed


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
async def test_number_of_refusals_is_checked(value: Any) -> None:
    async with FakeServer() as fake:
        with pytest.raises(ConfigError, match="max_refusals"):
            await jsclient.connect(fake.url, max_refusals=value)
        assert fake.clients == []


async def test_ignore_discovered(own_server: Any, connect: Any, events: list[Any]) -> None:
    first, second = await pair(own_server, {})
    js = await connect(first, ignore_discovered=True, **FAST)
    await first.kill()
    await eventually(lambda: not js.is_connected, what="the loss")
    await never(lambda: js.is_connected, 1.0, "a connection to a server that was not given")
    await first.start()
    assert (await wait_for_event(Reconnected, events)).url == first.url
    assert second.url not in str(events)


@pytest.mark.full
@pytest.mark.limit(180)
async def test_twenty_rounds_of_revoked_and_restored(
    own_server: Any, connect: Any, events: list[Any]
) -> None:
    own = await own_server(config=users("ann", "bob"))
    js = await connect(own, **USER, **FAST)
    for turn in range(20):
        own.reload(users("bob"))
        await eventually(lambda: not js.is_connected and "refused" in js._connection.problem, 20, "a refusal")
        own.reload(users("ann", "bob"))
        await eventually(lambda: len(of(Reconnected, events)) == turn + 1, 20, "the reconnect")  # noqa: B023
        assert await js.ping() < 5
    refusals = [event for event in of(ErrorRaised, events) if "refused the credentials" in str(event.error)]
    assert len(refusals) == 20
