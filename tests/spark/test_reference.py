"""The reference page has the options that there are, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jsclient.spark.monitoring.metrics import METRICS
from jsclient.spark.options import sink as sink_options
from jsclient.tables import source_options
from jsclient.tables.server_options import OptionReader
from jsclient.tables.source_options import QUEUE_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "spark.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.]+)`[^|]* \| ([^|]*) \|(.*)\|$", re.MULTILINE)


def table(heading):
    """The rows of the table below a heading: name → (second column, third column)."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {name: (second.strip(), third) for name, second, third in ROW.findall(part)}


class OptionRecorder(OptionReader):
    """Remembers the options that were read."""

    def __init__(self, options, what):
        super().__init__(options, what)
        self.defaults = {}
        self.choices = {}
        recorders.append(self)

    def note(self, name, default):
        if default is not None or name not in self.defaults:
            self.defaults[name] = default

    def text(self, name, default=None):
        self.note(name, default)
        return super().text(name, default)

    def choice(self, name, choices, default):
        if default not in {"true", "false"}:
            self.choices[name] = list(choices)
        return super().choice(name, choices, default)

    def read_count(self, name, default=None, **bounds):
        self.note(name, None if default is None else str(default))
        return super().read_count(name, default, **bounds)

    def size(self, name, default=None):
        self.note(name, None if default is None else f"{default >> 20} MiB")
        return super().size(name, default)

    def seconds(self, name, default):
        self.note(name, f"{default:g} s")
        return super().seconds(name, default)


recorders = []


@pytest.fixture
def options_read_by(monkeypatch):
    """The options that parsers read: name → default, and name → choices."""

    def ask(module, *parses):
        recorders.clear()
        monkeypatch.setattr(module, "OptionReader", OptionRecorder)
        for parse in parses:
            parse()
        defaults, choices = {}, {}
        for one in recorders:
            for name, default in one.defaults.items():
                defaults.setdefault(name, default)
            choices |= one.choices
        return defaults, choices

    return ask


def compare(rows, defaults, choices):
    assert sorted(rows) == sorted(defaults)
    for name, default in defaults.items():
        documented, meaning = rows[name]
        if default is not None:
            assert documented.split(";")[0].strip("`") == default, name
        for choice in choices.get(name, ()):
            assert f"`{choice}`" in f"{documented} {meaning}", f"{name}: {choice}"


def test_options_of_source_those_of_page(options_read_by):
    parse = source_options.SourceOptions.parse
    common = {"servers": "nats://x", "stream": "S"}
    defaults, choices = options_read_by(
        source_options,
        lambda: parse(common, streaming=True),
        lambda: parse(common, streaming=False),
        lambda: parse({**common, "mode": "queue", "consumer": "c"}, streaming=True),
    )
    rows = table("Options of the connection") | table("Options of the source")
    compare(rows, defaults, choices)


def test_options_of_sink_those_of_page(options_read_by):
    defaults, choices = options_read_by(
        sink_options, lambda: sink_options.SinkOptions.parse({"servers": "nats://x"})
    )
    compare(table("Options of the connection") | table("Options of the sink"), defaults, choices)


def test_columns_of_source_those_of_page():
    assert {name: kind.strip("`") for name, (kind, _) in table("Columns of the source").items()} == dict(
        QUEUE_COLUMNS
    )


def test_metrics_of_page_are_those_of_listener():
    rows = table("Listener for monitoring")
    assert {name: kind for name, (kind, _) in rows.items()} == {one.name: one.kind for one in METRICS}


def test_tests_page_on_semantics_names_there():
    page = (ROOT / "docs" / "explanation" / "spark-semantics.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]*test_\w+\.py)::(test_\w+)`", page)
    assert len(named) > 15
    for file, test in named:
        text = (ROOT / "integration" / "spark" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), f"{file}::{test}"
