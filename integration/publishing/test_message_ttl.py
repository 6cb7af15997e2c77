"""Messages with an individual time to live, and the markers that remain after the last message of a subject expires.

Row 132 of the conformance suite. Source: ADR-43.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.asking import traffic
from integration.kit.network.proxy import Proxy

NEW = pytest.mark.server(">=2.11")

# 2.11 writes markers as 2.14 does, but for the form of the markers' time to live.
MARKER_TTL = {"1m0s", "60", "60s"}


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


async def until(stream: OwnStream, expected: list[int]) -> None:
    """Wait until exactly these sequences are left."""

    async def is_expired() -> bool:
        messages = [message.seq for message in await stream.messages()]
        assert messages == expected, messages
        return True

    await eventually(is_expired, 60, f"{expected} to be what is left", interval=0.1)


@NEW
async def test_message_expires_alone(js: Any, tap: Proxy, oracle: Oracle, make_stream: Any) -> None:
    """Row 132: TTL expiry."""
    stream = await make_stream(allow_msg_ttl=True)
    await js.publish(stream.subject("a"), b"short", ttl=1)
    await js.publish(stream.subject("a"), b"rounded up to 2", ttl=1.001)
    await js.publish(stream.subject("a"), b"as a timedelta", ttl=timedelta(minutes=5))
    await js.publish(stream.subject("a"), b"without")
    assert [frame.headers for frame in tap.sent(stream.all)] == [
        b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n",
        b"NATS/1.0\r\nNats-TTL: 2\r\n\r\n",
        b"NATS/1.0\r\nNats-TTL: 300\r\n\r\n",
        b"",
    ]
    await until(stream, [3, 4])
    assert [m.headers for m in await stream.messages()] == [b"NATS/1.0\r\nNats-TTL: 300\r\n\r\n", b""]


@NEW
async def test_never_outlives_age_limit_of_stream(js: Any, oracle: Oracle, make_stream: Any) -> None:
    stream = await make_stream(allow_msg_ttl=True, max_age=1_000_000_000)
    await js.publish(stream.subject("a"), b"for ever", ttl="never")
    await js.publish(stream.subject("a"), b"as the stream has it")
    await js.publish(stream.subject("b"), b"as the stream has it")
    await until(stream, [1])
    (stored,) = await stream.messages()
    assert stored.headers == b"NATS/1.0\r\nNats-TTL: never\r\n\r\n"


@NEW
@pytest.mark.parametrize("how", ["of the message", "of the stream"])
async def test_marker_after_expiry(js: Any, oracle: Oracle, make_stream: Any, how: str) -> None:
    """Row 132: the marker's headers, stored and as a reader gets them."""
    # Each state must last until this test has looked at it.
    limits = {} if how == "of the message" else {"max_age": 4_000_000_000}
    stream = await make_stream(
        allow_msg_ttl=True,
        subject_delete_marker_ttl=60_000_000_000,
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
        **limits,
    )
    sub = await js.subscribe(stream.all)
    await js.publish(stream.subject("a"), b"x", ttl=None if limits else 4)
    message, marker = await take(sub, 2, timeout=60)
    assert (message.data, message.metadata.stream_seq) == (b"x", 1)
    assert (marker.subject, marker.data, marker.metadata.stream_seq) == (stream.subject("a"), b"", 2)
    assert marker.headers["Nats-Marker-Reason"] == "MaxAge"
    assert marker.headers["Nats-TTL"] in MARKER_TTL
    await until(stream, [2])
    got = await (await js.stream(stream.name)).get_last_message(stream.subject("a"))
    assert got.headers == marker.headers
    # It is an ordinary message otherwise, and the next message of its subject replaces it.
    await js.publish(stream.subject("a"), b"again")
    await until(stream, [3])


@NEW
async def test_stream_changed_here_leaves_markers(js: Any, oracle: Oracle, make_stream: Any) -> None:
    """The server sets what markers need. Durations are seconds here."""
    stream = await make_stream()
    created = await js.update_stream(
        stream.name, [stream.all], storage="memory", max_age=1, subject_delete_marker_ttl=60
    )
    assert (created.config.allow_msg_ttl, created.config.allow_rollup_hdrs) == (True, True)
    assert created.config.subject_delete_marker_ttl == 60.0
    await js.publish(stream.subject("a"), b"x")
    await until(stream, [2])
    assert (await created.get_message(2)).headers["Nats-Marker-Reason"] == "MaxAge"


@NEW
@pytest.mark.parametrize("value", ["0.5s", "soon", "-5"])
async def test_refused_ttl_has_number(js: Any, oracle: Oracle, make_stream: Any, value: str) -> None:
    stream = await make_stream(allow_msg_ttl=True)
    with pytest.raises(jsclient.ApiError) as caught:
        await js.publish(stream.subject("a"), headers={"Nats-TTL": value})
    assert (caught.value.code, caught.value.err_code) == (400, 10165)
    assert (await stream.state())["messages"] == 0


@pytest.mark.server("<2.11")
async def test_old_server_refused(js: Any, tap: Proxy, stream: OwnStream) -> None:
    since = len(tap.frames)
    for ttl in (5, "never"):
        with pytest.raises(jsclient.ConfigError, match=r"ttl needs nats-server 2\.11"):
            await js.publish(stream.subject("a"), ttl=ttl)
    await js.ping()
    assert traffic(tap, since) == []
    # Beyond an old server, a newer server may have the stream, so a header is sent unchanged.
    assert (await js.publish(stream.subject("a"), headers={"Nats-TTL": "5"})).seq == 1
