"""Fields of a consumer that an old server would ignore are refused before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.network.asking import traffic
from jsclient import ConsumerConfig

PAUSED = {"pause_until": datetime.now(UTC) + timedelta(hours=1)}


@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe", "ordered", "consumer"])
async def test_unknown_fields_refused(own_server: Any, proxy: Any, connect: Any, kind: str) -> None:
    own = await own_server(version="2.10.25")
    tap = await proxy(own)
    js = await connect(tap)
    stream = await js.create_stream("S", ["s"])
    attempts = {
        "subscribe": lambda: js.subscribe("s", config=ConsumerConfig(**PAUSED)),
        "pull_subscribe": lambda: js.pull_subscribe("s", durable="d", config=ConsumerConfig(**PAUSED)),
        "ordered": lambda: js.subscribe("s", ordered=True, config=ConsumerConfig(**PAUSED)),
        "consumer": lambda: stream.create_consumer(durable_name="d", **PAUSED),
    }
    since = len(tap.frames)
    with pytest.raises(jsclient.ConfigError, match=r"pause_until.*2\.11"):
        await attempts[kind]()
    await js.ping()
    assert traffic(tap, since) == []


async def test_fields_of_its_time_are_taken(own_server: Any, connect: Any) -> None:
    """Consumers without a name are as old as JetStream. Names came with 2.9, several filters with 2.10."""
    own = await own_server(version="2.10.25")
    js = await connect(own)
    stream = await js.create_stream("S", ["s.>"])
    config = ConsumerConfig(filter_subjects=["s.a", "s.b"])
    async with js.pull_subscribe(stream="S", config=config) as unnamed:
        assert (await unnamed.consumer_info()).config.filters == ["s.a", "s.b"]
    named = await stream.create_consumer(name="n", filter_subjects=["s.a", "s.b"])
    assert (await named.info()).config.filters == ["s.a", "s.b"]


STREAM_FIELDS: list[tuple[str, Any, str]] = [
    ("allow_msg_ttl", True, "2.11"),
    ("subject_delete_marker_ttl", 60.0, "2.11"),
    ("allow_msg_counter", True, "2.12"),
    ("allow_atomic", True, "2.12"),
    ("allow_msg_schedules", True, "2.12"),
    ("persist_mode", "async", "2.12"),
    ("allow_batched", True, "2.14"),
]


async def test_unknown_fields_of_streams_refused(own_server: Any, proxy: Any, connect: Any) -> None:
    own = await own_server(version="2.10.25")
    tap = await proxy(own)
    js = await connect(tap)
    await js.create_stream("S", ["s"])
    since = len(tap.frames)
    for field, value, version in STREAM_FIELDS:
        expected = (
            f"^{field} of a stream needs nats-server {version}; the server is 2.10.25 and would ignore it"
        )
        for method in (js.create_stream, js.update_stream, js.create_or_update_stream, js.ensure_stream):
            with pytest.raises(jsclient.ConfigError, match=expected):
                await method("S", ["s"], **{field: value})
        with pytest.raises(jsclient.ConfigError, match=expected):
            await js.ensure_stream("S", on_drift="update", **{field: value})
    await js.ping()
    assert traffic(tap, since) == []
    await js.ensure_stream("S", allow_msg_ttl=False)  # as it is


async def test_update_does_not_advise_itself(own_server: Any, connect: Any) -> None:
    """A field that no version knows stands for any that the server takes and ignores."""
    js = await connect(await own_server(version="2.10.25"))
    await js.create_stream("S", ["s"])
    with pytest.raises(jsclient.ConfigMismatchError) as caught:
        await js.ensure_stream("S", ["s"], on_drift="update", extra={"allow_wonders": True})
    assert caught.value.updated
    assert "keeps its own value: leave the field out" in str(caught.value)
    assert "on_drift" not in str(caught.value)
