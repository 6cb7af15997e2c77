"""The options of source and sink for topics of epochs. The page of the documentation lists the same options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.options import epochs as epoch_options
from jsclient.spark.options.epochs import EpochSinkOptions, EpochSourceOptions, is_epochs
from jsclient.tables.server_options import OptionReader
from jsclient.tables.source_options import EPOCH_COLUMNS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark.md").read_text(encoding="utf-8")
GIVEN = {"servers": "nats://x", "epochs": "trades.eu"}


def source(streaming=True, **options):
    return EpochSourceOptions.parse({**GIVEN, **options}, streaming=streaming)


def sink(**options):
    return EpochSinkOptions.parse({**GIVEN, **options})


def test_stream_named_after_topic():
    assert (source().topic, source().read.stream) == ("trades.eu", "trades_eu")
    assert source(stream="S").read.stream == sink(stream="S").stream == "S"
    assert is_epochs({"Epochs": "x"})
    assert not is_epochs({"stream": "x"})


def test_where_a_query_begins():
    assert source().start == "latest"
    assert source(streaming=False).start == "earliest"
    assert source(startingOffsets="earliest").start == "earliest"
    assert source(startingEpoch="-7").start == -7
    with pytest.raises(ConfigError, match="choose one"):
        source(startingEpoch="1", startingOffsets="latest")
    with pytest.raises(ConfigError, match="an integer"):
        source(startingEpoch="1.5")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"epochs": "a.>"}, "epochs"),
        ({"stream": "a.b"}, "stream"),
        ({"subjects": "x"}, "subjects"),
        ({"mode": "queue"}, "mode"),
        ({"maxEpochsPerTrigger": "0"}, "maxEpochsPerTrigger"),
        ({"fetchMaxBytes": "1g"}, "fetchMaxBytes"),
    ],
)
def test_what_a_source_does_not_take(options, named):
    with pytest.raises(ConfigError, match=f"option '{named}'|no option '{named}'"):
        source(**options)


@pytest.mark.parametrize("name", ["startingOffsets", "maxEpochsPerTrigger", "pollIntervalMs"])
def test_batch_read_does_not_take(name):
    with pytest.raises(ConfigError, match=f"option '{name}' is for streaming reads"):
        source(streaming=False, **{name: "earliest"})


@pytest.mark.parametrize("options", [{"exactlyOnce": "ledger"}, {"subject": "x"}, {"dedup": "none"}])
def test_what_a_sink_does_not_take(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        sink(**options)


class Recorder(OptionReader):
    option_names: set[str]

    def __init__(self, options, what):
        super().__init__(options, what)
        Recorder.option_names = set()

    def text(self, name, default=None):
        Recorder.option_names.add(name)
        return super().text(name, default)


@pytest.mark.parametrize(
    ("heading", "parses"),
    [
        ("Options of the source of epochs", [source, lambda: source(streaming=False)]),
        ("Options of the sink of epochs", [sink]),
    ],
)
def test_options_those_of_page(monkeypatch, heading, parses):
    monkeypatch.setattr(epoch_options, "OptionReader", Recorder)
    actual = set()
    for parse in parses:
        parse()
        actual |= Recorder.option_names
    documented = set()
    for part in ("Options of the connection", heading):
        documented |= set(
            re.findall(r"^\| `([\w.]+)`", PAGE.split(f"\n## {part}\n")[1].split("\n## ")[0], re.MULTILINE)
        )
    assert actual == documented


def test_columns_those_of_page():
    part = PAGE.split("\n## Columns of the source of epochs\n")[1].split("\n## ")[0]
    actual = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)`", part, re.MULTILINE))
    assert actual == {name: EPOCH_COLUMNS[name] for name in ("epoch", "partition")}
