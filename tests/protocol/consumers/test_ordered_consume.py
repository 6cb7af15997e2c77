"""The ordered pull tracker and its configuration."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, NotJetStreamMessageError, PullLimitError
from jsclient.protocol.consumers.consume import SendPull
from jsclient.protocol.consumers.fetch import Pull
from jsclient.protocol.consumers.ordered import OrderedCursor, ordered_pull_config, restart_config
from jsclient.protocol.consumers.ordered_consume import OrderedConsume
from jsclient.protocol.consumers.push import Emit
from jsclient.protocol.consumers.status import Ending
from jsclient.protocol.events import ErrorRaised, ForeignMessage, HeartbeatMissed
from jsclient.protocol.models.consumer import AckPolicy, ConsumerConfig, DeliverPolicy
from jsclient.protocol.wire.frames import frame_size
from tests.support.strategies import data, foreign, heartbeat, status

PULL = Pull(10, 30.0, idle_heartbeat=5.0)


def reader(delivered: int = 0, **fields) -> OrderedConsume:
    """With a consumer, but without a reader."""
    tracker = OrderedConsume("ORDERS", "", Pull(1), 0, **fields)
    tracker.recreated("c_1", delivered, 0.0)
    return tracker


def reading(pull: Pull = PULL, threshold: int = 5, **fields) -> OrderedConsume:
    tracker = reader(**fields)
    (ask,) = tracker.read_continuously(pull, threshold, 0.0)
    assert ask.pull == pull
    return tracker


def asks(commands) -> list[int]:
    return [command.pull.batch for command in commands if isinstance(command, SendPull)]


def taken(tracker: OrderedConsume) -> list[int]:
    """Stream sequences."""
    out = []
    while tracker.front:
        out.append(int(tracker.take_frame()[0][1].split(b".")[5]))
    return out


def of_request(tracker: OrderedConsume, frame):
    """The frame as it comes to the request that was sent last."""
    return b"_INBOX.reader.%d" % tracker.asked, *frame[1:]


# --- what it may be ------------------------------------------------------------------------------------------


@pytest.mark.covers("J93")
def test_configuration_of_adr_17():
    """Row 104."""
    assert ordered_pull_config(ConsumerConfig()) == ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        max_deliver=1,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=300.0,
    )


def test_user_settings_are_preserved():
    arguments = ConsumerConfig(
        deliver_policy="new",
        headers_only=True,
        mem_storage=False,
        num_replicas=3,
        inactive_threshold=7.0,
        description="mine",
        metadata={"a": "b"},
        filter_subjects=["a", "b.>"],
    )
    created = ordered_pull_config(arguments)
    for field in (
        "deliver_policy",
        "headers_only",
        "mem_storage",
        "num_replicas",
        "metadata",
        "filter_subjects",
    ):
        assert getattr(created, field) == getattr(arguments, field)
    assert created.inactive_threshold == 7.0


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "n"},
        {"durable_name": "d"},
        {"deliver_subject": "my.inbox"},
        {"deliver_group": "g"},
        {"ack_policy": "explicit"},
        {"max_deliver": 2},
        {"flow_control": True},
        {"idle_heartbeat": 1.0},
        {"rate_limit_bps": 100},
        {"priority_groups": ["A"], "priority_policy": "overflow"},
        {"filter_subject": "a", "filter_subjects": ["b"]},
        {"filter_subject": "a b"},
        {"filter_subjects": ["a", ""]},
        {"opt_start_seq": 1, "opt_start_time": "2026-01-01T00:00:00Z"},
        {"opt_start_seq": 1, "deliver_policy": "new"},
        {"opt_start_time": "2026-01-01T00:00:00Z", "deliver_policy": "by_start_sequence"},
        {"deliver_policy": "by_start_sequence"},
        {"deliver_policy": "by_start_time"},
        {"opt_start_seq": 0},
    ],
)
def test_bad_config_refused(fields):
    """Row 93."""
    with pytest.raises(ConfigError):
        ordered_pull_config(ConsumerConfig(**fields))


def test_a_start_implies_its_policy():
    assert ordered_pull_config(ConsumerConfig(opt_start_seq=4)).deliver_policy == "by_start_sequence"
    timed = ordered_pull_config(ConsumerConfig(opt_start_time="2026-01-01T00:00:00Z"))
    assert timed.deliver_policy == "by_start_time"
    again = restart_config(timed, 9)
    assert (again.deliver_policy, again.opt_start_seq, again.opt_start_time) == (
        DeliverPolicy.BY_START_SEQUENCE,
        9,
        None,
    )


def test_last_per_subject_needs_filter():
    assert ordered_pull_config(ConsumerConfig(filter_subjects=["a"])).filter_subject == "a"
    assert ordered_pull_config(ConsumerConfig(deliver_policy="last_per_subject")).filter_subject == ">"


# --- reading on and on ---------------------------------------------------------------------------------------


def test_refills_at_threshold():
    tracker = reading()
    assert tracker.receive([data(number) for number in range(1, 11)], 0.0) == []
    commands = []
    for _ in range(4):
        commands += tracker.take_frame()[1]
    assert commands == []
    assert asks(tracker.take_frame()[1]) == [5]
    assert tracker.low == 1, "five wait and five are owed: one more is free to be taken"


def test_above_threshold_no_request():
    tracker = reading()
    tracker.receive([data(number) for number in range(1, 11)], 0.0)
    while len(tracker.front) > tracker.low:
        tracker.front.popleft()
    assert len(tracker.front) == tracker.low == 6
    assert asks(tracker.take_frame()[1]) == [5]


def test_first_batch_of_consumer_taken_whole(monkeypatch):
    placed = []
    position = OrderedCursor.place
    monkeypatch.setattr(
        OrderedCursor, "place", lambda self, reply: placed.append(reply) or position(self, reply)
    )
    tracker = reading(Pull(5000, 30.0, idle_heartbeat=5.0), 100)
    tracker.receive([data(n) for n in range(1, 1001)], 1.0)
    assert len(placed) == 1
    tracker.cursor.consumer_lost("a test")
    tracker.recreated("c_2", 1000, 2.0)
    tracker.receive([data(1000 + n, n, consumer="c_2") for n in range(1, 1001)], 2.0)
    assert len(placed) == 2
    assert taken(tracker) == list(range(1, 2001))


def test_asks_again_where_request_ended():
    tracker = reading()
    ended = status(408, "Request Timeout", Nats_Pending_Messages=8, Nats_Pending_Bytes=0)
    assert asks(tracker.receive([data(1), data(2), ended], 1.0)) == [8]


def test_gap_recreates_after_last_good():
    tracker = reading()
    assert asks(tracker.receive([data(3, 1), data(4, 2), data(9, 4), data(10, 5)], 0.0)) == []
    assert tracker.cursor.wants is not None
    assert not tracker.cursor.wants.unconfirmed
    assert tracker.cursor.resume_stream_seq == 5
    assert tracker.receive([data(11, 6)], 0.0) == []
    assert tracker.deadline is None
    assert asks(tracker.recreated("c_2", 4, 1.0)) == [8], "two wait"
    tracker.receive([data(8, 1), data(9, 2)], 1.0)
    assert taken(tracker) == [3, 4, 8, 9]
    assert tracker.consumer == "c_2"


def test_heartbeat_gap_recreates():
    """Row 92: the last message lost."""
    tracker = reading()
    tracker.receive([data(1), heartbeat(1, 1)], 0.0)
    assert tracker.cursor.wants is None
    tracker.receive([heartbeat(3, 3)], 0.0)
    assert tracker.cursor.wants is not None
    assert tracker.cursor.resume_stream_seq == 2


def test_silence_recreates():
    """Row 99."""
    tracker = reading()
    assert tracker.deadline == 10.0
    assert tracker.tick(tracker.deadline) == []
    assert tracker.cursor.wants is None
    (command,) = tracker.tick(tracker.deadline)
    assert isinstance(command.event, HeartbeatMissed)
    assert tracker.cursor.wants.unconfirmed


def test_silence_of_full_buffer_no_alarm():
    """Row 106: messages that wait survive an application that pauses."""
    tracker = reading()
    tracker.receive([data(number) for number in range(1, 11)], 0.0)
    for _ in range(5):
        assert tracker.tick(tracker.deadline) == []
    assert tracker.cursor.wants is None
    assert taken(tracker) == list(range(1, 11))


@pytest.mark.parametrize(
    "frame", [status(409, "Consumer Deleted"), status(503), status(409, "Consumer is push based")]
)
def test_consumer_deleted_recreated(frame):
    """Row 96."""
    tracker = reading()
    assert tracker.receive([data(1), frame, data(2)], 0.0) == []
    assert tracker.cursor.wants.unconfirmed
    assert tracker.error is None
    assert asks(tracker.recreated("c_2", 1, 0.0)) == [9]


def test_refusal_keeps_position():
    """Row 103."""
    tracker = reading()
    tracker.receive([data(1), status(409, "Exceeded MaxRequestBatch of 1")], 0.0)
    assert isinstance(tracker.error, PullLimitError)
    assert tracker.deadline is None
    assert asks(tracker.read_continuously(Pull(1, 30.0), 0, 0.0)) == [], "one waits"
    assert tracker.error is None
    assert taken(tracker) == [1]
    tracker.receive([data(2)], 0.0)
    assert taken(tracker) == [2]


def test_messages_of_lagging_replica_skipped():
    tracker = reading()
    tracker.receive([data(number) for number in range(1, 6)], 0.0)
    tracker.cursor.consumer_lost("test")
    tracker.recreated("c_2", 3, 0.0)
    commands = tracker.receive([data(4, 1), data(5, 2), data(6, 3)], 0.0)
    assert tracker.cursor.wants is None
    assert tracker.buffer.owed == 2
    assert commands == []
    assert taken(tracker) == [1, 2, 3, 4, 5, 6]


def test_unreadable_then_gap():
    tracker = reading()
    (command,) = tracker.receive([data(1), (b"a", b"$JS.ACK.broken", b"", b""), data(3)], 0.0)
    assert isinstance(command.event, ErrorRaised)
    assert isinstance(command.event.error, NotJetStreamMessageError)
    assert tracker.cursor.wants is not None
    assert taken(tracker) == [1]


def test_foreign_reported_and_dropped():
    (command,) = reading().receive([foreign()], 0.0)
    assert isinstance(command.event, ForeignMessage)


def test_bytes_counted_where_they_bounded():
    size = frame_size(data(1))
    tracker = reading(Pull(1000, 30.0, 4 * size, idle_heartbeat=5.0), 500)
    tracker.receive([data(number) for number in range(1, 5)], 0.0)
    assert [asks(tracker.take_frame()[1]) for _ in range(2)] == [[], [998]]
    # Another reader, while two wait: they count.
    (ask,) = tracker.recreated("c_2", 4, 0.0)
    assert ask.pull.max_bytes == 2 * size
    assert tracker.read_continuously(Pull(1000, 30.0, 2 * size), 500, 0.0) == []


def test_new_survives_early_reset():
    """Rows 97, 98."""
    tracker = reading(delivered=100)
    tracker.cursor.consumer_lost("the connection was made anew")
    assert tracker.cursor.resume_stream_seq == 101
    tracker.recreated("c_2", 90, 0.0)
    tracker.receive([data(91, 1), data(100, 2), data(101, 3)], 0.0)
    assert taken(tracker) == [101]


def test_last_per_subject_until_first():
    """Row 98."""
    tracker = reading(delivered=40, keeps_policy=True)
    tracker.cursor.consumer_lost("test")
    assert tracker.cursor.resume_stream_seq == 0
    tracker.recreated("c_2", 41, 0.0)
    tracker.receive([data(7, 1), data(30, 2)], 0.0)
    assert tracker.cursor.resume_stream_seq == 31
    assert taken(tracker) == [7, 30]


def test_consumer_removed_for_inactivity_is_recreated():
    tracker = reading(inactive_threshold=100.0)
    tracker.receive([data(number) for number in range(1, 11)], 20.0)
    assert not tracker.is_forgotten(100.0)
    assert tracker.is_forgotten(115.0)
    assert tracker.cursor.wants is not None
    assert taken(tracker) == list(range(1, 11))


def test_position_behind_taken():
    tracker = reading(delivered=6)
    assert tracker.position == 6
    tracker.receive([data(8, 1), data(12, 2)], 0.0)
    assert tracker.position == 7
    tracker.take_frame()
    assert tracker.position == 11
    tracker.take_frame()
    assert tracker.position == 12
    assert reader(delivered=6, keeps_policy=True).position == 0


# --- one request after the other -----------------------------------------------------------------------------


def fetching(batch: int = 5, expires: float = 10.0, **fields) -> OrderedConsume:
    tracker = reader()
    ask = tracker.fetch(Pull(batch, expires, **fields), 0.0)
    assert (ask.pull.batch, ask.number) == (batch, 1)
    return tracker


def test_fetch_is_over_when_full():
    tracker = fetching(2)
    assert tracker.receive([data(1), data(2)], 0.0) == []
    assert tracker.request.ending is Ending.FULL
    assert tracker.buffer.owed == 0


def test_fetch_ends_on_own_status():
    tracker = fetching()
    tracker.request = None  # its caller left
    tracker.fetch(Pull(3, 10.0), 0.0)
    old = (
        b"_INBOX.reader.1",
        *status(408, "Request Timeout", Nats_Pending_Messages=5, Nats_Pending_Bytes=0)[1:],
    )
    tracker.receive([old], 1.0)
    assert not tracker.request.ended
    assert tracker.buffer.owed == 3
    over = status(408, "Request Timeout", Nats_Pending_Messages=3, Nats_Pending_Bytes=0)
    tracker.receive([of_request(tracker, over)], 1.0)
    assert tracker.request.ending is Ending.EXPIRED
    assert tracker.buffer.owed == 0


def test_a_fetch_is_bounded_in_bytes():
    size = frame_size(data(1))
    tracker = fetching(100, max_bytes=2 * size)
    tracker.receive([data(1), data(2)], 0.0)
    assert tracker.request.ending is Ending.MAX_BYTES


def test_refused_ends_fetch_alone():
    """Row 103."""
    tracker = fetching()
    tracker.receive([of_request(tracker, status(409, "Exceeded MaxRequestBatch of 1"))], 0.0)
    assert tracker.request.ending is Ending.REFUSED
    assert tracker.error is None
    assert tracker.cursor.wants is None


def test_forgotten_fetch_recreates():
    tracker = fetching(expires=1.0)
    assert tracker.tick_request(1.0) == []
    assert tracker.cursor.wants is None
    assert tracker.tick_request(1.5) == []
    assert tracker.request.ending is Ending.EXPIRED
    assert tracker.cursor.wants is not None


def test_silent_fetch_recreates():
    tracker = fetching(idle_heartbeat=2.0)
    tracker.tick_request(tracker.request.deadline)
    (command,) = tracker.tick_request(tracker.request.deadline)
    assert isinstance(command, Emit)
    assert isinstance(command.event, HeartbeatMissed)
    assert tracker.cursor.wants is not None
    tracker.recreated("c_2", 0, 5.0)
    assert tracker.request is None


def test_messages_skipped_count_for_request():
    tracker = reader()
    tracker.receive([data(1), data(2)], 0.0)
    tracker.cursor.consumer_lost("test")
    tracker.recreated("c_2", 0, 0.0)
    tracker.fetch(Pull(2, 10.0), 0.0)
    tracker.receive([data(1, 1), data(2, 2)], 0.0)
    assert tracker.request.ending is Ending.FULL
    assert tracker.buffer.owed == 0
    assert taken(tracker) == [1, 2]


def test_owed_carries_to_reader():
    tracker = fetching(4)
    tracker.receive([data(1)], 0.0)
    tracker.request = None
    assert asks(tracker.read_continuously(PULL, 5, 0.0)) == [6]
    assert asks(tracker.receive([data(2), data(3), data(4)], 0.0)) == []
    tracker.rest()
    assert tracker.deadline is None
    assert [tracker.take_frame()[1] for _ in range(4)] == [[]] * 4
