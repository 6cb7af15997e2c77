"""Set up streams and consumers, look at them, and test that on a separate server."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import jsclient
from jsclient import AckPolicy, ConsumerConfig, Placement, StreamConfig, StreamNotFoundError
from jsclient.errors import ConfigError
from jsclient.models import StreamState
from jsclient.server import NatsServer

ORDERS = StreamConfig(name="ORDERS", subjects=["orders.>"], max_age=timedelta(days=1), allow_direct=True)


async def set_up(js: jsclient.JetStream) -> jsclient.Stream:
    stream = await js.ensure_stream(ORDERS, on_drift="update")
    billing = ConsumerConfig(
        durable_name="billing", ack_policy=AckPolicy.EXPLICIT, backoff=[1.5, timedelta(0, 3)]
    )
    await stream.ensure_consumer(billing)
    await stream.create_or_update_consumer(durable_name="audit", deliver_policy="new", metadata={"team": "a"})
    return stream


async def test_set_up(url: str) -> None:
    async with jsclient.connect(url, wait=5.0) as js:
        stream = await set_up(js)
        ack = await js.publish("orders.new", b"1")
        stored = await stream.get_message(ack.seq)
        names: list[str] = [name async for name in js.stream_names()]
        pending = {info.name: info.num_pending async for info in stream.consumers()}
        consumer = await stream.consumer("billing")
        await consumer.pause(timedelta(minutes=1))
        state: StreamState = (await stream.info()).state
        purged = await stream.purge(subject="orders.>", keep=0)
        code = 0
        try:
            await js.stream("NONE")
        except (StreamNotFoundError, ConfigError) as error:
            code = error.err_code if isinstance(error, StreamNotFoundError) else -1
        config = StreamConfig(name="LOG", subjects=["log"], placement=Placement(cluster="none"))
        usage = (await js.account_info()).streams
        print(names, stored.data, pending, state.messages, purged, code, config.name, usage)
        await js.delete_stream("ORDERS")


async def main(url: str | None = None) -> None:
    if url is not None:
        await test_set_up(url)
        return
    async with NatsServer() as server:
        await test_set_up(server.url)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
