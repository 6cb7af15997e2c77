"""`jsclient.server.NatsServer` against the real executable: its start, its end, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
import trustme
from nats.aio.client import Client

from integration.kit.servers.ports import free_port
from jsclient.server import NatsServer, ServerNotFoundError, ServerStartError, find_server, guard

DEADLINE = 60.0  # seconds for what should happen at once


def alive(pid: int) -> bool:
    """Whether the process exists, and is not merely waiting to be reaped by its parent."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def connected(server: NatsServer, **options: Any) -> AsyncIterator[Client]:
    nc = await nats.connect(server.url, allow_reconnect=False, connect_timeout=20, **options)
    try:
        yield nc
    finally:
        await nc.close()


async def ask(server: NatsServer, subject: str, request: object = None, **options: Any) -> dict[str, Any]:
    async with connected(server, **options) as nc:
        payload = b"" if request is None else json.dumps(request).encode()
        answer: dict[str, Any] = json.loads(
            (await nc.request(f"$JS.API.{subject}", payload, timeout=20)).data
        )
        return answer


async def api(server: NatsServer, subject: str, request: object = None, **options: Any) -> dict[str, Any]:
    """Ask the JetStream API. Fail on an error answer."""
    answer = await ask(server, subject, request, **options)
    assert "error" not in answer, answer
    return answer


async def make_stream(server: NatsServer) -> None:
    await api(server, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
    async with connected(server) as nc:
        await nc.request("s", b"kept", timeout=20)


async def message_count(server: NatsServer) -> int:
    count: int = (await api(server, "STREAM.INFO.S"))["state"]["messages"]
    return count


# --- life ---------------------------------------------------------------------------------------------


async def test_start_and_stop() -> None:
    async with NatsServer() as server:
        assert server.running
        assert server.pid is not None
        assert alive(server.pid)
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert server.version.startswith("2.")
        assert "Server is ready" in server.log
        await make_stream(server)
        store = Path(server._run_directory())
        assert (store / "store").is_dir()
    assert not server.running
    assert not alive(server.pid)
    assert not store.exists()
    assert "Server Exiting" in server.log
    await server.stop()  # again, harmless


async def test_started_twice_error_and_harmless() -> None:
    async with NatsServer() as server:
        with pytest.raises(RuntimeError, match="running already"):
            await server.start()
        assert await api(server, "INFO")


async def test_two_at_once() -> None:
    async with NatsServer() as one, NatsServer() as two:
        assert one.port != two.port
        assert one.pid != two.pid
        await make_stream(one)
        assert (await api(one, "STREAM.NAMES"))["total"] == 1
        assert (await api(two, "STREAM.NAMES"))["total"] == 0


async def test_restart_keeps_port_and_streams() -> None:
    async with NatsServer() as server:
        await make_stream(server)
        before = server.pid, server.url
        await server.restart()
        assert server.pid != before[0]
        assert server.url == before[1]
        assert await message_count(server) == 1


async def test_kill_and_start_keep_state() -> None:
    async with NatsServer() as server:
        await make_stream(server)
        before = server.pid, server.url
        await server.kill()
        assert not server.running
        assert before[0] is not None
        assert not alive(before[0])
        await server.start()
        assert server.url == before[1]
        assert await message_count(server) == 1


async def test_starts_again_after_ended_by_itself() -> None:
    async with NatsServer() as server:
        await make_stream(server)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: not server.running)
        await server.start()
        assert await message_count(server) == 1


async def test_store_dir_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        async with NatsServer(store_dir=tmp_path / "store") as server:
            if (await api(server, "STREAM.NAMES"))["total"] == 0:
                await make_stream(server)
            assert await message_count(server) == 1
    assert (tmp_path / "store" / "jetstream").is_dir()


async def test_waits_for_port_when_starts_again() -> None:
    async with NatsServer() as server:
        await server.kill()
        taken = socket.create_server(("127.0.0.1", server.port))
        again = asyncio.create_task(server.start())
        await eventually(lambda: "address already in use" in server.log)
        taken.close()
        await again
        assert await api(server, "INFO")


async def test_pause_and_resume() -> None:
    async with NatsServer() as server, connected(server) as nc:
        server.pause()
        assert server.running
        with pytest.raises(TimeoutError):
            await nc.request("$JS.API.INFO", timeout=0.3)
        server.resume()
        assert await nc.request("$JS.API.INFO", timeout=DEADLINE)


async def test_two_stops_at_once() -> None:
    server = NatsServer()
    await server.start()
    await asyncio.gather(server.stop(), server.stop())
    assert not server.running


