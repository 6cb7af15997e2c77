"""Whether an existing consumer matches the arguments, with consumers on the server. Source: ADR-15."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Json, Oracle
from integration.kit.judge.reading import numbers, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.asking import api_requests, delivers
from integration.kit.network.proxy import Proxy
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient import ConsumerConfig

DELIVER = "deliver.of.the.consumer"


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    js = await connect(tap)
    await js.account_info()
    return js


@pytest.fixture
def make(stream: OwnStream, oracle: Oracle) -> Any:
    """Create the consumer "found", bound or not: someone listens to its deliver subject, or no one does."""

    async def create(*, bound: bool = False, **config: Any) -> None:
        await stream.create_consumer("found", **config)
        if bound:
            await oracle.nc.subscribe(config["deliver_subject"], queue=config.get("deliver_group", ""))
            await oracle.wait_consumer(stream.name, "found", lambda info: info.get("push_bound"))

    return create


@pytest.fixture
def refused(js: Any, tap: Proxy, stream: OwnStream, oracle: Oracle, server: ServerUnderTest) -> Any:
    """Expect an error of `subscribe`. No subscription remains, and the consumer is unchanged."""

    async def expect(error: type[Exception], text: str, kind: str = "subscribe", **arguments: Any) -> Any:
        before = await _settled(stream)
        since = len(tap.frames)
        async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
            with pytest.raises(error, match=text) as caught:
                await getattr(js, kind)(**{"stream": stream.name, **arguments})
        assert api_requests(tap, since=since) == [f"CONSUMER.INFO.{stream.name}.found"]
        assert delivers(tap, since) == []
        assert await _settled(stream) == before
        return caught.value

    return expect


async def _settled(stream: OwnStream) -> Json:
    info = await stream.consumer_info("found")
    return {name: info.get(name) for name in ("config", "created", "delivered", "push_bound")}


BY_NAME = pytest.mark.parametrize("by", ["consumer", "durable"])
BOUND = pytest.mark.parametrize("bound", [True, False], ids=["bound", "not bound"])


@BY_NAME
@pytest.mark.covers("J27", "J21")
async def test_active_consumer_duplicate(make: Any, refused: Any, by: str) -> None:
    """§4.1-8 and 17."""
    await make(deliver_subject=DELIVER, bound=True)
    error = await refused(jsclient.DuplicateSubscriptionError, "duplicate subscription", **{by: "found"})
    assert error.consumer == "found"


@BY_NAME
@BOUND
@pytest.mark.covers("J28")
async def test_plain_refuses_queue_consumer(make: Any, refused: Any, by: str, bound: bool) -> None:
    await make(deliver_subject=DELIVER, deliver_group="workers", bound=bound)
    await refused(
        jsclient.QueueRequiredError,
        "non queue subscription for a consumer created for a queue group",
        **{by: "found"},
    )


@BY_NAME
@BOUND
@pytest.mark.covers("J29")
async def test_queue_refuses_other_queue(make: Any, refused: Any, by: str, bound: bool) -> None:
    """§4.1-9."""
    await make(deliver_subject=DELIVER, deliver_group="others", bound=bound)
    await refused(jsclient.QueueMismatchError, "different queue group", queue="workers", **{by: "found"})


@BY_NAME
@BOUND
@pytest.mark.covers("J30")
async def test_queue_refuses_plain(make: Any, refused: Any, by: str, bound: bool) -> None:
    await make(deliver_subject=DELIVER, bound=bound)
    await refused(
        jsclient.NotQueueConsumerError, "created without a deliver group", queue="workers", **{by: "found"}
    )


@BY_NAME
@BOUND
@pytest.mark.covers("J31", "J40", "J21")
async def test_queue_subscription_joins_group(
    make: Any, js: Any, tap: Proxy, stream: OwnStream, by: str, bound: bool
) -> None:
    """§4.1-19."""
    await make(deliver_subject=DELIVER, deliver_group="workers", bound=bound)
    sub = await js.subscribe(stream=stream.name, queue="workers", **{by: "found"})
    assert [(frame.subject, frame.queue) for frame in delivers(tap)] == [(DELIVER, "workers")]
    assert api_requests(tap, "CONSUMER.>") == [f"CONSUMER.INFO.{stream.name}.found"]
    await stream.publish(60)
    if not bound:
        await eventually(lambda: sub.pending == 60, what="all of them: nobody else is in the group")
        return
    await stream.oracle.wait_consumer(stream.name, "found", lambda info: not info["num_pending"])
    await eventually(lambda: sub.pending > 5, what="a share of the messages")
    assert sub.pending < 60, "a member of the group has the others"


@BY_NAME
@pytest.mark.covers("J32", "J40", "J21")
async def test_plain_takes_idle_consumer(make: Any, js: Any, tap: Proxy, stream: OwnStream, by: str) -> None:
    await make(deliver_subject=DELIVER)
    await stream.publish(5)
    sub = await js.subscribe(stream=stream.name, **{by: "found"})
    assert [(frame.subject, frame.queue) for frame in delivers(tap)] == [(DELIVER, None)]
    assert numbers(await take(sub, 5)) == [1, 2, 3, 4, 5]
    assert not sub.created


@BY_NAME
@pytest.mark.covers("J33")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_other_subject_is_mismatch(
    make: Any, refused: Any, js: Any, stream: OwnStream, kind: str, by: str
) -> None:
    """P14: nats-py gives such a subscription the messages of the other subject. §4.1-9 and 11."""
    config = {"deliver_subject": DELIVER} if kind == "subscribe" else {}
    await make(filter_subject=stream.subject("us"), **config)
    for other in (stream.subject("eu"), stream.all):
        error = await refused(
            jsclient.SubjectMismatchError, "subject mismatch", kind, subject=other, **{by: "found"}
        )
        assert other in str(error)
        assert stream.subject("us") in str(error)
    await getattr(js, kind)(stream.subject("us"), **{by: "found"})


@pytest.mark.covers("J33")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_no_filter_takes_any_subject(make: Any, js: Any, stream: OwnStream, kind: str) -> None:
    await make(**({"deliver_subject": DELIVER} if kind == "subscribe" else {}))
    sub = await getattr(js, kind)(stream.subject("any"), consumer="found")
    assert sub.consumer == "found"


@pytest.mark.covers("J33")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_filters_must_be_equal(make: Any, refused: Any, js: Any, stream: OwnStream, kind: str) -> None:
    filters = [stream.subject("a"), stream.subject("b")]
    config = {"deliver_subject": DELIVER} if kind == "subscribe" else {}
    await make(filter_subjects=filters, **config)
    await refused(
        jsclient.SubjectMismatchError, "subject mismatch", kind, subject=filters[0], consumer="found"
    )
    same = ConsumerConfig(filter_subjects=filters[::-1])
    sub = await getattr(js, kind)(stream=stream.name, consumer="found", config=same)
    await sub.unsubscribe()


@BY_NAME
@pytest.mark.covers("J34")
async def test_pull_refuses_push_consumer(make: Any, refused: Any, by: str) -> None:
    """§4.1-18."""
    await make(deliver_subject=DELIVER)
    await refused(
        jsclient.PushConsumerError,
        "cannot create a pull subscription for a push consumer",
        "pull_subscribe",
        **{by: "found"},
    )


@BY_NAME
@pytest.mark.covers("J35")
@pytest.mark.parametrize("queue", [None, "workers"])
async def test_push_refuses_pull_consumer(make: Any, refused: Any, by: str, queue: str | None) -> None:
    """§4.1-18."""
    await make()
    await refused(jsclient.PullConsumerError, "a pull subscription is required", queue=queue, **{by: "found"})


@BY_NAME
@BOUND
@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        pytest.param(
            {"flow_control": True, "idle_heartbeat": 5_000_000_000},
            jsclient.QueueFlowControlError,
            "flow control is not supported over queues",
            marks=pytest.mark.covers("J38"),
        ),
        pytest.param(
            {"idle_heartbeat": 5_000_000_000},
            jsclient.QueueHeartbeatError,
            "heartbeats are not supported over queues",
            marks=pytest.mark.covers("J39"),
        ),
    ],
)
async def test_queue_refuses_flow_control(
    make: Any, refused: Any, by: str, bound: bool, config: Any, error: type[Exception], text: str
) -> None:
    """The server takes such a consumer, so the check is the client's."""
    await make(deliver_subject=DELIVER, deliver_group="workers", bound=bound, **config)
    await refused(error, text, queue="workers", **{by: "found"})


@pytest.mark.covers("J22", "J21")
async def test_missing_push_not_created(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """§4.1-15."""
    with pytest.raises(jsclient.ConsumerNotFoundError):
        await js.subscribe(stream.all, consumer="missing")
    assert api_requests(tap, "CONSUMER.>") == [f"CONSUMER.INFO.{stream.name}.missing"]
    assert delivers(tap) == []
    assert await stream.consumer_names() == []


@pytest.mark.covers("J23", "J21", "J112")
async def test_missing_pull_may_come(js: Any, tap: Proxy, stream: OwnStream) -> None:
    sub = await js.pull_subscribe(stream.all, consumer="later")
    assert api_requests(tap, "CONSUMER.>") == [f"CONSUMER.INFO.{stream.name}.later"]
    with contextlib.suppress(jsclient.ConsumerNotFoundError):  # servers before 2.11 say nothing
        assert list(await sub.fetch(1, expires=0.5)) == []
    await stream.create_consumer("later")
    await stream.publish(3)
    assert numbers(await sub.fetch(3)) == [1, 2, 3]
    await sub.unsubscribe()
    assert await stream.consumer_names() == ["later"]
