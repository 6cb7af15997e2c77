"""Connecting: which server is taken, by which transport, how long it is tried, and from where it may be used."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import jsclient
from integration.connection.test_tls import certificate, context
from integration.kit.clients.readers import FAST
from integration.kit.judge.leaks import running_tasks
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.servers.fake_server import FakeServer
from integration.kit.servers.ports import free_port
from jsclient import AuthenticationError, ConfigError, ConnectError, Reconnected

# --- the next server -----------------------------------------------------------------------------------------

HANGING = {"silent", "half a handshake"}  # those that only a timeout ends
BAD = ["refuses", "silent", "closes", "full", "not NATS", "half a handshake", "closes after CONNECT"]


@contextlib.asynccontextmanager
async def _bad_server(kind: str) -> AsyncIterator[str]:
    """A server that takes the TCP connection, except the first kind, and then fails."""
    info = b'INFO {"server_id":"X","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if kind == "full":
            writer.write(b"-ERR 'maximum connections exceeded'\r\n")
        elif kind == "not NATS":
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        elif kind in {"half a handshake", "closes after CONNECT"}:
            writer.write(info)
            await reader.readline()
        # keep the connection open without sending more
        if kind in {"silent", "half a handshake"}:
            await reader.read()
        writer.close()

    if kind == "refuses":
        yield f"nats://127.0.0.1:{free_port()}"
        return
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("kind", BAD)
async def test_failing_server_leads_to_next(kind: str, server: Any) -> None:
    async with _bad_server(kind) as bad:
        timeout = 3.0 if kind in HANGING else 20.0
        connecting = jsclient.connect([bad, server.url], dont_randomize=True, connect_timeout=timeout)
        js = await within(60, connecting, "the next server")
        await js.account_info()
        await js.close()


@pytest.mark.parametrize("kind", BAD)
async def test_failing_server_named(kind: str) -> None:
    timeout = 0.5 if kind in HANGING else 20.0
    async with _bad_server(kind) as bad:
        with pytest.raises(ConnectError, match=bad):
            await jsclient.connect(bad, connect_timeout=timeout)
        absent = f"nats://127.0.0.1:{free_port()}"
        with pytest.raises(ConnectError) as caught:
            await jsclient.connect([bad, absent], connect_timeout=timeout)
        assert bad in str(caught.value)
        assert absent in str(caught.value)
        if kind == "full":
            assert "maximum connections" in str(caught.value)
    await eventually(lambda: not running_tasks() - {asyncio.current_task()}, what="no task left")


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("kind", ["silent", "closes", "full", "half a handshake", "closes after CONNECT"])
async def test_failing_server_does_not_hold_reconnect(
    kind: str, server: Any, proxy: Any, connect: Any, events: list[Any]
) -> None:
    tap = await proxy()
    async with _bad_server(kind) as bad:
        js = await connect(f"{tap.url},{bad}", dont_randomize=True, **{**FAST, "connect_timeout": 2.0})
        tap.cut()
        await wait_for_event(Reconnected, events)
        await js.account_info()


async def test_refused_credentials_lead_to_next(own_server: Any, server: Any) -> None:
    closed = await own_server(config={"authorization": {"user": "a", "password": "b"}})
    js = await jsclient.connect([closed.url, server.url], dont_randomize=True, connect_timeout=20.0)
    assert js.is_connected
    await js.close()
    with pytest.raises(AuthenticationError, match=str(closed.port)):
        await jsclient.connect([closed.url, f"nats://127.0.0.1:{free_port()}"], dont_randomize=True)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_refusal_over_websocket(scheme: str, own_server: Any, tmp_path: Path) -> None:
    """What the server said before it closed is the error: 21 of 50 looked like a server that is unreachable."""
    port, ca = free_port(), trustme.CA()
    block = certificate(ca, tmp_path, "127.0.0.1")
    pair = {key: block[key] for key in ("cert_file", "key_file")}
    socket_of = {"port": port, "no_tls": True} if scheme == "ws" else {"port": port, "tls": pair}
    await own_server(config={"websocket": socket_of, "authorization": {"user": "a", "password": "b"}})
    options: dict[str, Any] = {"tls": context(ca)} if scheme == "wss" else {}
    for _ in range(30):
        with pytest.raises(AuthenticationError, match="Authorization Violation"):
            await jsclient.connect(f"{scheme}://127.0.0.1:{port}", user="a", password="c", wait=20, **options)


async def test_full_server_says_so_over_websocket(own_server: Any) -> None:
    port = free_port()
    own = await own_server(config={"max_connections": 1, "websocket": {"port": port, "no_tls": True}})
    async with jsclient.connect(own.url, wait=10):
        for _ in range(10):
            with pytest.raises(ConnectError, match="takes no more connections"):
                await jsclient.connect(f"ws://127.0.0.1:{port}", connect_timeout=20.0)


# --- URLs and options -----------------------------------------------------------------------------------------


async def test_urls_separated_by_commas(server: Any) -> None:
    absent = f"nats://127.0.0.1:{free_port()}"
    async with jsclient.connect(f"{absent}, {server.url}", dont_randomize=True) as js:
        assert js.is_connected


async def test_user_info_is_decoded(own_server: Any) -> None:
    own = await own_server(config={"authorization": {"user": "a@b", "password": "p/s,s"}})
    url = own.url.replace("://", "://a%40b:p%2Fs%2Cs@")
    async with jsclient.connect(url) as js:
        await js.account_info()


async def test_malformed_url_shows_no_password() -> None:
    """Not in the error that led to it, either: logs and error trackers print the context."""
    with pytest.raises(ConfigError) as caught:
        await jsclient.connect("nats://ann:canary@127.0.0.1:99999x")
    error: BaseException | None = caught.value
    while error is not None:
        assert "canary" not in str(error)
        assert "99999x" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": None}, "servers is None"),
        ({"servers": []}, "servers is empty"),
        ({"servers": ""}, "servers is empty"),
        ({"servers": [4222]}, "servers has int where a URL is needed"),
        ({"servers": "http://127.0.0.1:1"}, "unknown scheme .http"),
        ({"servers": "nats://"}, "has no host"),
        ({"servers": "nats://a:pass/word@b"}, "percent-encode"),
        ({"servers": ["nats://a", "ws://b"]}, "WebSocket URLs and others"),
        ({"ping_interval": 0}, "ping_interval is 0"),
        ({"ping_interval": None}, "ping_interval is None"),
        ({"connect_timeout": -1}, "connect_timeout is -1"),
        ({"reconnect_time_wait": float("nan")}, "reconnect_time_wait is nan"),
        ({"reconnect_max_wait": 0}, "reconnect_max_wait is 0"),
        ({"wait": -1}, "wait is -1"),
        ({"user_credentials": "/nowhere/user.creds"}, "user_credentials.*No such file"),
        ({"nkeys_seed": "/nowhere/user.nk"}, "nkeys_seed.*No such file"),
        ({"user": ""}, "user is an empty text"),
    ],
    ids=str,
)
async def test_unusable_option_refused_before_the_wire(options: dict[str, Any], text: str) -> None:
    async with FakeServer() as fake:
        with pytest.raises(ConfigError, match=text):
            await jsclient.connect(**{"servers": fake.url, **options})
        assert fake.clients == []


# --- a server that is not up yet --------------------------------------------------------------------------------


async def test_wait_for_a_server_that_starts(own_server: Any) -> None:
    own = await own_server()
    await own.kill()
    opening = asyncio.create_task(_connected(own.url, wait=60.0))
    await never(opening.done, 0.6, "a result without a server")
    await own.start()
    js = await within(50, opening, "connect")
    await js.account_info()
    await js.close()


async def _connected(url: str, **options: Any) -> Any:
    return await jsclient.connect(url, **options)


async def test_wait_ends() -> None:
    started = time.monotonic()
    with pytest.raises(ConnectError):
        await jsclient.connect(f"nats://127.0.0.1:{free_port()}", wait=1.0)
    assert 0.6 < time.monotonic() - started < 20


def waiting(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of `connect` that it tries again."""
    records = [record for record in caplog.records if record.name == "jsclient.connection"]
    return [record for record in records if "connecting is repeated" in record.getMessage()]


