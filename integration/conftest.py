"""Fixtures of the integration tests: a real server, faults, a judge.

server      the server of this run, of each process where several run (shared by all tests: never harm it)
own_server  factory of private servers, to be killed, frozen, restarted
cluster     a private cluster of three nodes
proxy       factory of proxies, by default in front of `server`
oracle      the judge's connection to `server`. `oracle_for` a factory for other servers
stream      a stream of this test alone. `make_stream` a factory
js, events  a jsclient connection and the events it reported. `connect` a factory
natspy_js   jsclient on a connection that nats-py opened
background  errors behind the test's back. With tasks left over, they fail the test
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import shutil
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parent.parent
if str(_ROOT) not in sys.path:
    # At the end, because an installed jsclient must take precedence over the jsclient in the checkout.
    sys.path.append(str(_ROOT))

from integration.kit.clients.foreign import Client, closed  # noqa: E402
from integration.kit.judge.background import Background, limited, watched  # noqa: E402
from integration.kit.judge.oracle import Oracle  # noqa: E402
from integration.kit.judge.streams import OwnStream  # noqa: E402
from integration.kit.judge.waiting import within  # noqa: E402
from integration.kit.network.proxy import Proxy  # noqa: E402
from integration.kit.selection import mark_further_cases  # noqa: E402
from integration.kit.servers.choice import Choice, choose, running  # noqa: E402
from integration.kit.servers.cluster import OwnCluster  # noqa: E402
from integration.kit.servers.nats_server import NEWEST, NoServerError, OwnServer, ServerUnderTest, fits  # noqa: E402

_LIMIT = 120.0
_CLOSE_LIMIT = 30.0
_OPEN_LIMIT = 30.0

_choice = pytest.StashKey[Choice | NoServerError]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nats-server")
    group.addoption(
        "--server-version",
        default=NEWEST,
        help="nats-server to test against: newest (of this environment) or a version such as 2.10.25",
    )
    group.addoption(
        "--ack-v2", action="store_true", help="have the server use the second form of ack subjects"
    )
    group.addoption("--uvloop", action="store_true", help="run the tests on uvloop's event loops")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("uvloop", default=False):
        use_uvloop()
    for marker in (
        'covers(*ids): acceptance items that the test shows, as in covers("J26")',
        'server(condition): needs a server version, as in server(">=2.12")',
        f"limit(seconds): fail the test when it takes longer than this ({_LIMIT:.0f} s by default)",
    ):
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)  # pytest's own hook of this name deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_further_cases(items)


def use_uvloop() -> None:
    """Make every event loop of this process a loop of uvloop, for async tests and for tests that call `asyncio.run`."""
    import uvloop

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of policies, from Python 3.14 on
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def pytest_report_header(config: pytest.Config) -> str:
    try:
        return str(chosen(config))
    except NoServerError as error:
        return f"nats-server: {error}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of connections that nats-py has opened."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if "natspy_js" in getattr(item, "fixturenames", ()) or "nats-py" in parameters:
        item.add_marker("nats_py")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what is there before the first test out of every later collection.

    `background` collects after each test, and modules and the tests themselves are most of what there is to look at.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Put a time limit on each async test."""
    if not (isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)):
        return (yield)
    marker = item.get_closest_marker("limit")
    original = item.obj
    item.obj = limited(original, marker.args[0] if marker else _LIMIT)
    try:
        return (yield)
    finally:
        item.obj = original


def chosen(config: pytest.Config) -> Choice:
    """The server of this run, found once."""
    if _choice not in config.stash:
        spec = config.getoption("server_version", NEWEST)
        try:
            config.stash[_choice] = choose(spec, ack_v2=config.getoption("ack_v2", default=False))
        except NoServerError as error:
            # Kept too: looking for a server again for every test would take its time.
            config.stash[_choice] = error
    actual = config.stash[_choice]
    if isinstance(actual, NoServerError):
        raise actual
    return actual


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[ServerUnderTest]:
    # A plain fixture with a separate loop, because every test has another event loop.
    with running(chosen(request.config)) as server:
        yield server


@pytest.fixture(autouse=True)
def _server_condition(request: pytest.FixtureRequest) -> None:
    for marker in request.node.iter_markers("server"):
        version = request.getfixturevalue("server").version
        if not fits(version, marker.args[0]):
            pytest.skip(f"needs nats-server {marker.args[0]}, this is {version}")


