"""How the ranges of many streams are shared among tasks."""

from __future__ import annotations

import pytest

from jsclient.spark.log.grouping import group_width, grouped


@pytest.mark.parametrize(
    ("widths", "least", "most", "tasks"),
    [
        ([3] * 16, 2, None, 16),  # few tasks stay as they are
        ([3] * 17, 2, None, 3),
        ([3] * 100, 2, None, 4),  # 32 ranges each
        ([3] * 1000, 2, None, 32),
        ([3] * 1000, 100, None, 100),
        ([3] * 1000, 2, 30, 100),  # of 30 messages
        ([5_000] * 1000, 2, None, 100),
        ([60_000] * 1000, 2, None, 1000),  # each is worth a task
        ([60_000, *[1] * 99], 2, None, 5),
        ([1] * 50, 60, None, 50),
        ([], 2, None, 0),
    ],
)
def test_number_of_tasks(widths, least, most, tasks):
    width = group_width(widths, least, most)
    groups = grouped(widths, widths, width)
    assert len(groups) == tasks
    assert [one for group in groups for one in group] == widths


def test_groups_are_no_wider():
    widths = [7, 5, 1, 9, 2, 2, 2, 30, 1, 1]
    assert grouped(widths, widths, 10) == [(7,), (5, 1), (9,), (2, 2, 2), (30,), (1, 1)]
    assert grouped("abc", [1, 1, 1], 0) == [("a",), ("b",), ("c",)]
