"""Checkpoints as Spark 4.3 writes them: their content, the refusals, and the entries that a rewind adds."""

from __future__ import annotations

import json
import os

import pytest

from jsclient.spark.log.checkpoint import (
    Checkpoint,
    CheckpointError,
    NotACheckpointError,
    QueryRunningError,
    SeveralSourcesError,
    UnknownOffsetError,
)
from jsclient.tables.offsets import LogOffset
from jsclient.tables.ranges import SequenceRange

CREATED = "2026-11-23T02:28:31.315730+00:00"
ID = "ca7f5223-3cb3-46d6-a34a-a9fb567e1425"
METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1795400913576,"conf":{"spark.sql.shuffle.partitions":"2"}}'
)
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def line(seq, *cuts, **more):
    return json.dumps({"seq": seq, "created": CREATED, **({"cuts": list(cuts)} if cuts else {}), **more})


@pytest.fixture
def make(tmp_path):
    """Write a checkpoint: the lines of each batch, and the number of batches that are committed."""

    def write(*batches, committed=None):
        (tmp_path / "metadata").write_text(json.dumps({"id": ID}))
        for name in ("offsets", "commits"):
            (tmp_path / name).mkdir()
        for number, lines in enumerate(batches):
            (tmp_path / "offsets" / str(number)).write_text("\n".join(["v1", METADATA, *lines]))
            (tmp_path / "offsets" / f".{number}.crc").write_bytes(b"crc")
        for number in range(len(batches) if committed is None else committed):
            (tmp_path / "commits" / str(number)).write_text(COMMIT)
        return tmp_path

    return write


def test_last_planned_and_last_committed_batch(make):
    actual = Checkpoint.read_directory(make([line(8, 1)], [line(16, 9)], [line(20, 17)], committed=2))
    assert (actual.id, actual.stateful) == (ID, False)
    assert actual.planned.number == 2
    assert actual.planned.sources[0].offset == LogOffset(20, CREATED, cuts=(17,))
    assert actual.committed.number == 1
    assert actual.rewindable_offset() == LogOffset(16, CREATED, cuts=(9,))


def test_commit_without_its_batch_does_not_count(make):
    path = make([line(8)], [line(16)])
    (path / "offsets" / "1").unlink()
    assert Checkpoint.read_directory(path).committed.number == 0


def test_ten_comes_after_nine(make):
    assert Checkpoint.read_directory(make(*([line(n + 1)] for n in range(11)))).planned.number == 10


def test_modes_of_sources(make):
    lines = [line(8), '{"b": 1, "runs": []}', "-", '{"orders":{"0":5}}', "17", "{"]
    actual = Checkpoint.read_directory(make(lines))
    assert [one.mode for one in actual.planned.sources] == ["log", "queue", "none", "other", "other", "other"]


def test_query_before_its_first_batch(make):
    actual = Checkpoint.read_directory(make())
    assert (actual.planned, actual.committed) == (None, None)
    with pytest.raises(CheckpointError, match="no committed batch"):
        actual.rewind(LogOffset(1, CREATED))


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "1"])
def test_other_directories_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "metadata").write_text(content)
    with pytest.raises(NotACheckpointError, match="not the checkpoint of a streaming query"):
        Checkpoint.read_directory(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://host/a",
        "s3a://bucket/a",
        "wasbs://c@host/a",
        "dbfs:/a",
        "https://host/a",
        "file://host/a",
        "file://",
    ],
)
def test_urls_that_are_not_local_are_refused(url):
    with pytest.raises(NotACheckpointError, match=f"^{url} is not a local directory"):
        Checkpoint.read_directory(url)


def test_missing_directory_refused(tmp_path):
    with pytest.raises(NotACheckpointError, match="not exist"):
        Checkpoint.read_directory(tmp_path / "none")


@pytest.mark.parametrize("scheme", ["file://", "file:", "FILE://"])
def test_local_directory_as_url(make, scheme):
    path = make([line(8)])
    assert Checkpoint.read_directory(f"{scheme}{path}").path == path


@pytest.mark.parametrize("text", ["v3\n{}\n{}", "", "v1"])
def test_unknown_version_refused(make, text):
    path = make([line(8)])
    (path / "offsets" / "0").write_text(text)
    with pytest.raises(
        UnknownOffsetError, match="reads v1 and v2: upgrade jsclient, or use a new checkpoint"
    ):
        Checkpoint.read_directory(path)


def test_named_sources(make):
    """Version 2: each line begins with the name of a source, in any order."""
    path = make([line(8)], [line(16)], committed=1)
    (path / "offsets" / "0").write_text("\n".join(["v2", METADATA, f"a:{line(8, 1)}"]))
    (path / "offsets" / "1").write_text("\n".join(["v2", METADATA, "b:-", f"a:{line(16, 9)}"]))
    checkpoint = Checkpoint.read_directory(path)
    assert [(one.name, one.mode) for one in checkpoint.planned.sources] == [("b", "none"), ("a", "log")]
    assert [one.offset for one in checkpoint.committed.sources] == [None, LogOffset(8, CREATED, cuts=(1,))]
    assert checkpoint.covered(CREATED) == ([SequenceRange(1, 8)], [SequenceRange(9, 16)])


def test_named_source_rewound(make):
    path = make([line(8)])
    (path / "offsets" / "0").write_text("\n".join(["v2", METADATA, f"orders:{line(8, 1)}"]))
    checkpoint = Checkpoint.read_directory(path)
    planned, _ = checkpoint.rewind(LogOffset(3, CREATED))
    version, metadata, text = planned.read_text().splitlines()
    assert (version, metadata) == ("v2", METADATA)
    assert text.startswith("orders:{")
    assert Checkpoint.read_directory(path).rewindable_offset().seq == 3


