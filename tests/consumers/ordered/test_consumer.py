"""An ordered pull consumer on a fake connection: every message once, in order, through any number of consumers."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from jsclient import OrderedConsumer
from jsclient.errors import (
    ApiError,
    ClosedError,
    ConcurrentReadError,
    ConfigError,
    ConsumerExistsError,
    DisconnectedError,
    InvalidNameError,
    PermissionDeniedError,
    PullLimitError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jsclient.protocol.consumers.status import Ending
from jsclient.protocol.events import ConsumerReset, DeleteFailed, ErrorRaised, HeartbeatMissed, StreamReset
from tests.support.fake import SILENCE, STREAM, PullServer, Refusal, connected
from tests.support.strategies import data, heartbeat, status
from tests.support.virtual import settle, virtual


def creates(connection) -> list[dict]:
    return [sent.json["config"] for sent in connection.to("$JS.API.CONSUMER.CREATE.")]


def batches(connection) -> list[int]:
    return [pull.json["batch"] for pull in connection.pulls()]


def arrives(connection, *frames) -> None:
    """For the newest request."""
    inbox = connection.pulls()[-1].reply
    connection.deliver(inbox, [frame if frame[1] else (inbox.encode(), *frame[1:]) for frame in frames])


def read_inboxes(connection) -> list[str]:
    """Where answers to pulls are listened for."""
    asked = {
        sent.reply.rpartition(".")[0] for sent in connection.to("$JS.API.") if sent not in connection.pulls()
    }
    return [inbox.subject for inbox in connection.inboxes if inbox.subject.rpartition(".")[0] not in asked]


async def taken(reader, count: int) -> list[int]:
    return [(await reader.next(timeout=60)).metadata.stream_seq for _ in range(count)]


def sequences(messages) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


async def asked(reader) -> asyncio.Task:
    """Somebody waits for a message, so that there is a request."""
    waiting = asyncio.ensure_future(reader.next())
    await settle()
    return waiting


# --- opening -------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J93")
async def test_consumer_follows_adr_17():
    """Row 104."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        assert isinstance(oc, OrderedConsumer)
        (config,) = creates(connection)
        prefix, _, number = config.pop("name").rpartition("_")
        assert len(prefix) == 22
        assert (oc.consumer, number) == (f"{prefix}_1", "1")
        assert config == {
            "ack_policy": "none",
            "deliver_policy": "all",
            "inactive_threshold": 300_000_000_000,
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "replay_policy": "instant",
        }
        assert connection.pulls() == [], "nothing is asked for before somebody reads"


