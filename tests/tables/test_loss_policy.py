"""What is raised or logged of losses."""

from __future__ import annotations

import sys

import pytest

from jsclient.errors import PositionInvalidError
from jsclient.tables.loss_policy import LossPolicy


@pytest.mark.covers("L36")
def test_losses_are_logged_once_in_bounded_memory(caplog):
    policy = LossPolicy(fail=False)
    for number in range(2000):
        for _ in range(3):
            assert not policy.accept(PositionInvalidError(f"batch {number} is lost"))
    assert len(caplog.records) == 2000
    assert sum(map(sys.getsizeof, policy._logged)) < 20_000


def test_loss_is_raised_where_asked():
    policy = LossPolicy(fail=True)
    assert policy.accept(None)
    with pytest.raises(PositionInvalidError, match="batch 1"):
        policy.accept(PositionInvalidError("batch 1 is lost"))
