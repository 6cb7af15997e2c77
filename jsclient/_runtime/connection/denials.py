"""Permissions that the server refused, and the events that report them."""

from __future__ import annotations

from ...errors import PermissionDeniedError
from ...protocol.consumers.rights import ack_right
from ...protocol.events import PermissionDenied

__all__ = ["Denials"]


class Denials:
    """The permissions that the server refused on one connection."""

    def __init__(self) -> None:
        # The missing permissions that have already been reported after a refused ack.
        self._ack_rights: set[str] = set()

    def event(self, error: PermissionDeniedError) -> PermissionDenied | None:
        """Return the event to report, if any. All acks of a consumer are refused, so only the first is reported."""
        needed = ack_right(error.subject) if error.operation == "publish" else ""
        if needed in self._ack_rights:
            return None
        if needed:
            self._ack_rights.add(needed)
        return PermissionDenied(operation=error.operation, subject=error.subject, needed=needed)
