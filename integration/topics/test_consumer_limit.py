"""A stream that has all the consumers that it may have: readers of topics need none."""

from __future__ import annotations

from typing import Any

import nats
import pytest

import jsclient
from integration.kit.judge.waiting import eventually
from jsclient.events import ConsumerRefused

CREATES = "$JS.API.CONSUMER.CREATE.>"
GETS = "$JS.API.DIRECT.GET.>"


def refused(events: list[Any]) -> list[ConsumerRefused]:
    return [event for event in events if isinstance(event, ConsumerRefused)]


@pytest.mark.server(">=2.11")  # older ones have no direct gets of several messages
async def test_topic_read_at_the_limit(js: Any, oracle: Any, make_stream: Any, events: list[Any]) -> None:
    """It is reported once, with the limit, and records come when they are heard of. The timer is far away."""
    stream = await make_stream(max_consumers=1, allow_direct=True)
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    async with js.topic(stream.subject("a"), stream=stream.name).each(quiet=600) as reader:
        for number in range(30):
            await js.publish(stream.subject("a"), b"%d" % number)
            assert (await reader.next(timeout=15)).data == b"%d" % number
        assert await stream.consumer_names() == ["first"]
    (event,) = refused(events)
    assert isinstance(event.error, jsclient.ConsumerLimitError)
    assert (event.stream, event.error.limit, event.error.err_code) == (stream.name, 1, 10026)
    assert "raise it, or delete consumers" in str(event)
    assert f"subscribe to '{stream.subject('a')}'" in str(event)


async def test_no_direct_gets_at_the_limit(js: Any, oracle: Any, make_stream: Any) -> None:
    """Without them a history is read by a consumer, or record by record if the limit allows no further consumer."""
    stream = await make_stream(max_consumers=1)
    await stream.publish(250, "a")
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    async with js.topic(stream.subject("a"), stream=stream.name).each(quiet=600) as reader:
        for number in range(1, 260):
            if number > 250:
                await stream.publish(1, "a", first=number)
            assert (await reader.next(timeout=30)).seq == number
        assert await stream.consumer_names() == ["first"]


@pytest.mark.server(">=2.11")
async def test_idle_at_the_limit_asks_nothing(
    proxy: Any, connect: Any, js: Any, oracle: Any, make_stream: Any
) -> None:
    """Until the next request the consumer was missing, so no record arrived."""
    tap = await proxy()
    near = await connect(tap)
    stream = await make_stream(max_consumers=1, allow_direct=True)
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    async with near.topic(stream.subject("a"), stream=stream.name).each(quiet=600) as reader:
        await js.publish(stream.subject("a"), b"1")
        await reader.next(timeout=15)
        await eventually(lambda: len(tap.sent(CREATES)) >= 2, what="asked again")
        asked, count = len(tap.sent(CREATES)), len(tap.sent(GETS))
        await eventually(lambda: len(tap.sent(CREATES)) > asked, what="asked again")
        assert len(tap.sent(GETS)) == count


@pytest.mark.server(">=2.11")
async def test_pushes_when_there_is_room(
    proxy: Any, connect: Any, js: Any, oracle: Any, make_stream: Any, events: list[Any]
) -> None:
    tap = await proxy()
    near = await connect(tap)
    stream = await make_stream(max_consumers=1, allow_direct=True)
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    async with near.topic(stream.subject("a"), stream=stream.name).each(quiet=600) as reader:
        await js.publish(stream.subject("a"), b"1")
        assert (await reader.next(timeout=15)).data == b"1"
        await stream.delete_consumer("first")
        names = await eventually(stream.consumer_names, 20, "a consumer of its own")
        assert names[0].startswith("jsc-")
        for number in range(2, 20):
            await js.publish(stream.subject("a"), b"%d" % number)
            assert (await reader.next(timeout=15)).data == b"%d" % number
        requests = []
        for first in range(20, 100, 10):
            count = len(tap.sent(GETS))
            for number in range(first, first + 10):
                await js.publish(stream.subject("a"), b"%d" % number)
                assert (await reader.next(timeout=15)).data == b"%d" % number
            requests.append(len(tap.sent(GETS)) - count)
        # A push that comes late on a slow machine may be read from the history once. Without pushes all 80 would be.
        assert sum(requests) < 40, f"they are pushed: {requests}"
    assert not await stream.consumer_names()


@pytest.mark.server(">=2.11")
async def test_copy_read_at_the_limit(js: Any, oracle: Any, make_stream: Any) -> None:
    """The records of a mirror are not published on a subject that can be subscribed to."""
    stream = await make_stream(allow_direct=True)
    name = f"{stream.name}_COPY"
    await oracle.create_stream(
        name, [], mirror={"name": stream.name}, max_consumers=1, allow_direct=True, storage="memory"
    )
    try:
        await oracle.create_consumer(name, "first", ack_policy="none")
        async with js.topic(stream.subject("a"), stream=name).each(quiet=600) as reader:
            for number in range(3):
                await js.publish(stream.subject("a"), b"%d" % number)
                assert (await reader.next(timeout=15)).data == b"%d" % number
    finally:
        await oracle.delete_stream(name)


