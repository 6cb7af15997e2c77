"""The test kit against real servers, with nats-py as client. Its proxy: `network/test_proxy.py`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.aio.transport import TcpTransport

from integration.kit.clients.foreign import Client, client, subscribed
from integration.kit.judge.background import Background, limited, watched
from integration.kit.judge.leaks import no_leaks, running_tasks
from integration.kit.judge.oracle import Oracle, OracleError, number_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from integration.kit.servers.choice import URL_VARIABLE, choose
from integration.kit.servers.fake_server import FakeServer
from integration.kit.servers.nats_server import (
    NoServerError,
    OwnServer,
    ServerUnderTest,
    fits,
    install,
    read_info,
)

MakeProxy = Callable[..., Awaitable[Proxy]]
MakeServer = Callable[..., Awaitable[OwnServer]]


# Servers


async def test_a_pinned_version_runs(own_server: MakeServer, oracle_for: Any) -> None:
    own = await own_server(version="2.10.25")
    assert own.version == "2.10.25"
    oracle = await oracle_for(own)
    assert oracle.server_version == "2.10.25"
    assert await oracle.ack_tokens() == 9
    with pytest.raises(NoServerError, match="has no js_ack_fc_v2"):
        await own_server(version="2.10.25", ack_v2=True)


@pytest.mark.server(">=2.14")
async def test_the_second_ack_form(own_server: MakeServer, oracle_for: Any, proxy: MakeProxy) -> None:
    first = await own_server(ack_v2=False)
    second = await own_server(ack_v2=True)
    assert await (await oracle_for(first)).ack_tokens() == 9
    oracle = await oracle_for(second)
    assert await oracle.ack_tokens() >= 11
    tap = await proxy(second)
    stream = await OwnStream.create(oracle, "v2")
    await stream.publish(3)
    async with client(tap) as nc:
        seen = await subscribed(nc, "deliver")
        await stream.create_consumer("c", deliver_subject="deliver")
        await eventually(lambda: len(seen) == 3, what="the deliveries")
    assert [match.stream_seq(f) for f in tap.find(match.is_data)] == [1, 2, 3]


async def test_run_ack_form_asked_for(oracle: Oracle, server: ServerUnderTest) -> None:
    assert (await oracle.ack_tokens() >= 11) == server.ack_v2


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_private_server_comes_back(own_server: MakeServer, oracle_for: Any, end: str) -> None:
    own = await own_server()
    oracle = await oracle_for(own)
    stream = await OwnStream.create(oracle, "kept", storage="file")
    await stream.publish(10)
    port = own.port
    await getattr(own, end)()
    await own.start()
    assert own.port == port
    await eventually(lambda: oracle.nc.is_connected, what="the oracle's reconnect")
    assert (await stream.state())["messages"] == 10


async def test_a_frozen_server_is_silent(own_server: MakeServer) -> None:
    own = await own_server()
    async with client(own) as nc:
        own.pause()
        with pytest.raises(nats.errors.TimeoutError):
            await nc.request("nobody", timeout=0.2)
        own.resume()
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request("nobody", timeout=30)


def limit_is(url: str, limit: int) -> bool:
    return bool(read_info(url)["max_payload"] == limit)


async def test_configuration_is_applied(own_server: MakeServer) -> None:
    for config in ("max_payload: 2000", {"max_payload": 2000}):
        own = await own_server(config=config)
        assert read_info(own.url)["max_payload"] == 2000
        own.reload({"max_payload": 3000})
        await eventually(partial(limit_is, own.url, 3000), what="the reloaded limit")


def test_version_conditions() -> None:
    assert fits("2.15.1", ">=2.12")
    assert fits("2.12.8", ">=2.12, <2.14")
    assert not fits("2.10.25", ">=2.12")
    assert not fits("2.14.0-dev", "<2.14")
    with pytest.raises(ValueError, match="not a condition"):
        fits("2.14.0", "2.14")


def test_no_server_error_says_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoServerError, match="but no server answers"):
        choose(env={URL_VARIABLE: "nats://127.0.0.1:1"})
    with pytest.raises(NoServerError, match="give 'newest' or three numbers"):
        install("../latest", tmp_path)


async def test_a_given_server_is_used(own_server: MakeServer) -> None:
    own = await own_server()
    choice = await asyncio.to_thread(choose, env={URL_VARIABLE: own.url})
    assert (choice.url, choice.version) == (own.url, own.version)
    with pytest.raises(NoServerError, match="no version can be chosen"):
        choose("2.10.25", env={URL_VARIABLE: own.url})


# The judge


async def test_the_oracle_stores_and_tells(oracle: Oracle, stream: OwnStream) -> None:
    assert await stream.publish(2500, "a") == 2500
    assert (await stream.state())["messages"] == 2500
    await stream.create_consumer("c", ack_wait=30_000_000_000)
    info = await oracle.wait_consumer(stream.name, "c", lambda info: info["num_pending"] == 2500)
    assert info["config"]["ack_wait"] == 30_000_000_000
    assert await stream.consumer_names() == ["c"]
    assert await oracle.ack_floor(stream.name, "c") == 0
    stored = await oracle.message(stream.name, 7)
    assert (stored.subject, number_of(stored.payload)) == (stream.subject("a"), 7)
    assert await stream.purge() == 2500
    with pytest.raises(OracleError, match="10014"):
        await stream.consumer_info("other")


# Leaks


async def test_no_leaks_passes_ends_in_time(
    oracle: Oracle, stream: OwnStream, server: ServerUnderTest
) -> None:
    async with client(server) as nc:
        async with no_leaks(
            oracle=oracle,
            streams=[stream.name],
            monitor=server.monitor,
            ignore_tasks=["Subscription._wait_for_msgs"],
        ):
            await nc.request(f"$JS.API.STREAM.INFO.{stream.name}")  # makes the shared inbox and its task
            task = asyncio.create_task(asyncio.sleep(0.1))
            sub = await nc.subscribe("short")
            await sub.unsubscribe()
        assert task.done()


async def test_no_leaks_names_what_leaked(oracle: Oracle, stream: OwnStream, server: ServerUnderTest) -> None:
    async def forgotten() -> None:
        await asyncio.Event().wait()

    async def leak(nc: Client, late: contextlib.AsyncExitStack, tasks: list[asyncio.Task[None]]) -> None:
        watch = no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor, settle=0.1)
        async with watch:
            tasks.append(asyncio.create_task(forgotten()))
            await stream.create_consumer("left_over")
            await nc.subscribe("left.over")
            await late.enter_async_context(client(server, name="late"))

    tasks: list[asyncio.Task[None]] = []
    async with client(server, name="outer") as nc, contextlib.AsyncExitStack() as late:
        with pytest.raises(AssertionError) as caught:
            await leak(nc, late, tasks)
        tasks[0].cancel()
    text = str(caught.value)
    assert "forgotten" in text
    assert f"consumer left_over of stream {stream.name}" in text
    assert "subscription left.over of connection" in text
    assert "'outer'" in text
    assert "'late'" in text


async def test_leaks_fail_a_test() -> None:
    async def fail() -> None:
        raise LookupError("nobody looks")

    async def start_and_forget() -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(60), name="left"))
        await asyncio.wait([asyncio.create_task(fail())])

    async def block() -> None:
        async with watched(settle=0.5):
            await start_and_forget()

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(AssertionError) as caught:
        await block()
    tasks[0].cancel()
    assert "leaked task: sleep (left)" in str(caught.value)
    assert "LookupError: nobody looks" in str(caught.value)


async def test_provoked_error_can_be_allowed(background: Background) -> None:
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    background.allow("ZeroDivisionError")
    await eventually(lambda: background.errors, what="the error")


async def test_hang_failure_tells_where() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match=r"(?s)hangs: not done after 0.05 s.*hang test_kit.py"):
        await limited(hang, 0.05)()


async def test_waiting() -> None:
    with pytest.raises(AssertionError, match=r"the thing: not within 0.05 s \(last: 0\)"):
        await eventually(lambda: 0, 0.05, "the thing")
    with pytest.raises(AssertionError, match="a call: still not done"):
        await within(0.05, asyncio.sleep(10), "a call")
    with pytest.raises(AssertionError, match="must not"):
        await never(lambda: True, 0.1)


# The fake server


async def test_fake_server_answers_and_records() -> None:
    async with FakeServer({"max_payload": 99}) as fake:
        fake.answer_message("$JS.API.INFO", {"streams": 3})
        async with client(fake) as nc:
            assert nc.max_payload == 99
            reply = await nc.request("$JS.API.INFO", b"")
            assert reply.data == b'{"streams": 3}'
            seen = await subscribed(nc, "a.*")
            await fake.wait_sub("a.b")
            fake.send_message("a.b", b"one", status="503")
            data = b"MSG a.c 2 5\r\nsplit\r\n"
            await fake.send_split(data, [1] * (len(data) - 1))
            await eventually(lambda: len(seen) == 2, what="the messages")
            assert [m.data for m in seen] == [b"one", b"split"]
        assert any(line.startswith(b"CONNECT {") for line in fake.lines)


async def test_fake_server_is_hostile() -> None:
    async with FakeServer() as fake, client(fake) as nc:
        await nc.subscribe("a")
        await fake.wait_sub("a")
        fake.announce("a", 2_000_000_000)
        assert await fake.pour(bytes(65536), 2_000_000) >= 2_000_000
        fake.drop()
        await fake.wait_clients(2)
        fake.send_error("No Such Thing")
        await eventually(lambda: nc.is_closed, what="nats-py's end")


async def test_fake_server_greets_as_reported() -> None:
    async with FakeServer(greeting=b"HELLO\n", answer_pings=False) as fake:
        reader, writer = await asyncio.open_connection("127.0.0.1", fake.port)
        assert await reader.readline() == b"HELLO\n"
        writer.write(b"PING\r\nSUB a 1\r\n")
        await fake.wait_sub("a")
        fake.client.close()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_oracle_leaves_no_reconnect(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """nats-py's `close` cancels it, but `asyncio.wait_for` loses a cancellation that comes in the moment of success."""
    near = await proxy()
    before = running_tasks()
    connecting, real = asyncio.Event(), TcpTransport.connect
    async with Oracle(near.url) as oracle:

        async def succeed(self: Any, *args: Any, **options: Any) -> None:
            await real(self, *args, **options)
            connecting.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

        monkeypatch.setattr(TcpTransport, "connect", succeed)
        near.cut()
        await within(10, connecting.wait(), "the reconnect")
        oracle.nc.options["reconnect_time_wait"] = 0.5
    assert not {task for task in running_tasks() - before if "Client" in task.get_coro().__qualname__}


async def test_failed_handshakes_leave_no_connection(proxy: Any) -> None:
    """Warnings are errors: a connection that the garbage collector closes would fail whichever test runs then."""
    near = await proxy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        async with client(near) as nc:
            near.break_off(3)  # each within INFO
            near.cut()
            await eventually(lambda: nc.stats["reconnects"] == 1, timeout=10)
        gc.collect()
    assert not [str(warning.message) for warning in caught]
