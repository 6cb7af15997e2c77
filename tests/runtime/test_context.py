"""Request and reply: each answer reaches its request, and no state is left afterwards."""

from __future__ import annotations

import asyncio
import gc

import pytest

from jsclient._runtime.context import Requests
from jsclient.errors import (
    ClosedError,
    DisconnectedError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from tests.support.fake import FakeConnection
from tests.support.virtual import settle, virtual


def asking(requests: Requests, subject: str = "svc.a", timeout: float = 5.0) -> asyncio.Task[bytes]:
    async def ask() -> bytes:
        return (await requests.ask(subject, b"?", timeout=timeout, what="ask"))[3]

    return asyncio.ensure_future(ask())


def reply(connection: FakeConnection, number: int, payload: bytes = b"!", header: bytes = b"") -> None:
    to = connection.to("svc.")[number].reply
    connection.deliver(to, [(to.encode(), b"", header, payload)])


@virtual
async def test_answers_through_one_inbox():
    connection = FakeConnection()
    requests = Requests(connection)
    tasks = [asking(requests) for _ in range(10)]
    await settle()
    for number in reversed(range(10)):
        reply(connection, number, b"%d" % number)
    assert await asyncio.gather(*tasks) == [b"%d" % number for number in range(10)]
    assert len(connection.inboxes) == 1
    assert requests._waiting == {}
    await requests.close()
    assert connection.inboxes == []


@virtual
async def test_timeout_says_what():
    connection = FakeConnection()
    requests = Requests(connection)
    with pytest.raises(RequestTimeoutError, match=r"ask.*within 7200 s") as caught:
        await requests.ask("svc.a", b"", timeout=7200.0, what="ask")
    assert caught.value.timeout == 7200.0
    reply(connection, 0)
    assert requests._waiting == {}
    second = asking(requests)
    await settle()
    reply(connection, 0, b"late")
    reply(connection, 1, b"right")
    reply(connection, 1, b"again")
    assert await second == b"right"


@virtual
async def test_nobody_there_reported_at_once():
    connection = FakeConnection()
    task = asking(Requests(connection))
    await settle()
    reply(connection, 0, b"", b"NATS/1.0 503\r\n\r\n")
    with pytest.raises(NoRespondersError, match=r"svc\.a"):
        await task


@virtual
async def test_payload_with_503_header_answer():
    connection = FakeConnection()
    task = asking(Requests(connection))
    await settle()
    reply(connection, 0, b"data", b"NATS/1.0 503\r\n\r\n")
    assert await task == b"data"


@virtual
async def test_disconnect_fails_waiting():
    connection = FakeConnection()
    requests = Requests(connection)
    tasks = [asking(requests) for _ in range(3)]
    await settle()
    connection.disconnect()
    for task in tasks:
        with pytest.raises(DisconnectedError, match=r"svc\.a"):
            await task
    later = asking(requests)
    await settle()
    assert len(connection.to("svc.")) == 3, "nothing is sent while there is no connection"
    connection.reconnect()
    await settle()
    reply(connection, 3, b"back")
    assert await later == b"back"


@virtual
async def test_timeout_under_backpressure():
    connection = FakeConnection()
    connection.stuck = True
    requests = Requests(connection)
    with pytest.raises(RequestTimeoutError):
        await requests.ask("svc.a", b"", timeout=3.0)
    assert requests._waiting == {}


@virtual
async def test_answer_at_last_moment_counts():
    connection = FakeConnection()
    task = asking(Requests(connection), timeout=5.0)
    await settle()
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + 5.0 - 5e-10, reply, connection, 0)  # in the same turn of the loop
    assert await task == b"!"


@virtual
async def test_offline_timeout_unsent():
    connection = FakeConnection()
    connection.disconnect()
    with pytest.raises(RequestTimeoutError, match="not connected"):
        await Requests(connection).ask("svc.a", b"", timeout=3.0)
    connection.reconnect()
    await settle()
    assert connection.sent == []


@virtual
async def test_closed_connection_reported_at_once():
    connection = FakeConnection()
    requests = Requests(connection)
    connection.disconnect()
    waiting = asking(requests)
    await settle()
    await connection.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await requests.ask("svc.a", timeout=5.0)


@virtual
async def test_denied_fails_own_request():
    connection = FakeConnection()
    requests = Requests(connection)
    denied, other = asking(requests, "svc.a"), asking(requests, "svc.b")
    await settle()
    connection.deny("publish", "svc.a")
    with pytest.raises(PermissionDeniedError):
        await denied
    connection.deny("publish", "svc.c")
    connection.deny("subscribe", "_INBOX.of.somebody.else")
    reply(connection, 1, b"fine")
    assert await other == b"fine"


@virtual
async def test_denied_inbox_fails_all():
    connection = FakeConnection()
    tasks = [asking(requests) for requests in [Requests(connection)] for _ in range(3)]
    await settle()
    connection.deny("subscribe", connection.inboxes[0].subject)
    for task in tasks:
        with pytest.raises(PermissionDeniedError):
            await task


@virtual
@pytest.mark.parametrize("turns", range(6))
async def test_request_cancelled_leaves_nothing(turns):
    connection = FakeConnection()
    connection.publishing = 3  # turns that the publish waits for room
    requests = Requests(connection)
    task = asking(requests)
    await settle(turns)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    connection.disconnect()
    assert requests._waiting == {}
    loop = asyncio.get_running_loop()
    assert not [timer for timer in loop._scheduled if not timer.cancelled()]


@virtual
async def test_publish_fails_leaves_nothing():
    connection = FakeConnection()
    connection.limit = 0
    requests = Requests(connection)
    with pytest.raises(MaxPayloadError):
        await requests.ask("svc.a", b"x", timeout=5.0)
    assert requests._waiting == {}


@virtual
async def test_disconnect_in_backpressure():
    connection = FakeConnection()
    connection.publishing = 5
    task = asking(Requests(connection))
    await settle(2)
    connection.disconnect()
    await asyncio.wait({task})
    assert isinstance(task.exception(), DisconnectedError)
    del task
    gc.collect()
    assert asyncio.get_running_loop().problems == []
