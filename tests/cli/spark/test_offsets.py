"""The command ``jsclient spark offsets``: its options, its lines, and the ranges that a rewind reports."""

from __future__ import annotations

import argparse
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jsclient.cli import main
from jsclient.cli.spark import offsets
from jsclient.cli.spark.offsets import _compared, _rewind, _rewound
from jsclient.errors import ConfigError
from jsclient.spark.log.checkpoint import Checkpoint, CheckpointError, QueryRunningError
from jsclient.tables.offsets import StreamFacts

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


NOW = datetime(2026, 11, 23, 3, tzinfo=UTC)


def facts_of(name="ORDERS", created=CREATED):
    return StreamFacts(name, created, 3, 40, 38, 380, 0, direct=True, work_queue=False, seen_at=NOW)


class Streams:
    """The streams of a server, instead of `Lookup`."""

    def __init__(self, **created):
        self._created = created

    def __call__(self, options):
        lookup = Streams(**self._created)
        lookup._facts = facts_of(options.stream, self._created[options.stream])
        return lookup

    def facts(self):
        return self._facts

    def created_at(self, created, options):
        return next((name for name, other in self._created.items() if other == created), None)

    def sequence_at(self, moment, facts):
        return 12 if datetime.fromisoformat(moment) < NOW else facts.last_seq + 1


def rewind(path, to, *, created=CREATED, force=True):
    arguments = argparse.Namespace(rewind_to=to, force=force)
    return _rewind(Checkpoint.read_directory(path), Streams(), facts_of(created=created), arguments)


def ranges_of(done):
    return done["read_twice"], done["maybe_read_twice"], done["skipped"]


def batch(path, seq):
    """The query runs one more batch."""
    number = len(list((path / "offsets").iterdir()))
    (path / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"seq": {seq}, "created": "{CREATED}"}}')
    (path / "commits" / str(number)).write_text("v1\n{}")


@pytest.mark.parametrize(
    ("to", "ranges"),
    [
        ("3", ([[3, 16]], [[17, 24]], [])),
        ("17", ([], [[17, 24]], [])),
        ("20", ([], [[20, 24]], [[17, 19]])),
        ("41", ([], [], [[17, 40]])),
    ],
)
def test_rewind_says_what_is_read_twice(checkpoint, to, ranges):
    done = rewind(checkpoint, to)
    assert ranges_of(done) == ranges
    assert len(_rewound(done)) == 2 + sum(map(bool, ranges))
    assert json.loads((checkpoint / "offsets" / "3").read_text().splitlines()[2])["seq"] == int(to) - 1


def test_second_rewind_knows_what_was_committed_before_the_first(checkpoint):
    rewind(checkpoint, "3")
    done = rewind(checkpoint, "10")
    assert ranges_of(done) == ([[10, 16]], [[17, 24]], [])


def test_ranges_skipped_and_taken_back_were_not_read(checkpoint):
    assert ranges_of(rewind(checkpoint, "30")) == ([], [], [[17, 29]])
    assert ranges_of(rewind(checkpoint, "17")) == ([], [[17, 24]], [])
    assert ranges_of(rewind(checkpoint, "30")) == ([], [], [[17, 29]])


def test_ranges_skipped_are_not_read_twice_after_later_batches(checkpoint):
    rewind(checkpoint, "30")
    batch(checkpoint, 35)
    done = rewind(checkpoint, "10")
    assert ranges_of(done) == ([[10, 16], [30, 35]], [[17, 24]], [])
    assert "sequences 10 to 16, 30 to 35: read twice" in "\n".join(_rewound(done))
    assert ranges_of(rewind(checkpoint, "20")) == ([[30, 35]], [[20, 24]], [[17, 19]])
    assert ranges_of(rewind(checkpoint, "41")) == ([], [], [[17, 29], [36, 40]])


@pytest.mark.parametrize(("to", "first"), [("2026-11-23T02:59:59Z", 12), ("2026-11-23T03:00:00Z", 41)])
def test_rewind_to_time(checkpoint, to, first):
    assert rewind(checkpoint, to)["first"] == first


@pytest.mark.parametrize("to", ["2062-11-23T03:00:00Z", "2026-11-23T03:00:00.000001Z"])
def test_rewind_to_future_refused(checkpoint, to):
    with pytest.raises(
        ConfigError, match=rf"--rewind-to is {to}, which is in the future .* or 41 for the next"
    ):
        rewind(checkpoint, to)
    assert not (checkpoint / "offsets" / "3").exists()


@pytest.mark.parametrize("to", ["2", "42", "0", "-1", "soon", "2026-01-31", ""])
def test_other_rewind_targets_refused(checkpoint, to):
    with pytest.raises(ConfigError, match="--rewind-to is"):
        rewind(checkpoint, to)


def test_recreated_stream_refused(checkpoint):
    with pytest.raises(
        CheckpointError, match=r"'ORDERS', created .*24T00.*, is not the .* it was recreated, or"
    ):
        rewind(checkpoint, "5", created="2026-11-24T00:00:00+00:00")


def test_recent_checkpoint_needs_force(checkpoint):
    with pytest.raises(QueryRunningError, match="may be running"):
        rewind(checkpoint, "5", force=False)
    assert not (checkpoint / "offsets" / "3").exists()


