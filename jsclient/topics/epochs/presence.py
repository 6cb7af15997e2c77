"""Finds out whether a partition has a live publisher, which answers requests on a separate subject."""

from __future__ import annotations

from collections.abc import Callable

from ..._runtime.connection.connection import Inbox
from ..._runtime.context import Context
from ...errors import (
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
)
from ...protocol.epochs.presence import ANSWER, Verb, read_presence, write_presence
from ...protocol.wire.frames import Frame
from ...protocol.wire.replies import INBOX, may_answer

__all__ = ["Presence", "is_present"]


async def is_present(context: Context, subject: str, verb: Verb = "ask") -> bool:
    """Return whether a publisher answers on ``subject``. Raises `DisconnectedError` and `ClosedError`.

    A publisher counts as dead if it does not answer within a second, or if this user may not send it a request.
    """
    try:
        answer = await context.requests.ask(subject, write_presence(verb), timeout=ANSWER, what="publisher")
        return read_presence(answer[3]) == "alive"
    except (NoRespondersError, RequestTimeoutError, PermissionDeniedError, ProtocolError):
        return False


class Presence:
    """Answers on ``subject`` while ``is_alive`` returns True. Calls ``taken`` when another publisher takes over."""

    def __init__(
        self,
        context: Context,
        subject: str,
        is_alive: Callable[[], bool],
        taken: Callable[[], None] | None = None,
    ) -> None:
        self._connection = context.connection
        self.subject: str = subject
        self._is_alive, self._taken = is_alive, taken
        self._reply_prefixes = (INBOX, f"{context.connection.inbox_prefix}.")
        self._inbox: Inbox | None = None

    async def begin_answering(self) -> None:
        """Start to listen for requests. May raise any error of subscribing."""
        self._inbox = await self._connection.subscribe(self.subject, self._receive_requests)

    def _receive_requests(self, frames: list[Frame]) -> None:
        for _, reply, _, data in frames:
            who = reply.decode(errors="replace")
            if not self._is_alive() or not may_answer(who, self._reply_prefixes):
                continue
            try:
                verb = read_presence(data)
            except ProtocolError:
                continue
            if verb == "take" and self._taken is not None:
                self._taken()
            self._answer(who)

    def _answer(self, who: str) -> None:
        try:
            self._connection.send(who, write_presence("alive"))
        except JetStreamError:
            pass  # the other publisher will count this publisher as dead, and fence it

    async def end_answering(self) -> None:
        """Stop listening. On return, the server has no more requests for this publisher."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await self._connection.drain(inbox, ANSWER)
