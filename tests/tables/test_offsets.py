"""Offsets of log mode: their JSON, and the losses that ``failOnDataLoss`` reports."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jsclient.errors import HistoryTruncatedError, PositionInvalidError
from jsclient.protocol.models.stream import StreamInfo, StreamState
from jsclient.protocol.models.stream_config import StreamConfig
from jsclient.tables.offsets import (
    LogOffset,
    StreamFacts,
    StreamOffsets,
    another_stream,
    cut_short,
    lost_head,
)
from jsclient.tables.ranges import SequenceRange

CREATED = "2026-01-31T12:00:00.123456+00:00"


@pytest.mark.parametrize(
    "offset",
    [
        LogOffset(0, CREATED),
        LogOffset(7, CREATED, init=True),
        LogOffset(2**63, CREATED, free=2**62),
        LogOffset(20, CREATED, cuts=(1, 11), owner="5f"),
        LogOffset(4, CREATED, owner="5f", rewound=True),
    ],
)
def test_offset_json_round_trip(offset):
    text = json.dumps(offset.to_json())
    again = LogOffset.of_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text


def test_offset_no_more_than_needs():
    assert LogOffset(7, CREATED).to_json() == {"seq": 7, "created": CREATED}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"seq": 7},
        {"seq": -1, "created": CREATED},
        {"seq": True, "created": CREATED},
        {"seq": "7", "created": CREATED},
        {"seq": 7, "created": None},
        {"seq": 7, "created": CREATED, "init": 1},
        {"seq": 7, "created": CREATED, "free": -1},
        {"seq": 7, "created": CREATED, "cuts": [0]},
        {"seq": 7, "created": CREATED, "cuts": [5, 5]},
        {"seq": 7, "created": CREATED, "cuts": [1, 8]},
        {"seq": "\ud800", "created": CREATED},
        {"seq": 7, "created": CREATED, "more": 1},
        {"b": 3, "runs": [[1, 1, 5, 1]]},
    ],
)
def test_no_offset_refused(value):
    with pytest.raises(PositionInvalidError, match="not valid in mode 'log'"):
        LogOffset.of_json(value)


def test_offset_parts():
    assert LogOffset(20, CREATED, cuts=(1, 11, 20)).parts == [
        SequenceRange(1, 10),
        SequenceRange(11, 19),
        SequenceRange(20, 20),
    ]


def test_offset_of_earlier_release_without_parts():
    assert LogOffset.of_json({"seq": 7, "created": CREATED}).parts == []


def test_offsets_of_several_streams_round_trip():
    """By name, in order, each as the offset of one stream."""
    offsets = StreamOffsets(
        {"B": LogOffset(20, CREATED, cuts=(1, 11)), "A": LogOffset(7, CREATED, init=True)}
    )
    text = json.dumps(offsets.to_json())
    assert text == json.dumps(
        {
            "streams": {
                "A": {"seq": 7, "created": CREATED, "init": True},
                "B": {"seq": 20, "created": CREATED, "cuts": [1, 11]},
            }
        }
    )
    again = StreamOffsets.of_json(json.loads(text))
    assert again == offsets
    assert json.dumps(again.to_json()) == text
    assert StreamOffsets.of_json({"streams": {}}).streams == {}
    grouped = StreamOffsets(offsets.streams, 500)
    assert grouped.to_json() == {**offsets.to_json(), "together": 500}
    assert StreamOffsets.of_json(grouped.to_json()) == grouped


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"streams": 1},
        {"streams": {"A": {"seq": 7}}},
        {"streams": {"A": {"seq": 7, "created": CREATED, "cuts": [9]}}},
        {"streams": {}, "more": 1},
        {"streams": {}, "together": -1},
        {"seq": 7, "created": CREATED},
        {"b": 3, "runs": [[1, 1, 5, 1]]},
    ],
)
def test_no_offsets_of_several_refused(value):
    with pytest.raises(PositionInvalidError, match="not valid in mode 'log'"):
        StreamOffsets.of_json(value)


def test_several_streams_where_one_is_expected():
    one = {"seq": 7, "created": CREATED}
    with pytest.raises(PositionInvalidError, match=r"several streams \(A, B\), but option 'stream' has one"):
        LogOffset.of_json({"streams": {"B": one, "A": one}})


MADE = datetime(2026, 1, 31, 12, tzinfo=UTC)


def facts(**state):
    config = StreamConfig(name="ORDERS", subjects=["o.>"], allow_direct=True, retention="workqueue")
    return StreamFacts.from_info(StreamInfo(config=config, created=MADE, state=StreamState(**state)))


FACTS = facts(messages=50, bytes=5050, first_seq=11, last_seq=100, num_deleted=40)


def test_what_is_known_of_a_stream():
    known = StreamFacts(
        "ORDERS", MADE.isoformat(), 11, 100, 50, 5050, 40, direct=True, work_queue=True, subjects=("o.>",)
    )
    assert known == FACTS
    assert FACTS.mean_bytes == 101


def test_empty_stream_at_end():
    assert facts(last_seq=7, first_seq=0).first_seq == 8
    assert facts().first_seq == 1
    assert facts().mean_bytes == 1


def test_stream_recreated_reported_by_time():
    assert another_stream(LogOffset(5, FACTS.created), FACTS) is None
    error = another_stream(LogOffset(5, "2025-01-01T00:00:00+00:00"), FACTS)
    assert isinstance(error, PositionInvalidError)
    assert "'ORDERS'" in str(error)
    assert "'failOnDataLoss'" in str(error)


def test_stream_ends_before_read():
    assert cut_short(LogOffset(100, FACTS.created), FACTS) is None
    assert isinstance(cut_short(LogOffset(101, FACTS.created), FACTS), PositionInvalidError)
    assert cut_short(LogOffset(101, FACTS.created, init=True), FACTS) is None  # it waits


@pytest.mark.parametrize(("first", "last", "last_removed"), [(10, 20, 10), (1, 5, 5), (1, 100, 10)])
def test_error_of_removed_head(first, last, last_removed):
    error = lost_head(first, last, FACTS)
    assert isinstance(error, HistoryTruncatedError)
    assert (error.wanted, error.gone, error.first_available) == (first, last_removed, 11)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert f"messages {first} to {last_removed} of stream 'ORDERS'" in str(error)


def test_a_head_that_is_there():
    assert lost_head(11, 20, FACTS) is None
    assert lost_head(30, 40, replace(FACTS, first_seq=30)) is None
