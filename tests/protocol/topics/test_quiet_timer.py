"""The quiet timer: its period adapts within its bounds."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.topics.quiet_timer import QuietTimer


def test_adapts_within_bounds():
    quiet = QuietTimer(1.0, 5.0)
    periods = []
    for adapt in (quiet.page_was_empty, quiet.page_was_empty, quiet.page_was_empty, quiet.page_had_records):
        adapt()
        periods.append(quiet.period)
    assert periods == [2.0, 4.0, 5.0, 2.5]


def test_is_constant_without_upper_bound():
    quiet = QuietTimer(3.0)
    quiet.page_was_empty()
    assert quiet.period == 3.0
    quiet.page_had_records()
    assert quiet.period == 3.0


@pytest.mark.parametrize(
    "bounds", [(0.0, 1.0), (2.0, 1.0), (1.0, 2.0, 0.5), (1.0, 2.0, 2.0, 3.0), (True,), ("1",)]
)
def test_impossible_timer_refused(bounds):
    with pytest.raises(ConfigError):
        QuietTimer(*bounds)
