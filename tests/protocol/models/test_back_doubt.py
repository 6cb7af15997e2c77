"""Whether an answer that goes back is true, or comes from a former leader."""

from __future__ import annotations

import pytest

from jsclient.protocol.models.back_doubt import BackwardCheck, ReportedEnd


def replicated(last_seq: int, connects: int = 0) -> ReportedEnd:
    return ReportedEnd("I", last_seq, 3, connects)


@pytest.mark.parametrize(
    ("state", "incarnation"),
    [
        pytest.param(ReportedEnd("I", 5, 1, 0), "", id="one replica"),
        pytest.param(ReportedEnd("later", 5, 3, 0), "I", id="another stream"),
    ],
)
def test_older_record_true_at_once(state, incarnation):
    assert BackwardCheck().check_end(7, state, 0.0, incarnation=incarnation) == "removed"


@pytest.mark.parametrize(
    ("state", "delay", "verdict"),
    [(replicated(7), 3.0, "removed"), (replicated(6), 10.0, "restored"), (None, 10.0, "removed")],
)
def test_older_record_true_if_repeated(state, delay, verdict):
    uncertain = BackwardCheck()
    assert uncertain.check_end(7, state, 100.0) == "ask again"
    assert uncertain.since == 100.0
    assert uncertain.check_end(7, state, 100.0 + delay - 0.1) == "ask again"
    assert uncertain.check_end(7, state, 100.0 + delay) == verdict
    assert uncertain.since is None


def test_check_starts_over():
    """After an answer that does not go back, a reconnect, or an end of the stream before the record."""
    uncertain = BackwardCheck()
    assert uncertain.check_end(7, replicated(7), 0.0) == "ask again"
    uncertain.start_again()
    assert uncertain.check_end(7, replicated(7), 3.0) == "ask again"
    assert uncertain.check_end(7, replicated(7, connects=1), 6.0) == "ask again"
    assert uncertain.check_end(7, replicated(5, connects=1), 8.0) == "ask again"
    assert uncertain.check_end(7, replicated(7, connects=1), 9.0) == "ask again"
    assert uncertain.check_end(7, replicated(7, connects=1), 11.9) == "ask again"
    assert uncertain.check_end(7, replicated(7, connects=1), 12.0) == "removed"
