"""Group the small ranges of many streams, so that one task reads several of them. Does no I/O.

A task costs Spark as much as ten thousand rows. Without groups, a source of a thousand streams with a few messages each
would spend its time on starting tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

__all__ = ["group_width", "grouped"]

T = TypeVar("T")

_FEW = 16  # up to this many ranges are not grouped
_WORTH_A_TASK = 50_000  # number of sequences that justify a task
_MOST_RANGES = 32  # maximum number of ranges of a task, which reads them one after another


def group_width(widths: Sequence[int], least_tasks: int, most: int | None) -> int:
    """Return the maximum number of sequences in a group, or 0 if ranges are not grouped.

    Args:
        widths: Number of sequences of each range.
        least_tasks: Minimum number of tasks, if there are that many ranges.
        most: Maximum number of messages of a task, or None for no maximum.
    """
    if len(widths) <= max(_FEW, least_tasks):
        return 0
    return max(1, min(_WORTH_A_TASK, sum(widths) // least_tasks, most or _WORTH_A_TASK))


def grouped(ranges: Sequence[T], widths: Sequence[int], most: int) -> list[tuple[T, ...]]:
    """Return the ranges of each group, in order.

    ``most`` is the result of `group_width`. A range with more sequences forms a group by itself.
    """
    sizes: list[int] = []
    free = 0
    for width in widths:
        if width <= free and sizes[-1] < _MOST_RANGES:
            sizes[-1] += 1
        else:
            sizes.append(1)
            free = most
        free -= width
    return [tuple(ranges[first:after]) for first, after in pairwise([0, *accumulate(sizes)])]
