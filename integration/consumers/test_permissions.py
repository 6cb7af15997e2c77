"""A user with exactly the permissions that a subscription or a publisher prints can do this work, and no other work."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import jsclient
from integration.kit.judge.waiting import eventually, within
from jsclient.errors import PermissionDeniedError

INBOX = "_INBOX_guest"


@pytest.fixture
async def world(own_server: Any, connect: Any) -> Any:
    """`owner, guest = await world(rights)`: the guest has what ``await rights(owner)`` returned, and no other rights.

    The permissions are made on a server without users. That server is then started again with them.
    """

    async def make(rights: Any) -> tuple[Any, Any, list[Any]]:
        first = await own_server()
        granted = json.loads(json.dumps(await rights(await prepare(await connect(first.url)))))
        users = [
            {"user": "owner", "password": "x"},
            {"user": "guest", "password": "x", "permissions": granted},
        ]
        server = await own_server(config={"authorization": {"users": users}})
        owner = await prepare(await connect(server.url, user="owner", password="x"))
        events: list[Any] = []
        guest = await connect(
            server.url, user="guest", password="x", inbox_prefix=INBOX, on_event=events.append
        )
        return owner, guest, events

    return make


async def prepare(js: Any) -> Any:
    stream = await js.create_stream("S", subjects=["orders.>"])
    await js.create_stream("DEAD", subjects=["dead.>"])
    await stream.create_consumer(durable_name="C", ack_policy="explicit")
    await stream.create_consumer(durable_name="OTHER", ack_policy="explicit")
    config = {"durable_name": "PUSH", "deliver_subject": "deliver.push", "ack_policy": "explicit"}
    await stream.create_consumer(flow_control=True, idle_heartbeat=1, **config)
    for number in range(5):
        await js.publish("orders.new", b"%d" % number)
    return js


def denials(reported: list[Any]) -> list[str]:
    return [str(event) for event in reported if isinstance(event, jsclient.events.PermissionDenied)]


async def refused(guest: Any, *subjects: str) -> None:
    """The server refuses the guest to publish to each of these subjects."""
    for subject in subjects:
        with pytest.raises(PermissionDeniedError):
            await guest._context.requests.ask(subject, timeout=10)


async def test_publisher_has_what_it_needs(world: Any) -> None:
    async def rights(js: Any) -> Any:
        async with js.publisher() as publisher:
            return publisher.permissions("orders.new", inbox_prefix=INBOX)

    owner, guest, reports = await world(rights)
    async with guest.publisher() as publisher:
        await publisher.publish("orders.new", b"5")
    assert (await guest.publish("orders.new", b"6", msg_id="6")).seq == 7
    assert denials(reports) == []
    await refused(
        guest, "orders.old", "$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.MSG.NEXT.S.C", "$JS.ACK.S.C.1"
    )
    assert (await (await owner.stream("S")).info()).state.messages == 7


async def test_worker_has_what_it_needs(world: Any) -> None:
    async def rights(js: Any) -> Any:
        sub = await js.pull_subscribe(stream="S", consumer="C")
        return sub.permissions(dead_letter="dead.>", inbox_prefix=INBOX)

    async def handle(msg: Any) -> None:
        if msg.data == b"3":
            raise jsclient.Reject("no")

    owner, guest, reports = await world(rights)
    sub = await guest.pull_subscribe(stream="S", consumer="C")
    worker = sub.run(handle, dead_letter="dead.>")
    await eventually(lambda: worker.counts.handled == 4 and worker.counts.dead_lettered == 1)
    worker.stop()
    await within(20, worker.wait(), "the worker's end")
    consumer = await (await owner.stream("S")).consumer("C")

    async def settled() -> bool:
        return bool((await consumer.info()).num_ack_pending == 0)

    await eventually(settled)
    assert denials(reports) == []
    await refused(
        guest,
        "orders.new",
        "$JS.API.CONSUMER.MSG.NEXT.S.OTHER",
        "$JS.API.CONSUMER.DELETE.S.C",
        "$JS.API.CONSUMER.CREATE.S.x",
        "$JS.API.STREAM.PURGE.S",
        "$JS.ACK.S.OTHER.1",
    )


async def test_puller_cannot_dead_letter(world: Any) -> None:
    async def rights(js: Any) -> Any:
        sub = await js.pull_subscribe(stream="S", consumer="C")
        return sub.permissions(inbox_prefix=INBOX)

    _, guest, reports = await world(rights)
    sub = await guest.pull_subscribe(stream="S", consumer="C")
    batch = await sub.fetch(5, expires=10)
    await jsclient.ack_all(batch)
    await batch[-1].ack_sync()
    assert len(batch) == 5
    assert denials(reports) == []
    await refused(guest, "dead.orders.new", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.MSG.GET.S")


async def test_push_reader_has_what_it_needs(world: Any) -> None:
    async def rights(js: Any) -> Any:
        sub = await js.subscribe(stream="S", consumer="PUSH")
        return sub.permissions(inbox_prefix=INBOX)

    _, guest, reports = await world(rights)
    sub = await guest.subscribe(stream="S", consumer="PUSH")
    for number in range(5):
        msg = await sub.next(timeout=10)
        assert msg.data == b"%d" % number
        await msg.ack_sync()
    assert denials(reports) == []
    await refused(guest, "orders.new", "$JS.API.CONSUMER.DELETE.S.PUSH", "$JS.FC.S.OTHER.1", "deliver.push")
    inbox = await guest._connection.subscribe("deliver.other", lambda frames: None)
    await guest._connection.ping(10)
    assert isinstance(inbox.denied, PermissionDeniedError)


async def test_ordered_reader_has_what_it_needs(world: Any) -> None:
    async def rights(js: Any) -> Any:
        async with js.subscribe("orders.new", stream="S", ordered=True) as sub:
            with pytest.raises(jsclient.ConfigError, match="no dead letters"):
                sub.permissions(dead_letter="dead.>")
            return sub.permissions(inbox_prefix=INBOX)

    owner, guest, reports = await world(rights)
    async with guest.subscribe("orders.new", stream="S", ordered=True) as sub:
        assert [(await sub.next(timeout=10)).data for _ in range(5)] == [
            b"%d" % number for number in range(5)
        ]
        stream = await owner.stream("S")
        await stream.delete_consumer(sub.consumer)  # it has to create another consumer
        await asyncio.sleep(0)
        await owner.publish("orders.new", b"5")
        assert (await sub.next(timeout=60)).data == b"5"
    assert denials(reports) == []
    await refused(
        guest,
        "orders.new",
        "$JS.API.STREAM.MSG.DELETE.S",
        "$JS.API.CONSUMER.CREATE.S.x",
        "$JS.API.CONSUMER.DURABLE.CREATE.S.x",
    )


@pytest.mark.parametrize("filters", [["orders.new"], ["orders.new", "orders.old"]], ids=len)
async def test_ordered_puller_has_what_it_needs(world: Any, filters: list[str]) -> None:
    async def rights(js: Any) -> Any:
        async with js.ordered_consumer("S") as reader:
            return reader.permissions(inbox_prefix=INBOX)

    owner, guest, reports = await world(rights)
    async with guest.ordered_consumer("S", filter_subjects=filters) as reader:
        assert len(await reader.fetch(5, expires=10)) == 5
        await reader.info()
        await (await owner.stream("S")).delete_consumer(reader.consumer)  # it has to create another consumer
        await owner.publish("orders.new", b"5")
        assert (await reader.next(timeout=60)).data == b"5"
    assert denials(reports) == []
    await refused(guest, "orders.new", "$JS.API.STREAM.MSG.DELETE.S", "$JS.API.CONSUMER.DURABLE.CREATE.S.x")
