"""Until when a call that publishes many messages waits."""

from __future__ import annotations

import pytest

from jsclient.protocol.publishing.progress import Progress
from jsclient.protocol.publishing.publish_window import NEVER


def test_gives_up_after_timeout_without_progress():
    progress = Progress(5.0)
    assert progress.gives_up_at == NEVER
    progress.begin(10.0, in_flight=False)
    assert progress.gives_up_at == 15.0
    progress.moved(12.0)
    assert progress.gives_up_at == 17.0


@pytest.mark.parametrize(("in_flight", "remaining"), [(True, 2.0), (False, 5.0)])
def test_time_elsewhere_does_not_count(in_flight, remaining):
    """With nothing in flight there is nothing that could have moved."""
    progress = Progress(5.0)
    progress.begin(10.0, in_flight=False)
    progress.pause(13.0)
    assert progress.gives_up_at == NEVER
    progress.begin(100.0, in_flight=in_flight)
    assert progress.gives_up_at == 100.0 + remaining


def test_progress_while_elsewhere():
    progress = Progress(5.0)
    progress.begin(10.0, in_flight=False)
    progress.pause(14.0)
    progress.moved(15.0)
    assert progress.gives_up_at == NEVER
    progress.begin(20.0, in_flight=True)
    assert progress.gives_up_at == 25.0


def test_comes_back_too_late():
    progress = Progress(5.0)
    progress.begin(10.0, in_flight=False)
    progress.pause(16.0)
    progress.begin(20.0, in_flight=True)
    assert progress.gives_up_at == 20.0
