"""Three nodes whose routes lead through proxies, so that any of them can be cut off. A leaf node, TLS, WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trustme

from integration.kit.network.proxy import Proxy
from integration.kit.servers.cluster import OwnCluster
from integration.kit.servers.nats_server import OwnServer
from integration.kit.servers.ports import HOST, free_port

NAMES = ("n1", "n2", "n3")
TRANSPORTS = ("tcp", "tls", "websocket")
DOMAIN = "hub"
NOWHERE = f"{HOST}:1"  # advertised to the other nodes, which then know no way but the proxies


class Nodes(OwnCluster):
    """The cluster, with a proxy from each node to each other one."""

    def __init__(self, servers: dict[str, OwnServer], proxies: dict[tuple[str, str], Proxy]) -> None:
        super().__init__(servers)
        self._proxies = proxies
        self.ways: dict[str, dict[str, Proxy]] = {}
        """For each transport: the proxy through which clients reach each node."""
        self.leaf: OwnServer | None = None
        self.websocket = ""
        self.leaf_links: list[Proxy] = []
        self.tls: ssl.SSLContext | None = None

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
            leaf_links = [
                await stack.enter_async_context(Proxy(port, frames=False)) for port in leaves.values()
            ]
            certificate, context = identity(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            websockets = {name: free_port() for name in NAMES}
            servers = {}
            for name in NAMES:
                config: dict[str, Any] = {
                    "server_name": name,
                    "jetstream": {"domain": DOMAIN},
                    "tls": certificate,
                    "allow_non_tls": True,
                    "leafnodes": {"listen": f"{HOST}:{leaves[name]}", "no_advertise": True},
                    "cluster": {
                        "name": "c",
                        "listen": f"{HOST}:{ports[name]}",
                        "advertise": NOWHERE,
                        "no_advertise": True,  # clients would find ways around the proxies
                        "routes": [proxies[name, other].url for other in NAMES if other != name],
                    },
                }
                config["websocket"] = {"listen": f"{HOST}:{websockets[name]}", "no_tls": True}
                servers[name] = OwnServer(config=config)
                stack.push_async_callback(servers[name].stop)
            await asyncio.gather(*(server.start() for server in servers.values()))
            nodes = cls(servers, proxies)
            nodes.websocket = f"ws://{HOST}:{websockets['n1']}"
            await nodes.ready()
            for transport in TRANSPORTS:
                ends = {
                    name: websockets[name] if transport == "websocket" else server.port
                    for name, server in servers.items()
                }
                nodes.ways[transport] = {
                    name: await stack.enter_async_context(Proxy(port, frames=False))
                    for name, port in ends.items()
                }
            # The node has no JetStream, so requests with the cluster's domain go to the cluster.
            remotes = [{"urls": [link.url.replace("nats:", "nats-leaf:") for link in leaf_links]}]
            nodes.leaf_links, nodes.tls = leaf_links, context
            nodes.leaf = OwnServer(
                jetstream=False, config={"server_name": "leaf", "leafnodes": {"remotes": remotes}}
            )
            stack.push_async_callback(nodes.leaf.stop)
            await nodes.leaf.start()
            yield nodes

    def reached_over(self, transport: str) -> dict[str, Any]:
        """The servers and options with which a client connects over a transport."""
        scheme = "ws" if transport == "websocket" else "nats"
        urls = [proxy.url.replace("nats:", f"{scheme}:") for proxy in self.ways[transport].values()]
        return {"servers": urls, **({"tls": self.tls} if transport == "tls" else {})}

    def ways_to(self, name: str, *transports: str) -> list[Proxy]:
        """The proxies between clients and a node."""
        return [self.ways[transport][name] for transport in transports or TRANSPORTS]

    def around(self, name: str) -> list[Proxy]:
        """The proxies of a node, both ways."""
        return [proxy for pair, proxy in self._proxies.items() if name in pair]

    def cut_off(self, name: str, *, silently: bool) -> None:
        """This node reaches no other node, and no other node reaches it. Connections are silent, or are reset."""
        for proxy in self.around(name):
            if silently:
                proxy.stall()
            else:
                proxy.refuse()
                proxy.cut()

    async def harm_leaf_link(self, length: float, *, silently: bool) -> None:
        """The leaf node reaches none of the three for a time."""
        for link in self.leaf_links:
            if silently:
                link.stall()
            else:
                link.refuse()
                link.cut()
        try:
            await asyncio.sleep(length)
        finally:
            for link in self.leaf_links:
                link.unstall()
                await link.accept()

    async def let_in(self, name: str) -> None:
        for proxy in self.around(name):
            proxy.unstall()
            await proxy.accept()


def identity(directory: Path) -> tuple[dict[str, str], ssl.SSLContext]:
    """The certificate of the three nodes, as in their configuration, and what a client trusts."""
    authority = trustme.CA()
    issued = authority.issue_cert(HOST)
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return {"cert_file": str(directory / "cert.pem"), "key_file": str(directory / "key.pem")}, context