@pytest.fixture(autouse=True)
async def background() -> AsyncIterator[Background]:
    async with watched() as background:
        yield background


@pytest.fixture
async def own_server(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[OwnServer]]]:
    """Start a private server: `await own_server(config=..., version="2.10.25", ack_v2=True)`.

    The run determines the default version and ack form. Its files outlive `stop()`, so that `start()` finds them again.
    """
    results: list[tuple[OwnServer, Path]] = []

    async def start(**options: Any) -> OwnServer:
        if "version" not in options:
            options = {
                "version": request.config.getoption("server_version", NEWEST),
                "ack_v2": request.config.getoption("ack_v2", default=False),
                **options,
            }
        files = tmp_path / f"server-{len(results)}"
        server = OwnServer(**{"store_dir": files, **options})
        results.append((server, files))
        await server.start()
        return server

    yield start
    for server, files in results:
        await server.stop()
        shutil.rmtree(files, ignore_errors=True)


@pytest.fixture
async def cluster(own_server: Callable[..., Awaitable[OwnServer]]) -> OwnCluster:
    """Three servers of one cluster."""
    return await OwnCluster.start(own_server)


@pytest.fixture
async def proxy(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Awaitable[Proxy]]]:
    """Put a proxy in front of a server: `await proxy()`, `await proxy(own, frames=False)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(upstream: Any = None, **options: Any) -> Proxy:
            if upstream is None:
                upstream = request.getfixturevalue("server")
            return await stack.enter_async_context(Proxy(getattr(upstream, "url", upstream), **options))

        yield start


@pytest.fixture
async def oracle_for() -> AsyncIterator[Callable[..., Awaitable[Oracle]]]:
    """Connect a judge to another server: `await oracle_for(own)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(server: Any, **options: Any) -> Oracle:
            return await stack.enter_async_context(Oracle(getattr(server, "url", server), **options))

        yield start


@pytest.fixture
async def oracle(server: ServerUnderTest) -> AsyncIterator[Oracle]:
    # This server is never harmed, so an answer that is late comes from a busy machine.
    async with Oracle(server.url, timeout=30.0) as oracle:
        yield oracle


@pytest.fixture
async def make_stream(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Awaitable[OwnStream]]]:
    """Create a stream: `await make_stream(max_msgs=10)`, `await make_stream(oracle=other)`."""
    shared: list[OwnStream] = []

    async def create(*, oracle: Oracle | None = None, **config: Any) -> OwnStream:
        judge = oracle or request.getfixturevalue("oracle")
        stream = await OwnStream.create(judge, request.node.name, **config)
        if oracle is None:
            shared.append(stream)
        return stream

    yield create
    # Streams of private servers go with their server, which may be down by now.
    for stream in shared:
        await stream.delete()


@pytest.fixture
async def stream(oracle: Oracle, make_stream: Callable[..., Awaitable[OwnStream]]) -> OwnStream:
    return await make_stream()


@pytest.fixture
def events() -> list[Any]:
    """What the connections of this test reported, in order."""
    return []


@pytest.fixture
async def connect(events: list[Any]) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Connect jsclient: `await connect(proxy)`. Closed after the test, events go to `events`.

    A short `connect_timeout` is for the attempts to reconnect. On a busy machine the first connect may need several.
    """
    jsclient = importlib.import_module("jsclient")
    opened: list[Any] = []

    async def start(server: Any, **options: Any) -> Any:
        if options.get("connect_timeout", _OPEN_LIMIT) < 5:
            options = {"wait": _OPEN_LIMIT, **options}
        js = await jsclient.connect(getattr(server, "url", server), **{"on_event": events.append, **options})
        opened.append(js)
        return js

    yield start
    for js in reversed(opened):
        await within(_CLOSE_LIMIT, js.close(), "closing a jsclient connection")


@pytest.fixture
async def js(server: ServerUnderTest, events: list[Any]) -> AsyncIterator[Any]:
    jsclient = importlib.import_module("jsclient")
    async with jsclient.connect(server.url, on_event=events.append) as js:
        yield js


@pytest.fixture
async def natspy_js(server: ServerUnderTest, events: list[Any]) -> AsyncIterator[Any]:
    jsclient = importlib.import_module("jsclient")
    nc = Client()
    await nc.connect(server.url)
    js = jsclient.JetStream(nc, on_event=events.append)
    try:
        yield js
        await within(_CLOSE_LIMIT, js.close(), "closing jsclient on a connection of nats-py")
    finally:
        await closed(nc)
