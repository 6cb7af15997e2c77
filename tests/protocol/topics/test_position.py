"""Positions: tokens, order, and what may be done with one."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jsclient
from jsclient.errors import ConfigError, HistoryTruncatedError, PositionInvalidError
from jsclient.protocol.topics.position import CoveredEnd, EndCheck, Extent, Position

MADE = "2026-01-31T12:00:00.123456+00:00"
AT = Position("ORDERS", MADE, 5, 1_700_000_000_123_456_789)
NS = 1_000_000_000


def extent(first: int, last: int, **fields: object) -> Extent:
    return Extent("ORDERS", MADE, first, last, **fields)


# --- as text ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("T40")
@given(st.text(min_size=1), st.text(), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
def test_token_holds_all_fields(stream, incarnation, seq, time_ns):
    try:
        position = Position(stream, incarnation, seq, time_ns)
        token = position.to_json()
    except UnicodeEncodeError:
        return  # half a surrogate pair is not a name
    assert isinstance(token, str)
    again = Position.from_json(token)
    assert again == position
    assert again.time_ns == time_ns
    assert again.to_json() == token
    assert Position.from_json(token.encode()) == position


GOOD = json.loads(AT.to_json())


@pytest.mark.parametrize(
    "token",
    [
        "",
        "5",
        "null",
        "[]",
        "{}",
        "{",
        b"\xff",
        json.dumps(GOOD | {"v": 2}),
        json.dumps(GOOD | {"v": "1"}),
        json.dumps(GOOD | {"more": 1}),
        json.dumps(GOOD | {"seq": -1}),
        json.dumps(GOOD | {"seq": 2**64}),
        json.dumps(GOOD | {"seq": 5.0}),
        json.dumps(GOOD | {"seq": "5"}),
        json.dumps(GOOD | {"seq": True}),
        json.dumps(GOOD | {"seq": None}),
        json.dumps(GOOD | {"time_ns": -1}),
        json.dumps(GOOD | {"time_ns": 2**63}),
        json.dumps(GOOD | {"stream": ""}),
        json.dumps(GOOD | {"stream": None}),
        json.dumps(GOOD | {"incarnation": 7}),
        "[" * 100_000,
        '{"v":1,"stream":' + "[" * 100_000,
        *[json.dumps({k: v for k, v in GOOD.items() if k != name}) for name in GOOD],
    ],
)
def test_no_token_of_ours_refused(token):
    with pytest.raises(PositionInvalidError, match="not a position token"):
        Position.from_json(token)


@given(st.text())
def test_no_text_does_anything_else(text):
    with pytest.raises(PositionInvalidError):
        Position.from_json(text)


@pytest.mark.parametrize(
    "fields", [("", MADE, 1), ("S", None, 1), ("S", MADE, -1), ("S", MADE, True), ("S", MADE, 1.0)]
)
def test_position_cannot_be_not_created(fields):
    with pytest.raises(ConfigError):
        Position(*fields)


def test_at_top_level_and_can_be_pickled():
    assert jsclient.Position is Position
    assert pickle.loads(pickle.dumps(AT)) == AT


# --- order -----------------------------------------------------------------------------------------------------


@pytest.mark.covers("T8")
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_sequence_decides_and_time_does_not(one, other, one_ns, other_ns):
    a, b = AT.at(one, one_ns), AT.at(other, other_ns)
    assert (a == b, a < b, a <= b, a > b, a >= b) == (
        one == other,
        one < other,
        one <= other,
        one > other,
        one >= other,
    )
    assert (hash(a) == hash(b)) or a != b


@pytest.mark.parametrize("other", [Position("OTHER", MADE, 5), Position("ORDERS", "made anew", 5)])
def test_streams_not_comparable(other):
    assert other != AT
    for compare in (AT.__lt__, AT.__le__, AT.__gt__, AT.__ge__):
        with pytest.raises(PositionInvalidError):
            compare(other)
    with pytest.raises(TypeError):
        assert AT < 5


# --- against a stream --------------------------------------------------------------------------------------------


def test_position_within_stream():
    for seq in (0, 4, 5, 9):
        extent(5, 9).check(AT.at(seq))


@pytest.mark.parametrize(
    ("position", "why"),
    [
        (AT.at(10), "position 10 is after the end of stream 'ORDERS', 9"),
        (Position("ORDERS", "another time", 5), "recreated"),
        (Position("OTHER", MADE, 5), "not in 'ORDERS'"),
    ],
)
def test_starving_position_refused(position, why):
    with pytest.raises(PositionInvalidError, match=why):
        extent(1, 9).check(position)


@pytest.mark.covers("T2", "T10")
def test_cut_off_after_position_reported():
    assert extent(6, 9).truncated(AT) is None
    error = extent(7, 9).truncated(AT)
    assert isinstance(error, HistoryTruncatedError)
    assert (error.first_available, error.wanted, error.stream) == (7, 6, "ORDERS")
    assert isinstance(extent(10, 9).truncated(AT), HistoryTruncatedError), "all of it was cut off"


def test_start_and_end_of_a_stream():
    assert extent(5, 9, last_time_ns=7).start.seq == 4
    assert (extent(5, 9, last_time_ns=7).end.seq, extent(5, 9, last_time_ns=7).end.time_ns) == (9, 7)
    assert extent(0, 0).start.seq == extent(0, 0).end.seq == 0
    for holds in (extent(5, 9), extent(0, 0), extent(10, 9)):
        assert holds.truncated(holds.start) is None
        holds.check(holds.end)


# --- a time is the entry -------------------------------------------------------------------------------------------


@pytest.mark.covers("T12")
def test_very_stamp_not_after():
    actual = [(3, 10), (4, 10), (5, 11), (6, 12)]
    assert extent(1, 6).after_time(10, actual) == AT.at(4)
    assert extent(1, 6).after_time(9, actual) == AT.at(2)


@pytest.mark.covers("T12")
def test_sequence_over_stamps():
    actual = [(3, 10), (4, 11), (5, 9), (6, 12)]
    assert extent(1, 6).after_time(10, actual) == AT.at(3), "5 comes too, though its stamp is earlier"


def test_nothing_later_is_end():
    assert extent(1, 6).after_time(12, []) == AT.at(6)
    assert extent(1, 6).after_time(12, [(6, 12)]) is None, "perhaps a page full of that stamp: ask on"


@pytest.mark.covers("T10")
def test_early_time_refused():
    holds = extent(4, 6, first_time_ns=10, last_time_ns=12)
    with pytest.raises(HistoryTruncatedError) as caught:
        holds.after_time(9, [(4, 10)])
    assert caught.value.first_available == 4
    assert holds.after_time(9, [(4, 10)], allow_truncated=True) == AT.at(3)
    assert holds.after_time(10, [(4, 10), (5, 11)]) == AT.at(4)
    with pytest.raises(HistoryTruncatedError):
        extent(7, 6, last_time_ns=12).after_time(11, [])
    assert extent(7, 6, last_time_ns=12).after_time(12, []) == AT.at(6)


@given(st.lists(st.integers(0, 6), max_size=12).map(sorted), st.integers(-1, 7))
@pytest.mark.covers("T12")
def test_strictly_after_time(stamps, time_ns):
    """The server's answer to "since" is inclusive."""
    records = list(enumerate(stamps, 1))
    inclusive = [(seq, stamp) for seq, stamp in records if stamp >= time_ns]
    holds = extent(1, len(records), first_time_ns=stamps[0] if stamps else 0)
    position = holds.after_time(max(time_ns, 0), inclusive)
    if position is None:
        position = holds.end
    expected = [seq for seq, stamp in records if stamp > max(time_ns, 0)]
    assert [seq for seq, _ in records if seq > position.seq] == expected


