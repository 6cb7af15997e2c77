"""The knowledge that a consumer's deliveries give about the records before them."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient.protocol.topics.record import Record
from jsclient.topics.consumer_feed import _Deliveries
from tests.support.virtual import virtual


class FeedContext:
    """Of a feed that is never opened."""

    connection = None


def delivery(seq: int, consumer_seq: int, pending: int, headers: bytes = b"") -> tuple[Any, ...]:
    return (b"s", b"$JS.ACK.S.c.1.%d.%d.1700000000000000000.%d" % (seq, consumer_seq, pending), headers, b"x")


@pytest.mark.parametrize("doubted", ["none", "late", "all"])
@pytest.mark.parametrize("pending", [0, 5])
@virtual
async def test_delivery_follows_previous(doubted, pending):
    """The server counts deliveries without a gap also when it passes over messages that a limit removed meanwhile."""
    got: list[Record] = []
    deliveries = _Deliveries(FeedContext, "S", got.extend, lambda: None, linked=True, doubted=doubted)
    deliveries.arrived([delivery(10, 1, pending), delivery(11, 2, pending), delivery(15, 3, pending)])
    deliveries.arrived([delivery(16, 5, pending), delivery(17, 6, pending)])
    unsure = doubted == "all" or (doubted == "late" and pending > 0)
    assert [record.previous for record in got] == [None, 10, None if unsure else 11, None, 16]


@virtual
async def test_checked_link_counts():
    got: list[Record] = []
    deliveries = _Deliveries(FeedContext, "S", got.extend, lambda: None, linked=True, doubted="all")
    link = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 10\r\n\r\n"
    deliveries.arrived([delivery(10, 1, 0), delivery(15, 2, 0, link)])
    assert got[-1].previous == 10
