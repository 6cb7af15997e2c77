"""Three servers that are one: a JetStream cluster on loopback, with what hurts it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from integration.kit.judge.oracle import Oracle, OracleError
from integration.kit.judge.waiting import eventually
from integration.kit.servers.nats_server import OwnServer
from integration.kit.servers.ports import HOST, free_port

_FIRST = 20.0  # seconds after which the servers are started again
_READY = 60.0  # seconds: on a busy machine an election of 2.10 takes long


class OwnCluster:
    """The servers by their names n1, n2, n3. Made by `start`."""

    def __init__(self, servers: dict[str, OwnServer]) -> None:
        self.servers = servers

    @classmethod
    async def start(cls, own_server: Callable[..., Awaitable[OwnServer]]) -> OwnCluster:
        """With the fixture `own_server`, which ends them. They have a leader when this returns."""
        routes = {f"n{number}": free_port() for number in (1, 2, 3)}
        urls = [f"nats://{HOST}:{port}" for port in routes.values()]
        started = await asyncio.gather(
            *(
                own_server(
                    config={
                        "server_name": name,
                        "cluster": {"name": "c", "listen": f"{HOST}:{port}", "routes": urls},
                    }
                )
                for name, port in routes.items()
            )
        )
        cluster = cls(dict(zip(routes, started, strict=True)))
        try:
            await cluster.ready(_FIRST)
        except AssertionError:
            # Servers of 2.10 that start together dial each other at the same moment, and sometimes close the wrong one
            # of two routes. The leader then never hears of a peer, and refuses a stream with three replicas, "no
            # suitable peers for placement", for as long as they run.
            for server in started:
                await server.stop()
            await asyncio.gather(*(server.start() for server in started))
            await cluster.ready()
        return cluster

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers.values()]

    async def ready(self, timeout: float = _READY) -> None:
        """Wait until a stream can be made on all three, repeatedly for a second.

        A leader that answers may not have heard of every peer yet, and a first leader may lose an election to another.
        """

        async def answers() -> bool:
            try:
                for url in (*self.urls, self.urls[0]):
                    async with Oracle(url, timeout=1.0) as oracle:
                        await oracle.create_stream("READY", ["ready"], num_replicas=3, storage="memory")
                        await oracle.delete_stream("READY")
                    await asyncio.sleep(0.25)
            except Exception as error:
                raise AssertionError(f"no stream can be made: {error!r}") from error
            return True

        await eventually(answers, timeout, what="a cluster with a leader")

    async def places(self, oracle: Oracle, stream: str) -> tuple[str, list[str]]:
        """The leader of a stream and its followers, which have all that the leader has."""

        async def current_cluster() -> dict[str, Any] | None:
            try:
                cluster = (await oracle.stream_info(stream))["cluster"]
            except (OracleError, TimeoutError):
                return None  # no one leads just now
            followers = cluster.get("replicas") or []
            settled = (
                cluster.get("leader") and len(followers) == 2 and all(one["current"] for one in followers)
            )
            return cluster if settled else None

        cluster: Any = await eventually(current_cluster, _READY, what="a stream whose replicas are current")
        return cluster["leader"], [one["name"] for one in cluster["replicas"]]

    async def step_down(self, oracle: Oracle, stream: str) -> None:
        """The stream's leader steps down."""
        await oracle.api(f"STREAM.LEADER.STEPDOWN.{stream}")
