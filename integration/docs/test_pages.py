"""The Python of README.md, the tutorial and the how-to guides is executed, page by page, and prints the page's output.

In README and tutorial it is typed line by line, as at the prompt of `python -m asyncio`. In the guides each block is
executed as a whole. It can use `js`, a connection to a separate server. A block of text after a block of Python is
its output. `...` in it stands for anything.
"""

from __future__ import annotations

import ast
import asyncio
import codeop
import contextlib
import doctest
import inspect
import io
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import trustme

import jsclient
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from integration.kit.servers.nats_server import OwnServer, fits
from integration.kit.servers.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for part in ("tutorial", "howto")
        for path in (ROOT / "docs" / part).glob("*.md")
        # These: integration/spark/test_pages.py and integration/arrow/test_pages.py.
        if not path.stem.startswith(("spark", "arrow", "object-files"))
    ),
]
NEEDS = re.compile(r"^Needs nats-server (\d+\.\d+) or newer", re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK_NEEDS = re.compile(r"# nats-server (\d+\.\d+) or newer\n")
PACKAGE_NEEDS = re.compile(r"# needs the package (\w+)\n")
AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def python_of(page: str) -> list[tuple[str, str | None]]:
    """The blocks of Python, each with the text that it prints, if the page says."""
    fences = [(fence[1], fence[2]) for fence in FENCE.finditer((ROOT / page).read_text())]
    following = [*fences[1:], ("", "")]
    return [
        (code, following[at][1] if following[at][0] == "text" else None)
        for at, (language, code) in enumerate(fences)
        if language == "python"
    ]


def typed(code: str, page: str) -> list[CodeType]:
    """Compiled as at a prompt: a block statement ends with an empty line."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= AWAIT
    statements: list[CodeType] = []
    waiting: list[str] = []
    for line in [*code.splitlines(), ""]:
        waiting.append(line)
        compiled = compiler("\n".join(waiting), page, "single")
        if compiled is not None:
            statements.append(compiled)
            waiting.clear()
    assert not waiting, "not complete at a prompt:\n" + "\n".join(waiting)
    return statements


async def execute(page: str, namespace: dict[str, Any]) -> None:
    for code, printed in python_of(page):
        needed = BLOCK_NEEDS.match(code)
        if needed and not fits(namespace["js"].server_version, f">={needed[1]}"):
            continue
        package = PACKAGE_NEEDS.match(code)
        if package and find_spec(package[1]) is None and not os.environ.get("CI"):
            continue  # not in every environment. If it is required, its import fails
        compiled = typed(code, page) if "howto" not in page else [compile(code, page, "exec", flags=AWAIT)]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            for statement in compiled:
                result = eval(statement, namespace)
                if inspect.isawaitable(result):
                    await result
        got = output.getvalue()
        same = doctest.OutputChecker().check_output(printed or "", got, doctest.ELLIPSIS)
        assert same or printed is None, f"{page} says\n{printed}and it is\n{got}"


@pytest.fixture
def log_settings() -> Iterator[None]:
    """The changes of a page to the log of jsclient end with it: the next test in this process reads the log too."""
    log = logging.getLogger("jsclient")
    level, handlers = log.level, list(log.handlers)
    yield
    log.setLevel(level)
    log.handlers[:] = handlers


@pytest.fixture
async def namespace(
    own_server: Callable[..., Awaitable[OwnServer]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_settings: None,
) -> AsyncIterator[dict[str, Any]]:
    """What the guides take for granted: `js`, `url`, two modules, and certificates in the working directory."""
    monkeypatch.chdir(tmp_path)
    authority = trustme.CA()
    authority.cert_pem.write_to_path("ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path("server-key.pem")
    certificate.cert_chain_pems[0].write_to_path("server.pem")
    port = free_port()
    server = await own_server(config={"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}})
    async with jsclient.connect(server.url) as js:
        urls = {"url": server.url, "ws_url": f"ws://127.0.0.1:{port}"}
        yield {"__name__": "page", "js": js, **urls, "jsclient": jsclient, "asyncio": asyncio}


@pytest.mark.limit(120)
@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)])
async def test_python_of_page_does_page_says(page: str, namespace: dict[str, Any]) -> None:
    version = namespace["js"].server_version
    needed = NEEDS.search((ROOT / page).read_text())
    if needed and not fits(version, f">={needed[1]}"):
        pytest.skip(f"the page needs nats-server {needed[1]}, this is {version}")
    await execute(page, namespace)


async def test_log_of_page_ends_with_it() -> None:
    """A later test in this process read the records that the page about production had asked for."""
    log = logging.getLogger("jsclient")
    assert (log.level, log.handlers) == (logging.NOTSET, [])


def test_readme_has_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    for heading, command in (("Run it", "python3 noxfile.py demo"), ("Test it", "python3 noxfile.py check")):
        section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, heading
        assert FENCE.findall(section[1]) == [("sh", f"{command}\n")]


@pytest.mark.limit(60)
async def test_publish_all_of_guide_outlasts_an_outage(
    namespace: dict[str, Any], proxy: Callable[..., Awaitable[Proxy]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outage is longer than the timeout, and the answers before it are lost: each message is stored once."""
    [code] = [code for code, _ in python_of("docs/howto/publishing.md") if "def publish_all" in code]
    exec(code.partition("\n\n\nawait ")[0], namespace)
    server = namespace["js"]
    stream = await server.create_stream("ORDERS", subjects=["orders.>"])
    tap = await proxy(namespace["url"])
    raised: list[jsclient.RequestTimeoutError] = []
    publish = jsclient.Publisher.publish

    async def seen(*args: Any, **kwargs: Any) -> Any:
        try:
            return await publish(*args, **kwargs)
        except jsclient.RequestTimeoutError as error:
            raised.append(error)
            raise

    monkeypatch.setattr(jsclient.Publisher, "publish", seen)
    orders = {f"id-{number}": b"%d" % number for number in range(200)}
    async with jsclient.connect(tap.url, reconnect_time_wait=0.05, reconnect_max_wait=0.1) as js:
        lost = tap.drop_frames(match.is_publish_ack)
        publishing = asyncio.create_task(namespace["publish_all"](js, orders, timeout=0.5))
        await lost.wait()
        tap.refuse()
        tap.cut()
        await eventually(lambda: raised, what="a publish that finds no connection within its timeout")
        lost.remove()
        await tap.accept()
        await within(30, publishing, "publish_all")
    assert (await stream.info()).state.messages == len(orders)
