"""The private names of nats-py that jsclient stands on, and what it does where they are not there.

To be run with every nats-py in the range of pyproject.toml, for example by putting its directory first on PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import nats.aio.client
import nats.aio.transport
import nats.errors
import pytest

import jsclient
from integration.kit.clients.foreign import client
from integration.kit.clients.readers import FAST
from integration.kit.judge.leaks import describe_task, no_leaks, running_tasks
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.recording import in_order
from integration.kit.servers.fake_server import FakeServer
from jsclient import ConnectError, Disconnected, Reconnected
from jsclient._runtime.nats import nats_client, seam
from jsclient._runtime.nats.own_connection import GuardedConnection
from jsclient._runtime.nats.user_connection import ForeignConnection

Client = nats.aio.client.Client


def test_the_seam_has_no_gap() -> None:
    assert seam.seam_gaps() == ()


@pytest.mark.parametrize("name", sorted(seam.METHODS))
def test_method_there_with_arguments_we_use(name: str) -> None:
    method = getattr(Client, name)
    assert tuple(inspect.signature(method).parameters)[1:][: len(seam.METHODS[name])] == (seam.METHODS[name])
    assert inspect.iscoroutinefunction(method) == (name != "_connect_command")


def test_fresh_client_attributes_we_use() -> None:
    client = Client()
    types = {
        "_max_payload": int,
        "_pings_outstanding": int,
        "_pongs": list,
        "_pongs_received": int,
        "_server_info": dict,
        "_server_pool": list,
        "_sid": int,
        "_status": int,
        "_subs": dict,
    }
    assert {name: type(getattr(client, name)) for name in types} == types
    for name in seam.ATTRIBUTES:
        assert hasattr(client, name)
    assert client._transport is None
    assert client._flush_queue is None
    assert {Client.CONNECTED, Client.CLOSED, Client.RECONNECTING} == {1, 2, 3}
    assert isinstance(client.options, dict)


def test_nats_py_table_entries() -> None:
    source = inspect.getsource(Client)
    used = {
        name
        for name in (
            "_max_msgs", "_received", "_wait_for_msgs_task", "_message_iterator", "_pending_next_msgs_calls",
            "_subject", "_queue",
        )
        if f"sub.{name}" in source
    }  # fmt: skip
    subscription = nats_client.WireSubscription(1, "a", "")
    assert {name for name in used if not hasattr(subscription, name)} == set()
    assert {"_subject", "_queue", "_max_msgs", "_received"} <= used


def test_transport_we_use() -> None:
    transport = nats.aio.transport.TcpTransport()
    assert transport._io_writer is None
    assert transport._io_reader is None
    for name in ("connect", "connect_tls", "read", "drain", "wait_closed"):
        assert inspect.iscoroutinefunction(getattr(transport, name)), name
    assert list(inspect.signature(transport.connect).parameters)[:3] == [
        "uri", "buffer_size", "connect_timeout",
    ]  # fmt: skip
    assert callable(transport.write)
    assert callable(transport.close)
    for error in ("SecureConnRequiredError", "NoServersError", "AuthorizationError", "UnexpectedEOF"):
        assert issubclass(getattr(nats.errors, error), nats.errors.Error)


async def test_nats_py_reads_and_pings(proxy: Any, connect: Any, monkeypatch: Any, events: list[Any]) -> None:
    """Each override is really what runs: behaviour, not names."""
    called: set[str] = set()
    for name in (
        "_connect_command", "_process_connect_init", "_select_next_server", "_attempt_reconnect", "_read_loop",
        "_process_op_err", "_send_ping",
    ):  # fmt: skip
        original = getattr(nats_client.NatsClient, name)

        def spy(self: Any, *args: Any, _name: str = name, _original: Any = original) -> Any:
            called.add(_name)
            return _original(self, *args)

        monkeypatch.setattr(nats_client.NatsClient, name, spy)
        assert name in seam.METHODS
    tap = await proxy()
    js = await connect(tap, **{**FAST, "ping_interval": 0.1})
    assert isinstance(js._connection, GuardedConnection)
    fed: list[int] = []
    feed = js._connection._nc.reader.feed

    def count(data: bytes) -> None:
        fed.append(len(data))
        feed(data)

    js._connection._nc.reader.feed = count
    await js.ping()
    assert fed
    await eventually(lambda: "_send_ping" in called, what="nats-py's own PING")
    assert "_attempt_reconnect" not in called
    tap.cut()
    await wait_for_event(Reconnected, events)
    expected = {
        "_connect_command", "_process_connect_init", "_select_next_server", "_attempt_reconnect", "_read_loop",
        "_process_op_err", "_send_ping",
    }  # fmt: skip
    assert called == expected


async def test_everything_works_end_to_end(
    proxy: Any, connect: Any, oracle: Any, stream: OwnStream, events: list[Any]
) -> None:
    """What a version of nats-py must carry: publish, push, pull, ordered, headers, reconnect, drain, close."""
    tap = await proxy()
    js = await connect(tap, **FAST, name="seam")
    push = await js.subscribe(stream.all, durable="push")
    ordered = await js.subscribe(stream.all, ordered=True)
    psub = await js.pull_subscribe(stream.all, durable="pull")
    reader = psub.messages(max_messages=10)
    for round_ in range(3):
        for number in range(1, 11):
            data = str(round_ * 10 + number).encode()
            ack = await js.publish(stream.subject("x"), data, headers={"A": "b"}, msg_id=data.decode())
            assert (ack.stream, ack.seq) == (stream.name, round_ * 10 + number)
        expected = list(range(round_ * 10 + 1, round_ * 10 + 11))
        for source in (push, ordered, reader):
            messages = await take(source, 10)
            assert numbers(messages) == expected
            assert {message.headers["A"] for message in messages} == {"b"}
            if source is not ordered:
                for message in messages:
                    await message.ack_sync()
        tap.cut()
        await eventually(lambda: len(of(Reconnected, events)) == round_ + 1, what="the reconnect")  # noqa: B023
    assert len(of(Disconnected, events)) == 3
    await reader.stop()
    await push.drain()
    await ordered.drain()
    await psub.unsubscribe()
    assert await stream.consumer_names() == []
    await js.close()
    assert js.is_closed


async def test_lost_cancellation_ends(proxy: Any, connect: Any, monkeypatch: Any, events: list[Any]) -> None:
    """R12: `asyncio.wait_for` of Python 3.11 gives a result that comes together with a cancellation."""
    tap = await proxy()
    js = await connect(tap, **FAST)
    tries: list[int] = []

    async def stubborn(*_: Any) -> None:
        tries.append(1)
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass
        raise OSError("no way")

    monkeypatch.setattr(nats_client.TcpTransport, "connect", stubborn)
    tap.cut()
    await wait_for_event(Disconnected, events)
    await eventually(lambda: len(tries) > 1, what="attempts")
    await js.close()
    created = len(tries)
    await asyncio.sleep(0.3)
    assert len(tries) <= created + 1


async def test_connection_lost_after_handshake_leaves_no_tasks(
    proxy: Any, connect: Any, monkeypatch: Any, events: list[Any]
) -> None:
    """nats-py starts the next attempt without ending the tasks that the handshake before has started."""
    tap = await proxy()
    js = await connect(tap, **FAST)
    drain, lost = nats_client.TcpTransport.drain, []

    async def lose(transport: Any) -> None:
        if js._connection._nc.is_connected and len(lost) < 3:  # after the handshake, before it is told
            lost.append(1)
            raise ConnectionResetError("Connection lost")
        await drain(transport)

    monkeypatch.setattr(nats_client.TcpTransport, "drain", lose)
    tap.cut()
    await wait_for_event(Reconnected, events)
    assert len(lost) == 3
    names = sorted(
        describe_task(task).split()[0] for task in running_tasks() if "Client._" in describe_task(task)
    )
    assert names == sorted({*names})
    await js.close()


# Where the names are not there


@pytest.fixture
def no_seam(monkeypatch: Any) -> None:
    monkeypatch.setattr("jsclient.client.seam_gaps", lambda: ("_read_loop",))


@pytest.mark.usefixtures("no_seam")
async def test_no_seam_public_api(server: Any, stream: OwnStream, caplog: Any) -> None:
    """Design 3.2."""
    caplog.set_level(logging.WARNING, "jsclient")
    events: list[Any] = []
    async with no_leaks(monitor=server.monitor):
        async with jsclient.connect(server.url, on_event=events.append, inbox_prefix="_INBOX_x") as js:
            connection = js._connection
            assert type(connection).__bases__ == (ForeignConnection,)
            sub = await js.subscribe(stream.all, durable="d")
            assert sub.subject.startswith("_INBOX_x.")
            await js.publish(stream.subject("x"), b"1")
            [message] = await take(sub, 1)
            assert numbers([message]) == [1]
            await message.ack_sync()
            psub = await js.pull_subscribe(stream.all, durable="p")
            assert numbers(await psub.fetch(1)) == [1]
        assert connection._nc.is_closed
    warnings = [
        record
        for record in caplog.records
        if record.name == "jsclient.connection" and record.levelno >= logging.WARNING
    ]
    assert len(warnings) == 1
    assert "_read_loop" in warnings[0].getMessage()


@pytest.mark.usefixtures("no_seam")
async def test_no_seam_connect_fails_safely(own_server: Any) -> None:
    """X1, X2, R19: what nats-py would try for ever, or send in the clear."""
    own = await own_server(config={"authorization": {"token": "t"}})
    with pytest.raises(jsclient.AuthenticationError):
        await jsclient.connect(own.url, token="wrong", connect_timeout=1.0)
    with pytest.raises(ConnectError):
        await asyncio.wait_for(jsclient.connect("nats://127.0.0.1:1", connect_timeout=0.5), 5)
    async with FakeServer() as fake:
        with pytest.raises(ConnectError, match="TLS"):
            await jsclient.connect(fake.url.replace("nats://", "tls://"))
        assert fake.frames == []


def test_a_gap_is_noticed(monkeypatch: Any) -> None:
    seam.seam_gaps.cache_clear()
    monkeypatch.delattr(Client, "_process_info")
    monkeypatch.setattr(Client, "_send_ping", lambda self, other: None)
    try:
        assert set(seam.seam_gaps()) == {"_process_info", "_send_ping"}
    finally:
        seam.seam_gaps.cache_clear()


async def test_ping_follows_what_was_sent_before(proxy: Any) -> None:
    """nats-py writes a PING at once, in front of commands that its flusher has yet to write."""
    tap = await proxy()
    async with client(tap) as nc, jsclient.JetStream(nc) as js:
        await js._connection.subscribe("late", lambda _: None)
        await js.ping()
        (sub,) = [frame for frame in tap.subs() if frame.subject == "late"]
        pings = tap.find(lambda frame: frame.op == "PING" and frame.direction == sub.direction)
        assert in_order(sub, pings[-1])


async def test_failed_drain_leaves_no_subscription(server: Any) -> None:
    """On a connection of the user: nats-py keeps a subscription whose drain fails, and subscribes it again later."""
    async with client(server) as nc:
        js = jsclient.JetStream(nc)
        connection = js._context.connection
        inbox = await connection.subscribe(connection.new_inbox(), list)
        assert len(nc._subs) == 1
        flush = nc.flush

        async def flush_but_once(timeout: float = 10) -> None:
            """As if the second PONG, for which nats-py waits by default, came too late."""
            if timeout == 10:
                raise nats.errors.FlushTimeoutError
            await flush(timeout)

        nc.flush = flush_but_once
        await connection.drain(inbox, 5)
        assert nc._subs == {}
        await js.close()
