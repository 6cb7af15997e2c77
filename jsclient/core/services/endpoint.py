"""Endpoints of services, which receive requests and pass them to a handler. Source: ADR-32."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._runtime.context import Context
from ..._runtime.handlers import Threads, is_coroutine_function
from ...errors import JetStreamError, ServiceError
from ...protocol.core.services import ERROR, EndpointInfo, EndpointStats, error_headers
from ...protocol.events import HandlerFailed
from ..message import CoreMessage

if TYPE_CHECKING:
    from ..api import Core
    from ..subscription import CoreSubscription

__all__ = ["Endpoint", "RequestHandler"]

RequestHandler: TypeAlias = Callable[[CoreMessage], Awaitable[object] | object]
"""A handler for requests. It is either a coroutine function, or a plain function, which is called in a thread."""

_FAILED = 500  # error code of the response if the handler raises any exception other than `ServiceError`


class Endpoint:
    """A part of a service that handles the requests to one subject. Created by `Service.add_endpoint`.

    An endpoint exists until its service is stopped. It counts the requests that it handles (see `stats`).

    Attributes:
        info: The `EndpointInfo` with the name, subject, queue group and metadata of the endpoint.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        handler: RequestHandler,
        *,
        subject: str,
        queue: str,
        metadata: Mapping[str, str],
        concurrency: int,
    ) -> None:
        self._context = context
        self._handler = handler
        self._threads = None if is_coroutine_function(handler) else Threads(concurrency)
        self._concurrency = concurrency
        self.info: EndpointInfo = EndpointInfo(
            name=name, subject=subject, queue_group=queue, metadata=dict(metadata)
        )
        self._subscription: CoreSubscription | None = None
        self._requests = self._errors = self._nanoseconds = 0
        self._last_error = ""

    def __repr__(self) -> str:
        return f"<Endpoint {self.info.name!r} on {self.info.subject!r}>"

    async def open(self, core: Core, *, max_pending: int, reply_prefixes: tuple[str, ...]) -> None:
        """Start receiving requests. For internal use. `Service.add_endpoint` calls this method once."""
        self._subscription = await core.subscribe(
            self.info.subject,
            queue=self.info.queue_group,
            callback=self._handle_request,
            concurrency=self._concurrency,
            max_pending=max_pending,
            reply_prefixes=reply_prefixes,
        )

    async def _handle_request(self, request: CoreMessage) -> None:
        begin = time.perf_counter_ns()
        try:
            if self._threads is None:
                await self._handler(request)  # type: ignore[misc]  # it is a coroutine function
            else:
                await self._threads.call(self._handler, request)
        except ServiceError as error:
            await self._refuse_request(request, error)
        except Exception as error:  # noqa: BLE001  a user's handler may raise anything
            self._context.emit(HandlerFailed(error=error, subject=request.subject))
            await self._refuse_request(
                request, ServiceError(_FAILED, f"the handler failed: {type(error).__name__}")
            )
        finally:
            self._requests += 1
            self._nanoseconds += time.perf_counter_ns() - begin

    async def _refuse_request(self, request: CoreMessage, error: ServiceError) -> None:
        """Count an error, and send it to the sender of the request if the sender expects a response."""
        self._errors += 1
        headers = error_headers(error.code, error.description)
        self._last_error = f"{error.code}: {headers[ERROR]}"
        if not request.reply:
            return
        try:
            await request.respond(error.data, headers=headers)
        except JetStreamError as failure:
            self._context.emit(HandlerFailed(error=failure, subject=request.subject))

    def stats(self, data: Any = None) -> EndpointStats:
        """Return the statistics of the endpoint since its start or last `reset`.

        To get the statistics of endpoints in other processes, use `Core.service_stats`.

        Args:
            data: A JSON value for the ``data`` field of the result. Defaults to None. This method never calls the
                function passed to `Service.add_stats_data`. `Service.stats` does.
        """
        seconds = self._nanoseconds / 1e9
        return EndpointStats(
            name=self.info.name,
            subject=self.info.subject,
            queue_group=self.info.queue_group,
            num_requests=self._requests,
            num_errors=self._errors,
            last_error=self._last_error,
            processing_time=seconds,
            average_processing_time=seconds / self._requests if self._requests else 0.0,
            data=data,
        )

    def reset(self) -> None:
        """Reset the statistics of the endpoint, including ``last_error``. `Service.reset` resets all endpoints."""
        self._requests = self._errors = self._nanoseconds = 0
        self._last_error = ""

    @property
    def pending(self) -> int:
        """Number of requests that have been received and are waiting for the handler."""
        return 0 if self._subscription is None else self._subscription.pending

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is running the handler. Always false for None. For internal use."""
        return self._subscription is not None and self._subscription.has(task)

    async def drain(self, timeout: float) -> None:
        """Stop receiving requests, and wait until those already received have been handled. For internal use.

        Args:
            timeout: How long to wait for the handlers, in seconds.

        Raises:
            RequestTimeoutError: Some handlers didn't finish within ``timeout`` seconds and were cancelled.
        """
        try:
            if self._subscription is not None:
                await self._subscription.drain(timeout)
        finally:
            if self._threads is not None:
                self._threads.close()
