"""The subscribe workflow on a connection: the wire, and what is left when it fails or is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.consumers.opening import open_pull_subscription, open_subscription
from jsclient.errors import (
    ApiError,
    ClosedError,
    ConfigError,
    ConfigMismatchError,
    DuplicateSubscriptionError,
    JetStreamError,
    NoMatchingStreamError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
)
from jsclient.protocol.consumers.subscribe_request import SubscribeRequest
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.strategies import data
from tests.support.virtual import settle, virtual

CREATE = "$JS.API.CONSUMER.CREATE."
DURABLE = "$JS.API.CONSUMER.DURABLE.CREATE."


def wire(connection) -> list[tuple[str, str]]:
    """The requests that were sent, without the inbox of the API answers."""
    return [entry for entry in connection.log if not entry[1].endswith(".*")]


@virtual
@pytest.mark.covers("J15", "J41", "J45", "J51")
async def test_ephemeral_push_subscription_on_wire():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        assert wire(connection) == [
            ("pub", "$JS.API.STREAM.NAMES"),
            ("sub", sub.subject),
            ("pub", "$JS.API.CONSUMER.CREATE.ORDERS"),
        ]
        names, create = connection.to("$JS.API.")
        assert names.payload == b'{"subject":"orders.new"}'
        assert create.json == {
            "stream_name": "ORDERS",
            "config": {
                "ack_policy": "explicit",
                "deliver_policy": "all",
                "replay_policy": "instant",
                "deliver_subject": sub.subject,
                "filter_subject": "orders.new",
                "idle_heartbeat": 5_000_000_000,
            },
        }


@virtual
@pytest.mark.covers("J50", "J52")
async def test_durable_created_under_own_subject():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", durable="d")
        (create,) = connection.to(DURABLE)
        assert create.subject == f"{DURABLE}ORDERS.d"
        assert create.json["config"]["durable_name"] == "d"
        assert sub.created


@virtual
@pytest.mark.covers("J3", "J4", "J5", "J6", "J7", "J8", "J14", "J26")
async def test_cannot_work_puts_nothing_on_wire():
    async with connected() as (js, connection):
        for call in (
            js.subscribe(),
            js.pull_subscribe(),
            js.subscribe("a", queue="q", config=ConsumerConfig(idle_heartbeat=1.0)),
            js.subscribe("a", queue="q", config=ConsumerConfig(flow_control=True)),
            js.subscribe("a", queue="a.b"),
            js.subscribe("a", durable="d", config=ConsumerConfig(deliver_group="a b")),
            js.subscribe("a", durable="d", config=ConsumerConfig(deliver_group=" ")),
            js.subscribe(stream="S", config=ConsumerConfig(filter_subject="a", filter_subjects=["b"])),
            js.subscribe(stream="S", config=ConsumerConfig(filter_subjects=["a b"])),
            js.subscribe("a", config=ConsumerConfig(max_batch=5)),
            js.subscribe("a", config=ConsumerConfig(max_expires=5.0)),
            js.subscribe("a", config=ConsumerConfig(max_bytes=5)),
            js.subscribe("a", queue="a*"),
            js.pull_subscribe("a", config=ConsumerConfig(ack_policy="none")),
            js.pull_subscribe("a", config=ConsumerConfig(ack_policy="all")),
            js.subscribe("a", callback="no function"),
            js.subscribe("a", heartbeat_alarm=0.5),
            js.subscribe("a", max_pending=0),
        ):
            with pytest.raises(ConfigError):
                await call
        assert connection.log == []


@virtual
@pytest.mark.covers("J17", "J18", "J19")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"streams": []}, NoMatchingStreamError),
        ({"streams": None}, NoMatchingStreamError),
        ({}, NoMatchingStreamError),
        ({"streams": ["A", "B"]}, NoMatchingStreamError),
        ({"streams": [1]}, NoMatchingStreamError),
        (Refusal(10008, 503), ApiError),
        (b"nonsense", ProtocolError),
        (SILENCE, RequestTimeoutError),
    ],
)
async def test_without_stream_nothing_remains(answer, error):
    async with connected() as (js, connection):
        connection.api.on("STREAM.NAMES", *[answer] * 9)  # an unanswered question is asked again
        with pytest.raises(error):
            await js.subscribe("orders.new")
        assert connection.listening == []
        assert not connection.to("$JS.API.CONSUMER.")


@virtual
@pytest.mark.covers("J60", "J11", "J12", "J13", "J99")
@pytest.mark.parametrize("code", [10080, 10094, 10108])
async def test_create_error_unsubscribes(code):
    async with connected() as (js, connection):
        connection.api.on("CONSUMER.CREATE", Refusal(code))
        with pytest.raises(ApiError) as caught:
            await js.subscribe("orders.new")
        assert caught.value.err_code == code
        assert connection.listening == []
        assert connection.deleted() == []


@virtual
@pytest.mark.covers("J54", "J57", "J58", "J59")
async def test_race_loser_joins_queue():
    async with connected() as (js, connection):
        there = {"deliver_group": "q", "deliver_subject": "_INBOX.there", "durable_name": "q"}

        def lost(request):
            connection.api.has("q", **there)
            return Refusal(10148)

        connection.api.on("CONSUMER.DURABLE.CREATE", lost)
        sub = await js.subscribe("orders.new", queue="q")
        assert connection.listening == ["_INBOX.there"]
        assert connection.inboxes[-1].queue == "q"
        assert ("unsub", connection.to(DURABLE)[0].json["config"]["deliver_subject"]) in connection.log
        await sub.unsubscribe()
        assert connection.deleted() == []


@virtual
@pytest.mark.covers("J54", "J56")
async def test_race_loser_leaves_nothing():
    async with connected() as (js, connection):

        def lost(request):
            connection.api.has("d", deliver_subject="_INBOX.there")
            return Refusal(10013)

        connection.api.on("CONSUMER.DURABLE.CREATE", lost)
        with pytest.raises(DuplicateSubscriptionError):
            await js.subscribe("orders.new", durable="d")
        assert connection.listening == []
        assert connection.deleted() == []


@virtual
@pytest.mark.covers("J36", "J3")
async def test_misfit_consumer_untouched():
    async with connected() as (js, connection):
        connection.api.has("d", deliver_subject="_INBOX.there", ack_wait=30_000_000_000)
        with pytest.raises(ConfigMismatchError):
            await js.subscribe("orders.new", durable="d", config=ConsumerConfig(ack_wait=5.0))
        assert connection.listening == []
        assert not connection.to(CREATE)
        assert not connection.to(DURABLE)


@virtual
@pytest.mark.covers("J40")
async def test_early_deliveries_are_not_lost():
    async with connected() as (js, connection):

        def early(request):
            subject = request.json["config"]["deliver_subject"]
            connection.deliver(subject, [data(1), data(2)])
            return connection.api._consumer_create(request)

        connection.api.on("CONSUMER.CREATE", early)
        sub = await js.subscribe("orders.new")
        assert [(await sub.next(timeout=1)).metadata.stream_seq for _ in range(2)] == [1, 2]


@virtual
@pytest.mark.parametrize("turns", range(0, 40, 3))
@pytest.mark.parametrize("how", [{}, {"durable": "d"}, {"queue": "q"}, {"ordered": True}])
async def test_cancelled_subscribe_cleans_up(turns, how):
    async with connected() as (js, connection):
        task = asyncio.ensure_future(js.subscribe("orders.new", **how))
        await settle(turns)
        task.cancel()
        try:
            sub = await task
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            assert connection.listening == []
            assert connection.api.consumers == {}
        else:
            await sub.unsubscribe()


@virtual
async def test_denied_deliver_subject_cleans_up():
    async with connected() as (js, connection):

        def deny(request):
            subject = request.json["config"]["deliver_subject"]
            connection.inboxes[-1].denied = PermissionDeniedError("subscribe", subject)
            return connection.api._consumer_create(request)

        connection.api.on("CONSUMER.CREATE", deny)
        with pytest.raises(PermissionDeniedError):
            await js.subscribe("orders.new")
        await settle()
        assert connection.listening == []
        assert connection.api.consumers == {}


@virtual
async def test_lost_connection_cleans_up():
    for cut in range(1, 30, 2):
        async with connected() as (js, connection):
            task = asyncio.ensure_future(js.subscribe("orders.new", durable="d"))
            await settle(cut)
            if task.done():
                await task
                break
            connection.disconnect()
            await settle()
            connection.reconnect()
            try:
                await task
            except JetStreamError:
                await asyncio.sleep(10)
                assert connection.listening == []


@virtual
async def test_closed_connection_is_noticed_before_anything_is_sent():
    async with connected() as (js, connection):
        await js.close()
        request = SubscribeRequest(subject="orders.new")
        with pytest.raises(ClosedError):
            await open_subscription(js._context, request, callback=None, auto_ack=None, delete_on_close=None)
        with pytest.raises(ClosedError):
            await open_pull_subscription(js._context, request, delete_on_close=None)
        assert connection.sent == []
