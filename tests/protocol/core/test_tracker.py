from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.core.tracker import CoreTracker
from jsclient.protocol.wire.frames import total_size


def frames(count: int, start: int = 0, size: int = 1) -> list[tuple[bytes, bytes, bytes, bytes]]:
    return [(b"s", b"", b"", b"%0*d" % (size, number)) for number in range(start, start + count)]


def read(tracker: CoreTracker) -> list[int]:
    numbers = []
    while tracker.front:
        numbers.append(int(tracker.front.popleft()[3]))
    return numbers


def test_messages_in_order():
    tracker = CoreTracker("s", 10, 1000)
    assert tracker.receive(frames(3)) == []
    assert tracker.receive(frames(2, 3)) == []
    assert (tracker.pending, tracker.pending_bytes, tracker.received) == (5, total_size(frames(5)), 5)
    assert read(tracker) == [0, 1, 2, 3, 4]
    assert (tracker.pending, tracker.pending_bytes) == (0, 0)


def test_newest_dropped_when_full():
    tracker = CoreTracker("s", 3, 1000)
    (event,) = tracker.receive(frames(4))
    assert (event.subject, event.dropped, event.ended) == ("s", 1, False)
    assert "are lost" in str(event)
    assert read(tracker) == [0, 1, 2]
    assert (tracker.received, tracker.dropped) == (4, 1)


def test_bytes_limit():
    tracker = CoreTracker("s", 100, 2 * total_size(frames(1, size=100)))
    tracker.receive(frames(3, size=100))
    assert read(tracker) == [0, 1]
    assert tracker.dropped == 1


def test_message_over_limit_in_empty_queue():
    """Otherwise it could never be read."""
    tracker = CoreTracker("s", 100, 10)
    assert tracker.receive(frames(1, size=100)) == []
    assert tracker.pending == 1


def test_events_of_drops_double():
    tracker = CoreTracker("s", 1, 1000)
    tracker.receive(frames(1))
    counts = [event.dropped for event in tracker.receive(frames(1000))]
    assert counts == [2**n for n in range(10)]


def test_event_when_messages_fit_again():
    tracker = CoreTracker("s", 1, 1000)
    tracker.receive(frames(6))
    read(tracker)
    (event,) = tracker.receive(frames(1))
    assert (event.dropped, event.ended) == (5, True)
    assert "was full" in str(event)
    assert tracker.receive(frames(1)) != []  # a new episode
    assert tracker.dropped == 6


def test_single_drop_has_one_event():
    tracker = CoreTracker("s", 1, 1000)
    assert len(tracker.receive(frames(2))) == 1
    read(tracker)
    assert tracker.receive(frames(1)) == []


@pytest.mark.parametrize(("dropped", "counts"), [(1, []), (2, []), (3, [3]), (4, []), (5, [5])])
def test_drops_at_end(dropped, counts):
    tracker = CoreTracker("s", 1, 1000)
    tracker.receive(frames(1 + dropped))
    assert [event.dropped for event in tracker.end_queue()] == counts
    assert tracker.end_queue() == []


def test_limit_of_messages():
    tracker = CoreTracker("s", 100, 1000)
    tracker.receive(frames(2))
    tracker.after = 4
    assert not tracker.is_complete
    tracker.receive(frames(5, 2))
    assert tracker.is_complete
    tracker.receive(frames(5, 7))
    assert read(tracker) == [0, 1, 2, 3]
    assert tracker.received == 4


def test_limit_below_what_arrived():
    tracker = CoreTracker("s", 100, 1000)
    tracker.receive(frames(5))
    tracker.after = 2
    assert tracker.is_complete
    assert tracker.receive(frames(1, 5)) == []
    assert read(tracker) == [0, 1, 2, 3, 4]


def test_clear():
    tracker = CoreTracker("s", 2, 1000)
    tracker.receive(frames(2))
    tracker.drop_messages()
    assert (tracker.pending, tracker.pending_bytes) == (0, 0)
    assert tracker.receive(frames(2)) == []


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40),
    st.integers(1, 8),
    st.integers(1, 200),
)
def test_accounts_for_each_message(steps, most, most_bytes):
    tracker, arrived, numbers = CoreTracker("s", most, most_bytes), 0, []
    for count, reads in steps:
        tracker.receive(frames(count, arrived, size=9))
        arrived += count
        numbers += [int(tracker.front.popleft()[3]) for _ in range(min(reads, len(tracker.front)))]
        assert tracker.pending <= most
        assert tracker.pending_bytes == total_size(list(tracker.front))
        assert tracker.pending <= 1 or tracker.pending_bytes <= most_bytes
    numbers += read(tracker)
    assert tracker.received == arrived == len(numbers) + tracker.dropped
    assert numbers == sorted(set(numbers))