# --- an end before the position --------------------------------------------------------------------------------


def short(connects: int = 0) -> Extent:
    """The answer of a former leader: the stream ends before the position."""
    return extent(1, 4, replicas=3, connects=connects)


@pytest.mark.covers("T12")
def test_lower_end_is_refused_after_ten_seconds():
    uncertain = EndCheck()
    for now in (0.0, 5.0, 9.9):
        assert not uncertain.check_position(short(), AT, now)
    with pytest.raises(PositionInvalidError, match="after the end"):
        uncertain.check_position(short(), AT, 10.0)


@pytest.mark.covers("T12")
@pytest.mark.parametrize("how", ["reconnected", "interrupted", "answered well"])
def test_ten_seconds_start_over(how):
    """Another server answers now, or the same one knows better: the ten seconds begin again."""
    uncertain, connects = EndCheck(), 1 if how == "reconnected" else 0
    assert not uncertain.check_position(short(), AT, 0.0)
    if how == "interrupted":
        uncertain.interrupted()
    elif how == "answered well":
        assert uncertain.check_position(extent(1, 5, replicas=3), AT, 5.0)
    for now in (9.0, 10.0, 18.9):
        assert not uncertain.check_position(short(connects), AT, now), now
    with pytest.raises(PositionInvalidError, match="after the end"):
        uncertain.check_position(short(connects), AT, 19.0)


