"""The messages of one fetch: what is collected, what is still requested, and what is returned."""

from __future__ import annotations

from collections import deque

import pytest

from jsclient import Ending
from jsclient.consumers.message import AckChannel
from jsclient.consumers.pull.batch import Batch, Collection, in_delivery_order
from jsclient.errors import HeartbeatError
from jsclient.protocol.consumers.fetch import whole_pull
from jsclient.protocol.wire.frames import frame_size
from tests.support.fake import FakeConnection
from tests.support.strategies import data

SIZE = frame_size(data(1))


def collection(batch: int = 5, *, expires: float = 10.0, **options) -> Collection:
    return Collection(whole_pull(batch, expires=expires, **options), 100.0, expires)


def frames(*numbers: int) -> deque:
    return deque(data(number) for number in numbers)


def test_no_more_than_the_batch():
    source, fetch = frames(1, 2, 3), collection(2)
    assert fetch.collect(source)
    assert (len(fetch.frames), len(source)) == (2, 1)
    assert fetch.collect(source)
    assert len(source) == 1


def test_no_more_than_the_bytes():
    source, fetch = frames(1, 2, 3), collection(5, max_bytes=2 * SIZE + 1)
    assert not fetch.collect(source)
    assert (len(fetch.frames), len(source)) == (2, 1)
    request = fetch.request(3, 100.0)
    assert (request.batch, request.max_bytes) == (3, 1)


def test_first_request_has_the_whole_time():
    """The fetch ends with the request, not a moment before its status arrives."""
    fetch = collection(5, expires=10.0)
    request = fetch.request(5, 100.005)
    assert request is fetch.pull
    assert (request.expires, fetch.deadline) == (10.0, 110.005)


def test_further_requests_have_the_remaining_time():
    fetch = collection(5, expires=10.0)
    request = fetch.request(3, 104.0)
    assert (request.batch, request.expires, fetch.deadline) == (3, 6.0, 110.0)
    assert request.idle_heartbeat == fetch.pull.idle_heartbeat
    late = fetch.request(3, 109.9)
    assert late.expires == pytest.approx(0.1)
    assert late.idle_heartbeat is None, "the server would refuse it"
    assert fetch.request(3, 120.0).expires == 0.001


def test_fetch_without_waiting_never_waits():
    fetch = collection(5, no_wait=True)
    for request in (fetch.request(5, 105.0), fetch.request(2, 105.0)):
        assert (request.expires, request.no_wait) == (None, True)


def channel() -> AckChannel:
    return AckChannel(FakeConnection(), None, 5.0, True)


def test_error_is_raised_without_messages_and_returned_with_them():
    error, fetch = HeartbeatError(2.0), collection()
    with pytest.raises(HeartbeatError):
        fetch.batch(channel(), Ending.SILENT, error)
    fetch.collect(frames(7))
    batch = fetch.batch(channel(), Ending.SILENT, error)
    assert (batch.error, batch.ending) == (error, Ending.SILENT)
    assert len(collection().batch(channel(), Ending.NO_MESSAGES, None)) == 0


def test_batch_is_a_sequence():
    fetch = collection()
    fetch.collect(frames(1, 2, 3))
    batch = fetch.batch(channel(), Ending.EXPIRED, None)
    assert isinstance(batch, Batch)
    assert [message.metadata.stream_seq for message in batch] == [1, 2, 3]
    assert batch[0] is next(iter(batch))
    assert isinstance(batch[1:], list)
    assert batch[2] in batch
    assert repr(batch) == f"<Batch of 3, {Ending.EXPIRED.value}>"


def test_order_is_that_of_the_delivery():
    arrived = [data(3), data(1), data(2)]
    assert in_delivery_order(arrived) == [data(1), data(2), data(3)]
    damaged = [*arrived, (b"s", b"$JS.ACK.no", b"", b"")]
    assert in_delivery_order(damaged) == damaged
