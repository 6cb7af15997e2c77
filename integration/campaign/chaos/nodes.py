"""Three nodes whose routes lead through proxies, so that any of them can be cut off; a leaf node, a WebSocket port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from integration.kit.network.proxy import Proxy
from integration.kit.servers.cluster import OwnCluster
from integration.kit.servers.nats_server import OwnServer
from integration.kit.servers.ports import HOST, free_port

NAMES = ("n1", "n2", "n3")
DOMAIN = "hub"
NOWHERE = f"{HOST}:1"  # advertised to the other nodes, which then know no way but the proxies


class Nodes(OwnCluster):
    """The cluster, with a proxy from each node to each other one."""

    def __init__(self, servers: dict[str, OwnServer], proxies: dict[tuple[str, str], Proxy]) -> None:
        super().__init__(servers)
        self._proxies = proxies
        self.leaf: OwnServer | None = None
        self.websocket = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator[Nodes]:
        async with contextlib.AsyncExitStack() as stack:
            ports = {name: free_port() for name in NAMES}
            leaves = {name: free_port() for name in NAMES}
            proxies = {
                (one, other): await stack.enter_async_context(Proxy(ports[other], frames=False))
                for one in NAMES
                for other in NAMES
                if one != other
            }
            websocket = free_port()
            servers = {}
            for name in NAMES:
                config: dict[str, Any] = {
                    "server_name": name,
                    "jetstream": {"domain": DOMAIN},
                    "leafnodes": {"listen": f"{HOST}:{leaves[name]}", "no_advertise": True},
                    "cluster": {
                        "name": "c",
                        "listen": f"{HOST}:{ports[name]}",
                        "advertise": NOWHERE,
                        "routes": [proxies[name, other].url for other in NAMES if other != name],
                    },
                }
                if name == "n1":
                    config["websocket"] = {"listen": f"{HOST}:{websocket}", "no_tls": True}
                servers[name] = OwnServer(config=config)
                stack.push_async_callback(servers[name].stop)
            await asyncio.gather(*(server.start() for server in servers.values()))
            nodes = cls(servers, proxies)
            nodes.websocket = f"ws://{HOST}:{websocket}"
            await nodes.ready()
            # Without JetStream of its own: what is asked there by the cluster's domain goes to the cluster.
            remotes = [{"urls": [f"nats-leaf://{HOST}:{leaves[name]}"]} for name in ("n2",)]
            nodes.leaf = OwnServer(
                jetstream=False, config={"server_name": "leaf", "leafnodes": {"remotes": remotes}}
            )
            stack.push_async_callback(nodes.leaf.stop)
            await nodes.leaf.start()
            yield nodes

    def around(self, name: str) -> list[Proxy]:
        """The proxies of a node, both ways."""
        return [proxy for pair, proxy in self._proxies.items() if name in pair]

    def cut_off(self, name: str, *, silently: bool) -> None:
        """No other node is reached from this one, nor this one from another: without a word, or by resets."""
        for proxy in self.around(name):
            if silently:
                proxy.stall()
            else:
                proxy.refuse()
                proxy.cut()

    async def let_in(self, name: str) -> None:
        for proxy in self.around(name):
            proxy.unstall()
            await proxy.accept()