async def test_paused_server_can_be_stopped() -> None:
    async with NatsServer() as server:
        server.pause()
        async with asyncio.timeout(DEADLINE):
            await server.stop()
        assert "Server Exiting" in server.log


async def test_signals_need_running_server() -> None:
    server = NatsServer()
    for call in (server.pause, server.resume, server.reload):
        with pytest.raises(ProcessLookupError):
            call()
    await server.kill()
    await server.stop()


def test_different_loops() -> None:
    server = NatsServer()
    asyncio.run(server.start())
    try:
        assert asyncio.run(api(server, "INFO"))
    finally:
        asyncio.run(server.stop())
    assert not server.running


def test_outlives_thread_started() -> None:
    server = NatsServer()
    thread = threading.Thread(target=lambda: asyncio.run(server.start()))
    thread.start()
    thread.join()
    try:
        assert server.running
        assert asyncio.run(api(server, "INFO"))
    finally:
        asyncio.run(server.stop())


async def test_log_file_kept_and_appended_to(tmp_path: Path) -> None:
    log_file = tmp_path / "server.log"
    async with NatsServer(log_file=log_file, debug=True) as server:
        assert "[DBG]" in server.log
        await server.restart()
    assert log_file.read_text().count("Server is ready") == 2


async def test_without_jetstream() -> None:
    async with NatsServer(jetstream=False) as server, connected(server) as nc:
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request("$JS.API.INFO")


# --- configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["text", "mapping", "file"])
async def test_config(shape: str, tmp_path: Path) -> None:
    mapping = {
        "max_payload": 2_000_000,
        "port": 1,
        "host": "192.0.2.1",
        "jetstream": {"max_file": 10 * 2**20},
    }
    text = 'max_payload: 2000000, port: 1, host: "192.0.2.1", jetstream { max_file: 10MB }'
    path = tmp_path / "a.conf"
    path.write_text(text)
    config = {"text": text, "mapping": mapping, "file": path}[shape]
    async with NatsServer(config=config) as server:
        async with connected(server) as nc:
            assert nc.max_payload == 2_000_000
        assert server.url == f"nats://127.0.0.1:{server.port}"  # the arguments win, their defaults, too
        assert "Max Storage:     10.00 MB" in server.log


async def test_config_alone_may_set_up_jetstream(tmp_path: Path) -> None:
    config = {"jetstream": {"store_dir": tmp_path}}
    with pytest.raises(ServerStartError, match="Duplicate 'store_dir'"):
        await NatsServer(config=config).start()
    async with NatsServer(config=config, jetstream=False) as server:
        await make_stream(server)
    assert (tmp_path / "jetstream").is_dir()


async def test_accounts_with_odd_passwords() -> None:
    password = 'p"a\\s$s{ü}'
    config = {
        "accounts": {
            "APP": {"jetstream": True, "users": [{"user": "app", "password": password}]},
            "$SYS": {"users": [{"user": "sys", "password": "sys"}]},
        }
    }
    async with NatsServer(config=config) as server:
        assert await api(server, "INFO", user="app", password=password)


async def test_reload_takes_the_new_config() -> None:
    async with NatsServer() as server:
        server.config = {"max_payload": 4096}
        server.reload()
        await eventually(lambda: "Reloaded server configuration" in server.log)
        async with connected(server) as nc:
            assert nc.max_payload == 4096
        await server.restart()
        async with connected(server) as nc:
            assert nc.max_payload == 4096


@pytest.mark.parametrize("handshake_first", [False, True])
async def test_tls(handshake_first: bool, tmp_path: Path) -> None:
    ca = trustme.CA()
    certificate = ca.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls = {
        "cert_file": tmp_path / "cert.pem",
        "key_file": tmp_path / "key.pem",
        "handshake_first": handshake_first,
    }
    context = ssl.create_default_context()
    ca.configure_trust(context)
    async with NatsServer(config={"tls": tls}) as server:
        assert server.url == f"tls://127.0.0.1:{server.port}"
        assert await api(server, "INFO", tls=context, tls_handshake_first=handshake_first)


async def test_feature_flags() -> None:
    version = subprocess.run([find_server(), "--version"], check=True, capture_output=True, text=True).stdout
    if tuple(int(part) for part in version.rpartition("v")[2].split(".")[:2]) < (2, 14):
        pytest.skip(f"feature flags came with nats-server 2.14, this is {version.strip()}")
    async with NatsServer(config="feature_flags { js_ack_fc_v2: true }") as server:
        await make_stream(server)
        await api(
            server,
            "CONSUMER.CREATE.S.C",
            {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}},
        )
        async with connected(server) as nc:
            inbox = await nc.subscribe("inbox")
            await nc.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1}', reply="inbox")
            message = await inbox.next_msg(timeout=20)
        assert len(message.reply.split(".")) >= 11  # an ack subject of the second form


