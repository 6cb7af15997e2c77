"""What the rights of a bucket consist of."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.buckets.rights import BucketRights, local_info
from jsclient.protocol.wire.api import Api
from jsclient.protocol.wire.names import subject_matches


def rights(**fields: Any) -> BucketRights:
    defaults: dict[str, Any] = {
        "api": Api(), "stream": "KV_b", "stored": ("$KV.b.>",), "written": ("$KV.b.>",)
    }  # fmt: skip
    return BucketRights(**{**defaults, **fields})


def allows(granted: dict[str, Any], subject: str) -> bool:
    return any(subject_matches(pattern, subject) for pattern in granted["publish"]["allow"])


@pytest.mark.parametrize(
    ("subject", "roles"),
    [
        ("$JS.API.STREAM.INFO.KV_b", "reader writer admin"),
        ("$JS.API.DIRECT.GET.KV_b", "reader writer admin"),
        ("$JS.API.DIRECT.GET.KV_b.$KV.b.a.b", "reader writer admin"),
        ("$JS.API.STREAM.MSG.GET.KV_b", "reader writer admin"),
        ("$JS.API.CONSUMER.CREATE.KV_b.x", "reader writer admin"),
        ("$JS.API.CONSUMER.CREATE.KV_b.x.$KV.b.a", "reader writer admin"),
        ("$JS.API.CONSUMER.MSG.NEXT.KV_b.x", "reader writer admin"),
        ("$KV.b.a", "writer admin"),
        ("$JS.API.STREAM.PURGE.KV_b", "admin"),
        ("$JS.API.STREAM.CREATE.KV_b", "admin"),
        ("$JS.API.STREAM.DELETE.KV_b", "admin"),
        ("$JS.API.STREAM.NAMES", "admin"),
        ("$JS.API.STREAM.DELETE.KV_c", ""),
        ("$JS.API.CONSUMER.DURABLE.CREATE.KV_b.x", ""),
        ("$JS.API.CONSUMER.CREATE.KV_c.x", ""),
        ("$KV.c.a", ""),
    ],
)
def test_roles(subject: str, roles: str) -> None:
    for role in ("reader", "writer", "admin"):
        granted = rights().of_role(role, "_INBOX")
        assert allows(granted, subject) == (role in roles.split()), role
        assert granted["subscribe"] == {"allow": ["_INBOX.>"]}


def test_writers_that_remove() -> None:
    assert allows(rights(removes=True).of_role("writer", "_INBOX"), "$JS.API.STREAM.PURGE.KV_b")
    assert not allows(rights(removes=True).of_role("reader", "_INBOX"), "$JS.API.STREAM.PURGE.KV_b")
    asks = rights(asks=("$JS.API.STREAM.INFO.x",))
    assert allows(asks.of_role("writer", "_INBOX"), "$JS.API.STREAM.INFO.x")


def test_bad_arguments() -> None:
    with pytest.raises(ConfigError, match="'reader', 'writer' or 'admin'"):
        rights().of_role("guest", "_INBOX")  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError):
        rights().of_role("reader", "a b")


def test_guests_create_no_consumers_and_write_nothing() -> None:
    granted = rights().of_guests("APP", "GUESTS")
    services = [export["service"] for export in granted["APP"]["exports"]]
    assert services == [
        "$JS.API.STREAM.INFO.KV_b",
        "$JS.API.DIRECT.GET.KV_b.$KV.b.>",
        "$JS.API.DIRECT.GET.KV_b",
        "$JS.API.STREAM.MSG.GET.KV_b",
    ]
    assert [one["service"] for one in granted["APP"]["exports"] if "response" in one] == [
        "$JS.API.DIRECT.GET.KV_b"
    ]
    assert {one["to"].split(".")[0] for one in granted["GUESTS"]["imports"]} == {"JS"}


def test_local_info() -> None:
    assert local_info(Api(), "OBJ_b") == ()
    assert local_info(Api(domain="hub"), "OBJ_b") == ("$JS.API.STREAM.INFO.OBJ_b",)
