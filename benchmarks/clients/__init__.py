"""The works, once for each client: a module has ``WORKS``, functions by kind, and ``VERSION``.

A function receives a `benchmarks.job.Job` and a `benchmarks.job.Meter`. It connects, and for each part of
`benchmarks.job.Meter.parts` moves that many messages and calls `benchmarks.job.Part.done`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["CLIENTS", "ENVIRONMENT", "MODULES", "OURS", "WITHOUT_TLS", "load", "works_of"]

# The name of each client, and its module in this folder, in the order of the tables.
MODULES = {
    "raw": "on_socket",
    "nats.go": "on_natsgo",
    "jsclient": "on_jsclient",
    "jsclient-speedups": "on_speedups",
    "nats-py": "on_natspy",
    "natsrpy": "on_natsrpy",
    "nats-jetstream": "on_natsjetstream",
}
CLIENTS = tuple(MODULES)
OURS = ("jsclient", "jsclient-speedups")
WITHOUT_TLS = ("natsrpy", "nats-jetstream")  # clients that are not measured over TLS
ENVIRONMENT = {"jsclient": {"JSCLIENT_PURE": "1"}, "jsclient-speedups": {"JSCLIENT_PURE": "0"}}


def load(client: str) -> ModuleType:
    """Return the module of a client. Raises `ImportError` if the client is not installed."""
    return importlib.import_module(f"benchmarks.clients.{MODULES[client]}")


def works_of(client: str) -> dict[str, Callable[..., Any]]:
    """Return the works that the client supports, by kind."""
    works: dict[str, Callable[..., Any]] = load(client).WORKS
    return works
