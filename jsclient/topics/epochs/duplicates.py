"""Checks whether data that was stored earlier with the same message id counts.

It counts if its producer owned the partition at that sequence. The next frontier record names the owner; after our own
first record it is us.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

from ...errors import ProtocolError
from ...protocol.epochs.frontier import Order
from ...protocol.epochs.records import PRODUCER, FrontierEntry, data_subject, frontier_subject
from ..log import Log
from .paging import page_up_to

__all__ = ["counting"]

T = TypeVar("T", bound=Hashable)

_UNKNOWN: Final = ""


async def counting(
    log: Log, order: Order[T], topic: str, partition: int, *, first: int, last: int, ours: tuple[str, int]
) -> set[int]:
    """The sequences between ``first`` and ``last``, both included, of the partition's data that counts.

    Args:
        ours: Our token, and the sequence of our first record.

    Raises: those of any request.
    """
    data, frontier = data_subject(topic, partition), frontier_subject(topic, partition)
    found: set[int] = set()
    earlier: list[tuple[int, str]] = []  # the owner of the partition at that sequence is not known yet
    producer, taken_at = ours
    owner, since, end = producer if first > taken_at else _UNKNOWN, first - 1, max(last, taken_at)
    while since < end and not (since >= last and owner):
        page = await page_up_to(log, since, end)
        if not page.records:
            break
        for record in page.records:
            since = record.seq
            if record.subject == frontier:
                try:
                    entry = FrontierEntry.read(record, order)
                except ProtocolError:
                    continue
                found.update(seq for seq, by in earlier if by == (entry.before or entry.producer))
                earlier.clear()
                owner = entry.producer
            elif record.subject == data and since <= last:
                by = record.headers.get(PRODUCER, _UNKNOWN)
                if not owner:
                    earlier.append((since, by))
                elif by == owner:
                    found.add(since)
    return found
