"""A user's program, checked outside of the source tree by `python3 noxfile.py public-types`. It is never run."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import jsclient
from jsclient import (
    AckPolicy,
    ConsumerConfig,
    HandlerFailed,
    OrderedSubscription,
    Placement,
    PubAck,
    StreamConfig,
    StreamNotFoundError,
    Worker,
)
from jsclient.errors import ConfigError
from jsclient.events import Event, SlowConsumer
from jsclient.kits import make_notifier_kit
from jsclient.models import StreamState


def on_event(event: Event) -> None:
    if isinstance(event, HandlerFailed | SlowConsumer):
        print(event.severity, event)


def handle(msg: jsclient.Message) -> None:
    print(msg.subject, msg.data)


async def main() -> None:
    async with jsclient.connect("nats://localhost", name="orders", on_event=on_event) as js:
        try:
            stream = await js.stream("ORDERS")
        except (StreamNotFoundError, ConfigError):
            stream = await js.create_stream(
                "ORDERS", ["orders.>"], max_age=timedelta(days=1), storage="memory"
            )
        await js.ensure_stream(StreamConfig(name="LOG", max_age=60, placement=Placement(cluster="a")))
        state: StreamState = (await stream.info()).state
        config = ConsumerConfig(ack_wait=timedelta(seconds=3), ack_policy=AckPolicy.EXPLICIT, backoff=[1.5])
        await stream.create_consumer(durable_name="billing", ack_wait=timedelta(seconds=3))
        ordered: OrderedSubscription = await js.subscribe("orders.>", ordered=True)
        await ordered.close()
        async with js.subscribe("orders.>", config=config) as sub:
            await (await sub.next(timeout=1)).ack()
        pull = await js.pull_subscribe("orders.>", durable="shipping")
        async with pull.run(handle) as worker:
            running: Worker = worker
            print(running.counts, state.messages)
        ack: PubAck = await js.publish("orders.new", b"1")
        print(ack.seq)
    producer, _ = make_notifier_kit({"rows": 0})
    producer.finish(None)


asyncio.run(main())