def test_line_without_name_refused(make):
    path = make([line(8)])
    (path / "offsets" / "0").write_text("\n".join(["v2", METADATA, "7"]))
    with pytest.raises(UnknownOffsetError, match="without the name of a source"):
        Checkpoint.read_directory(path)


def test_unknown_offset_refused(make):
    with pytest.raises(UnknownOffsetError, match="unknown version"):
        Checkpoint.read_directory(make([line(8, streams={"A": 1})]))


def test_rewind_adds_committed_batch(make):
    path = make([line(8, 1)], [line(16, 9)])
    (path / "offsets" / ".2.crc").write_bytes(b"of a file that was deleted")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != ".2.crc"}
    added = Checkpoint.read_directory(path).rewind(LogOffset(4, CREATED, owner="5f"))
    assert added == (path / "offsets" / "2", path / "commits" / "2")
    assert added[0].read_text() == f"v1\n{METADATA}\n{line(4, owner='5f', rewound=True)}"
    assert added[1].read_text() == COMMIT
    assert [file.stat().st_mode & 0o777 for file in added] == [0o644, 0o644], (
        "a query of another user reads them"
    )
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert after == before | {file: file.read_bytes() for file in added}
    assert Checkpoint.read_directory(path).rewindable_offset() == LogOffset(
        4, CREATED, owner="5f", rewound=True
    )


def test_rewind_passes_planned_batch(make):
    path = make([line(8, 1)], [line(16, 9)], committed=1)
    Checkpoint.read_directory(path).rewind(LogOffset(4, CREATED))
    actual = Checkpoint.read_directory(path)
    assert actual.planned.number == actual.committed.number == 2
    assert not (path / "commits" / "1").exists()


def test_covered_leaves_out_rewinds(make):
    path = make([line(8, 1)], [line(16, 9)], [line(18)], committed=2)
    for seq in (30, 16, 25):
        Checkpoint.read_directory(path).rewind(LogOffset(seq, CREATED))
        assert Checkpoint.read_directory(path).covered(CREATED) == (
            [SequenceRange(1, 16)],
            [SequenceRange(17, 18)],
        )


def test_covered_leaves_out_what_was_skipped(make):
    path = make([line(8, 5)], [line(29, rewound=True)], [line(40)], [line(40)])
    assert Checkpoint.read_directory(path).covered(CREATED) == (
        [SequenceRange(5, 8), SequenceRange(30, 40)],
        [],
    )
    assert Checkpoint.read_directory(path).covered("2026-11-24T00:00:00+00:00") == ([], [])


def test_batches_that_spark_has_removed_count_as_committed(make):
    path = make([line(8, 5)], [line(16, 9)])
    (path / "offsets" / "0").unlink()
    assert Checkpoint.read_directory(path).covered(CREATED) == ([SequenceRange(1, 16)], [])


def test_rewind_while_query_plans_refused(make):
    path = make([line(8, 1)])
    actual = Checkpoint.read_directory(path)
    (path / "offsets" / "1").write_text("of the query")
    with pytest.raises(QueryRunningError, match="exists now"):
        actual.rewind(LogOffset(4, CREATED))
    assert (path / "offsets" / "1").read_text() == "of the query"
    assert sorted(file.name for file in path.rglob("*") if file.is_file()) == [
        ".0.crc",
        "0",
        "0",
        "1",
        "metadata",
    ]


def test_rewind_of_several_sources_refused(make):
    with pytest.raises(SeveralSourcesError, match="2 sources"):
        Checkpoint.read_directory(make([line(8), line(9)])).rewind(LogOffset(4, CREATED))


def test_several_streams_of_a_source(make):
    path = make([json.dumps({"streams": {"B": json.loads(line(8, 1)), "A": json.loads(line(5))}})])
    actual = Checkpoint.read_directory(path)
    (source,) = actual.committed.sources
    assert (source.mode, source.offset) == ("log", None)
    assert source.streams == {"A": LogOffset(5, CREATED), "B": LogOffset(8, CREATED, cuts=(1,))}
    assert actual.covered(CREATED) == ([], [])
    with pytest.raises(SeveralSourcesError, match=r"several streams \(B, A\), which cannot be rewound"):
        actual.rewind(LogOffset(4, CREATED))


def test_unknown_offset_of_several_refused(make):
    with pytest.raises(UnknownOffsetError, match="unknown version"):
        Checkpoint.read_directory(make([json.dumps({"streams": {"A": json.loads(line(8, more=1))}})]))


def test_rewind_of_queue_refused(make):
    with pytest.raises(UnknownOffsetError, match="mode 'queue'"):
        Checkpoint.read_directory(make(['{"b": 1, "runs": []}'])).rewind(LogOffset(4, CREATED))


def test_rewind_of_state_refused(make):
    path = make([line(8)])
    (path / "state").mkdir()
    actual = Checkpoint.read_directory(path)
    assert actual.stateful
    with pytest.raises(CheckpointError, match="state, which cannot be rewound"):
        actual.rewind(LogOffset(4, CREATED))


@pytest.mark.parametrize("newest", ["metadata", "offsets/1", "commits/1"])
def test_newest_file_counts(make, newest):
    path = make([line(8)], [line(16)])
    for file in path.rglob("*"):
        os.utime(file, (1000, 1000))
    os.utime(path / newest, (2000, 2000))
    assert Checkpoint.read_directory(path).written == 2000


def test_recent_checkpoint_refused(make):
    actual = Checkpoint.read_directory(make([line(8)]))
    actual.refuse_running(actual.written + 60, 60)
    with pytest.raises(QueryRunningError, match=r"written 59 seconds ago.* 60 seconds old"):
        actual.refuse_running(actual.written + 59, 60)
