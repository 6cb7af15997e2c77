"""Why there is no server."""

from __future__ import annotations

from ..errors import JetStreamError

__all__ = ["ServerNotFoundError", "ServerStartError"]


class ServerNotFoundError(JetStreamError, FileNotFoundError):
    """There is no nats-server executable to run."""


class ServerStartError(JetStreamError, RuntimeError):
    """The nats-server ended or did not become ready.

    Attributes:
        reason: What was seen.
        log: The last lines the server logged.
    """

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason, log)
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"{self.reason}; its log ends with:\n{self.log}" if self.log else self.reason
