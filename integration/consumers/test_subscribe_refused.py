"""What `subscribe` refuses, before anything is sent and after. No consumer or subscription remains. Source: ADR-15."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import alarms
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.asking import answers_to, api_requests, creates, delivers, traffic
from integration.kit.network.proxy import Proxy
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient import ConsumerConfig


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    """A `JetStream` connected to the proxy, after its request inbox was made."""
    # Some tests wait for its end, and on a slow machine others need a part of it.
    js = await connect(tap, timeout=3.0)
    await js.account_info()
    return js


@pytest.fixture
async def leaving_nothing(
    js: Any, oracle: Oracle, stream: OwnStream, server: ServerUnderTest
) -> AsyncIterator[None]:
    """Fails if the test leaves a consumer, a NATS subscription or a task."""
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor, settle=20):
        yield


REFUSED: list[Any] = [
    pytest.param("subscribe", {}, marks=pytest.mark.covers("J6", "J14")),
    pytest.param("pull_subscribe", {}, marks=pytest.mark.covers("J6", "J14")),
    pytest.param("subscribe", {"subject": ""}, marks=pytest.mark.covers("J6", "J14")),
    pytest.param("subscribe", {"durable": "d"}, marks=pytest.mark.covers("J6", "J14")),
    pytest.param("subscribe", {"consumer": "c"}, marks=pytest.mark.covers("J6", "J14")),
    pytest.param(
        "subscribe",
        {"subject": "a", "queue": "q", "config": ConsumerConfig(idle_heartbeat=1)},
        marks=pytest.mark.covers("J4"),
    ),
    pytest.param(
        "subscribe",
        {"subject": "a", "queue": "q", "config": ConsumerConfig(flow_control=True)},
        marks=pytest.mark.covers("J5"),
    ),
    pytest.param(
        "pull_subscribe",
        {"subject": "a", "config": ConsumerConfig(ack_policy="none")},
        marks=pytest.mark.covers("J7"),
    ),
    pytest.param(
        "pull_subscribe",
        {"subject": "a", "config": ConsumerConfig(ack_policy="all")},
        marks=pytest.mark.covers("J8"),
    ),
    pytest.param("subscribe", {"subject": "a", "queue": "with.dot"}, marks=pytest.mark.covers("J26")),
    pytest.param("subscribe", {"subject": "a", "queue": "with space"}, marks=pytest.mark.covers("J26")),
    pytest.param("subscribe", {"subject": "a", "queue": "star*"}, marks=pytest.mark.covers("J26")),
    ("subscribe", {"subject": "a", "durable": "with.dot"}),
    ("pull_subscribe", {"subject": "a", "durable": "with space"}),
    ("subscribe", {"subject": "a", "durable": "d", "consumer": "c"}),
    ("subscribe", {"subject": "a", "durable": "d", "config": ConsumerConfig(durable_name="e")}),
    ("subscribe", {"subject": "a", "config": ConsumerConfig(filter_subject="b")}),
    ("subscribe", {"subject": "a b"}),
    ("subscribe", {"subject": "a\r\nPUB x 0\r\n"}),
    ("subscribe", {"subject": "a", "stream": "S.x"}),
    ("subscribe", {"subject": "a", "callback": "no function"}),
    ("subscribe", {"subject": "a", "max_pending": 0}),
    ("subscribe", {"subject": "a", "heartbeat_alarm": 0.5}),
    ("subscribe", {"subject": "a", "heartbeat_alarm": "3"}),
    ("subscribe", {"subject": "a", "config": {"durable_name": "d"}}),
    ("pull_subscribe", {"subject": "a", "config": {}}),
    ("subscribe", {"subject": 7}),
    ("subscribe", {"subject": "a", "config": ConsumerConfig(deliver_subject="x.*")}),
    ("subscribe", {"subject": "a", "config": ConsumerConfig(inactive_threshold=-1)}),
    ("pull_subscribe", {"subject": "a", "config": ConsumerConfig(deliver_subject="x")}),
]


@pytest.mark.core_cases(10)
@pytest.mark.covers("J3", "J2")
@pytest.mark.parametrize(("kind", "arguments"), REFUSED)
async def test_bad_arguments_refused(
    tap: Proxy, js: Any, leaving_nothing: None, kind: str, arguments: dict[str, Any]
) -> None:
    """§4.1-1, 2, 3, 10, 13, 15 and 16."""
    since = len(tap.frames)
    with pytest.raises(jsclient.ConfigError):
        await getattr(js, kind)(**arguments)
    await js.ping()  # whatever was sent before it has been seen now
    assert traffic(tap, since) == []


@pytest.mark.row(93)
@pytest.mark.covers("J3")
@pytest.mark.parametrize(
    "arguments",
    [
        {"durable": "d"},
        {"consumer": "c"},
        {"queue": "q"},
        {"config": ConsumerConfig(durable_name="d")},
        {"config": ConsumerConfig(deliver_group="g")},
        {"config": ConsumerConfig(ack_policy="explicit")},
        {"config": ConsumerConfig(max_deliver=5)},
        {"config": ConsumerConfig(deliver_subject="x")},
        {"config": ConsumerConfig(flow_control=False)},
    ],
    ids=str,
)
async def test_ordered_refuses_unordered(
    tap: Proxy, js: Any, leaving_nothing: None, arguments: dict[str, Any]
) -> None:
    """P35: nats-py takes a durable, a queue, acks and redeliveries, and leaves a durable on the server."""
    since = len(tap.frames)
    with pytest.raises(jsclient.ConfigError):
        await js.subscribe("a", ordered=True, **arguments)
    await js.ping()
    assert traffic(tap, since) == []


SERVER_ERRORS: list[Any] = [
    pytest.param("subscribe", {"max_waiting": 5}, 10080, marks=pytest.mark.covers("J11")),
    pytest.param("subscribe", {"opt_start_seq": 5}, 10094, marks=pytest.mark.covers("J12")),
    pytest.param("pull_subscribe", {"opt_start_seq": 5}, 10094, marks=pytest.mark.covers("J12")),
    pytest.param(
        "subscribe", {"opt_start_time": "2026-01-01T00:00:00Z"}, 10094, marks=pytest.mark.covers("J13")
    ),
    pytest.param(
        "pull_subscribe", {"opt_start_time": "2026-01-01T00:00:00Z"}, 10094, marks=pytest.mark.covers("J13")
    ),
    pytest.param("subscribe", {"flow_control": True}, 10108, marks=pytest.mark.covers("J99")),
]


@pytest.mark.covers("J3", "J60")
@pytest.mark.parametrize("durable", [None, "worker"])
@pytest.mark.parametrize(("kind", "config", "err_code"), SERVER_ERRORS)
async def test_error_of_server_reaches_user(
    tap: Proxy,
    js: Any,
    stream: OwnStream,
    leaving_nothing: None,
    kind: str,
    config: dict[str, Any],
    err_code: int,
    durable: str | None,
) -> None:
    with pytest.raises(jsclient.ApiError) as caught:
        await getattr(js, kind)(stream.all, durable=durable, config=ConsumerConfig(**config))
    assert caught.value.err_code == err_code
    assert len(creates(tap)) == 1
    if kind == "subscribe":
        await js.ping()
        (created,) = delivers(tap)
        assert created.sid in [frame.sid for frame in tap.unsubs()]


@pytest.mark.core_cases(2)
@pytest.mark.covers("J3", "J22")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
@pytest.mark.parametrize("pattern", ["STREAM.NAMES", "CONSUMER.INFO.>", "CONSUMER.CREATE.>"])
async def test_lost_answer_is_timeout(
    tap: Proxy, js: Any, stream: OwnStream, leaving_nothing: None, kind: str, pattern: str
) -> None:
    """§4.1-25. An ephemeral consumer that was created anyway is removed by the server."""
    durable = "worker" if pattern == "CONSUMER.INFO.>" else None
    dropped = tap.drop_frames(answers_to(tap, pattern))
    with pytest.raises(jsclient.RequestTimeoutError):
        await within(
            20,
            getattr(js, kind)(stream.all, durable=durable, config=ConsumerConfig(inactive_threshold=6.0)),
            "the subscribe call",
        )
    if pattern == "CONSUMER.CREATE.>":
        assert dropped.count == 1
    else:
        assert dropped.count >= 1, "a request that changes nothing is sent again"
    await js.ping()
    assert {frame.sid for frame in delivers(tap)} <= {frame.sid for frame in tap.unsubs()}
    if pattern == "CONSUMER.CREATE.>":
        assert len(await stream.consumer_names()) == 1, "the server did create it"


@pytest.mark.covers("J22", "J23", "J3")
async def test_unanswered_lookup_by_kind(tap: Proxy, js: Any, stream: OwnStream) -> None:
    await stream.create_consumer("push", deliver_subject="deliver.unanswered")
    await stream.create_consumer("pull")
    await stream.publish(2)
    dropped = tap.drop_frames(answers_to(tap, "CONSUMER.INFO.>"))
    with pytest.raises(jsclient.RequestTimeoutError):
        await js.subscribe(stream.all, consumer="push")
    sub = await js.pull_subscribe(stream.all, consumer="pull")
    assert dropped.count >= 2, "each asks, and may ask again"
    assert delivers(tap) == []
    assert [message.data for message in await sub.fetch(2)] == [b"1", b"2"]
    await sub.unsubscribe()
    assert sorted(await stream.consumer_names()) == ["pull", "push"]


@pytest.mark.covers("J3", "J60")
async def test_lost_connection_in_create(tap: Proxy, connect: Any, stream: OwnStream, oracle: Oracle) -> None:
    js = await connect(tap, timeout=15)
    dropped = tap.drop_frames(answers_to(tap, "CONSUMER.DURABLE.CREATE.>"))
    call = asyncio.create_task(js.subscribe(stream.all, durable="worker"))
    await dropped.wait()
    assert await stream.consumer_names() == ["worker"]
    tap.cut()
    with pytest.raises(jsclient.DisconnectedError):
        await within(30, call, "the subscribe call")
    await tap.wait_for(match.published("$JS.API.CONSUMER.DELETE.>"))

    async def is_removed() -> bool:
        return await stream.consumer_names() == []

    await eventually(is_removed, what="the consumer's removal")
    await js.ping()
    assert [sub for sub in tap.link.subs.values() if not (sub.subject or "").endswith(".*")] == []


@pytest.mark.covers("J3")
async def test_closed_connection_says_so(tap: Proxy, js: Any, stream: OwnStream) -> None:
    await js.close()
    since = len(tap.frames)
    for kind in ("subscribe", "pull_subscribe"):
        with pytest.raises(jsclient.ClosedError):
            await getattr(js, kind)(stream.all)
    assert traffic(tap, since) == []


@pytest.mark.covers("J3", "J60", "J53")
async def test_unanswered_durable_removed(
    tap: Proxy, js: Any, stream: OwnStream, leaving_nothing: None
) -> None:
    """Its deliver subject says that it is ours."""
    dropped = tap.drop_frames(answers_to(tap, "CONSUMER.DURABLE.CREATE.>"))
    with pytest.raises(jsclient.RequestTimeoutError):
        await within(20, js.subscribe(stream.all, durable="worker"), "the subscribe call")
    assert dropped.count == 1
    await tap.wait_for(match.published("$JS.API.CONSUMER.DELETE.>"))


@pytest.mark.covers("J3")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
@pytest.mark.parametrize(
    "pattern", ["STREAM.NAMES", "CONSUMER.INFO.>", "CONSUMER.CREATE.>", "CONSUMER.DURABLE.CREATE.>"]
)
async def test_subscribe_cancelled_leaves_nothing(
    tap: Proxy, js: Any, stream: OwnStream, leaving_nothing: None, kind: str, pattern: str
) -> None:
    durable = None if pattern == "CONSUMER.CREATE.>" else "worker"
    held = tap.hold_frames(answers_to(tap, pattern), count=1)
    call = asyncio.create_task(getattr(js, kind)(stream.all, durable=durable))
    await held.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    held.release()
    if "CREATE" in pattern:
        await eventually(lambda: api_requests(tap, "CONSUMER.DELETE.>"), what="the consumer's removal")
    assert (await stream.state())["messages"] == 0


@pytest.mark.covers("J3", "J40")
async def test_cancelled_bind_keeps_consumer(
    tap: Proxy, js: Any, stream: OwnStream, server: ServerUnderTest
) -> None:
    await stream.create_consumer("there", deliver_subject="deliver.cancelled")
    async with no_leaks(monitor=server.monitor):
        held = tap.hold_frames(lambda frame: frame.op == "PONG" and frame.direction == "to_client")
        call = asyncio.create_task(js.subscribe(stream.all, consumer="there"))
        await held.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        held.release()
    await js.ping()
    assert {frame.sid for frame in delivers(tap)} == {frame.sid for frame in tap.unsubs()}
    assert await stream.consumer_names() == ["there"]


@pytest.mark.covers("J3", "J22", "J15")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_subject_without_stream(js: Any, leaving_nothing: None, stream: OwnStream, kind: str) -> None:
    with pytest.raises(jsclient.NoMatchingStreamError):
        await getattr(js, kind)(f"{stream.prefix}x.none")
    with pytest.raises(jsclient.StreamNotFoundError):
        await getattr(js, kind)(stream.all, stream="no_such_stream")
    with pytest.raises(jsclient.StreamNotFoundError):
        await getattr(js, kind)(stream.all, stream="no_such_stream", durable="d")


async def test_a_raised_error_is_no_event(js: Any, stream: OwnStream, events: list[Any]) -> None:
    with pytest.raises(jsclient.ApiError):
        await js.subscribe(stream.all, config=jsclient.ConsumerConfig(opt_start_seq=5))
    await js.ping()
    assert alarms(events) == []


def _bare(name: str) -> ConsumerConfig:
    return ConsumerConfig(name=name, ack_policy="explicit")


@pytest.mark.parametrize(
    "create",
    [
        lambda js, stream: js.subscribe(stream.all),
        lambda js, stream: js.pull_subscribe(stream.all, durable="d", delete_on_close=True),
        lambda js, stream: js.ordered_consumer(stream.name),
    ],
    ids=["push", "pull", "ordered"],
)
async def test_limit_of_consumers_reported(
    oracle: Oracle, connect: Any, server: Any, make_stream: Any, create: Any
) -> None:
    """The server says only "maximum consumers limit reached", without the limit or a way out."""
    js = await connect(server)
    full = await make_stream(max_consumers=1, oracle=oracle)
    await full.create_consumer("there")
    with pytest.raises(jsclient.ConsumerLimitError) as caught:
        await create(js, full)
    error = caught.value
    assert (error.err_code, error.stream, error.limit) == (10026, full.name, 1)
    assert "its max_consumers is 1, and it has 1: raise it" in str(error)
    with pytest.raises(jsclient.ConsumerLimitError) as caught:
        await (await js.stream(full.name)).create_consumer(_bare("more"))
    assert "its max_consumers is 1" in str(caught.value)


async def test_limit_of_account_reported(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    """The limit may belong to the account. Then the error does not name the stream's limit."""
    limits = {"mem": 100_000_000, "store": 100_000_000, "max_consumers": 1}
    users = [{"user": "judge", "password": "judge"}]
    account = {"jetstream": limits, "users": users}
    own = await own_server(config={"accounts": {"A": account}})
    stream = await make_stream(oracle=await oracle_for(own, user="judge", password="judge"))
    js = await connect(own, user="judge", password="judge")
    await stream.create_consumer("there")
    with pytest.raises(jsclient.ConsumerLimitError) as caught:
        await js.pull_subscribe(stream.all)
    assert caught.value.limit == 0
    assert "it has 1, and the limit is that of the account or the server" in str(caught.value)