@pytest.mark.server(">=2.11")
async def test_no_right_to_listen_at_the_limit(own_server: Any, connect: Any) -> None:
    """A reader that may not subscribe to the subject looks into the history from time to time."""
    rights = {"publish": {"allow": ["$JS.API.>"]}, "subscribe": {"allow": ["_INBOX.>"]}}
    users = [
        {"user": "judge", "password": "x"},
        {"user": "ann", "password": "x", "permissions": rights},
    ]
    server = await own_server(config={"authorization": {"users": users}})
    judge = await connect(server, user="judge", password="x")
    stream = await judge.create_stream(
        "S", subjects=["s.>"], storage="memory", allow_direct=True, max_consumers=1
    )
    await stream.create_consumer(name="first", durable_name="first")
    events: list[Any] = []
    ann = await connect(server, user="ann", password="x", on_event=events.append)
    async with ann.topic("s.a", stream="S").each(quiet=600) as reader:
        for number in range(3):
            await judge.publish("s.a", b"%d" % number)
            assert (await reader.next(timeout=15)).data == b"%d" % number
    (event,) = refused(events)
    assert "look into the history" in str(event)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "leader"])
async def test_table_at_the_limit(
    js: Any, oracle: Any, make_stream: Any, events: list[Any], direct: bool
) -> None:
    """It opens, follows, and loses what was removed, and creates no consumer."""
    stream = await make_stream(max_consumers=1, allow_direct=direct)
    for number in range(5):
        await js.publish(stream.subject(number), b"first")
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    topic = js.topic(stream.subject("*"), stream=stream.name)
    async with topic.table(check=0.2) as table:
        assert {record.data for record in table.values()} == {b"first"}
        assert len(table) == 5
        await js.publish(stream.subject(2), b"second")
        await table.wait_for(lambda table: table[stream.subject(2)].data == b"second", 30)
        await (await js.stream(stream.name)).purge(subject=stream.subject(3))
        await table.wait_for(lambda table: stream.subject(3) not in table, 30)
        assert await stream.consumer_names() == ["first"]
    assert len(refused(events)) == 1


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("uses_natspy", [False, True], ids=["own", "nats-py"])
async def test_own_records_at_the_limit_without_echo(
    connect: Any, server: Any, oracle: Any, make_stream: Any, uses_natspy: bool
) -> None:
    """A connection with ``no_echo`` does not receive its own publishes, so its readers poll about once a second."""
    if uses_natspy:
        nc = await nats.connect(server.url, no_echo=True)
        js = jsclient.JetStream(nc)
    else:
        nc, js = None, await connect(server, no_echo=True)
    stream = await make_stream(max_consumers=1, allow_direct=True)
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    async with js.topic(stream.subject("a"), stream=stream.name).each(quiet=600) as reader:
        for number in range(3):
            await js.publish(stream.subject("a"), b"%d" % number)
            assert (await reader.next(timeout=15)).data == b"%d" % number
    assert await stream.consumer_names() == ["first"]
    await js.close()
    if nc is not None:
        await nc.close()


async def test_consumer_required_at_the_limit(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(max_consumers=1, allow_direct=True)
    await oracle.create_consumer(stream.name, "first", ack_policy="none")
    reader = await js.topic(stream.subject("a"), stream=stream.name).each(push="consumer")
    with pytest.raises(jsclient.ConsumerLimitError, match="max_consumers is 1"):
        await reader.next(timeout=15)
    await reader.close()


@pytest.mark.full
@pytest.mark.server(">=2.11")
@pytest.mark.parametrize(
    "limits", [{"max_consumers": 1000}, pytest.param({}, marks=pytest.mark.server(">=2.15"), id="default")]
)
async def test_thousand_consumers(
    js: Any, oracle: Any, make_stream: Any, events: list[Any], limits: dict[str, int]
) -> None:
    """The default of nats-server 2.15, too: readers of many subjects on one connection, more than have room."""
    stream = await make_stream(allow_direct=True, **limits)
    for number in range(995):
        await oracle.create_consumer(stream.name, f"c{number}", ack_policy="none")
    readers = [
        await js.topic(stream.subject(number % 20), stream=stream.name).each(quiet=600)
        for number in range(60)
    ]
    await eventually(lambda: len(refused(events)) == 15, 30, "fifteen of twenty subjects have no consumer")
    # Readers without their own consumer poll, and miss no record.
    for round_ in range(3):
        for number in range(20):
            await js.publish(stream.subject(number), b"%d" % round_)
        for reader in readers:
            assert (await reader.next(timeout=30)).data == b"%d" % round_
    assert len(await stream.consumer_names()) == 1000
    assert {event.error.limit for event in refused(events)} == {limits.get("max_consumers", 0)}
    assert all("1,000 on nats-server 2.15" in str(event) for event in refused(events)) or limits
    for number in range(15):
        await stream.delete_consumer(f"c{number}")

    async def all_have_one() -> bool:
        return len(await stream.consumer_names()) == 1000

    await eventually(all_have_one, 90, "pushes for all subjects")
    for number in range(20):
        await js.publish(stream.subject(number), b"last")
    for reader in readers:
        assert (await reader.next(timeout=30)).data == b"last"
        await reader.close()
    assert len(await stream.consumer_names()) == 980
