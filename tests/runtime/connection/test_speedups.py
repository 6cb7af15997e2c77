"""The choice of a scanner, and how the frame reader uses one: with a stand-in, since the compiled one is optional."""

from __future__ import annotations

import logging
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import jsclient
from jsclient._runtime.connection.speedups import SERIES, chosen
from jsclient._runtime.connection.wire import FrameReader
from jsclient.protocol.connection.websocket import masked
from jsclient.protocol.consumers.ack import last_of_whole_run, match_jsack
from jsclient.protocol.wire.commands import publish_command
from jsclient.protocol.wire.frames import total_size
from jsclient.protocol.wire.headers import find_header, ordinary_block
from tests.support import wire_streams
from tests.support.acks import join_acks
from tests.support.slots import Slots

ROOT = Path(__file__).resolve().parents[3]

FRAME = re.compile(
    rb"MSG (?P<subject>[^ \r]*) (?P<sid>[^ \r]*) (?:(?P<reply>[^ \r]*) )?(?P<size>[0-9]{1,640})\r\n",
    re.DOTALL,
)


def stand_in(data: bytes, start: int):
    """Scans MSG only, and stops more often than the compiled scanner."""
    runs: list[tuple[bytes, list[tuple[bytes, bytes, bytes, bytes]]]] = []
    while match := FRAME.match(data, start):
        end = match.end() + int(match["size"])
        if data[end : end + 2] != b"\r\n":
            break
        if not runs or runs[-1][0] != match["sid"]:
            runs.append((match["sid"], []))
        runs[-1][1].append((match["subject"], match["reply"] or b"", b"", data[match.end() : end]))
        start = end + 2
    return runs, start


@pytest.fixture(autouse=True)
def new_choice(monkeypatch):
    monkeypatch.delenv("JSCLIENT_PURE", raising=False)
    chosen.cache_clear()
    yield
    monkeypatch.undo()
    chosen.cache_clear()


def install(monkeypatch, version: str) -> None:
    module = ModuleType("jsclient_speedups")
    module.__version__, module.scan = version, stand_in
    module.find_header, module.is_ordinary_jsack = find_header, match_jsack
    module.split_jsack, module.ordinary_block = lambda reply: None, ordinary_block
    module.last_of_whole_run, module.total_size = last_of_whole_run, total_size
    module.split_stored = lambda frames, last_seq: ([], b"")
    module.publish_command, module.join_acks = publish_command, join_acks
    module.Slots = Slots
    module.CallbackRun = None
    module.masked = masked
    module.burst_commands = lambda *columns: b""
    module.jsack_numbers = lambda frames: b""
    monkeypatch.setitem(sys.modules, "jsclient_speedups", module)


def test_fitting_version_is_used(monkeypatch):
    install(monkeypatch, f"{SERIES}.7")
    assert chosen().scan is stand_in
    assert chosen().text == f"compiled (jsclient-speedups {SERIES}.7)"
    assert FrameReader(wire_streams.Recorder(None))._compiled is stand_in


def test_not_installed(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "jsclient_speedups", None)
    assert chosen()[:2] == (None, "Python (jsclient-speedups is not installed)")
    assert caplog.records == []


@pytest.mark.parametrize(("value", "pure"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_jsclient_pure(monkeypatch, value, pure):
    install(monkeypatch, f"{SERIES}.0")
    monkeypatch.setenv("JSCLIENT_PURE", value)
    assert (chosen().scan is None) == pure
    assert ("JSCLIENT_PURE" in chosen().text) == pure


@pytest.mark.parametrize("version", ["0.0.9", f"{SERIES}9.0", "1.0", ""])
def test_other_version_warns_once(monkeypatch, caplog, version):
    install(monkeypatch, version)
    with caplog.at_level(logging.WARNING):
        assert chosen().scan is None
        chosen()
    (record,) = caplog.records
    assert f"{version} does not fit this jsclient, which needs {SERIES}.*" in record.getMessage()


def test_incomplete_build_warns(monkeypatch, caplog):
    install(monkeypatch, f"{SERIES}.0")
    monkeypatch.delattr(sys.modules["jsclient_speedups"], "find_header")
    choice = chosen()
    assert choice.scan is None
    [record] = caplog.records
    assert f"{SERIES}.0 is incomplete: " in record.getMessage()
    assert "find_header" in choice.text


def test_broken_binary_warns(monkeypatch, caplog, tmp_path):
    (tmp_path / "jsclient_speedups.py").write_text("raise ImportError('wrong ELF class')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jsclient_speedups", raising=False)
    assert chosen().scan is None
    assert "cannot be imported: wrong ELF class" in caplog.text


def test_versions_are_tied():
    """The extra, the two packages and the series say the same."""
    assert jsclient.__version__.split(".")[:2] == SERIES.split(".")
    text = (ROOT / "speedups/jsclient_speedups/__init__.py").read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.+?)"', text, re.MULTILINE) == [jsclient.__version__]
    major, minor = SERIES.split(".")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert extras["speed"] == [f"jsclient-speedups>={SERIES}.0.dev0,<{major}.{int(minor) + 1}"]


def test_same_calls_with_scanner():
    """Sinks that leave, open, raise and change limits: the reader behaves as without a scanner."""
    read, kinds = wire_streams.compare(stand_in, 0, 1500)
    assert read > 3000
    assert kinds >= {"sink", "other", "line", "sink error"}
    assert [word for word in wire_streams.ERRORS if not any(word in kind for kind in kinds)] == []
