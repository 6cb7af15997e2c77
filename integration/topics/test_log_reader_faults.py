"""The reader while servers die, connections are cut, consumers are deleted and rights are missing: no hole either."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

import jsclient
from integration.kit.clients.log_traffic import Producer, check, keep_reading
from integration.kit.clients.retries import impatient
from integration.kit.judge.oracle import number_of
from integration.kit.judge.waiting import eventually
from jsclient import PermissionDeniedError
from jsclient.topics.log import Log
from jsclient.topics.log_reader import open_reader
from jsclient.topics.stream_log import find_log

REPUBLISH = {"src": ">", "dest": "pushed.>"}
FEEDS = ["consumer", "republish", None]
FAST = {"reconnect_time_wait": 0.05, "connect_timeout": 1.0, "ping_interval": 0.5}


async def own_log(server: Any, connect: Any, **config: Any) -> Log:
    js = await connect(server, **FAST)
    await js.create_stream("S", subjects=["s.>"], republish=REPUBLISH, **{"allow_direct": True, **config})
    return await find_log(js._context, "s.a")


# --- servers and connections ------------------------------------------------------------------------------------


@pytest.mark.core_cases(1)
@pytest.mark.covers("T1", "T2", "T22", "T24", "T25")
@pytest.mark.parametrize("direct", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("push", FEEDS)
async def test_server_killed_repeatedly(own_server: Any, connect: Any, push: Any, direct: bool) -> None:
    server = await own_server()
    log = await own_log(server, connect, allow_direct=direct)
    producer = Producer(log)
    got: list[int] = []
    reader = await open_reader(log, push=push, quiet=0.2)
    reading = asyncio.create_task(keep_reading(reader, got))
    for _ in range(3):
        await producer.more(40)
        await server.kill()
        await server.start()
    await producer.more(40)
    if push is not None:
        await eventually(lambda: reader.tracker.is_subscribed, what="pushes come again")
        assert not reader.id.endswith("-1")
    await check(reader, producer, got, reading)


@pytest.mark.core_cases(1)
@pytest.mark.covers("T1", "T2", "T22", "T24", "T25")
@pytest.mark.parametrize("push", FEEDS)
async def test_connections_cut(own_server: Any, proxy: Any, connect: Any, push: Any) -> None:
    server = await own_server()
    near = await proxy(server, record=False)
    await own_log(server, connect, storage="memory")
    writer = await connect(server)
    producer = Producer(await find_log(writer._context, "s.a"))
    js = await connect(near, **FAST)
    log = await find_log(js._context, "s.a")
    got: list[int] = []
    reader = await open_reader(log, push=push, quiet=30.0 if push else 0.2)
    reading = asyncio.create_task(keep_reading(reader, got))
    for number in range(4):
        await producer.more(20)
        before = len(near.links)
        near.cut() if number % 2 else near.close()
        await producer.more(20)
        await near.wait_links(before + 1)
        behind = len(got)
        await eventually(lambda behind=behind: len(got) > behind, 25.0, "it reads on, without the timer")
    await check(reader, producer, got, reading)


@pytest.mark.server(">=2.11")
async def test_answers_of_part_gets_lost(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    """The same for pages of the history: records from before the loss count, the rest is asked for again."""
    stream = await make_stream(allow_direct=True)
    await stream.publish(1000, size=16)
    tap = await proxy()
    log = await find_log((await connect(tap))._context, stream.all)
    chance = random.Random(7)
    lossy = tap.drop_frames(lambda frame: frame.payload.endswith(b"...") and chance.random() < 0.1)
    async with await open_reader(log, push=None, quiet=0.1) as reader:
        got = [number_of((await reader.next(20.0)).data) for _ in range(1000)]
    assert got == [*range(1, 1001)]
    assert lossy.count > 50


@pytest.mark.server(">=2.11")
async def test_answer_whose_end_gets_lost(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await stream.publish(1000, size=16)
    tap = await proxy()
    log = await find_log((await connect(tap, timeout=2.5))._context, stream.all)
    ends = tap.drop_frames(lambda frame: frame.headers.startswith(b"NATS/1.0 204"), count=1)
    async with await open_reader(log, push=None, quiet=0.1) as reader:
        got = [number_of((await reader.next(20.0)).data) for _ in range(1000)]
    assert got == [*range(1, 1001)]
    assert ends.count == 1
    assert sum(frame.payload.endswith(b"...") for frame in tap.received()) == 1000, "none is sent twice"


@pytest.mark.server(">=2.11")  # before it, a history is read by a consumer
@pytest.mark.covers("T33", "T34")
@pytest.mark.parametrize("push", ["consumer", "republish"])
async def test_nothing_found_nothing_happens(
    proxy: Any, connect: Any, oracle: Any, make_stream: Any, push: str
) -> None:
    """The timer asks repeatedly. Without new records, the subscription and its consumer stay the same."""
    tap = await proxy()
    js = await connect(tap)
    stream = await make_stream(allow_direct=True, **({"republish": REPUBLISH} if push == "republish" else {}))
    log = await find_log(js._context, stream.subject("a"))
    async with await open_reader(log, push=push, quiet=0.1) as reader:
        await stream.publish(3, "a")
        assert [(await reader.next(5.0)).seq for _ in range(3)] == [1, 2, 3]
        await eventually(lambda: reader.tracker.is_subscribed)
        before, consumers = reader.id, await stream.consumer_names()
        count = len(tap.sent("$JS.API.DIRECT.GET.>"))
        await eventually(lambda: len(tap.sent("$JS.API.DIRECT.GET.>")) >= count + 5, what="five questions")
        assert (reader.id, await stream.consumer_names()) == (before, consumers)
        assert (await stream.oracle.state(stream.name))["last_seq"] == 3
        await stream.publish(1, "a", first=4)
        assert (await reader.next(5.0)).seq == 4
        assert reader.id == before


@pytest.mark.covers("T24", "T33", "T35", "T36", "T37")
async def test_consumers_somebody_deletes(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True)
    log = await find_log(js._context, stream.subject("a"))
    ids: list[str] = []
    async with await open_reader(log, push="consumer", quiet=0.2) as reader:
        for number in range(1, 5):
            await eventually(lambda: reader.tracker.is_subscribed)
            assert reader.id is not None
            assert reader.id in await stream.consumer_names(), "its name is the id of the subscription"
            ids.append(reader.id)
            await stream.delete_consumer(reader.id)
            await stream.publish(3, "a", first=3 * number - 2)
            got = [number_of((await reader.next(5.0)).data) for _ in range(3)]
            assert got == [3 * number - 2, 3 * number - 1, 3 * number]
            await eventually(lambda: reader.id not in (None, ids[-1]))
            assert ids[-1] not in await stream.consumer_names()
    assert len(set(ids)) == 4


async def test_old_leader_keeps_position(
    js: Any, oracle: Any, proxy: Any, connect: Any, make_stream: Any
) -> None:
    """It answers like a leader of three replicas that lacks the last records."""
    stream = await make_stream(allow_direct=True, republish=REPUBLISH)
    await stream.publish(7, "a")
    tap = await proxy()
    old = tap.modify_frames(
        lambda frame: b"stream_info_response" in frame.raw,
        lambda frame: frame.raw.replace(b'"num_replicas":1', b'"num_replicas":3').replace(
            b'"last_seq":7', b'"last_seq":5'
        ),
        count=5,
    )
    topic = (await connect(tap)).topic(stream.subject("a"), stream=stream.name)
    end = (await (await find_log(js._context, stream.subject("a"))).extent()).end
    async with topic.since(end) as reader:
        assert old.count == 5
        await stream.publish(1, "a")
        assert (await reader.next(5.0)).seq == 8


@pytest.mark.parametrize("push", ["consumer", "republish"])
async def test_stream_recreated_another_one(js: Any, oracle: Any, make_stream: Any, push: Any) -> None:
    stream = await make_stream(allow_direct=True, republish=REPUBLISH)
    log = await find_log(js._context, stream.subject("a"))
    await stream.publish(5, "a")
    async with await open_reader(log, push=push, quiet=0.2) as reader:
        assert [(await reader.next(5.0)).seq for _ in range(5)] == [1, 2, 3, 4, 5]
        await stream.delete()
        await oracle.create_stream(
            stream.name, [stream.all], storage="memory", allow_direct=True, republish=REPUBLISH
        )
        with pytest.raises(jsclient.PositionInvalidError):
            await reader.next(10.0)


@pytest.mark.parametrize("direct", [True, False])
async def test_stream_deleted_ends_readers(
    js: Any, oracle: Any, make_stream: Any, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    impatient(monkeypatch, 0.3)
    stream = await make_stream(allow_direct=direct)
    log = await find_log(js._context, stream.subject("a"))
    async with await open_reader(log, push=None, quiet=0.1) as reader:
        await stream.delete()
        with pytest.raises(jsclient.StreamNotFoundError):
            await reader.next(20.0)


async def has_no(stream: Any, consumer: str | None) -> bool:
    return consumer not in await stream.consumer_names()


# --- ids --------------------------------------------------------------------------------------------------------


@pytest.mark.server(">=2.11")  # before it, a history is read by a consumer
@pytest.mark.covers("T20", "T21", "T24", "T25", "T26", "T27", "T36", "T37")
async def test_push_has_subscription_id(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    tap = await proxy()
    js = await connect(tap)
    stream = await make_stream(allow_direct=True)
    log = await find_log(js._context, stream.subject("a"))
    async with await open_reader(log, push="consumer", quiet=0.3) as reader:
        await eventually(lambda: reader.tracker.is_subscribed)
        first = reader.id
        info = await stream.consumer_info(first)
        config = info["config"]
        assert (config["ack_policy"], config["max_deliver"], config["mem_storage"]) == ("none", 1, True)
        assert config["inactive_threshold"] > 0, "of a subscriber that vanished nothing stays"
        await stream.publish(1, "a")
        assert (await reader.next(5.0)).seq == 1
        held = tap.hold_frames(
            lambda frame: f".{stream.name}.{first}." in (frame.reply or "")  # in both forms
        )
        await stream.publish(2, "a", first=2)
        assert [(await reader.next(5.0)).seq for _ in range(2)] == [2, 3], "the timer asked"
        await eventually(lambda: reader.id not in (None, first))
        await eventually(lambda: reader.tracker.is_subscribed)
        assert await stream.consumer_names() != [first]
        (create,) = [
            frame for frame in tap.sent("$JS.API.CONSUMER.CREATE.>") if reader.id in (frame.subject or "")
        ]
        await eventually(
            lambda: any(
                json.loads(one.payload)["seq"] == 4
                for one in tap.sent("$JS.API.DIRECT.GET.>", since=create.number)
            ),
            what="it reads on after the last record that it has",
        )
        await eventually(lambda: has_no(stream, first))
        assert held.count == 2
        second = reader.id
        held.release()
        await stream.publish(1, "a", first=4)
        assert (await reader.next(5.0)).seq == 4
        for one in (first, second):
            pushed = f".{stream.name}.{one}."
            await tap.wait_for(lambda frame, pushed=pushed: pushed in (frame.reply or ""))


@pytest.mark.covers("T25", "T26", "T27")
async def test_new_record_under_old_id_refused(
    proxy: Any, connect: Any, oracle: Any, make_stream: Any
) -> None:
    """The old consumer still pushes what is stored after its subscription was replaced."""
    tap = await proxy()
    js = await connect(tap)
    stream = await make_stream(allow_direct=True)
    log = await find_log(js._context, stream.subject("a"))

    def pushes(consumer: str) -> Any:
        return lambda frame: f".{stream.name}.{consumer}." in (frame.reply or "")  # in both forms

    async with await open_reader(log, push="consumer", quiet=300.0, name="own") as reader:
        await eventually(lambda: reader.tracker.is_subscribed)
        await stream.publish(1, "a")
        assert (await reader.next(30.0)).seq == 1
        # Without batched direct gets the history is read with consumers of other names.
        answer = b'consumer_create_response","stream_name":"%b","name":"own-' % stream.name.encode()
        created = tap.hold_frames(lambda frame: answer in frame.payload)
        reader.set_push("consumer")
        old = reader.id
        await eventually(lambda: created.count == 1, what="the old consumer exists, its reader does not know")
        reader.set_push("consumer")
        new = reader.id
        held = tap.hold_frames(pushes(new))
        await eventually(lambda: created.count == 2)
        rejected = reader.tracker.rejected
        await stream.publish(1, "a", first=2)
        await eventually(lambda: held.count == 1)
        await tap.wait_for(pushes(old))
        await eventually(lambda: reader.tracker.rejected == rejected + 1, what="refused under the old id")
        held.release()
        created.release()
        assert (await reader.next(30.0)).seq == 2
        await stream.publish(1, "a", first=3)
        assert (await reader.next(30.0)).seq == 3
        assert reader.id == new
        await eventually(lambda: has_no(stream, old))


@pytest.mark.covers("T20", "T25", "T27")
async def test_republish_has_sid(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    tap = await proxy()
    js = await connect(tap)
    stream = await make_stream(allow_direct=True, republish=REPUBLISH)
    log = await find_log(js._context, stream.subject("a"))
    sids = []
    async with await open_reader(log, push="republish", quiet=30.0) as reader:
        for number in range(1, 4):
            await eventually(lambda: reader.tracker.is_subscribed)
            await stream.publish(1, "a", first=number)
            assert (await reader.next(5.0)).seq == number
            sids.append(tap.received(f"pushed.{stream.subject('a')}")[-1].sid)
            reader.set_push("republish")

        async def no_consumers() -> bool:  # before 2.11, a history is read by a consumer
            return await stream.consumer_names() == []

        await eventually(no_consumers, what="no consumer")
    assert len(set(sids)) == 3


# --- rights -----------------------------------------------------------------------------------------------------


@pytest.mark.server(">=2.11")  # before it, a history is read by a consumer
@pytest.mark.covers("T39", "T42", "T43")
async def test_a_reader_that_may_only_ask(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    api = "$JS.API"
    allowed = [
        f"{api}.STREAM.INFO.S",
        f"{api}.DIRECT.GET.S",
        f"{api}.DIRECT.GET.S.>",
        f"{api}.STREAM.MSG.GET.S",
    ]
    rights = {"publish": {"allow": allowed}, "subscribe": {"allow": ["_INBOX.>"]}}
    server = await own_server(
        config={
            "authorization": {
                "users": [
                    {"user": "judge", "password": "x"},
                    {"user": "ann", "password": "x", "permissions": rights},
                ]
            }
        }
    )
    judge = await connect(server, user="judge", password="x")
    stream = await judge.create_stream(
        "S", subjects=["s.>"], storage="memory", allow_direct=True, republish=REPUBLISH
    )
    ann = await connect(server, user="ann", password="x")
    source = ann.events("s.a", stream="S")
    await judge.publish("s.a", b"1")
    event, at = await source.current()
    assert event.data == b"1"
    for push in ("consumer", "republish"):
        async with await source.subscribe("first", push=push) as sub:
            with pytest.raises(PermissionDeniedError):
                await sub.next(5.0)
    async with await source.subscribe(at, quiet=0.1) as sub:
        for number in range(2, 6):
            await judge.publish("s.a", b"%d" % number)
            assert (await sub.next(5.0)).data == b"%d" % number
        assert sub.id is None
    assert [event.data for event in await source.history(at)] == [b"2", b"3", b"4", b"5"]
    assert [info async for info in stream.consumers()] == []


@pytest.mark.covers("T3", "T21", "T42")
async def test_no_push_readers_ask(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True)
    source = js.events(stream.subject("a"))
    async with await source.subscribe("first", push=None, quiet=0.05) as sub:
        for number in range(5):
            await source.publish(b"%d" % number)  # whether anyone listens is nothing to it
            assert (await sub.next(5.0)).data == b"%d" % number
        assert await stream.consumer_names() == []


async def test_history_whose_consumer_is_forgotten(
    proxy: Any, connect: Any, oracle: Any, make_stream: Any
) -> None:
    """A page is read with a temporary consumer, which a restarted server may have lost. Another consumer is created."""
    tap = await proxy()
    js = await connect(tap)
    stream = await make_stream()
    await stream.publish(3, "a")
    log = await find_log(js._context, stream.subject("a"))
    requests = tap.hold_frames(lambda frame: "CONSUMER.MSG.NEXT" in (frame.subject or ""))
    reading = asyncio.create_task(log.history(0, 10, 10_000))
    await eventually(lambda: requests.count == 1, what="the consumer is created")
    [name] = await stream.consumer_names()
    await oracle.api(f"CONSUMER.DELETE.{stream.name}.{name}")
    requests.release()
    assert [record.seq for record in (await reading).records] == [1, 2, 3]
