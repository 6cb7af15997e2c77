"""nats-server for programs that are not asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jsclient

__all__ = ["running_server"]


@contextlib.contextmanager
def running_server() -> Iterator[Any]:
    """The embedded server, with an empty store."""
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as store:
        server = jsclient.server.NatsServer(store_dir=store)
        loop.run_until_complete(server.__aenter__())
        try:
            yield server
        finally:
            loop.run_until_complete(server.__aexit__(None, None, None))
            loop.close()