@virtual
async def test_reset_keeps_filters():
    """Row 104, and what is carried over."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(
            STREAM,
            filter_subjects=["a", "b.>"],
            headers_only=True,
            inactive_threshold=60.0,
            replay_policy="original",
            name_prefix="audit",
            description="mine",
            metadata={"who": "me"},
        )
        await asked(oc)
        arrives(connection, data(7, 1), data(9, 3))
        await settle(60)
        first, second = creates(connection)
        assert (first.pop("name"), second.pop("name")) == ("audit_1", "audit_2")
        assert first["filter_subjects"] == ["a", "b.>"]
        assert first["metadata"].pop("jsclient.reader")
        assert first["metadata"] == {"who": "me"}
        second["metadata"].pop("jsclient.reader")
        assert second.pop("opt_start_seq") == 8
        assert second == first | {"deliver_policy": "by_start_sequence"}


@virtual
async def test_one_filter_in_subject():
    async with connected() as (js, connection):
        async with js.ordered_consumer(STREAM, filter_subject="orders.*", name_prefix="p") as oc:
            assert oc.consumer == "p_1"
        (sent,) = connection.to("$JS.API.CONSUMER.CREATE.")
        assert sent.subject == f"$JS.API.CONSUMER.CREATE.{STREAM}.p_1.orders.*"


@virtual
async def test_context_exit_deletes_consumer():
    async with connected() as (js, connection):
        async with js.ordered_consumer(STREAM) as oc:
            name = oc.consumer
            waiting = await asked(oc)
            assert len(read_inboxes(connection)) == 1
        assert connection.deleted() == [name]
        assert read_inboxes(connection) == []
        assert oc.is_closed
        with pytest.raises(ClosedError):
            await waiting
        await oc.stop()
        await oc.drain()
        assert connection.deleted() == [name]
        with pytest.raises(ClosedError):
            await oc.fetch(1)
        assert [message async for message in oc] == []


@virtual
async def test_missing_stream_fails_at_once():
    """Row 110."""
    async with connected() as (js, connection):
        for refusal, error in ((Refusal(10059, 404), StreamNotFoundError), (Refusal(10008, 503), ApiError)):
            connection.api.on("CONSUMER.CREATE", refusal, refusal)
            with pytest.raises(error):
                await js.ordered_consumer("NO")
            with pytest.raises(error):
                async with js.ordered_consumer("NO"):
                    pass
        assert read_inboxes(connection) == []
        assert len(connection.inboxes) == 1


def unanswered(connection):
    """The next consumer is made, but the answer is lost."""
    connection.api.on("CONSUMER.CREATE", lambda request: connection.api._consumer_create(request) and SILENCE)


@virtual
@pytest.mark.parametrize("prefix", ["p", None])
@pytest.mark.parametrize("way", ["cancelled", "no answer"])
async def test_consumer_nobody_waits_for_deleted(way, prefix):
    async with connected() as (js, connection):
        opening = asyncio.ensure_future(js.ordered_consumer(STREAM, name_prefix=prefix).__aenter__())
        if way == "no answer":
            unanswered(connection)
            with pytest.raises(RequestTimeoutError):
                await opening
        else:
            while not creates(connection):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait({opening})
            assert opening.cancelled()
        await settle(60)
        assert connection.deleted() == [creates(connection)[0]["name"]]
        assert read_inboxes(connection) == []
        assert connection.api.consumers == {}


@virtual
async def test_foreign_consumer_not_deleted():
    async with connected() as (js, connection):
        connection.api.has("p_1", durable_name=None)
        connection.api.on("CONSUMER.CREATE", SILENCE)
        with pytest.raises(RequestTimeoutError):
            await js.ordered_consumer(STREAM, name_prefix="p")
        await settle(60)
        assert connection.deleted() == []


@virtual
async def test_reset_deletes_orphan():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        unanswered(connection)
        connection.api.on("CONSUMER.DELETE", SILENCE)
        arrives(connection, data(2, 2))
        await settle(60)
        connection.disconnect()
        await settle(60)
        connection.reconnect()
        await settle(200)
        assert set(connection.deleted()) == {config["name"] for config in creates(connection)[:2]}
        assert list(connection.api.consumers) == [oc.consumer] == [creates(connection)[2]["name"]]
        arrives(connection, data(1, 1))
        assert sequences([await waiting]) == [1]


@virtual
async def test_name_somebody_else_passed_over():
    async with connected() as (js, connection):
        connection.api.on("CONSUMER.CREATE", *[Refusal(10148, 400)] * 3)
        oc = await js.ordered_consumer(STREAM, name_prefix="p")
        assert oc.consumer == "p_4"
        connection.api.on("CONSUMER.CREATE", *[Refusal(10148, 400)] * 200)
        with pytest.raises(ConsumerExistsError):
            await js.ordered_consumer(STREAM, name_prefix="p")
        await settle(60)
        assert connection.deleted() == [], "they are somebody else's"


@virtual
@pytest.mark.parametrize(
    "options",
    [
        {"durable_name": "d"},
        {"ack_policy": "explicit"},
        {"max_deliver": 3},
        {"deliver_subject": "s"},
        {"filter_subjects": "orders.>"},
        {"name": "n"},
        {"name_prefix": "a.b"},
        {"name_prefix": "p" * 240},
        {"max_reset_attempts": 0},
        {"max_reset_attempts": True},
        {"opt_start_seq": 0},
        {"no_such_field": 1},
    ],
)
async def test_bad_arguments_refused(options):
    """Row 93."""
    async with connected() as (js, connection):
        with pytest.raises((ConfigError, TypeError)):
            js.ordered_consumer(STREAM, **options)
        with pytest.raises(InvalidNameError):
            js.ordered_consumer("no stream")
        assert connection.log == []


# --- reading -------------------------------------------------------------------------------------------------


@virtual
async def test_mixed_reads_skip_nothing():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        arrives(connection, *[data(number) for number in range(1, 31)])
        assert sequences([await waiting]) == [1]
        assert await taken(oc, 2) == [2, 3]
        assert sequences(await oc.fetch(3)) == [4, 5, 6]
        async for message in oc:
            if message.metadata.stream_seq == 10:
                break
        assert sequences(await oc.fetch(2)) == [11, 12]
        async with oc.messages(max_messages=50) as reader:
            assert await taken(reader, 3) == [13, 14, 15]
            assert (reader.pending, oc.pending, oc.position) == (15, 15, 15)
        fetching = asyncio.ensure_future(oc.fetch(100, no_wait=True))
        await settle()
        arrives(connection, status(404, "No Messages"))
        assert sequences(await fetching) == list(range(16, 31))
        assert batches(connection) == [500, 85]


@virtual
async def test_refills_at_half():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        reader = oc.messages(max_messages=4)
        waiting = await asked(reader)
        arrives(connection, *[data(number) for number in range(1, 5)])
        assert sequences([await waiting]) == [1]
        assert batches(connection) == [4]
        assert sequences([await anext(reader)]) == [2]
        assert batches(connection) == [4, 2]
        assert connection.pulls()[-1].json["idle_heartbeat"] == 2_000_000_000


@virtual
async def test_one_way_to_read_at_a_time():
    """Row 100."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(2))
        await settle()
        for use in (oc.fetch(1), oc.next(), anext(aiter(oc)), anext(oc.messages())):
            with pytest.raises(ConcurrentReadError):
                await use
        arrives(connection, data(1), data(2), data(3), data(4))
        assert sequences(await fetching) == [1, 2]
        loop = aiter(oc)
        assert sequences([await anext(loop)]) == [3]
        for use in (oc.fetch(1), anext(aiter(oc)), anext(oc.messages())):
            with pytest.raises(ConcurrentReadError):
                await use
        assert sequences([await oc.next()]) == [4], "one of the same iteration"
        del loop
        gc.collect()
        waiting = await asked(oc)
        with pytest.raises(ConcurrentReadError):
            await oc.fetch(1)
        arrives(connection, data(5), data(6))
        assert sequences([await waiting]) == [5]
        assert sequences(await oc.fetch(1)) == [6]


