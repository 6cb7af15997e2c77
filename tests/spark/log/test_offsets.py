"""Offsets of log mode: what a checkpoint holds comes back as the same text, and what is none is refused."""

from __future__ import annotations

import json

import pytest

from jsclient.errors import PositionInvalidError
from jsclient.spark.log.offsets import LogOffset

CREATED = "2026-01-31T12:00:00.123456+00:00"


@pytest.mark.parametrize(
    "offset",
    [
        LogOffset(0, CREATED),
        LogOffset(7, CREATED, init=True),
        LogOffset(2**63, CREATED, free=2**62),
    ],
)
def test_an_offset_comes_back_from_json_and_gives_the_same_text(offset):
    text = json.dumps(offset.to_json())
    again = LogOffset.of_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text


def test_an_offset_has_no_more_than_it_needs():
    assert LogOffset(7, CREATED).to_json() == {"seq": 7, "created": CREATED}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"seq": 7},
        {"seq": -1, "created": CREATED},
        {"seq": True, "created": CREATED},
        {"seq": "7", "created": CREATED},
        {"seq": 7, "created": None},
        {"seq": 7, "created": CREATED, "init": 1},
        {"seq": 7, "created": CREATED, "free": -1},
        {"seq": 7, "created": CREATED, "more": 1},
        {"b": 3, "runs": [[1, 1, 5, 1]]},
    ],
)
def test_what_is_no_offset_is_refused(given):
    with pytest.raises(PositionInvalidError, match="none of mode 'log'"):
        LogOffset.of_json(given)
