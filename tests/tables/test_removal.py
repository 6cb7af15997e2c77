"""The removals that lose messages a reader still needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.wire.codec import from_wire
from jsclient.tables.removal import Removal

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LARGEST = 1_000_000
BUCKET = {"max_msgs_per_subject": 1}
HOUR = 3600 * 10**9  # nanoseconds


def removal(
    config: dict[str, Any], *, messages: int = 10, size: int = 1000, now: datetime | None = NOW
) -> Removal:
    info = {
        "config": {"name": "KV_a", "retention": "limits", "discard": "old", **config},
        "state": {"messages": messages, "bytes": size, "first_seq": 1, "last_seq": 20},
    }
    return Removal.from_info(from_wire(StreamInfo, info | ({} if now is None else {"ts": now.isoformat()})))


@pytest.mark.parametrize(
    "config",
    [
        BUCKET,
        {"allow_msg_ttl": True},
        BUCKET | {"max_msgs": 11},
        BUCKET | {"max_msgs": -1, "max_bytes": -1, "max_age": 0},
        BUCKET | {"max_msgs": 10, "max_bytes": 1000, "discard": "new"},  # a full stream refuses new messages
        BUCKET | {"max_bytes": 1000 + LARGEST},
        BUCKET | {"max_bytes": 1100, "max_msg_size": 100},
    ],
    ids=str,
)
def test_no_limit_can_have_removed_them(config: dict[str, Any]) -> None:
    assert removal(config).is_harmless(None, LARGEST)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_age": HOUR},
        BUCKET | {"retention": "workqueue"},
        BUCKET | {"retention": "interest"},
        BUCKET | {"max_msgs": 10},
        BUCKET | {"max_bytes": 999 + LARGEST},
        BUCKET | {"max_bytes": 1099, "max_msg_size": 100},
        BUCKET | {"max_age": HOUR},  # it is unknown when they were stored
    ],
    ids=str,
)
def test_a_limit_may_have_removed_them(config: dict[str, Any]) -> None:
    assert not removal(config).is_harmless(None, LARGEST)


def test_empty_stream_was_not_compacted() -> None:
    """The newest message is never superseded. It may have had a time to live."""
    assert not removal(BUCKET, messages=0).is_harmless(None, LARGEST)
    assert removal(BUCKET | {"allow_msg_ttl": True}, messages=0).is_harmless(None, LARGEST)


def test_age_of_the_stream() -> None:
    aged = removal(BUCKET | {"max_age": HOUR})
    assert aged.is_harmless(NOW - timedelta(minutes=59), LARGEST)
    assert not aged.is_harmless(NOW - timedelta(minutes=61), LARGEST)


def test_server_that_does_not_tell_its_time() -> None:
    aged = removal(BUCKET | {"max_age": HOUR}, now=None)
    assert not aged.is_harmless(NOW, LARGEST)