@virtual
async def test_stop_and_drain_leave_rest():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        reader = oc.messages(max_messages=10)
        waiting = await asked(reader)
        arrives(connection, *[data(number) for number in range(1, 6)])
        await waiting
        await reader.stop()
        with pytest.raises(ClosedError):
            await reader.next()
        assert reader.is_closed
        other = oc.messages(max_messages=10)
        assert await taken(other, 2) == [2, 3]
        await other.drain()
        assert [message.metadata.stream_seq async for message in other] == [4, 5]
        asked_for = sum(batches(connection))
        arrives(connection, data(6))
        assert await taken(oc, 1) == [6]
        assert sum(batches(connection)) > asked_for
        assert not oc.is_closed
        unread = oc.messages()
        await unread.drain()
        assert [message async for message in unread] == []


@virtual
async def test_forgotten_loop_asks_for_no_more():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)

        async def first():
            async for _ in oc:
                break

        waiting = asyncio.ensure_future(first())
        await settle()
        arrives(connection, data(1))
        await waiting
        gc.collect()
        arrives(connection, status(408, "Request Timeout", Nats_Pending_Messages=499, Nats_Pending_Bytes=0))
        await asyncio.sleep(100)
        assert batches(connection) == [500]
        assert creates(connection)[1:] == []


# --- whatever happens ----------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J92", "J93")
async def test_gap_recreates_consumer():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        first, old = oc.consumer, connection.pulls()[-1].reply
        arrives(connection, data(3, 1), data(4, 2), data(9, 5))
        await settle(60)
        again = creates(connection)[1]
        assert (again["deliver_policy"], again["opt_start_seq"]) == ("by_start_sequence", 5)
        assert connection.deleted() == [first]
        assert oc.consumer != first
        assert connection.pulls()[-1].subject.endswith(oc.consumer)
        assert len(read_inboxes(connection)) == 1
        connection.deliver(old, [data(99, 3)])
        arrives(connection, data(5, 1), data(6, 2))
        assert [*sequences([await waiting]), *await taken(oc, 3)] == [3, 4, 5, 6]
        (reset,) = connection.told(ConsumerReset)
        assert (reset.resume_stream_seq, reset.consumer) == (5, oc.consumer)


