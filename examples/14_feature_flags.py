"""Feature flags of a fleet: each service follows its flags, and a bad deploy is rolled back in one transaction.

python examples/14_feature_flags.py [url]        nats-server 2.12 or newer, because of the transactions
"""

import asyncio
import contextlib
import sys
import time

import jsclient
from jsclient.server import NatsServer

SERVICES, CONNECTIONS = 500, 10  # many services share a process, and its connection
FLAGS = {"checkout": b"v1", "search": b"on", "banner": b"off", "sampling": b"0.1"}


class Service:
    """A service of the fleet. Its flags are always at hand, so a request that it serves waits for nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: asyncio.Queue[bytes] = (
            asyncio.Queue()
        )  # each version that the service has had, in order

    async def run(self, flags: jsclient.KeyValue) -> None:
        async with flags.cache(f"{self.name}.*") as cache:
            self.versions.put_nowait(cache[f"{self.name}.checkout"].value)
            async for change in cache.changes():
                if change.entry is not None and change.key == f"{self.name}.checkout":
                    self.versions.put_nowait(change.entry.value)


async def create_flags(flags: jsclient.KeyValue, services: list[Service]) -> None:
    """Give each service its flags. A transaction has at most 1,000 changes."""
    keys = [(f"{service.name}.{flag}", value) for service in services for flag, value in FLAGS.items()]
    for begin in range(0, len(keys), 1000):
        async with flags.transaction() as tx:
            for key, value in keys[begin : begin + 1000]:
                tx.create(key, value)


async def deploy(flags: jsclient.KeyValue, version: bytes) -> dict[str, jsclient.KeyValueEntry]:
    """Set the flag `checkout` of all services, and return the entries before it. All services change, or none."""
    before = await flags.get_many("*.checkout")
    async with flags.transaction() as tx:
        for key, entry in before.items():
            tx.put(key, version, last=entry.revision)  # refused if somebody has changed the flag meanwhile
    return before


async def roll_back(flags: jsclient.KeyValue, before: dict[str, jsclient.KeyValueEntry]) -> None:
    """Give the flags the values they had. A flag that was changed since the deploy refuses all of it."""
    current = await flags.get_many("*.checkout")
    async with flags.transaction() as tx:
        for key, entry in before.items():
            tx.put(key, entry.value, last=current[key].revision)


async def all_have(services: list[Service], version: bytes) -> float:
    """Wait until each service has this version as its next one, and return the seconds it took."""
    began = time.monotonic()
    for service in services:
        assert await service.versions.get() == version, service.name
    return time.monotonic() - began


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        operator = await stack.enter_async_context(jsclient.connect(url))
        flags = await operator.create_key_value("flags", allow_atomic=True, storage="memory")
        stack.push_async_callback(operator.delete_key_value, "flags")
        services = [Service(f"service-{number:03}") for number in range(SERVICES)]
        await create_flags(flags, services)
        print(f"{SERVICES} services, {(await flags.status()).values} flags")

        followers = await stack.enter_async_context(asyncio.TaskGroup())
        running = []
        for number in range(CONNECTIONS):
            js = await stack.enter_async_context(jsclient.connect(url))
            bucket = await js.key_value("flags")
            fleet = services[number::CONNECTIONS]
            running += [followers.create_task(service.run(bucket)) for service in fleet]
        await all_have(services, b"v1")

        before = await deploy(flags, b"v2")
        seconds = await all_have(services, b"v2")
        print(f"deployed: each service has v2, the last one after {seconds:.2f} s")
        await roll_back(flags, before)
        seconds = await all_have(services, b"v1")
        print(f"rolled back: each service has v1 again, the last one after {seconds:.2f} s")
        for task in running:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