def test_lines_of_streams():
    actual = {"name": "ORDERS", "created": CREATED, "recreated": False, "first": 3, "last": 40}
    here = {**actual, "ends_before": False, "lag": 4, "removed": 0}
    assert _compared(here) == "ORDERS, sequences 3 to 40, lag 4"
    assert _compared({**here, "removed": 2}).endswith("lag 4, 2 removed before they were read")
    assert _compared({**here, "ends_before": True}).endswith("ends before the committed offset")
    assert _compared({**actual, "recreated": None}) == (
        f"ORDERS, created {CREATED}: not the stream that the query has read, so the offsets are not valid in it"
    )
    assert _compared({"name": None, "recreated": True}).startswith("deleted or recreated")


OTHER = "2026-11-22T00:00:00+00:00"


@pytest.fixture
def compared(checkpoint, capsys, monkeypatch):
    """Run the command with a server that has these streams: its exit code, JSON, and error text."""

    def run(*arguments, streams, sources=(CREATED,)):
        lines = [json.dumps({"seq": 16, "created": created}) for created in sources]
        (checkpoint / "offsets" / "1").write_text("\n".join(["v1", "{}", *lines]))
        (checkpoint / "offsets" / "2").unlink()
        server = Streams(**streams)
        monkeypatch.setattr(offsets, "Lookup", server)
        monkeypatch.setattr(offsets, "_stream_created", server.created_at)
        values = [str(checkpoint), "--server", "nats://127.0.0.1:1", "--json", *arguments]
        code = main(["spark", "offsets", *values])
        out, error = capsys.readouterr()
        return code, [one["stream"] for one in json.loads(out)["sources"]] if out else None, error

    return run


def test_stream_by_time_or_name(compared):
    code, (state,), _ = compared(streams={"ORDERS": CREATED, "AUDIT": OTHER})
    assert (code, state["name"], state["recreated"], state["lag"]) == (0, "ORDERS", False, 24)


def test_stream_of_another_name_is_not_called_recreated(compared):
    code, (state,), _ = compared("--stream", "AUDIT", streams={"ORDERS": CREATED, "AUDIT": OTHER})
    assert (code, state["name"], state["created"], state["recreated"]) == (0, "AUDIT", OTHER, None)
    assert "lag" not in state


def test_rewind_in_stream_of_another_name_refused(compared):
    arguments = ("--stream", "AUDIT", "--rewind-to", "5", "--force")
    code, _, error = compared(*arguments, streams={"ORDERS": CREATED, "AUDIT": OTHER})
    assert code == 1
    assert f"'AUDIT', created {OTHER}, is not the stream that the query has read, created {CREATED}" in error


def test_named_stream_is_that_of_one_source(compared):
    """The other sources are found by their time, as without a name."""
    streams = {"ORDERS": CREATED, "AUDIT": OTHER}
    code, states, _ = compared("--stream", "ORDERS", streams=streams, sources=(CREATED, OTHER, "2020"))
    assert code == 0
    assert [(one["name"], one["recreated"]) for one in states] == [
        ("ORDERS", False),
        ("AUDIT", False),
        (None, True),
    ]


def test_named_stream_of_no_source(compared):
    streams = {"ORDERS": CREATED, "AUDIT": OTHER, "BILLS": "2020"}
    _, states, _ = compared("--stream", "BILLS", streams=streams, sources=(CREATED, OTHER))
    assert [(one["name"], one["recreated"]) for one in states] == [("BILLS", None), ("BILLS", None)]


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


@pytest.mark.parametrize("option", ["--stream", "--credentials", "--rewind-to"])
@pytest.mark.parametrize("value", ["5", ""])
def test_options_without_server_refused(capsys, checkpoint, option, value):
    with pytest.raises(SystemExit) as ended:
        main(["spark", "offsets", str(checkpoint), option, value])
    assert ended.value.code == 2
    assert "need --server" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["user", "=ann"])
def test_malformed_option_refused(capsys, checkpoint, option):
    with pytest.raises(SystemExit) as ended:
        main(["spark", "offsets", str(checkpoint), "--server", "nats://127.0.0.1:1", "--option", option])
    assert ended.value.code == 2
    assert "NAME=VALUE is needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("tlsCaa=ca.pem", "'tlsCaa'.*'tlsCa'"),
        ("mode=queue", "has no option 'mode'"),
        ("servers=nats://x", "use --server"),
        ("credentialsFile=x", "use --server, --stream or --cred"),
    ],
)
def test_unknown_option_refused(capsys, checkpoint, option, says):
    assert (
        main(["spark", "offsets", str(checkpoint), "--server", "nats://127.0.0.1:1", "--option", option]) == 1
    )
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize("option", ["stream", "credentialsFile"])
def test_empty_values_refused(capsys, checkpoint, option):
    arguments = ["--server", "nats://127.0.0.1:1", f"--{option.removesuffix('File')}", ""]
    assert main(["spark", "offsets", str(checkpoint), *arguments]) == 1
    assert f"option '{option}' is empty" in capsys.readouterr().err


def test_streams_of_one_source(tmp_path, capsys):
    (tmp_path / "metadata").write_text('{"id": "ca7f5223"}')
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    for number, ends in enumerate(({"A": 8}, {"A": 8, "B": 5})):
        streams = {name: {"seq": seq, "created": CREATED} for name, seq in ends.items()}
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'streams': streams})}")
    assert main(["spark", "offsets", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "query ca7f5223",
        "source 0: mode log, 2 streams",
        f"  A, stream created {CREATED}",
        "    planned    batch 1, up to sequence 8",
        "    committed  batch 0, up to sequence 8",
        f"  B, stream created {CREATED}",
        "    planned    batch 1, up to sequence 5",
        "    committed  none",
    ]
    assert main(["spark", "offsets", str(tmp_path), "--server", "nats://x", "--rewind-to", "4"]) == 1
    assert "has a source of several streams (A), which cannot be rewound" in capsys.readouterr().err
