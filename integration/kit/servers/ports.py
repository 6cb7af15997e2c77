"""Loopback ports that stay free while a server or proxy is down."""

from __future__ import annotations

import atexit
import itertools
import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"

# Below the range from which kernels take the source ports of outgoing connections: a client that
# redials a closed port inside that range may connect to itself, or find its port taken.
_LOWEST, _HIGHEST = 10_000, 32_000
_BLOCK = 200


def _own_block() -> Iterator[int]:
    """The ports of a block that belongs to this process, in turn.

    A process owns a block while it listens on the block's first port. So no other process, even of another run on the
    same machine, takes a port that a server releases for a moment and uses again.
    """
    blocks = list(range(_LOWEST, _HIGHEST, _BLOCK))
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        guard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            guard.bind((HOST, first))
            guard.listen()
        except OSError:
            guard.close()
            continue
        atexit.register(guard.close)
        return itertools.cycle(range(first + 1, first + _BLOCK))
    raise RuntimeError(f"no block of free loopback ports between {_LOWEST} and {_HIGHEST}")


_ports = _own_block()


def listening_socket(port: int = 0) -> socket.socket:
    """A socket listening on loopback, on `port` or on a free port."""
    return _try_port(port, listen=True) if port else _first_free(listen=True)


def free_port() -> int:
    """A loopback port no one listens on."""
    with _first_free(listen=False) as sock:
        return int(sock.getsockname()[1])


def _first_free(*, listen: bool) -> socket.socket:
    for port in itertools.islice(_ports, _BLOCK):
        try:
            return _try_port(port, listen=listen)
        except OSError:
            continue
    raise RuntimeError("no free loopback port in the block of this process")


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
