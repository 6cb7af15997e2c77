"""Loopback ports that stay free while a server or proxy is down."""

from __future__ import annotations

import os
import random
import socket

HOST = "127.0.0.1"

# The processes of a parallel run each have a share to draw from: a port that one of them leaves for a moment, to come
# back to it, is free to none of the others.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

# Below the range from which kernels take the source ports of outgoing connections: a client that
# redials a closed port inside that range may connect to itself, or find its port taken.
_LOWEST, _HIGHEST = 10_000, 32_000
_SHARE = range(_LOWEST + _WORKER, _HIGHEST, _WORKERS)

# Seeded by the system, not by the test run: parallel runs must not draw the same ports.
_random = random.SystemRandom()


def listening_socket(port: int = 0) -> socket.socket:
    """A socket listening on loopback, on `port` or on a free port."""
    return _try_port(port, listen=True) if port else _first_free(listen=True)


def free_port() -> int:
    """A loopback port nobody listens on."""
    with _first_free(listen=False) as sock:
        return int(sock.getsockname()[1])


def _first_free(*, listen: bool) -> socket.socket:
    for _ in range(100):
        try:
            return _try_port(_random.choice(_SHARE), listen=listen)
        except OSError:
            continue
    raise RuntimeError(f"no free loopback port between {_LOWEST} and {_HIGHEST}")


def _try_port(port: int, *, listen: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A proxy must be able to come back on its port while old connections linger.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
        if listen:
            sock.listen(128)
            sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