def test_end_of_a_stream_checked_for_all():
    """Chained publishers and Spark have a sequence and no position: the same patience, the same reasons."""
    check = EndCheck()
    assert check.check_end(short(), 4, 0.0) is True
    assert check.check_end(short(), 5, 1.0) is None
    assert (
        check.check_end(short(connects=1), 5, 10.0) is None
    )  # on a new connection another server may answer
    assert check.check_end(short(connects=1), 5, 19.9) is None
    assert check.check_end(short(connects=1), 5, 20.0) is False
    assert EndCheck().check_end(extent(1, 4, replicas=1), 5, 0.0) is False


@pytest.mark.parametrize("odd", [{"replicas": 1}, {"incarnation": "other"}, {"stream": "OTHER"}])
def test_certain_at_once(odd):
    fields = {"stream": "ORDERS", "incarnation": MADE, "replicas": 3} | odd
    with pytest.raises(PositionInvalidError):
        EndCheck().check_position(Extent(first_seq=1, last_seq=4, **fields), AT, 0.0)


@pytest.mark.parametrize("arguments", [("S",), ("S", "then")])
def test_created_by_hand(arguments):
    with pytest.raises(TypeError, match=r"take that of a record \(record\.position\), or read a saved one"):
        Position(*arguments)


def test_other_stream_says_what_to_do():
    with pytest.raises(PositionInvalidError, match="not in 'T': save one position for each stream"):
        assert Position("S", "", 1) < Position("T", "", 1)


def replicated(last_seq: int, connects: int = 0) -> Extent:
    return Extent("S", "I", 1, last_seq, replicas=3, connects=connects)


# --- how far "no record follows" holds ---------------------------------------------------------------------------


def test_end_of_one_replica_is_covered_at_once():
    assert CoveredEnd().reported(extent(1, 7), 0.0) == 7


def test_end_of_replicas_is_covered_after_three_seconds():
    covered = CoveredEnd()
    looks = [(7, 0.0), (8, 2.9), (9, 3.0), (9, 5.9), (11, 6.0)]
    assert [covered.reported(replicated(end), now) for end, now in looks] == [0, 0, 7, 7, 9]


@pytest.mark.parametrize("later", [replicated(6), replicated(7, connects=1)])
def test_end_that_goes_back_or_reconnect_covers_nothing(later):
    covered = CoveredEnd()
    covered.reported(replicated(7), 0.0)
    assert covered.reported(replicated(7), 3.0) == 7
    assert covered.reported(later, 6.0) == 0
    assert covered.reported(later, 8.9) == 0
    assert covered.reported(later, 9.0) == later.last_seq