@virtual
async def test_missed_heartbeats_make_new_consumer():
    """Row 99."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        arrives(connection, data(1))
        connection.api.last_seq = 1
        await waiting
        await asyncio.sleep(3.5)
        assert len(creates(connection)) == 1
        await asyncio.sleep(1)
        assert [config.get("opt_start_seq") for config in creates(connection)] == [None, 2]
        assert len(connection.told(HeartbeatMissed)) == 1
        arrives(connection, data(2, 1), heartbeat(1, 2))
        assert await taken(oc, 1) == [2]


@virtual
async def test_idle_reconnect_recreates():
    """Rows 95, 105."""
    async with connected() as (js, connection):
        connection.api.delivered = connection.api.last_seq = 100
        oc = await js.ordered_consumer(STREAM, deliver_policy="new")
        connection.disconnect()
        await asyncio.sleep(3)
        connection.reconnect()
        await settle(60)
        config = creates(connection)[-1]
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 101)
        waiting = await asked(oc)
        arrives(connection, data(101, 1))
        assert sequences([await waiting]) == [101]


@virtual
async def test_pause_keeps_buffer():
    """Row 106."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        reader = oc.messages(max_messages=4)
        waiting = await asked(reader)
        arrives(connection, *[data(number) for number in range(1, 5)])
        connection.api.last_seq = 4
        await waiting
        await asyncio.sleep(3600)
        assert connection.events == []
        assert await taken(reader, 1) == [2], "which asks for more"
        await settle(60)
        assert creates(connection)[-1]["opt_start_seq"] == 5
        arrives(connection, data(5, 1))
        assert await taken(reader, 3) == [3, 4, 5]
        assert connection.told(HeartbeatMissed) == []


@virtual
async def test_failed_create_retried():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        connection.api.on("CONSUMER.CREATE", *[Refusal(10008, 503)] * 5)
        arrives(connection, data(1, 2))
        await asyncio.sleep(4.5)
        assert len(creates(connection)) == 7
        assert len(connection.told(ErrorRaised)) == 1
        arrives(connection, data(1, 1))
        assert sequences([await waiting]) == [1]


@virtual
async def test_repeated_loss_backs_off():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        for _ in range(200):
            arrives(connection, status(503))
            await asyncio.sleep(0.01)
        assert 3 < len(creates(connection)) < 12
        await asyncio.sleep(10)
        arrives(connection, data(1, 1))
        assert sequences([await waiting]) == [1]


@virtual
@pytest.mark.parametrize("read", ["next", "fetch", "async for"])
async def test_after_so_many_attempts_given_up(read):
    """Row 110."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM, max_reset_attempts=3)
        waiting = await asked(oc)
        connection.api.on("CONSUMER.CREATE", *[Refusal(10008, 503)] * 5)
        arrives(connection, data(1, 1), data(2, 2), data(5, 5))
        await asyncio.sleep(8)
        assert len(creates(connection)) == 4
        assert sequences([await waiting]) == [1]
        assert oc.is_closed
        uses = {"next": oc.next, "fetch": lambda: oc.fetch(1), "async for": lambda: anext(aiter(oc))}
        await uses[read]()
        for _ in range(2):
            with pytest.raises(ApiError):
                await uses[read]()
        assert read_inboxes(connection) == []
        await oc.stop()


@virtual
async def test_stream_gone_ends_behind_waits():
    """Row 96."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        connection.api.on("CONSUMER.CREATE", *[Refusal(10059, 404, "stream not found")] * 50)
        arrives(connection, data(1, 1), status(409, "Consumer Deleted"))
        fetched = await waiting
        with pytest.raises(RequestTimeoutError):
            await oc.next(timeout=4)
        with pytest.raises(StreamNotFoundError):
            await oc.next(timeout=60)
        assert sequences([fetched]) == [1]
        assert [event async for event in oc.events()]


@virtual
async def test_stream_made_again_read_from_start():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        await settle(60)
        waiting = await asked(oc)
        arrives(connection, data(1, 1), data(2, 2))
        await waiting
        connection.api.stream_created = "2026-06-01T00:00:00Z"
        connection.api.last_seq = 50
        arrives(connection, status(409, "Consumer Deleted"))
        await settle(120)
        (event,) = connection.told(StreamReset)
        assert event.last_stream_seq == 2
        assert creates(connection)[-1]["opt_start_seq"] == 1
        arrives(connection, data(1, 1))
        assert await taken(oc, 2) == [2, 1]
        assert len(connection.deleted()) == 2


