"""Epochs, step by step: states, snapshots, filters, frontiers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    ConfigError,
    EpochCompletedError,
    EpochsLostError,
    PositionInvalidError,
    ProtocolError,
)
from jsclient.protocol.epochs.records import (
    DataMessage,
    EpochPosition,
    FrontierRecord,
    InitialFrontierSnapshot,
    LowerFrontierUpdate,
)
from jsclient.protocol.epochs.trackers import (
    Data,
    Epoch,
    EpochBuffer,
    EpochPublisher,
    EpochState,
    EpochSubscriber,
    FrontierUpdate,
)
from tests.protocol.epochs.orders import INT, PAIR, snapshot, subscriber, update

LATENT, ACTIVE, COMPLETED = EpochState.LATENT, EpochState.ACTIVE, EpochState.COMPLETED


def passed_times(tracker: EpochSubscriber[Any], *times: int, partition: Any = 0) -> list[int]:
    """The times of which data passes."""
    events = [
        event for time in times for event in tracker.receive_message(partition, DataMessage(time, b"x"))
    ]
    return [event.time for event in events]


# --- the publisher --------------------------------------------------------------------------------------------


@pytest.mark.covers("S6", "S7", "S8", "S9", "S10", "S12", "S20", "S21", "S35")
def test_epoch_life_cycle():
    publisher = EpochPublisher(INT)
    assert publisher.first_record() == FrontierRecord(((0, 1),), (0,), ())
    assert [publisher.state(time) for time in (0, 1, 2)] == [LATENT] * 3
    publisher.send(1)
    assert [publisher.state(time) for time in (0, 1, 2)] == [LATENT, ACTIVE, LATENT], "a first tuple says it"
    assert publisher.advance(1) == FrontierRecord(((0, -1), (1, 1)), (1,), (1,))
    assert [publisher.state(time) for time in (0, 1, 2)] == [COMPLETED, ACTIVE, LATENT], "0 was skipped"
    assert publisher.advance(2) == FrontierRecord(((1, -1), (2, 1)), (2,), (1,))
    assert [publisher.state(time) for time in (0, 1, 2)] == [COMPLETED, COMPLETED, LATENT]
    assert publisher.close() == FrontierRecord(((2, -1),), (), (1,))
    assert publisher.state(9) is COMPLETED


@pytest.mark.covers("S9")
def test_of_completed_nothing_may_be_sent():
    publisher = EpochPublisher(INT)
    publisher.advance(3)
    with pytest.raises(EpochCompletedError):
        publisher.send(2)
    with pytest.raises(ConfigError):
        publisher.send("3")
    assert publisher.upper.elements == ()


@pytest.mark.covers("S36")
def test_invisible_change_unwritten():
    publisher = EpochPublisher(INT)
    assert publisher.update([(4, 1)]) is None
    assert publisher.update([(4, -1)]) is None
    assert publisher.advance(0) is None


@pytest.mark.covers("S17", "S21", "S37")
def test_upper_frontier_is_greatest():
    publisher = EpochPublisher(PAIR)
    for time in [(1, 3), (2, 1), (1, 1), (0, 3)]:
        publisher.send(time)
    assert set(publisher.upper) == {(1, 3), (2, 1)}
    publisher.advance((5, 5))
    publisher.send((5, 6))
    assert set(publisher.upper) == {(5, 6)}


def test_after_restart_goes_on_where():
    publisher = EpochPublisher(INT)
    publisher.update([(2, 1), (0, -1)])
    publisher.send(2)
    record = publisher.update([(4, 1), (2, -1)])
    publisher.send(6)
    again = EpochPublisher.restored(INT, record, [6])
    assert again.snapshot == publisher.snapshot == snapshot([4], [6])
    assert [again.state(time) for time in (3, 4, 6, 7)] == [COMPLETED, ACTIVE, ACTIVE, LATENT]
    with pytest.raises(EpochCompletedError):
        again.send(3)
    again.send(6)


# --- what is stored -------------------------------------------------------------------------------------------


@pytest.mark.covers("S29", "S30")
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5), st.sampled_from([1, -1]))
def test_frontier_record_as_json_and_back(times, change):
    record = FrontierRecord(tuple((time, change) for time in times), tuple(times), tuple(times))
    again = FrontierRecord.from_json(record.to_json(PAIR), PAIR)
    assert again == record
    assert again.update == LowerFrontierUpdate(record.updates)
    assert again.snapshot == InitialFrontierSnapshot(record.lower, record.upper)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"v":2,"updates":[],"lower":[],"upper":[]}',
        b'{"v":1,"updates":[[1,2]],"lower":[],"upper":[]}',
        b'{"v":1,"updates":[[1,true]],"lower":[],"upper":[]}',
        b'{"v":1,"updates":[[1]],"lower":[],"upper":[]}',
        b'{"v":1,"updates":[],"lower":[-1],"upper":[]}',
        b'{"v":1,"updates":[],"lower":[],"upper":["a"]}',
        b'{"v":1,"updates":[],"lower":[]}',
        b'{"v":1,"updates":[],"lower":[],"upper":[],"more":1}',
        b'{"v":1,"lower":[' + b"[" * 100_000,
    ],
)
def test_no_frontier_record_reported(data):
    with pytest.raises(ProtocolError, match="not a frontier record"):
        FrontierRecord.from_json(data, INT)


@given(st.integers(0, 2**64 - 1), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5))
def test_position_json_round_trip(since, times):
    position = EpochPosition(PAIR, since, tuple(times), (tuple(times), ()))
    assert EpochPosition.from_json(position.to_json(), PAIR) == position


@pytest.mark.parametrize(
    "token",
    [
        "",
        "[]",
        b"\xff",
        '{"v":2,"since":1,"missed":[],"frontiers":[]}',
        '{"v":1,"since":-1,"missed":[],"frontiers":[]}',
        '{"v":1,"since":true,"missed":[],"frontiers":[]}',
        '{"v":1,"since":1,"missed":["a"],"frontiers":[]}',
        '{"v":1,"since":1,"missed":[],"frontiers":[1]}',
        '{"v":1,"since":1,"missed":[],"frontiers":[[-1]]}',
        '{"v":1,"since":1,"missed":[]}',
        '{"v":1,"since":1,"missed":[],"frontiers":[],"more":1}',
        '{"v":1,"since":1,"missed":[' + "[" * 100_000,
    ],
)
def test_invalid_position_is_refused(token):
    with pytest.raises(PositionInvalidError, match="not a valid position"):
        EpochPosition.from_json(token, INT)


# --- the subscriber's filter ----------------------------------------------------------------------------------


@pytest.mark.covers("S3", "S13", "S14", "S15", "S18", "S22")
def test_the_example_of_the_text():
    """Completed 0, 1, 2, active 3 and 5: it sees 6, 7, 8 and neither 3 nor 5, nor 4."""
    publisher = EpochPublisher(INT)
    for time in (0, 1, 2, 3, 5):
        publisher.send(time)
    publisher.advance(3)
    tracker = subscriber()
    tracker.receive_message(0, publisher.snapshot)
    assert tracker.frontier.elements == (3,)
    assert [tracker.is_completed(time) for time in (2, 3, 4)] == [True, False, False]
    assert tracker.filter.elements == (5,)
    assert passed_times(tracker, 3, 6, 4, 5, 7, 8) == [6, 7, 8]


@pytest.mark.covers("S33", "S41", "S49")
def test_dropped_data_not_decoded():
    tracker = subscriber()
    tracker.receive_message(0, snapshot([3], [5]))
    not_decoded = object()
    assert tracker.receive_message(0, DataMessage(5, not_decoded)) == []
    [event] = tracker.receive_message(0, DataMessage(6, not_decoded))
    assert event == Data(6, not_decoded, 0, 0, True)


@pytest.mark.covers("S41")
def test_partial_order_drop_rule():
    tracker = subscriber(order=PAIR)
    tracker.receive_message(0, snapshot([(0, 0)], [(1, 3), (2, 1)]))
    passing = [time for time in ((1, 1), (2, 1), (0, 3), (2, 2), (0, 4), (3, 0)) if tracker.passes(time)]
    assert passing == [(2, 2), (0, 4), (3, 0)]


@pytest.mark.covers("S19", "S28", "S42", "S43", "S44", "S49")
def test_filter_ends_when_passed():
    tracker = subscriber()
    [first] = tracker.receive_message(0, snapshot([3], [5]))
    assert first == FrontierUpdate(((3, 1),), (3,))
    assert tracker.receive_message(0, update((3, -1), (5, 1))) == [FrontierUpdate(((3, -1), (5, 1)), (5,))]
    assert tracker.filter.elements == (5,), "5 itself may still come"
    tracker.receive_message(0, update((5, -1), (6, 1)))
    assert not tracker.filter
    assert passed_times(tracker, 6) == [6]


@pytest.mark.covers("S19", "S52")
def test_empty_frontier_end():
    tracker = subscriber()
    tracker.receive_message(0, snapshot([3], [5]))
    assert not tracker.is_over
    tracker.receive_message(0, update((3, -1)))
    assert tracker.is_over
    assert not tracker.filter
    assert tracker.is_completed(99)


def test_completed_not_in_filter():
    tracker = subscriber()
    tracker.receive_message(0, snapshot([7], [5]))
    assert not tracker.filter


@pytest.mark.covers("S26")
def test_a_coarser_filter():
    tracker = subscriber(coarser=(8,))
    tracker.receive_message(0, snapshot([3], [5]))
    assert passed_times(tracker, 6, 8, 9) == [9]
    [event] = tracker.receive_message(0, DataMessage(10, b""))
    assert event.whole
    tracker.receive_message(0, update((3, -1), (9, 1)))
    assert not tracker.filter


@pytest.mark.covers("S27")
def test_no_filter_names_partial():
    tracker = subscriber(atomic=False)
    tracker.receive_message(0, snapshot([3], [5]))
    events = [tracker.receive_message(0, DataMessage(time, b""))[0] for time in (4, 5, 6)]
    assert [(event.time, event.whole) for event in events] == [(4, False), (5, False), (6, True)]


# --- several partitions ---------------------------------------------------------------------------------------


@pytest.mark.covers("S40", "S45", "S46", "S47")
def test_waits_for_all_snapshots():
    tracker = subscriber("a", "b")
    assert tracker.receive_message("a", snapshot([3], [4])) == []
    assert tracker.receive_message("a", DataMessage(5, "early")) == []
    assert tracker.receive_message("a", DataMessage(8, "early")) == []
    assert not tracker.is_ready
    assert not tracker.is_completed(0)
    events = tracker.receive_message("b", snapshot([2], [6]))
    assert tracker.is_ready
    assert tracker.filter.elements == (6,)
    assert events == [FrontierUpdate(((2, 1),), (2,)), Data(8, "early", "a", 0, True)]
    assert tracker.receive_message("b", update((2, -1), (3, 1)))[0].frontier == (3,)
    assert tracker.receive_message("b", update((3, -1), (7, 1))) == [], "the other one is not so far"
    assert tracker.filter.elements == (6,)
    tracker.receive_message("a", update((3, -1), (7, 1)))
    assert not tracker.filter


def test_before_snapshot_skipped():
    """In one stream, reading begins after the earliest of the snapshots."""
    tracker = subscriber("a", "b")
    tracker.receive_message("a", snapshot([3], [4]), 10)
    tracker.receive_message("b", snapshot([3], [4]), 20)
    assert tracker.receive_message("b", DataMessage(9, ""), 15) == []
    assert tracker.receive_message("b", DataMessage(1, ""), 15) == []
    assert tracker.receive_message("b", update((0, -1)), 20) == []
    assert tracker.receive_message("a", DataMessage(9, ""), 15) == [Data(9, "", "a", 15, True)]


def test_early_messages_bounded():
    tracker = subscriber("a", "b", max_held=2)
    tracker.receive_message("a", snapshot([3], [4]))
    tracker.receive_message("a", DataMessage(5, ""))
    tracker.receive_message("a", DataMessage(6, ""))
    with pytest.raises(EpochsLostError):
        tracker.receive_message("a", DataMessage(7, ""))
    assert tracker.receive_message("a", snapshot([3], [7])) == []
    assert tracker.receive_message("b", snapshot([3], [7])) != []


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.covers("S32", "S54")
def test_first_snapshot_and_then_none():
    for message in (DataMessage(1, ""), update((0, -1))):
        with pytest.raises(ProtocolError, match="not a snapshot"):
            subscriber().receive_message(0, message)
    tracker = subscriber()
    tracker.receive_message(0, snapshot([0], []))
    with pytest.raises(ProtocolError, match="came before"):
        tracker.receive_message(0, snapshot([0], []))
    with pytest.raises(ProtocolError, match="none of ours"):
        tracker.receive_message("x", snapshot([0], []))


@pytest.mark.parametrize(
    "message", [DataMessage(2, ""), update((2, 1)), update((3, -1), (2, 1)), update((4, -1)), update((3, -2))]
)
def test_completed_does_not_come_again(message):
    tracker = subscriber(0, 1)
    tracker.receive_message(0, snapshot([3], []))
    tracker.receive_message(1, snapshot([0], []))
    with pytest.raises(ProtocolError):
        tracker.receive_message(0, message)
    assert tracker.frontier.elements == (0,)
    tracker.receive_message(1, update((0, -1)))
    assert tracker.frontier.elements == (3,)


def test_loss_names_partial_epochs():
    tracker = subscriber()
    tracker.receive_message(0, snapshot([0], []))
    assert passed_times(tracker, 4, 2, 1) == [4, 2, 1]
    tracker.receive_message(0, update((0, -1), (2, 1)))
    error = tracker.messages_lost("the history was cut")
    assert isinstance(error, EpochsLostError)
    assert error.epochs == (2, 4), "1 is completed"
    assert not tracker.is_ready
    with pytest.raises(ProtocolError):
        tracker.receive_message(0, DataMessage(5, ""))
    tracker.receive_message(0, snapshot([3], [5]))
    assert passed_times(tracker, 4, 5, 6) == [6]


def test_held_epoch_unconsumed():
    tracker = subscriber(hold=True)
    tracker.receive_message(0, snapshot([0], []), 10)
    for seq, time in enumerate((3, 1, 2), 11):
        tracker.receive_message(0, DataMessage(time, ""), seq)
    tracker.receive_message(0, update((0, -1), (9, 1)), 14)
    assert tracker.position == EpochPosition(INT, 10, (), ((1,),), ((0, 10),))
    tracker.release(1)
    assert tracker.position == EpochPosition(INT, 10, (), ((2,),), ((0, 10),)), "3 begins there"
    tracker.release(2)
    tracker.release(3)
    assert tracker.position == EpochPosition(INT, 14, (), ((9,),), ((0, 14),))


@pytest.mark.covers("S46")
def test_resume_with_several_frontiers():
    """An epoch that was consumed before is given no second time, whichever frontier says so. Others are given."""
    position = EpochPosition(INT, 10, (), ((3,), (5,)), ((0, 10),))
    tracker = subscriber(resumed=position)
    tracker.receive_message(0, snapshot([0], []), 10)
    assert passed_times(tracker, 2, 3, 4, 5, 6) == [5, 6]
    tracker.receive_message(0, update((0, -1), (5, 1)), 16)
    assert tracker.position.frontiers == ((5,),), "nothing before 5 can come: neither is needed any more"

    position = EpochPosition(PAIR, 10, (), (((0, 2),), ((1, 0),)), ((0, 10),))
    tracker = subscriber(order=PAIR, resumed=position)
    tracker.receive_message(0, snapshot([(0, 0)], []), 10)
    assert passed_times(tracker, (0, 2), (1, 1), (0, 3), (1, 2), (3, 3)) == [(1, 2), (3, 3)]


def test_snapshot_as_of_earlier_record():
    tracker = subscriber()
    tracker.receive_message(0, snapshot([3], [4]), 20, as_of=10)
    assert tracker.lower_of(0).elements == (3,)
    assert tracker.receive_message(0, DataMessage(9, ""), 10) == []
    assert tracker.receive_message(0, DataMessage(9, ""), 11) == [Data(9, "", 0, 11, True)]
    assert tracker.position.records == ((0, 20),)


# --- whole epochs ---------------------------------------------------------------------------------------------


def data(time: Any, items: Any, seq: int = 0, *, whole: bool = True) -> Data[Any]:
    return Data(time, items, 0, seq, whole)


def chain(*times: Any, order: Any = INT) -> Any:
    tracker = subscriber(order=order)
    tracker.receive_message(0, snapshot(times, []))
    return tracker.frontier


def test_whole_epochs_respect_time():
    created = EpochBuffer(PAIR)
    for seq, time in enumerate([(2, 1), (0, 1), (1, 0), (2, 1), (9, 9)], 1):
        created.add_data(data(time, f"i{seq}", seq), 10)
    assert created.retained_bytes == 50
    assert created.completed(chain((1, 0), (0, 1), order=PAIR)) == []
    epochs = created.completed(chain((3, 3), order=PAIR))
    assert [epoch.time for epoch in epochs] == [(0, 1), (1, 0), (2, 1)]
    assert epochs[2] == Epoch((2, 1), ("i1", "i4"), 1, 4, 2)
    assert (len(created), created.retained_bytes) == (1, 10)
    assert [epoch.time for epoch in created.completed(chain(order=PAIR))] == [(9, 9)]


@pytest.mark.covers("S10")
def test_skipped_epoch_completes():
    tracker, buffer = subscriber(), EpochBuffer(INT)
    tracker.receive_message(0, snapshot([0], []))
    tracker.receive_message(0, update((0, -1), (5, 1)))
    assert tracker.is_completed(4)
    assert buffer.completed(tracker.frontier) == []


def test_partial_epochs_are_never_delivered():
    buffer = EpochBuffer(INT)
    buffer.add_data(data(3, "part", whole=False), 10)
    buffer.add_data(data(4, "all"), 10)
    buffer.drop_data()
    buffer.add_data(data(5, "all"), 10)
    assert [epoch.time for epoch in buffer.completed(chain())] == [5]
    assert buffer.retained_bytes == 0


def test_too_large_epoch_is_dropped_and_reported():
    buffer = EpochBuffer(INT, max_bytes=100)
    buffer.add_data(data(1, "a", 7), 60)
    buffer.add_data(data(2, "b", 8), 30)
    buffer.add_data(data(1, "c", 9), 20)
    assert buffer.retained_bytes == 30
    buffer.add_data(data(1, "d", 12), 90)
    assert buffer.retained_bytes == 30, "what was let go stays so"
    assert buffer.completed(chain()) == [Epoch(1, None, 7, 12, 3), Epoch(2, ("b",), 8, 8, 1)]


def test_invalid_messages_that_waited_are_listed():
    """They withhold nothing that waited with them."""
    tracker = subscriber(0, 1)
    tracker.receive_message(0, snapshot([3], []), 1)
    tracker.receive_message(0, update((2, 1)), 2)
    tracker.receive_message(0, DataMessage(1, "x"), 3)
    tracker.receive_message(0, DataMessage(3, "a"), 4)
    events = tracker.receive_message(1, snapshot([0], []), 5)
    assert [event.items for event in events if isinstance(event, Data)] == ["a"]
    assert [seq for seq, _ in tracker.invalid] == [2, 3]