async def is_done(server: NatsServer, subject: str, request: object = None) -> bool:
    """Ask a server of a cluster. A leader may not have heard of every peer yet, and without one nobody answers."""
    try:
        return "error" not in await ask(server, subject, request)
    except nats.errors.TimeoutError:
        return False


async def test_a_cluster_started_together() -> None:
    ports = [free_port() for _ in range(3)]
    servers = [
        NatsServer(
            config={
                "server_name": f"n{number}",
                "cluster": {
                    "name": "c",
                    "listen": f"127.0.0.1:{port}",
                    "routes": [f"nats://127.0.0.1:{p}" for p in ports],
                },
            }
        )
        for number, port in enumerate(ports)
    ]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        replicated = {"name": "R", "subjects": ["r"], "num_replicas": 3}
        async with asyncio.timeout(DEADLINE):
            while not await is_done(servers[0], "STREAM.CREATE.R", replicated):
                await asyncio.sleep(0.1)
        await servers[0].kill()
        await servers[0].start()
        async with asyncio.timeout(DEADLINE):
            while not await is_done(servers[0], "STREAM.NAMES"):
                await asyncio.sleep(0.1)
        assert (await api(servers[0], "STREAM.NAMES"))["total"] == 1
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


# --- what goes wrong ----------------------------------------------------------------------------------


async def test_bad_config_quotes_the_log() -> None:
    server = NatsServer(config={"no_such_option": 1})
    with pytest.raises(ServerStartError, match='unknown field "no_such_option"') as caught:
        await server.start()
    assert "ended with code 1" in caught.value.reason
    assert not server.running
    assert "no_such_option" in server.log


async def test_port_in_use_quotes_log() -> None:
    async with NatsServer() as server:
        with pytest.raises(ServerStartError, match="address already in use"):
            await NatsServer(port=server.port).start()


async def test_not_ready_in_time(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho says only this\nexec sleep 60\n")
    mute.chmod(0o755)
    server = NatsServer(binary=mute, start_timeout=3.0)
    with pytest.raises(ServerStartError, match=r"not ready in 3 s(.|\n)*says only this"):
        await server.start()
    assert not server.running


async def test_lonely_member_of_cluster_not_ready() -> None:
    port, absent = free_port(), free_port()
    cluster = {"name": "c", "listen": f"127.0.0.1:{port}", "routes": [f"nats://127.0.0.1:{absent}"]}
    with pytest.raises(ServerStartError, match="not ready"):
        await NatsServer(config={"server_name": "n", "cluster": cluster}, start_timeout=3).start()


async def test_cancelled_start_leaves_nothing() -> None:
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        server = NatsServer()
        task = asyncio.create_task(server.start())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await server.stop()
        assert not server.running
        assert server._temporary is None
        assert server.pid is None or not alive(server.pid)


async def test_cancelled_stop_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else a server that ends at once may be gone before the cancellation.
    requests: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(guard, "ask_to_end", requests.append)
    server = NatsServer()
    await server.start()
    task = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert requests[0].stdin is not None
    requests[0].stdin.close()
    assert not server.running
    assert server.pid is not None
    assert not alive(server.pid)
    assert server._temporary is None


async def test_no_executable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ServerNotFoundError, match="not an executable"):
        await NatsServer(binary=tmp_path / "absent").start()
    monkeypatch.setenv("JSCLIENT_NATS_SERVER", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="not an executable"):
        await NatsServer().start()


def test_find_server_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def executable(name: str) -> Path:
        path = tmp_path / name / "nats-server"
        path.parent.mkdir()
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    arguments, named, on_path, in_wheel, in_scripts = map(
        executable, ["given", "named", "on_path", "in_wheel", "in_scripts"]
    )
    binary = "jsclient.server.nats_server"
    monkeypatch.setenv("JSCLIENT_NATS_SERVER", str(named))
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setattr(f"{binary}._wheel_directories", lambda: [str(in_wheel.parent)])
    monkeypatch.setattr(f"{binary}.sysconfig.get_path", lambda _name: str(in_scripts.parent))
    assert find_server(arguments) == arguments
    assert find_server() == named
    monkeypatch.delenv("JSCLIENT_NATS_SERVER")
    for expected in (on_path, in_wheel, in_scripts):
        assert find_server() == expected
        expected.unlink()
    with pytest.raises(ServerNotFoundError, match=r'pip install "jsclient\[server\]"'):
        find_server()