@virtual
async def test_refused_pull_ends_reader():
    """Row 103."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM, max_batch=10)
        reader = oc.messages()
        waiting = await asked(reader)
        arrives(connection, status(409, "Exceeded MaxRequestBatch of 10"))
        with pytest.raises(PullLimitError):
            await waiting
        assert reader.is_closed
        waiting = await asked(oc.messages(max_messages=10))
        arrives(connection, data(1))
        assert sequences([await waiting]) == [1]
        assert len(creates(connection)) == 1


@virtual
async def test_who_may_not_pull_is_told_so():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        connection.deny("publish", connection.pulls()[-1].subject)
        with pytest.raises(PermissionDeniedError):
            await waiting
        with pytest.raises(PermissionDeniedError):
            await oc.fetch(1)
        await settle(60)
        assert connection.deleted() == [oc.consumer]
        assert read_inboxes(connection) == []


# --- fetch ---------------------------------------------------------------------------------------------------


@virtual
async def test_fetch_ends_when_server_says_so():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        for end, ending in (
            (status(408, "Request Timeout", Nats_Pending_Messages=3, Nats_Pending_Bytes=0), Ending.EXPIRED),
            (status(409, "Message Size Exceeds MaxBytes"), Ending.MAX_BYTES),
            (status(404, "No Messages"), Ending.NO_MESSAGES),
        ):
            number = len(creates(connection)) + len(connection.pulls())
            fetching = asyncio.ensure_future(oc.fetch(4, no_wait=ending is Ending.NO_MESSAGES))
            await settle()
            arrives(connection, data(number), end)
            batch = await fetching
            assert (sequences(batch), batch.ending, batch.error) == ([number], ending, None)
        assert len(creates(connection)) == 1
        assert connection.pulls()[-1].json == {"batch": 4, "no_wait": True}


@virtual
async def test_fetch_survives_reset():
    """Rows 94, 101: what is left is carried over."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(10))
        await settle()
        arrives(connection, *[data(number) for number in (1, 2, 3, 5)])
        await settle(60)
        arrives(connection, *[data(3 + number, number) for number in (1, 2)], status(409, "Consumer Deleted"))
        await settle(60)
        arrives(connection, *[data(5 + number, number) for number in range(1, 6)])
        batch = await fetching
        assert (sequences(batch), batch.ending) == (list(range(1, 11)), Ending.FULL)
        assert batches(connection) == [10, 7, 5]


@virtual
async def test_lost_fetch_end_recreates():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        batch = await oc.fetch(4, expires=1.0)
        assert (list(batch), batch.ending) == ([], Ending.EXPIRED)
        await settle(60)
        assert len(creates(connection)) == 2
        fetching = asyncio.ensure_future(oc.fetch(1, expires=1.0))
        await settle()
        arrives(connection, data(1, 1))
        assert sequences(await fetching) == [1]


@virtual
async def test_fetch_without_connection_fails():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        connection.disconnect()
        with pytest.raises(DisconnectedError):
            await oc.fetch(4, expires=3.0)
        fetching = asyncio.ensure_future(oc.fetch(2, expires=60.0))
        await settle()
        connection.reconnect()
        await settle(60)
        connection.disconnect()
        await asyncio.sleep(50)
        connection.reconnect()
        await settle(60)
        arrives(connection, data(1), data(2))
        assert sequences(await fetching) == [1, 2]
        assert connection.told(HeartbeatMissed) == []


@virtual
async def test_fetch_without_consumer_fails():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(2, expires=3.0))
        await settle()
        connection.api.on("CONSUMER.CREATE", *[Refusal(10059, 404)] * 20)
        arrives(connection, data(1), status(409, "Consumer Deleted"))
        batch = await fetching
        assert sequences(batch) == [1]
        assert isinstance(batch.error, StreamNotFoundError)
        with pytest.raises(StreamNotFoundError):
            await oc.fetch(2, expires=1.0)


@virtual
@pytest.mark.parametrize(
    "arguments", [{"batch": 0}, {"batch": 1, "expires": 0}, {"batch": 1, "max_bytes": 0}]
)
async def test_fetch_cannot_work_refused(arguments):
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        with pytest.raises(ConfigError):
            await oc.fetch(**arguments)
        with pytest.raises(ConfigError):
            oc.messages(max_messages=4, threshold_messages=5)
        assert connection.pulls() == []


@virtual
async def test_bytes_of_fetch_bounded():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        size = sum(map(len, data(1)))
        waiting = await asked(oc)
        arrives(connection, *[data(number) for number in range(1, 8)])
        await waiting
        batch = await oc.fetch(100, max_bytes=3 * size + 1)
        assert (sequences(batch), batch.ending) == ([2, 3, 4], Ending.MAX_BYTES)


