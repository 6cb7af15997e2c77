"""What is read from the progress of a query."""

from __future__ import annotations

import json

import pytest

from jsclient.protocol.epochs.frontier import Int
from jsclient.protocol.epochs.records import EpochPosition
from jsclient.spark.epochs.planning import position_to_json
from jsclient.spark.monitoring.progress import LogPosition, QueuePosition, StreamReport, read_progress
from jsclient.spark.queue.claims import QueueOffset, Run
from jsclient.tables.offsets import LogOffset, StreamOffsets

CREATED = "2026-01-31T12:00:00+00:00"


def source(end, latest=None, **more):
    options = {"numInputRows": 3, "inputRowsPerSecond": 1.5, "processedRowsPerSecond": 6.0, "metrics": {}}
    return {
        "description": "Python",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        **options,
        **more,
    }


def progress(*sources, **more):
    options = {"id": "i", "runId": "r", "name": "copy", "batchId": 7, "batchDuration": 1500}
    return {**options, "sources": list(sources), "sink": {"description": "", "numOutputRows": 3}, **more}


def only(end, latest=None, **more):
    (one,) = read_progress(progress(source(end, latest, **more))).sources
    return one


@pytest.mark.parametrize("write", [json.dumps, dict], ids=["text", "decoded"])
def test_log_source(write):
    end = LogOffset(20, CREATED, cuts=(11, 16)).to_json()
    latest = {"seq": 50, "created": CREATED, "stream": "ORDERS", "subjects": ["a.>"], "lost": 4, "expired": 2}
    one = only(write(end), write(latest))
    assert (one.number, one.mode, one.stream, one.rows) == (0, "log", "ORDERS", 3)
    assert (one.input_rate, one.processed_rate) == (1.5, 6.0)
    query_position = LogPosition("ORDERS", CREATED, 20, ("a.>",))
    assert one.streams == (StreamReport("ORDERS", query_position, last=50, lost=4, expired=2),)


def test_end_of_recreated_stream_unknown():
    end, latest = LogOffset(20, CREATED).to_json(), {"seq": 50, "created": "2026-02-01T00:00:00+00:00"}
    assert only(end, latest).streams[0].last is None


@pytest.mark.parametrize("latest", [None, "None", "null", "", "[1]", "{", {"stream": "ORDERS"}])
def test_latest_offset_missing(latest):
    (one,) = only(LogOffset(20, CREATED).to_json(), latest).streams
    assert one.last is None
    assert one.query_position.seq == 20
    assert one.lost == 0


def test_source_of_several_streams():
    """The streams that it reads: not the stream that no filter fits, and not the stream that left the options."""
    end = StreamOffsets(
        {name: LogOffset(seq, CREATED) for name, seq in {"A": 20, "B": 7, "C": 9, "E": 1}.items()}
        | {"F": LogOffset(3, CREATED, idle=True)}
    ).to_json()
    latest = {
        "A": {"seq": 50, "created": CREATED, "lost": 4, "expired": 1},
        "B": {"seq": 8, "created": CREATED, "lost": 2, "subjects": ["b.>"]},
        "C": {"seq": 90, "created": "2026-02-01T00:00:00+00:00"},
        "D": {"seq": 5, "created": CREATED},
        "F": {"seq": 5, "created": CREATED},
    }
    one = only(end, {"streams": latest})
    assert (one.mode, one.stream) == ("log", "")
    assert one.streams == (
        StreamReport("A", LogPosition("A", CREATED, 20), last=50, lost=4, expired=1),
        StreamReport("B", LogPosition("B", CREATED, 7, ("b.>",)), last=8, lost=2),
        StreamReport("C", LogPosition("C", CREATED, 9)),
    )
    for unknown in (None, {"streams": None}, {"streams": {"A": 1}}, {"streams": {}}):
        assert only(end, unknown).streams == ()


def test_queue_source():
    end = QueueOffset(3, (Run(1, 1, 5, 1, 0),), "$JS.ACK.S.c").to_json()
    latest = {"b": 3, "stream": "JOBS", "consumer": "c", "pending": 12, "lapsed": 2}
    one = only(json.dumps(end), json.dumps(latest))
    assert (one.mode, one.stream) == ("queue", "JOBS")
    assert one.streams == (StreamReport("JOBS", QueuePosition("JOBS", "c"), pending=12, lapsed=2),)
    assert only(end).streams == (StreamReport(""),)


def test_epoch_source():
    query_position = EpochPosition(Int(), 9, (), ((4,),), ((0, 9),), "flights", CREATED)
    one = only(json.dumps(position_to_json(query_position)), "None")
    assert (one.mode, one.stream, one.streams) == ("epochs", "flights", (StreamReport("flights"),))


def test_other_sources_omitted():
    read = read_progress(
        progress(
            source('{"orders":{"0":5}}'), source("12"), source(None), source(LogOffset(1, CREATED).to_json())
        )
    )
    assert [one.number for one in read.sources] == [3]


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), None, "x"])
def test_rate_unknown(rate):
    assert only(LogOffset(20, CREATED).to_json(), inputRowsPerSecond=rate).input_rate is None


def test_query():
    read = read_progress(progress())
    assert (read.id, read.run, read.name, read.batch) == ("i", "r", "copy", 7)
    assert (read.seconds, read.output_rows, read.sources) == (1.5, 3, ())
    read = read_progress(progress(name=None, sink={"numOutputRows": -1}, batchDuration=None))
    assert (read.name, read.seconds, read.output_rows) == ("", None, None)
    assert read_progress(progress(sink=None)).output_rows is None
