"""Which server a test run uses, and running it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from integration.kit.servers.container import container_server, engine_answers
from integration.kit.servers.monitor import monitor_json
from integration.kit.servers.nats_server import (
    NEWEST,
    NoServerError,
    OwnServer,
    ServerUnderTest,
    binary_version,
    find_binary,
    knows_ack_v2,
    measure,
    read_info,
)

URL_VARIABLE = "JSCLIENT_TEST_SERVER"
MONITOR_VARIABLE = "JSCLIENT_TEST_MONITOR"

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """What the options and the environment come to, before any server runs."""

    spec: str
    ack_v2: bool
    version: str
    url: str | None = None
    monitor: str | None = None
    binary: Path | None = None

    def __str__(self) -> str:
        source = self.url or (self.binary and str(self.binary)) or "container"
        form = "v2" if self.ack_v2 else "as it is configured" if self.url else "v1"
        return f"nats-server {self.version} ({source}), ack form {form}"


def choose(spec: str = NEWEST, *, ack_v2: bool = False, env: Mapping[str, str] = os.environ) -> Choice:
    """Find the server for this run: a given URL, an executable, at last a container.

    Raises:
        NoServerError: No server exists, or it is not of the requested kind.
    """
    if url := env.get(URL_VARIABLE):
        if spec != NEWEST:
            raise NoServerError(f"{URL_VARIABLE} names a server, so no version can be chosen")
        try:
            version = str(read_info(url)["version"])
        except OSError as error:
            raise NoServerError(f"{URL_VARIABLE} is {url}, but no server answers: {error}") from error
        return Choice(spec, ack_v2, version, url=url, monitor=env.get(MONITOR_VARIABLE))
    try:
        binary = find_binary(spec)
    except NoServerError as error:
        # a container can be started instead
        if engine_answers():
            return Choice(spec, ack_v2, spec)
        raise NoServerError(
            f"no server to test against: {error}; {URL_VARIABLE} is not set and no Docker engine answers"
        ) from error
    version = binary_version(binary)
    if ack_v2 and not knows_ack_v2(binary):
        raise NoServerError(f"nats-server {version} does not know the second ack form")
    return Choice(spec, ack_v2, version, binary=binary)


@contextlib.contextmanager
def running(choice: Choice) -> Iterator[ServerUnderTest]:
    """Have the chosen server run during the block, whatever event loops tests use meanwhile."""
    with contextlib.ExitStack() as stack:
        if choice.url is not None:
            url, monitor = choice.url, choice.monitor
        elif choice.binary is None:
            url, monitor = stack.enter_context(container_server(choice.spec, ack_v2=choice.ack_v2))
        else:
            own = OwnServer(version=choice.spec, ack_v2=choice.ack_v2)
            run_apart(own.start)
            stack.callback(run_apart, own.stop)
            url, monitor = own.url, own.monitor
            run_apart(lambda: keep_directory(own.monitor))
        actual = run_apart(lambda: measure(url, monitor))
        if choice.ack_v2 and not actual.ack_v2:
            raise NoServerError(f"the second ack form was asked for, and {url} uses the first")
        yield actual


async def keep_directory(monitor: str) -> None:
    """Have the server keep the directory of its streams, by a file in it.

    The server deletes that directory with its last file-based stream. If the next stream is created meanwhile, the
    server refuses it, once in some thousand times: "could not create storage directory" in its log, "error creating
    store for stream" to the client. Seen with 2.10, 2.12 and 2.15.
    """
    store = (await monitor_json(monitor, "/jsz"))["config"]["store_dir"]
    streams = Path(store, "$G", "streams")
    streams.mkdir(parents=True, exist_ok=True)
    (streams / ".keep").touch()


def run_apart(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a separate loop and thread, so that no loop of a test notices."""
    with ThreadPoolExecutor(1, thread_name_prefix="kit") as executor:
        return executor.submit(lambda: asyncio.run(function())).result()
