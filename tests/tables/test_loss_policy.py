"""A loss is an error, or is logged once."""

from __future__ import annotations

import logging

import pytest

from jsclient.errors import PositionInvalidError
from jsclient.tables.loss_policy import LossPolicy

LOST = PositionInvalidError("it is gone; with option 'failOnDataLoss' = 'false' the query continues")


def test_loss_is_an_error():
    assert LossPolicy(fail=True).accept(None)
    with pytest.raises(PositionInvalidError, match="it is gone"):
        LossPolicy(fail=True).accept(LOST)


def test_loss_is_logged_once(caplog):
    policy = LossPolicy(fail=False)
    with caplog.at_level(logging.WARNING, "jsclient.spark"):
        assert [policy.accept(LOST), policy.accept(LOST), policy.accept(None)] == [False, False, True]
    assert [record.getMessage() for record in caplog.records] == ["it is gone; the query continues"]
