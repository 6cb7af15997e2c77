"""The descriptors of shared iterations, and the rights of those who read them."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, InvalidNameError, PositionInvalidError
from jsclient.protocol.topics.position import Position
from jsclient.topics.notifiers.descriptors import (
    NotifierDescriptor,
    SubscriptionDescriptor,
    account_rights_for,
    permissions_for,
    read_descriptor,
)

NOTIFIER = NotifierDescriptor(
    stream="S", subject="s.a", codec="json", api_prefix="$JS.API", republished="live.s.a", direct=True
)
START = Position("S", "2026-01-01T00:00:00Z", 7)
SUBSCRIPTION = SubscriptionDescriptor(
    stream="S", subject="s.a", codec="json", api_prefix="$JS.API", start=START.to_json()
)


@pytest.mark.parametrize("descriptor", [NOTIFIER, SUBSCRIPTION])
def test_shared_and_read_again(descriptor):
    assert read_descriptor(descriptor.to_dict(), type(descriptor)) == descriptor


def test_position_of_a_subscription():
    assert read_descriptor(SUBSCRIPTION.to_dict(), SubscriptionDescriptor).position == START


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"v": 2}, ConfigError),
        ({"kind": "subscription"}, ConfigError),
        ({"other": 1}, ConfigError),
        ({"direct": "yes"}, ConfigError),
        ({"stream": "a.b"}, InvalidNameError),
        ({"subject": "a.*"}, InvalidNameError),
        ({"republished": "a b"}, InvalidNameError),
        ({"api_prefix": "a b"}, ConfigError),
    ],
)
def test_descriptor_of_a_stranger_is_checked(changes, error):
    with pytest.raises(error):
        read_descriptor(NOTIFIER.to_dict() | changes, NotifierDescriptor)


@pytest.mark.parametrize("value", [None, [], "x", {}, {"kind": "notifier"}])
def test_what_is_no_descriptor(value):
    with pytest.raises(ConfigError, match="not the descriptor of a notifier"):
        read_descriptor(value, NotifierDescriptor)


def test_start_is_in_the_same_stream():
    other = Position("T", "2026-01-01T00:00:00Z", 7).to_json()
    with pytest.raises(ConfigError, match="'T', not in 'S'"):
        read_descriptor(SUBSCRIPTION.to_dict() | {"start": other}, SubscriptionDescriptor)
    with pytest.raises(PositionInvalidError):
        read_descriptor(SUBSCRIPTION.to_dict() | {"start": "?"}, SubscriptionDescriptor)


def allowed(role: str, *, history: bool, alone: bool = True, at: NotifierDescriptor = NOTIFIER):
    rights = permissions_for(role, at=at, history=history, alone=alone, inbox_prefix="_INBOX.me")
    return rights["publish"]["allow"], rights["subscribe"]["allow"]


def test_writer_may_write_and_read_nothing_pushed():
    publish, subscribe = allowed("writer", history=True)
    assert publish[0] == "s.a"
    assert subscribe == ["_INBOX.me.>"]


@pytest.mark.parametrize("history", [True, False])
def test_only_a_trusted_reader_may_create_consumers(history):
    publish, subscribe = allowed("reader", history=history)
    assert any("CONSUMER.CREATE.S" in subject for subject in publish)
    assert "s.a" not in publish
    assert subscribe == ["_INBOX.me.>", "live.s.a"]
    publish, subscribe = allowed("untrusted reader", history=history)
    assert not any("CONSUMER" in subject for subject in publish)
    assert subscribe == ["_INBOX.me.>", "live.s.a"]


def test_untrusted_reader_of_the_newest_requests_that_alone():
    publish, _ = allowed("untrusted reader", history=False)
    assert publish == ["$JS.API.DIRECT.GET.S.s.a"]
    publish, _ = allowed("untrusted reader", history=True)
    assert "$JS.API.DIRECT.GET.S" in publish


@pytest.mark.parametrize(
    ("fields", "alone", "match"),
    [
        ({"republished": ""}, True, "does not republish"),
        ({"direct": False}, True, "does not allow direct gets"),
        ({}, False, "use a separate stream"),
    ],
)
def test_untrusted_reader_is_refused_what_shows_more(fields, alone, match):
    at = NotifierDescriptor(
        **{**{name: getattr(NOTIFIER, name) for name in NOTIFIER.__struct_fields__}, **fields}
    )
    with pytest.raises(ConfigError, match=match):
        allowed("untrusted reader", history=True, alone=alone, at=at)


def test_other_roles_do_not_exist():
    with pytest.raises(ConfigError, match="role is 'admin'"):
        allowed("admin", history=False)


def test_guests_get_an_account_of_their_own():
    rights = str(account_rights_for("OWNER", "GUESTS", at=NOTIFIER, history=True, alone=True))
    assert all(word in rights for word in ("OWNER", "GUESTS", "live.s.a", "$JS.API.DIRECT.GET.S"))
