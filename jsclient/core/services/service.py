"""Services, which `Core.add_service` returns. Source: ADR-32."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..._runtime.context import Context
from ..._runtime.handle import Handle, State, asking
from ..._runtime.handlers import check_handler, check_plain
from ...errors import ClosedError, JetStreamError
from ...protocol.core.services import (
    VERBS,
    EndpointStats,
    ServiceInfo,
    ServiceStats,
    check_group,
    check_metadata,
    check_queue_group,
    check_service_name,
    check_version,
    endpoint_subject,
    ping_response,
    response,
    verb_subjects,
)
from ...protocol.core.tracker import MAX_PENDING
from ...protocol.wire.checks import check_count, check_seconds
from ..message import CoreMessage
from ..subscription import DRAIN_TIMEOUT, CoreSubscription
from .endpoint import Endpoint, RequestHandler

if TYPE_CHECKING:
    from ..api import Core

__all__ = ["EndpointGroup", "Service"]

CONCURRENCY = 64
"""Default for the maximum number of handlers of an endpoint that run at the same time."""


class EndpointGroup:
    """A group of endpoints whose subjects start with the same prefix. Created by `Service.group`.

    ::

        group = service.group("v1")
        await group.add_endpoint("orders", handler)  # receives requests to "v1.orders"
    """

    def __init__(self, service: Service, prefix: str, queue: str) -> None:
        self._service = service
        self._prefix = check_group(prefix)
        self._queue = check_queue_group(queue)

    def __repr__(self) -> str:
        return f"<EndpointGroup {self._prefix!r} of {self._service!r}>"

    def group(self, prefix: str, *, queue: str | None = None) -> EndpointGroup:
        """Return a group within this group. The prefixes are joined with a dot.

        Args:
            prefix: Prefix of the subjects of the new group, without the prefix of this group.
            queue: Queue group of the endpoints. Defaults to the queue group of this group.

        Raises:
            InvalidNameError: The prefix or the queue group is invalid.
        """
        return EndpointGroup(
            self._service, f"{self._prefix}.{prefix}", self._queue if queue is None else queue
        )

    @asking
    async def add_endpoint(
        self,
        name: str,
        handler: RequestHandler,
        *,
        subject: str | None = None,
        queue: str | None = None,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        max_pending: int = MAX_PENDING,
    ) -> Endpoint:
        """Add an endpoint whose subject starts with the prefix of the group, and start receiving its requests.

        The subject of the endpoint is the prefix, a dot, and ``subject``, which defaults to ``name``. For the other
        arguments and the errors, see `Service.add_endpoint`.
        """
        return await self._service.open_endpoint(
            name,
            handler,
            subject=endpoint_subject(self._prefix, name if subject is None else subject),
            queue=self._queue if queue is None else queue,
            metadata=metadata,
            concurrency=concurrency,
            max_pending=max_pending,
        )


class Service(Handle):
    """A running instance of a service. Created by `Core.add_service`.

    An instance responds to requests to its endpoints, and to discovery requests from clients and tools. If several
    instances of a service run in different processes, they share the requests. At the end of an ``async with`` block,
    the instance is stopped.
    """

    def __init__(
        self,
        core: Core,
        context: Context,
        name: str,
        version: str,
        *,
        description: str,
        metadata: Mapping[str, str] | None,
        queue: str,
        reply_prefixes: tuple[str, ...],
    ) -> None:
        self._core = core
        self._context = context
        self._queue = check_queue_group(queue)
        self._reply_prefixes = reply_prefixes
        self._identity = ServiceInfo(
            name=check_service_name(name),
            id=secrets.token_hex(11),
            version=check_version(version),
            description=description,
            metadata=check_metadata(metadata),
        )
        self._started = datetime.now(UTC)
        self._endpoints: list[Endpoint] = []
        self._discovery: list[CoreSubscription] = []
        self._stats_data: Callable[[EndpointStats], Any] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name of the service, which is shared by all its instances."""
        return self._identity.name

    @property
    def id(self) -> str:
        """Generated ID of this instance, which is unique among the instances of the service."""
        return self._identity.id

    @property
    def version(self) -> str:
        """Semantic version of this instance, such as ``1.0.0``. Instances of a service may have different versions."""
        return self._identity.version

    @property
    def endpoints(self) -> list[Endpoint]:
        """Endpoints of this instance, in the order in which they were added. The list is a copy."""
        return list(self._endpoints)

    def __repr__(self) -> str:
        return f"<Service {self.name} {self.version} {self.id} {self._state.value}>"

    async def open(self) -> None:
        """Start responding to discovery requests. For internal use. `Core.add_service` calls this method once."""
        self._context.attach(self)
        try:
            for verb in VERBS:
                for subject in verb_subjects(verb, self.name, self.id):
                    self._discovery.append(await self._core.subscribe(subject, callback=self._answers(verb)))
        except BaseException:
            await self._end_instance()
            raise

    def _answers(self, verb: str) -> Callable[[CoreMessage], Any]:
        answer = {"PING": self._ping, "INFO": self._info, "STATS": self._statistics}[verb]

        async def respond(request: CoreMessage) -> None:
            if request.reply:  # without a reply subject, the sender doesn't expect a response
                await request.respond(answer())

        return respond

    def _ping(self) -> bytes:
        return ping_response(self._identity)

    def _info(self) -> bytes:
        return response(self.info())

    def _statistics(self) -> bytes:
        return response(self.stats())

    def info(self) -> ServiceInfo:
        """Return the name, version, metadata and endpoints of this instance.

        Other clients get the same information from `Core.services`.
        """
        return self._identity.replace(endpoints=[endpoint.info for endpoint in self._endpoints])

    def stats(self) -> ServiceStats:
        """Return the statistics of this instance and its endpoints.

        Other clients get the same information from `Core.service_stats`.
        """
        identity, add = self._identity, self._stats_data
        counters = [endpoint.stats() for endpoint in self._endpoints]
        if add is not None:
            counters = [one.replace(data=add(one)) for one in counters]
        return ServiceStats(
            name=identity.name,
            id=identity.id,
            version=identity.version,
            metadata=identity.metadata,
            started=self._started,
            endpoints=counters,
        )

    def add_stats_data(self, function: Callable[[EndpointStats], Any]) -> None:
        """Add custom data to the statistics of each endpoint.

        ::

            service.add_stats_data(lambda stats: {"queue_length": len(queue)})

        The function is called each time the statistics are requested. It replaces the function of an earlier call. If
        the function raises an exception, `stats` raises it too. A client that requests the statistics then receives no
        response, and the event `HandlerFailed` reports the exception.

        Args:
            function: A plain function that is called with the `EndpointStats` of an endpoint. It returns a JSON value,
                which becomes the ``data`` field of the statistics.

        Raises:
            ConfigError: ``function`` is a coroutine function, or can't be called with one argument.
        """
        check_handler("function", function, "counters of an endpoint")
        check_plain("function", function)
        self._stats_data = function

    def reset(self) -> None:
        """Reset the statistics of all endpoints to 0, and ``started`` in the statistics to the current time."""
        self._started = datetime.now(UTC)
        for endpoint in self._endpoints:
            endpoint.reset()

    def group(self, prefix: str, *, queue: str | None = None) -> EndpointGroup:
        """Return a group for adding endpoints whose subjects start with the same prefix.

        Groups are useful for versions of an API, for example. They only exist in this process.

        Args:
            prefix: Prefix of the subjects, such as ``v1`` or ``v1.orders``. It may contain the wildcard ``*``.
            queue: Queue group of the endpoints. Defaults to the queue group of the service.

        Raises:
            InvalidNameError: The prefix or the queue group is invalid.
        """
        return EndpointGroup(self, prefix, self._queue if queue is None else queue)

    @asking
    async def add_endpoint(
        self,
        name: str,
        handler: RequestHandler,
        *,
        subject: str | None = None,
        queue: str | None = None,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        max_pending: int = MAX_PENDING,
    ) -> Endpoint:
        """Add an endpoint and start receiving its requests.

        ::

            async def add(request):
                numbers = json.loads(request.data)
                await request.respond(json.dumps(sum(numbers)).encode())

            await service.add_endpoint("add", add)

        If the handler raises a `ServiceError`, that error is sent as the response. If it raises any other exception,
        the response is an error with code 500 and the name of the exception's class, and the event `HandlerFailed`
        reports the exception.

        Args:
            name: Name of the endpoint. It may contain letters, digits, ``-`` and ``_``.
            handler: Function or coroutine function that is called with each request. A plain function is called in a
                thread.
            subject: Subject of the requests. It may contain wildcards. Defaults to ``name``.
            queue: Queue group of the endpoint. Defaults to the queue group of the service. With ``""``, every instance
                receives every request.
            metadata: A mapping from names to strings, which is part of the endpoint's information. Empty by default.
            concurrency: Maximum number of handlers that run at the same time. Defaults to 64. If it is 1, requests are
                handled in order.
            max_pending: Maximum number of requests that wait for a handler. Further requests are dropped, and the event
                `SlowConsumer` reports them.

        Raises:
            InvalidNameError: The name, the subject or the queue group is invalid.
            ConfigError: The handler can't be called with a request, the metadata is invalid, or a limit is out of
                range.
            ClosedError: The service or the connection is closed.
        """
        return await self.open_endpoint(
            name,
            handler,
            subject=endpoint_subject("", name if subject is None else subject),
            queue=self._queue if queue is None else queue,
            metadata=metadata,
            concurrency=concurrency,
            max_pending=max_pending,
        )

    async def open_endpoint(
        self,
        name: str,
        handler: RequestHandler,
        *,
        subject: str,
        queue: str,
        metadata: Mapping[str, str] | None,
        concurrency: int,
        max_pending: int,
    ) -> Endpoint:
        """Add an endpoint, given its full subject (including any prefix) and queue group. For internal use."""
        if self._state is not State.OPEN:
            raise ClosedError(f"{self!r} has ended: add a new service")
        check_handler("handler", handler, "request")
        endpoint = Endpoint(
            self._context,
            check_service_name(name, "endpoint"),
            handler,
            subject=subject,
            queue=check_queue_group(queue),
            metadata=check_metadata(metadata),
            concurrency=check_count("concurrency", concurrency, most=1000),
        )
        await endpoint.open(
            self._core,
            max_pending=check_count("max_pending", max_pending),
            reply_prefixes=self._reply_prefixes,
        )
        self._endpoints.append(endpoint)
        return endpoint

    async def stop(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop receiving requests, and wait until those already received have been handled.

        A second call waits for the first one, whose timeout applies. If a handler calls `stop`, the call returns
        immediately, and the instance stops in the background.

        Args:
            timeout: Time limit of the whole call, in seconds. After that, handlers that are still running are
                cancelled, and requests that haven't been handled are dropped.

        Raises:
            RequestTimeoutError: Some handlers didn't finish within ``timeout`` seconds. The instance has been stopped
                anyway.

        If the call is cancelled, the instance continues to stop in the background.
        """
        check_seconds("timeout", timeout)
        if self._stopping is None:
            self._state = State.DRAINING
            self._stopping = self._context.tasks.start(self._stop(timeout), "end of a service", awaited=True)
        if not self._is_handler(asyncio.current_task()):
            await asyncio.shield(self._stopping)

    def _is_handler(self, task: asyncio.Task[Any] | None) -> bool:
        return any(endpoint.has(task) for endpoint in self._endpoints)

    async def _stop(self, timeout: float) -> None:
        # Drain all endpoints together, so that a slow endpoint doesn't keep the others open.
        ends = [endpoint.drain(timeout) for endpoint in self._endpoints]
        results = await asyncio.gather(*ends, return_exceptions=True)
        await self._end_instance()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Stop this instance. Equivalent to `stop` with the default timeout."""
        await self.stop()

    async def _end_instance(self) -> None:
        self._state = State.CLOSED
        self._context.detach(self)
        for subscription in self._discovery:
            try:
                await subscription.unsubscribe()
            except JetStreamError:
                pass  # the connection is down, so the server has already removed the subscription

    async def abandon(self) -> None:
        """Mark the instance as stopped because the connection is closing. For internal use.

        The endpoints need no cleanup, because their subscriptions end with the connection.
        """
        await self._end_instance()
