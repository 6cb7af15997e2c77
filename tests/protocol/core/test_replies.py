from __future__ import annotations

from jsclient.errors import NoRespondersError
from jsclient.protocol.core.replies import ReplyTracker

NO_RESPONDERS = (b"_INBOX.1", b"", b"NATS/1.0 503\r\n\r\n", b"")


def tracker(**options) -> ReplyTracker:
    return ReplyTracker(
        "s", **{"deadline": 10.0, "stall": None, "max_messages": None, "is_last": None, **options}
    )


def reply(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    return (b"_INBOX.1", b"", b"", data)


def data_of(replies: ReplyTracker) -> list[bytes]:
    return [frame[3] for frame in replies.front]


def test_until_deadline():
    replies = tracker()
    replies.receive_replies([reply(b"a"), reply(b"b")], 1.0)
    assert replies.deadline == 10.0
    replies.check_deadline(9.9)
    assert not replies.ended
    replies.check_deadline(10.0)
    assert replies.ended
    replies.receive_replies([reply(b"c")], 10.0)
    assert data_of(replies) == [b"a", b"b"]


def test_number_of_replies():
    replies = tracker(max_messages=2)
    replies.receive_replies([reply(b"a"), reply(b"b"), reply(b"c")], 1.0)
    assert replies.ended
    assert data_of(replies) == [b"a", b"b"]


def test_stall_counts_from_reply():
    replies = tracker(stall=0.5)
    assert replies.deadline == 10.0, "the first reply is waited for until the deadline"
    replies.receive_replies([reply(b"a")], 2.0)
    assert replies.deadline == 2.5
    replies.receive_replies([reply(b"b")], 2.4)
    replies.check_deadline(2.5)
    assert not replies.ended
    replies.check_deadline(2.9)
    assert replies.ended


def test_stall_after_deadline():
    replies = tracker(stall=20.0)
    replies.receive_replies([reply(b"a")], 2.0)
    assert replies.deadline == 10.0


def test_sentinel_is_not_returned():
    replies = tracker(is_last=lambda frame: not frame[3])
    replies.receive_replies([reply(b"a"), reply(b""), reply(b"b")], 1.0)
    assert replies.ended
    assert data_of(replies) == [b"a"]


def test_no_responders():
    replies = tracker(is_last=lambda frame: not frame[3])
    replies.receive_replies([NO_RESPONDERS], 1.0)
    assert replies.ended
    assert isinstance(replies.error, NoRespondersError)
    assert "'s'" in str(replies.error)


def test_no_responders_after_reply():
    replies = tracker()
    replies.receive_replies([reply(b"a"), NO_RESPONDERS], 1.0)
    assert replies.ended
    assert replies.error is None
