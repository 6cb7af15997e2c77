"""Each permission of docs/explanation/rights.md, used by a user who has no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually, within
from jsclient.errors import ProducerFencedError, PublisherExistsError, RequestTimeoutError

INBOX = "_INBOX_guest"


@pytest.fixture
async def world(own_server: Any, connect: Any) -> Any:
    """`owner, guest = await world("what the guest may publish", ...)`: stream S has orders.> and a consumer C."""

    async def make(*publish: str, subscribe: tuple[str, ...] = ()) -> tuple[Any, Any]:
        rights = {"publish": [*publish], "subscribe": [f"{INBOX}.>", *subscribe]}
        users = [
            {"user": "owner", "password": "x"},
            {"user": "guest", "password": "x", "permissions": rights},
        ]
        server = await own_server(config={"authorization": {"users": users}})
        owner = await connect(server.url, user="owner", password="x")
        guest = await connect(server.url, user="guest", password="x", inbox_prefix=INBOX)
        stream = await owner.create_stream("S", subjects=["orders.>"], allow_direct=True, duplicate_window=60)
        await stream.create_consumer(durable_name="C", ack_policy="explicit")
        return owner, guest

    return make


async def ask(js: Any, subject: str, body: object = None, reply: str = "") -> None:
    data = b"" if body is None else json.dumps(body).encode()
    await js._connection.publish(subject, data, reply=reply)
    await js._connection.ping(5)


async def test_publish_takes_the_id_of_another(world: Any) -> None:
    owner, guest = await world("orders.new")
    await guest.publish("orders.new", b"forged", msg_id="order 1")
    assert (await owner.publish("orders.new", b"real", msg_id="order 1")).duplicate
    assert (await (await owner.stream("S")).get_message(1)).data == b"forged"


async def test_any_request_stores_its_answer(world: Any) -> None:
    owner, guest = await world("$JS.API.STREAM.INFO.S")
    await ask(guest, "$JS.API.STREAM.INFO.S", reply="orders.new")
    stream = await owner.stream("S")

    async def stored() -> bool:
        return bool((await stream.info()).state.messages == 1)

    await eventually(stored)
    assert b"stream_info_response" in (await stream.get_message(1)).data


async def test_direct_get_of_a_subject_gives_the_newest_only(world: Any) -> None:
    owner, guest = await world("$JS.API.DIRECT.GET.S.orders.new")
    for number in range(2):
        await owner.publish("orders.new", b"%d" % number)
    answer = await guest._context.requests.ask("$JS.API.DIRECT.GET.S.orders.new", timeout=10)
    assert answer[3] == b"1"


async def test_create_a_consumer_that_delivers_anywhere(world: Any) -> None:
    owner, guest = await world("$JS.API.CONSUMER.CREATE.S.>")
    await owner.publish("orders.new", b"secret")
    seen: list[Any] = []
    inbox = await owner._connection.subscribe("_INBOX.of.another", seen.extend)
    config = {"name": "x", "deliver_subject": "_INBOX.of.another", "ack_policy": "none"}
    await ask(guest, "$JS.API.CONSUMER.CREATE.S.x", {"stream_name": "S", "config": config})
    await eventually(lambda: [bytes(frame[3]) for frame in seen] == [b"secret"])
    await owner._connection.unsubscribe(inbox)


async def test_acks_settle_what_others_handle(world: Any) -> None:
    owner, guest = await world("$JS.ACK.>")
    await owner.publish("orders.new", b"job")
    consumer = await (await owner.stream("S")).consumer("C")
    message = await consumer.next(timeout=5)
    await guest._connection.publish(message.reply, b"+TERM")
    await guest._connection.ping(5)

    async def settled() -> bool:
        return bool((await consumer.info()).num_ack_pending == 0)

    await eventually(settled)
    with pytest.raises(RequestTimeoutError):
        await consumer.next(timeout=0.5)
    await consumer.close()


async def test_live_publisher_is_ended_on_its_subject(world: Any) -> None:
    owner, guest = await world("open.*.live", "open.0.live.publisher")
    async with await owner.epochs("open").live_publisher() as pub:
        for subject in ("open.0.live", "open.0.publisher"):
            await ask(guest, subject, {"v": 1, "verb": "take"}, reply=f"{INBOX}.1")
        await pub.send(1, ["x"])
        await ask(guest, "open.0.live.publisher", {"v": 1, "verb": "take"}, reply=f"{INBOX}.1")

        async def goes_on() -> None:
            while True:
                await pub.send(2, ["x"])

        with pytest.raises(ProducerFencedError):
            await within(20, goes_on(), "the end of the publisher")


async def test_claim_to_be_the_publisher(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jsclient.topics.epochs.presence.ANSWER", 30.0)  # the claim may take its time
    owner, guest = await world("_INBOX.>", subscribe=("T.*.publisher",))

    def claim(frames: list[Any]) -> None:
        for _, reply, _, _ in frames:
            guest._connection.send(reply.decode(), b'{"v":1,"verb":"alive"}')

    inbox = await guest._connection.subscribe("T.0.publisher", claim)
    await guest._connection.ping(5)
    topic = owner.epochs("T")
    with pytest.raises(PublisherExistsError):
        await topic.publisher()
    async with topic.publisher(takeover=True) as pub:
        await pub.close()
    await guest._connection.unsubscribe(inbox)