# --- cancellation --------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("way", ["next", "messages", "fetch", "all"])
async def test_cancelled_calls_lose_nothing(way):
    for seed in range(40):
        chance = random.Random(seed)
        async with connected() as (js, connection):
            oc = await js.ordered_consumer(STREAM)
            server = PullServer(connection, 80, chance, beats=True)
            got: list[int] = []

            async def read(*, oc=oc, got=got, chance=chance):
                while True:
                    how = chance.choice(["next", "messages", "fetch"]) if way == "all" else way
                    try:
                        if how == "next":
                            got.append(
                                (await oc.next(timeout=chance.choice([None, 0.01, 1.0]))).metadata.stream_seq
                            )
                        elif how == "fetch":
                            batch = await oc.fetch(
                                chance.choice([1, 3, 20]), expires=chance.choice([0.3, 2.0])
                            )
                            got += sequences(batch)
                        else:
                            async with oc.messages(
                                max_messages=chance.choice([1, 2, 7]), expires=chance.choice([0.5, 2.0])
                            ) as reader:
                                for _ in range(chance.choice([1, 5])):
                                    got += await taken(reader, 1)
                    except RequestTimeoutError:
                        continue

            for _ in range(5000):
                if len(got) >= 80:
                    break
                task = asyncio.ensure_future(read())
                await asyncio.sleep(chance.choice([0, 0.01, 0.1, 1.0, 3.0]))
                task.cancel()
                await asyncio.wait({task})
                assert task.cancelled(), task
            await server.stop()
            assert got == list(range(1, 81)), seed
            assert len(creates(connection)) == 1, seed


# --- the end -------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("end", ["stop", "drain", "close"])
async def test_close_in_reset_leaves_nothing(end):
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM, name_prefix="p")
        waiting = await asked(oc)
        held: list = []
        connection.api.on("CONSUMER.CREATE", lambda request: held.append(request) or SILENCE)
        arrives(connection, data(2, 2))
        await settle(60)
        (create,) = held
        ending = asyncio.ensure_future(getattr(oc, end)())
        await settle()
        connection.deliver(create.reply, [(create.reply.encode(), b"", b"", answer(connection, create))])
        await ending
        assert set(connection.deleted()) == {"p_1", "p_2"}
        assert read_inboxes(connection) == []
        with pytest.raises(ClosedError):
            await waiting
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []


def answer(connection, create) -> bytes:
    import json

    return json.dumps(connection.api._consumer_create(create)).encode()


@virtual
@pytest.mark.parametrize("end", ["stop", "drain"])
async def test_close_in_wait_leaves_no_task(end):
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        connection.disconnect()
        arrives(connection, data(2, 2))
        await settle()
        await getattr(oc, end)()
        with pytest.raises(ClosedError):
            await waiting
        await settle()
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []
        connection.reconnect()
        await settle(60)
        assert len(creates(connection)) == 1
        assert len(connection.told(DeleteFailed)) == 1


@virtual
async def test_draining_takes_in_under_way():
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        got: list[int] = []

        async def read():
            got.extend([message.metadata.stream_seq async for message in oc])

        reader = asyncio.ensure_future(read())
        await settle()
        inbox = connection.pulls()[-1].reply
        connection.under_way = [(inbox, [data(number)]) for number in range(1, 6)]
        await oc.drain()
        await reader
        assert got == [1, 2, 3, 4, 5]
        assert connection.deleted() == [oc.consumer]
        assert batches(connection) == [500]


@virtual
async def test_waits_after_draining_can_be_fetched():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        arrives(connection, data(1), data(2), data(3))
        await waiting
        await oc.drain()
        batch = await oc.fetch(5)
        assert (sequences(batch), batch.ending) == ([2, 3], Ending.CLOSED)
        with pytest.raises(ClosedError):
            await oc.fetch(5)


@virtual
async def test_fetch_under_way_ends_when_stopped():
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(5))
        await settle()
        arrives(connection, data(1))
        await settle()
        await oc.stop()
        batch = await fetching
        assert (sequences(batch), batch.ending) == ([1], Ending.CLOSED)
        assert isinstance(batch.error, ClosedError)


@virtual
async def test_it_ends_with_the_connection():
    async with connected() as (js, connection):
        oc, other = await js.ordered_consumer(STREAM), await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        arrives(connection, data(1), data(2))
        await waiting
        waiting = await asked(other)
        await connection.close()
        assert await taken(oc, 1) == [2]
        for read in (waiting, oc.next(), oc.fetch(1)):
            with pytest.raises(ClosedError):
                await read
        assert [event async for event in oc.events()] == []
        await oc.stop()


@virtual
async def test_closing_client_deletes_consumers():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        name = oc.consumer
        await js.close()
        assert connection.deleted() == [name]
        with pytest.raises(ClosedError):
            await waiting