async def test_wait_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The first failure, and then one every 10 s."""
    url = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectError) as caught:
        await jsclient.connect(url, wait=3.0)
    [record] = waiting(caplog)
    assert record.levelname == "WARNING"
    assert re.fullmatch(
        re.escape(str(caught.value)) + r"; connecting is repeated for another \d+ s", record.message
    )


async def test_wait_that_is_repeated_is_logged_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsclient.client._WARN_EVERY", 0.4)
    with pytest.raises(ConnectError):
        await jsclient.connect(f"nats://127.0.0.1:{free_port()}", wait=2.0)
    assert 2 <= len(waiting(caplog)) <= 5


async def test_wait_does_not_hide_refused_credentials(own_server: Any) -> None:
    own = await own_server(config={"authorization": {"user": "a", "password": "b"}})
    with pytest.raises(AuthenticationError):
        await within(30, _connected(own.url, wait=600.0), "connect")


async def test_pauses_grow_to_their_bound_and_vary(connect: Any, proxy: Any) -> None:
    tap = await proxy()
    js = await connect(tap, reconnect_time_wait=0.02, reconnect_max_wait=0.2)
    tap.refuse()
    tap.cut()
    pool, pauses = js._connection._connector.pool, set()

    def several() -> bool:
        pauses.add(pool.servers[0].last_attempt)
        return len(pauses) > 14

    await eventually(several, 60, "attempts", interval=0.01)
    times = sorted(pauses)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps[-6:]) > 0.1, gaps
    assert max(gaps[1:]) < 10, gaps  # they would double to minutes
    assert len({round(gap, 3) for gap in gaps[-6:]}) > 1
    await tap.accept()
    await eventually(lambda: js.is_connected, what="the connection")


# --- cancelled ------------------------------------------------------------------------------------------------


async def test_connect_cancelled_twice_leaves_nothing() -> None:
    async with FakeServer(answer_pings=False) as fake:
        opening = asyncio.create_task(_connected(fake.url, connect_timeout=30.0))
        await fake.wait_clients(1)
        opening.cancel()
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await within(20, fake.clients[0].gone.wait(), "the end of the socket")
    await eventually(lambda: not running_tasks() - {asyncio.current_task()}, what="no task left")


async def test_cancelling_all_tasks_leaves_a_connection_that_works(
    server: Any, connect: Any, proxy: Any, events: list[Any]
) -> None:
    tap = await proxy()
    js = await connect(tap, **{**FAST, "ping_interval": 0.3})
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if task.get_name().startswith("jsclient:"):
            task.cancel()
    await asyncio.sleep(0)
    await js.account_info()
    await asyncio.sleep(1.2)  # four times its ping_interval: the task that sends pings was cancelled, too
    tap.cut()
    await wait_for_event(Reconnected, events)
    tap.refuse()
    tap.cut()
    await eventually(lambda: not js.is_connected, what="the loss")
    reconnecting = js._connection._restorer.task
    reconnecting._task.cancel()
    await tap.accept()
    await eventually(lambda: js.is_connected, what="the connection")
    await js.account_info()


# --- another loop, thread or process ----------------------------------------------------------------------------


async def test_other_loop_is_refused_at_once(js: Any, stream: OwnStream) -> None:
    calls = [
        lambda: js.publish(stream.subject("a"), b"x"),
        js.account_info,
        js.ping,
        lambda: js.subscribe(stream.all),
        js.close,
        lambda: js.publisher().publish(stream.subject("a"), b"x"),
    ]
    seen: list[Any] = []

    def other() -> None:
        for call in calls:

            async def one(call: Any = call) -> Any:
                return await call()

            try:
                seen.append(asyncio.run(one()))
            except BaseException as error:  # noqa: BLE001
                seen.append(error)

    started = time.monotonic()
    thread = threading.Thread(target=other)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert time.monotonic() - started < 5, "before a request would have timed out"
    assert [type(error) for error in seen] == [jsclient.WrongLoopError] * len(calls), seen
    assert (await js.publish(stream.subject("a"), b"x")).seq == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_fork_is_refused_and_leaves_the_parent_alone(js: Any, stream: OwnStream) -> None:
    async def publish() -> None:
        await js.publish(stream.subject("a"), b"from the child")

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = b"nothing raised"
        try:
            asyncio.run(publish())
        except jsclient.WrongLoopError as error:
            text = str(error).encode()
        except BaseException as error:  # noqa: BLE001
            text = repr(error).encode()
        os.write(writing, text)
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    text = os.read(reading, 1000).decode()
    os.close(reading)
    assert f"was opened in process {os.getpid()}" in text, text
    assert (await js.publish(stream.subject("a"), b"x")).seq == 1
    assert [message.payload for message in await stream.messages()] == [b"x"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_fork_of_a_task_is_refused(js: Any, stream: OwnStream) -> None:
    """The child continues in the middle of the task, where no event loop runs."""
    reader = await js.pull_subscribe(stream.all)
    calls = [
        lambda: js.publish(stream.subject("a")),
        lambda: js.publish(stream.subject("a"), msg_id="1"),
        lambda: js.stream(stream.name),
        lambda: reader.fetch(1),
        lambda: reader.next(timeout=5),
    ]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        try:
            for call in calls:
                try:
                    await call()
                    texts.append("nothing raised")
                except Exception as error:  # noqa: BLE001
                    texts.append(repr(error))
            os.write(writing, "\n".join(texts).encode())
        finally:
            os._exit(0)
    os.close(writing)
    texts = (await asyncio.to_thread(os.read, reading, 10_000)).decode().splitlines()
    os.close(reading)
    os.waitpid(child, 0)
    assert len(texts) == len(calls), texts
    for text in texts:
        assert text.startswith("WrongLoopError"), text
        assert f"was opened in process {os.getpid()}" in text, text


# --- the pool ---------------------------------------------------------------------------------------------------


async def test_info_does_not_grow_the_pool() -> None:
    async with FakeServer() as fake:
        js = await jsclient.connect(fake.url)
        servers = js._connection._connector.pool.servers
        for turn in range(20):
            fake.send_info(connect_urls=[f"127.0.0.1:{10_000 + turn * 1000 + n}" for n in range(1000)])
        await js.ping()
        await never(lambda: len(servers) > 300, 0.3, "a large pool")
        fake.send_info(connect_urls=["127.0.0.1:4", "127.0.0.1:4", 7, "", "x:y", "127.0.0.1:5"])
        await eventually(lambda: len(servers) == 3, what="the newest servers and its own")
        await js.close()


# --- WebSocket --------------------------------------------------------------------------------------------------


async def _uses(js: Any) -> None:
    """A round trip of each kind, with more bytes than one write takes."""
    await js.ensure_stream("S", subjects=["s.>"], storage="memory")
    sub = await js.subscribe("s.>", ordered=True)
    async with js.publisher() as pub:
        for number in range(300):
            await pub.publish("s.a", b"%d" % number + b"x" * 10_000)
    got = [await sub.next(timeout=60) for _ in range(300)]
    assert [int(message.data.partition(b"x")[0]) for message in got] == list(range(300))
    await sub.unsubscribe()
    await js.ping()


async def test_websocket_sends(own_server: Any, connect: Any, events: list[Any]) -> None:
    port = free_port()
    config = {"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}}
    own = await own_server(config=config)
    js = await connect(f"ws://127.0.0.1:{port}", ws_connection_headers={"X-Test": ["1", "2"]}, **FAST)
    await _uses(js)
    await own.kill()
    await own.start()
    await wait_for_event(Reconnected, events)
    await js.account_info()


async def test_wss_sends(own_server: Any, connect: Any, tmp_path: Path) -> None:
    ca, port = trustme.CA(), free_port()
    tls = certificate(ca, tmp_path, "127.0.0.1", "localhost")
    tls = {name: value for name, value in tls.items() if name in {"cert_file", "key_file"}}
    await own_server(config={"websocket": {"host": "127.0.0.1", "port": port, "tls": tls}})
    js = await connect(f"wss://127.0.0.1:{port}", tls=context(ca))
    await _uses(js)
    with pytest.raises(ConnectError, match=r"(?i)certificate"):
        await jsclient.connect(f"wss://127.0.0.1:{port}", connect_timeout=20.0)


async def test_websocket_failing_server_leads_to_next(own_server: Any) -> None:
    port = free_port()
    await own_server(config={"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}})
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        bad = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        good = f"ws://127.0.0.1:{port}"
        js = await jsclient.connect([bad, good], dont_randomize=True, connect_timeout=3.0)
        await js.account_info()
        await js.close()


async def test_websocket_closes_with_a_frozen_server(own_server: Any) -> None:
    port = free_port()
    own = await own_server(config={"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}})
    js = await jsclient.connect(f"ws://127.0.0.1:{port}")
    own.pause()
    started = time.monotonic()
    try:
        await within(30, js.close(), "close")
    finally:
        own.resume()
    assert time.monotonic() - started < 20
