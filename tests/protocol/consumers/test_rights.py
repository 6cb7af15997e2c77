"""The permissions of users, as subjects. integration/consumers/test_permissions.py tries them on a server."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.models import ConsumerConfig
from jsclient.protocol.consumers.rights import (
    ack_right,
    ordered_pull_rights,
    ordered_rights,
    publisher_rights,
    pull_rights,
    push_rights,
)
from jsclient.protocol.wire.api import Api

API = Api()


def test_publisher() -> None:
    assert publisher_rights(["orders.>"], inbox_prefix="_INBOX_a") == {
        "publish": {"allow": ["orders.>"]},
        "subscribe": {"allow": ["_INBOX_a.>"]},
    }
    with pytest.raises(ConfigError, match="no subject is given"):
        publisher_rights([], inbox_prefix="_INBOX")
    with pytest.raises(InvalidNameError):
        publisher_rights(["a b"], inbox_prefix="_INBOX")


def test_puller_without_acks() -> None:
    config = ConsumerConfig(ack_policy="none")
    rights = pull_rights(Api(domain="hub"), "S", "C", config, dead_letter=None, inbox_prefix="_INBOX")
    assert rights["publish"]["allow"] == [
        "$JS.hub.API.CONSUMER.INFO.S.C",
        "$JS.hub.API.STREAM.INFO.S",
        "$JS.hub.API.CONSUMER.MSG.NEXT.S.C",
    ]


def test_worker_with_dead_letters() -> None:
    rights = pull_rights(API, "S", "C", None, dead_letter="dead.>", inbox_prefix="_INBOX")
    assert "dead.>" in rights["publish"]["allow"]
    assert rights["subscribe"]["allow"] == ["_INBOX.>", "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.C"]


@pytest.mark.parametrize("flow", [True, None])
def test_push(flow: bool | None) -> None:
    config = ConsumerConfig(flow_control=flow)
    rights = push_rights(API, "S", "C", config, "to.me", dead_letter=None, inbox_prefix="_INBOX")
    assert rights["subscribe"]["allow"] == ["_INBOX.>", "to.me"]
    assert ("$JS.FC.S.C.>" in rights["publish"]["allow"]) is bool(flow)


def test_ordered() -> None:
    assert ordered_rights(API, "S", inbox_prefix="_INBOX")["publish"]["allow"] == [
        "$JS.API.CONSUMER.CREATE.S",
        "$JS.API.CONSUMER.DELETE.S.*",
        "$JS.API.CONSUMER.INFO.S.*",
        "$JS.API.STREAM.INFO.S",
        "$JS.API.STREAM.MSG.GET.S",
        "$JS.FC.S.>",
    ]


def test_ordered_by_pulling() -> None:
    assert ordered_pull_rights(API, "S", inbox_prefix="_INBOX_a") == {
        "publish": {
            "allow": [
                "$JS.API.CONSUMER.CREATE.S.>",
                "$JS.API.CONSUMER.DELETE.S.*",
                "$JS.API.CONSUMER.INFO.S.*",
                "$JS.API.CONSUMER.MSG.NEXT.S.*",
                "$JS.API.STREAM.INFO.S",
                "$JS.API.STREAM.MSG.GET.S",
            ]
        },
        "subscribe": {"allow": ["_INBOX_a.>"]},
    }


@pytest.mark.parametrize(
    ("subject", "needed"),
    [
        ("$JS.ACK.S.C.1.2.3.1700000000123456789.0", "$JS.ACK.S.C.>"),
        ("$JS.ACK._.hash.S.C.1.2.3.1700000000123456789.0", "$JS.ACK.*.*.S.C.>"),
        ("$JS.ACK.S.C", ""),
        ("$JS.API.INFO", ""),
        ("orders.new", ""),
    ],
)
def test_right_of_an_ack(subject: str, needed: str) -> None:
    assert ack_right(subject) == needed
