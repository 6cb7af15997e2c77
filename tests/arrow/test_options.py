"""The arguments of the readers: the options they become, and the refusals before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jsclient.arrow.options import check_columns, read_options
from jsclient.errors import ConfigError
from jsclient.tables.source_options import Place

ROOT = Path(__file__).resolve().parents[2]


def read(options="nats://127.0.0.1:4222", stream="ORDERS", subjects=(), start="first", end="now"):
    return read_options(options, stream, subjects, start, end)


def test_defaults():
    actual = read()
    assert (actual.connect.servers, actual.stream, actual.subjects) == (
        ("nats://127.0.0.1:4222",),
        "ORDERS",
        (),
    )
    assert (actual.start, actual.end) == (
        Place("earliest", argument="start"),
        Place("latest", argument="end"),
    )
    assert check_columns(None, actual) == ("subject", "data", "headers", "stream", "sequence", "timestamp")


def test_start_and_end():
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert read(start=noon, end="2026-02-01T00:00:00Z").start.time == "2026-01-31T12:00:00Z"
    assert read(start=7, end=8).end == Place("sequence", sequence=8, argument="end")
    assert read(start="now").start.kind == "latest"


def test_subjects():
    assert read(subjects="a.>").subjects == ("a.>",)
    assert read(subjects=["a", "b"]).subjects == ("a", "b")


def test_name_of_connections():
    """The name differs from the name of Spark's connections, because Spark keeps its connections."""
    assert read().connect.arguments()["name"] == "jsclient-arrow"
    named = read({"servers": "nats://127.0.0.1:4222", "nats.name": "mine"})
    assert named.connect.arguments()["name"] == "mine"


@pytest.mark.parametrize(
    ("name", "extra"),
    [("read_jetstream", "arrow"), ("scan_jetstream", "polars"), ("read_ray_dataset", "ray")],
)
def test_missing_package(name, extra):
    without = "import sys; sys.modules |= dict.fromkeys(('polars', 'pyarrow', 'ray'))"
    script = f"{without}\nfrom jsclient.arrow import {name}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: jsclient.arrow.{name} needs "), done.stderr
    assert last.endswith(f": pip install 'jsclient[{extra}]'")


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"start": "latest"}, r"start: 'latest' .*\"first\" or \"now\", or a sequence"),
        ({}, {"start": 0}, "start is 0: .* a sequence from 1"),
        ({}, {"start": True}, "start is True"),
        ({}, {"start": datetime(2026, 1, 1)}, "start: .* has no time zone"),  # noqa: DTZ001
        ({}, {"end": "first"}, r"end: 'first' .*\"now\", or a sequence"),
        ({}, {"start": 9, "end": 8}, "start is 9, which is after end, 8"),
        ({}, {"stream": "A,B", "start": 9}, "start is 9, a sequence of one stream, but 'stream' is 'A,B'"),
        ({}, {"stream": "a.b"}, "option 'stream': .*a.b"),
        ({}, {"stream": ""}, "option 'stream' is empty"),
        ({}, {"subjects": "a..b"}, "option 'subjects': .*a..b"),
        ({}, {"subjects": ["a", "b,c"]}, "subjects has 'b,c'"),
        ({}, {"subjects": ["a.*", "a.b"]}, "overlap"),
        ({}, {"columns": ["sequense"]}, r"columns is \['sequense'\]: .*subject, data"),
        ({}, {"columns": []}, r"columns is \[\]"),
        ({}, {"columns": "data"}, "columns is 'data'"),
        ({"startingSequence": "4"}, {}, "option 'startingSequence' .* argument 'start'"),
        ({"endingTimestamp": "4"}, {}, "argument 'end'"),
        ({"streamPattern": "A*"}, {}, "argument 'stream'"),
        ({"includeHeaders": "false"}, {}, "argument 'columns'"),
        ({"pushdown": "true"}, {}, "'pushdown' is for Spark"),
        ({"mode": "queue", "consumer": "c"}, {}, "batch reads need 'log'"),
        ({"failOnDatLoss": "false"}, {}, "did you mean 'failOnDataLoss'"),
        ({"batchRows": "many"}, {}, "option 'batchRows' is 'many'"),
        ({"user": "ann"}, {}, "option 'passwordEnv' is missing"),
        ({"servers": ""}, {}, "option 'servers' is empty"),
    ],
    ids=str,
)
def test_refused(options, arguments, message):
    settings = {
        "stream": "ORDERS",
        "subjects": (),
        "start": "first",
        "end": "now",
        "columns": None,
        **arguments,
    }
    columns = settings.pop("columns")
    with pytest.raises(ConfigError, match=message):
        check_columns(columns, read_options({"servers": "nats://127.0.0.1:4222", **options}, **settings))
