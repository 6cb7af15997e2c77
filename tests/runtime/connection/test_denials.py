"""Which refused permissions are reported."""

from __future__ import annotations

from jsclient._runtime.connection.denials import Denials
from jsclient.errors import PermissionDeniedError


def test_refused_acks_of_consumer_are_reported_once():
    denials = Denials()
    acks = [PermissionDeniedError("publish", f"$JS.ACK.S.C.1.{n}.{n}.1700000000000000000.0") for n in (1, 2)]
    first, second = map(denials.event, acks)
    assert first.needed
    assert first.subject == acks[0].subject
    assert second is None


def test_other_subjects_are_reported_each_time():
    denials = Denials()
    for _ in range(2):
        assert denials.event(PermissionDeniedError("publish", "a")).needed == ""
        assert denials.event(PermissionDeniedError("subscribe", "a")).operation == "subscribe"
