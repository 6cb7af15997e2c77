"""`Context`: the connection, the API subjects and the requests, shared by all handles of a `JetStream`."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import JetStreamError, ProtocolError
from ..protocol.events import ErrorRaised, Event
from ..protocol.publishing.in_flight import AnsweredSubjects
from ..protocol.wire import codec
from ..protocol.wire.api import read_response
from ..protocol.wire.subjects import Api
from .nats.connection import Connection, Listener, OnDenied
from .requests import Requests
from .tasks import Tasks

__all__ = ["Closable", "Context"]


class Closable(Protocol):
    """A handle that ends with the connection."""

    async def abandon(self) -> None: ...


@dataclass(slots=True)
class Context:
    """Shared by all handles of one `JetStream`."""

    connection: Connection
    api: Api
    timeout: float  # seconds, of API requests
    requests: Requests = field(init=False)
    tasks: Tasks = field(init=False)
    open: set[Closable] = field(default_factory=set)
    answered: AnsweredSubjects = field(default_factory=AnsweredSubjects)
    closer: asyncio.Task[object] | None = (
        None  # runs `JetStream.close`; not awaited, since it may be a handler
    )

    def __post_init__(self) -> None:
        self.requests = Requests(self.connection)
        self.tasks = Tasks(self.report)

    def reaching(self, prefix: str) -> Context:
        """A copy for streams under another API prefix."""
        if prefix == self.api.prefix:
            return self
        other = copy.copy(self)
        other.api = Api(prefix)
        return other

    def attach(
        self, handle: Closable, listener: Listener | None = None, denied: OnDenied | None = None
    ) -> None:
        """Register a handle: it is abandoned when the connection closes, and its hooks are called until `detach`."""
        self.open.add(handle)
        if listener is not None:
            self.connection.add_listener(listener, denied)

    def detach(
        self, handle: Closable, listener: Listener | None = None, denied: OnDenied | None = None
    ) -> None:
        """Undo `attach`; a no-op if not registered."""
        self.open.discard(handle)
        if listener is not None:
            self.connection.remove_listener(listener, denied)

    def emit(self, event: Event) -> None:
        """Report an event to the user."""
        self.connection.hub.emit(event)

    def report(self, error: BaseException) -> None:
        """Report the error of a background task."""
        if not isinstance(error, JetStreamError):
            wrapped = ProtocolError(f"a background task failed: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.emit(ErrorRaised(error=error))

    async def call(
        self, subject: str, body: Any = None, *, timeout: float | None = None, what: str = ""
    ) -> dict[str, Any]:
        """Send one request to the JetStream API.

        Args:
            subject: The full API subject.
            body: Sent as JSON; None: an empty request.
            timeout: Seconds; None: the default.
            what: The operation, for error texts.

        Raises:
            ApiError: The server answered with an error; the subject is in a note.
            RequestTimeoutError, NoRespondersError, DisconnectedError, ClosedError, PermissionDeniedError.
        """
        payload = b"" if body is None else codec.encode(body)
        answer = await self.requests.request(
            subject, payload, timeout=self.timeout if timeout is None else timeout, what=what
        )
        try:
            return read_response(answer)
        except JetStreamError as error:  # the server's words do not say which stream it means
            error.add_note(f"the answer to a request on {subject}")
            raise
