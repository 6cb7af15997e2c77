"""The servers that the runs connect to: a server without TLS, and a server with TLS if a workload needs it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsclient

__all__ = ["Target", "plain_server", "tls_server"]

_HOST = "127.0.0.1"

# The server disconnects a client that lags by a gigabyte. The default is 64 MB, which a push consumer without flow
# control reaches with messages of 1 KiB.
_CONFIG = {"max_pending": 1 << 30}


@dataclass(frozen=True)
class Target:
    """The URL of a server, and the file with the authority of its certificate ("" without TLS)."""

    server: jsclient.server.NatsServer
    ca: str = ""


@asynccontextmanager
async def plain_server() -> AsyncIterator[Target]:
    """Run a server without TLS until the block ends."""
    async with jsclient.server.NatsServer(config=_CONFIG) as server:
        yield Target(server)


@asynccontextmanager
async def tls_server() -> AsyncIterator[Target]:
    """Run a server that requires TLS, with a new certificate, until the block ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = _CONFIG | {"tls": _issue(folder)}
        async with jsclient.server.NatsServer(config=config) as server:
            yield Target(server, str(folder / "ca.pem"))


def _issue(folder: Path) -> dict[str, Any]:
    """Write a certificate, its key and its authority. Return the TLS configuration of the server."""
    import trustme  # only the workloads with TLS need it

    authority = trustme.CA()
    issued = authority.issue_cert(_HOST)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    return {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")}
