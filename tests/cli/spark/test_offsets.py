"""The command ``jsclient spark offsets``: its options, its lines, and the ranges that a rewind reports."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from jsclient.cli import main
from jsclient.cli.spark.offsets import _compared, _rewind, _rewound
from jsclient.errors import ConfigError
from jsclient.spark.log.checkpoint import Checkpoint, CheckpointError, QueryRunningError
from jsclient.spark.log.offsets import StreamFacts

CREATED = "2026-11-23T02:28:31.315730+00:00"


@pytest.fixture
def checkpoint(tmp_path):
    """Committed up to 16, planned up to 24."""
    (tmp_path / "metadata").write_text('{"id": "ca7f5223"}')
    for folder, texts in (
        ("offsets", [f'v1\n{{}}\n{{"seq": {seq}, "created": "{CREATED}"}}' for seq in (8, 16, 24)]),
        ("commits", ["v1\n{}", "v1\n{}"]),
    ):
        (tmp_path / folder).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / folder / str(number)).write_text(text)
    return tmp_path


def rewind(path, to, *, created=CREATED, force=True):
    facts = StreamFacts("ORDERS", created, 3, 40, 38, 380, 0, direct=True, work_queue=False)
    return _rewind(Checkpoint.read(path), None, facts, argparse.Namespace(rewind_to=to, force=force))


@pytest.mark.parametrize(
    ("to", "ranges"),
    [
        ("3", ([3, 16], [17, 24], None)),
        ("17", (None, [17, 24], None)),
        ("20", (None, [20, 24], [17, 19])),
        ("41", (None, None, [17, 40])),
    ],
)
def test_rewind_says_what_is_read_twice(checkpoint, to, ranges):
    done = rewind(checkpoint, to)
    assert (done["read_twice"], done["maybe_read_twice"], done["skipped"]) == ranges
    assert len(_rewound(done)) == 2 + sum(one is not None for one in ranges)
    assert json.loads((checkpoint / "offsets" / "3").read_text().splitlines()[2])["seq"] == int(to) - 1


def test_second_rewind_knows_what_was_committed_before_the_first(checkpoint):
    rewind(checkpoint, "3")
    done = rewind(checkpoint, "10")
    assert (done["read_twice"], done["maybe_read_twice"], done["skipped"]) == ([10, 16], [17, 24], None)


@pytest.mark.parametrize("to", ["2", "42", "0", "-1", "soon", "2026-01-31"])
def test_other_places_refused(checkpoint, to):
    with pytest.raises(ConfigError, match="--rewind-to is"):
        rewind(checkpoint, to)


def test_recreated_stream_refused(checkpoint):
    with pytest.raises(CheckpointError, match="'ORDERS' was recreated"):
        rewind(checkpoint, "5", created="2026-11-24T00:00:00+00:00")


def test_recent_checkpoint_needs_force(checkpoint):
    with pytest.raises(QueryRunningError, match="may be running"):
        rewind(checkpoint, "5", force=False)
    assert not (checkpoint / "offsets" / "3").exists()


def test_lines_of_streams():
    found = {"name": "ORDERS", "created": CREATED, "recreated": False, "first": 3, "last": 40}
    here = {**found, "ends_before": False, "lag": 4, "removed": 0}
    assert _compared(here) == "ORDERS, sequences 3 to 40, lag 4"
    assert _compared({**here, "removed": 2}).endswith("lag 4, 2 removed before they were read")
    assert _compared({**here, "ends_before": True}).endswith("ends before the committed offset")
    assert _compared({**found, "recreated": True}).endswith(f"recreated {CREATED}: the offsets are not valid")
    assert _compared({"name": None, "recreated": True}).startswith("deleted or recreated")


def test_lines_of_planned_batch(checkpoint, capsys):
    assert main(["spark", "offsets", str(checkpoint)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "query ca7f5223",
        f"source 0: mode log, stream created {CREATED}",
        "  planned    batch 2, up to sequence 24",
        "  committed  batch 1, up to sequence 16",
    ]


def test_reference_has_every_option_of_offsets(capsys):
    with pytest.raises(SystemExit):
        main(["spark", "offsets", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark.md").read_text(
        encoding="utf-8"
    )
    part = page.split("\n## Command line\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(--[a-z-]+)", part, re.MULTILINE)) == known


def test_directory_that_is_not_a_checkpoint_reported(capsys, tmp_path):
    assert main(["spark", "offsets", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("jsclient spark offsets: ")
    assert "is not the checkpoint of a streaming query" in error


def test_rewind_without_server_refused(capsys, tmp_path):
    assert main(["spark", "offsets", str(tmp_path), "--rewind-to", "5"]) == 1
    assert "need --server" in capsys.readouterr().err
