"""The methods that return permissions."""

from __future__ import annotations

from jsclient.buckets.rights import WithBucketRights
from jsclient.protocol.buckets.rights import BucketRights
from jsclient.protocol.wire.api import Api


class Handle(WithBucketRights):
    def _rights(self) -> BucketRights:
        return BucketRights(api=Api(), stream="KV_b", stored=("$KV.b.>",), written=("$KV.b.>",))


def test_permissions() -> None:
    granted = Handle().permissions("writer", inbox_prefix="_INBOX_me")
    assert granted["subscribe"] == {"allow": ["_INBOX_me.>"]}
    assert "$KV.b.>" in granted["publish"]["allow"]
    assert Handle().permissions("reader")["subscribe"] == {"allow": ["_INBOX.>"]}


def test_account_rights() -> None:
    granted = Handle().account_rights("APP", "GUESTS")
    assert set(granted) == {"APP", "GUESTS"}
    assert all(export["accounts"] == ["GUESTS"] for export in granted["APP"]["exports"])
