"""The reasons why a connection was lost, and why the newest attempt to restore it failed."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import ConnectError
from ...protocol.connection.pool import Server
from ...protocol.connection.urls import shown
from ...protocol.connection.websocket import HttpRefusedError
from .connect_errors import is_refusal, reason, server_error
from .credentials import CallbackError

__all__ = ["Outage"]


class Outage:
    """The time from the loss of a connection to the next connection.

    Attributes:
        lost: Why the connection was lost.
        failed: Why the newest attempt failed, or "".
    """

    def __init__(self, error: BaseException | None = None) -> None:
        self.lost = "" if error is None else reason(error)
        self.failed = ""
        self._refused = False  # true once refused credentials have been reported

    def attempt_failed(
        self, server: Server, error: Exception, expiry: Callable[[], str]
    ) -> ConnectError | None:
        """Record a failed attempt.

        If the credentials were refused or could not be provided, return the error to report, but only once per
        outage. In any other case, return None. ``expiry`` returns a remark on the credentials.
        """
        where = shown(server.url)
        if not isinstance(error, CallbackError | HttpRefusedError) and not is_refusal(error):
            self.failed = f"{where}: {reason(error)}"
            return None
        refused = server_error(where, error, expiry=expiry())
        self.failed = str(refused)
        reported, self._refused = self._refused, True
        return None if reported else refused

    def __str__(self) -> str:
        if not self.lost:
            return ""
        then = f", then {self.failed}" if self.failed else ""
        return f"the connection was lost ({self.lost}){then}"
