"""The `JetStream.core` interface, which provides plain messages, requests and services."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from .._runtime.connection.speedups import chosen
from .._runtime.connection.wire import CHUNK
from .._runtime.context import Context
from .._runtime.handle import opening
from .._runtime.handlers import check_handler
from .._runtime.publish import check_payload, check_subject, known_subjects
from ..errors import ConfigError
from ..protocol.core.tracker import MAX_PENDING, MAX_PENDING_BYTES, CoreTracker
from ..protocol.wire.checks import NoOptions, check_arguments, check_count, check_seconds
from ..protocol.wire.commands import PublishLines
from ..protocol.wire.names import check_filter_subject, check_publish_subject, check_queue
from .message import CoreMessage, ReplyChannel, header_block
from .replies import Replies
from .subscription import CoreCallback, CoreSubscription

if TYPE_CHECKING:
    from ..protocol.core.services import ServiceInfo, ServiceStats
    from .services.service import Service

__all__ = ["Core"]

_SMALL = 1024  # messages up to this size in bytes aren't checked, because every server accepts them
_MOST_SUBJECTS = 256


class Core:
    """The interface to core NATS: plain messages, requests and services. Returned by `JetStream.core`.

    Core NATS delivers a message at most once, to the subscriptions that exist when it is published. Messages aren't
    stored, so a message without a subscription is lost. Core NATS also works if JetStream is disabled on the server.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._connection = context, context.connection
        self._reply_channel: ReplyChannel | None = None
        self._lines: dict[str, PublishLines] = {}  # by subject
        self._small = 0  # messages up to this size in bytes aren't checked, 0 before the first

    def __repr__(self) -> str:
        return "<Core>"

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: Mapping[str, str | Sequence[str]] | None = None,
        **unknown: Unpack[NoOptions],
    ) -> None:
        """Publish a plain message.

        The call returns as soon as the message is in the write buffer. It waits only while the buffer is full. To make
        sure that the server has received the message, call `flush`. If you need to know whether a subscriber has
        received the message, use `request`. If a stream must store the message, use `JetStream.publish`.

        Args:
            subject: Subject to publish to, without wildcards.
            data: Payload of the message. Empty by default.
            reply: Subject on which a response is expected. By default, no response is expected.
            headers: A mapping from names to values. A value is a string or a list of strings.

        Raises:
            InvalidNameError: The subject, the reply subject or a header is invalid.
            ConfigError: ``data`` isn't bytes, or an argument is unknown.
            MaxPayloadError: The message exceeds the server's size limit.
            DisconnectedError: The client isn't connected.
            ClosedError: The connection is closed.

        If the call raises an error or is cancelled, the message wasn't sent.
        """
        lines, out = self._lines.get(subject) if type(subject) is str else None, self._connection.outbox
        # The fast path. If the connection already has commands to write at the end of this iteration of the event loop,
        # and the server keeps up, the command of an ordinary message can simply be appended.
        if (
            (lines is not None and out is not None and out.scheduled and out.is_up)
            and (out.size < CHUNK and not out.backlog)
            and not (reply or headers or unknown)
            and (type(data) is bytes and len(data) <= self._small)
        ):
            line = lines[len(data)]
            out.commands += (line, data, b"\r\n")
            out.size += len(line) + len(data) + 2
            return
        if unknown:
            check_arguments(Core.publish, unknown, NoOptions)
        name = known_subjects.get(subject) if type(subject) is str else None
        if name is None:
            name = check_subject(subject)
        if reply:
            check_publish_subject(reply)
        block = header_block(headers) if headers else b""
        payload = data if type(data) is bytes else check_payload(data)
        connection = self._connection
        if not (reply or block):  # the usual message, which doesn't need a second coroutine
            size = len(payload)
            if connection.write_at_once(b"PUB %b %d\r\n%b\r\n" % (name, size, payload), size):
                if lines is None:
                    self._remember(subject, name)
                self._small = min(_SMALL, connection.max_payload)  # a reconnect may change max_payload
                return
        await connection.publish(subject, payload, reply=reply, header=block)

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout: float | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        **unknown: Unpack[NoOptions],
    ) -> CoreMessage:
        """Send a request, wait for the first reply, and return it.

        ::

            reply = await js.core.request("time.now", timeout=1)
            print(reply.data)

        If the client is disconnected, the call waits for the reconnect until the timeout expires. The request is never
        sent more than once. If a service responds with an error, no exception is raised. Check `CoreMessage.error`.

        Args:
            subject: Subject to send the request to, without wildcards.
            data: Payload of the request. Empty by default.
            timeout: Time limit of the whole call, in seconds. Defaults to the ``timeout`` passed to `connect`.
            headers: A mapping from names to values. A value is a string or a list of strings.

        Raises:
            NoRespondersError: The subject has no subscribers. The server reports this immediately.
            RequestTimeoutError: No reply arrived in time. The request may have been received.
            DisconnectedError: The connection was lost before a reply arrived. The request may have been received.
            PermissionDeniedError: The user isn't allowed to publish to the subject.
            InvalidNameError: The subject or a header is invalid. Nothing was sent.
            ConfigError: ``data`` isn't bytes, ``timeout`` is out of range, or an argument is unknown. Nothing was sent.
            MaxPayloadError: The request exceeds the server's size limit. Nothing was sent.
            ClosedError: The connection is closed.

        If the call is cancelled, a reply that arrives later is dropped.
        """
        if unknown:
            check_arguments(Core.request, unknown, NoOptions)
        context = self._context
        seconds = self._checked(subject, timeout)
        payload = data if type(data) is bytes else check_payload(data)
        block = header_block(headers) if headers else b""
        if (size := len(block) + len(payload)) > self._small:
            context.connection.check_size(size)
        frame = await context.requests.ask(subject, payload, header=block, timeout=seconds, what="request")
        return CoreMessage(frame, self._reply_channel or self._replies)

    def request_many(
        self,
        subject: str,
        data: bytes = b"",
        *,
        max_messages: int | None = None,
        stall: float | None = None,
        timeout: float | None = None,
        sentinel: bool | Callable[[CoreMessage], bool] = False,
        headers: Mapping[str, str | Sequence[str]] | None = None,
    ) -> Replies:
        """Send a request to several responders, and iterate over their replies.

        ::

            async with js.core.request_many("inventory.count", stall=0.1) as replies:
                async for reply in replies:
                    print(reply.data)

        The client can't know how many replies to expect, so you choose what ends the iteration: a number of replies
        (``max_messages``), a pause between them (``stall``), or a final reply (``sentinel``). At the latest, the
        iteration ends when the timeout expires, without an error. See ADR-47 for this pattern.

        Args:
            subject: Subject to send the request to, without wildcards.
            data: Payload of the request. Empty by default.
            max_messages: Maximum number of replies. Unlimited by default.
            stall: Maximum time between two replies, in seconds. It doesn't apply to the first reply. Unlimited by
                default.
            timeout: Time limit for all replies together, in seconds. Defaults to the ``timeout`` passed to `connect`.
            sentinel: True if an empty reply ends the iteration, or a function that returns True for the final reply.
                The iteration doesn't return the final reply. By default, no reply ends the iteration.
            headers: A mapping from names to values. A value is a string or a list of strings.

        Raises:
            InvalidNameError: The subject or a header is invalid. Nothing was sent.
            ConfigError: ``data`` isn't bytes, or a limit is out of range. Nothing was sent.
            MaxPayloadError: The request exceeds the server's size limit. Nothing was sent.

        Reading raises `NoRespondersError` if the subject has no subscribers. See `Replies.next` for all errors.
        """
        # Report invalid arguments immediately, although the request is sent only when the first reply is read.
        seconds = self._checked(subject, timeout)
        payload = check_payload(data)
        block = header_block(headers)
        self._context.connection.check_size(len(block) + len(payload))
        if max_messages is not None:
            check_count("max_messages", max_messages)
        if stall is not None:
            check_seconds("stall", stall)
        if not isinstance(sentinel, bool) and not callable(sentinel):
            raise ConfigError(f"sentinel is {sentinel!r:.60}: True, False or a function of a reply is needed")
        return Replies(
            self._context,
            subject,
            payload,
            block,
            timeout=seconds,
            stall=stall,
            max_messages=max_messages,
            is_last=(_is_empty if sentinel else None) if isinstance(sentinel, bool) else sentinel,
        )

    @opening
    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        callback: CoreCallback | None = None,
        concurrency: int = 1,
        max_pending: int = MAX_PENDING,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        reply_prefixes: Iterable[str] = (),
    ) -> CoreSubscription:
        """Subscribe to plain messages.

        ::

            async with js.core.subscribe("time.*") as subscription:
                async for message in subscription:
                    print(message.subject, message.data)

        The subscription also receives messages that are published to streams, but they can't be acknowledged. To read a
        stream, use `JetStream.subscribe`.

        Args:
            subject: Subject to subscribe to. It may contain wildcards.
            queue: Name of the queue group. The server delivers each message to only one member of the group. By
                default, the subscription isn't part of a group.
            callback: Function or coroutine function that is called with each message. A plain function is called in a
                thread. If the callback raises an exception, the event `HandlerFailed` reports it, and the message isn't
                delivered again.
            concurrency: Maximum number of callbacks that run at the same time. Defaults to 1, which preserves the order
                of the messages.
            max_pending: Maximum number of messages in the buffer. While the buffer is full, new messages are dropped,
                and the event `SlowConsumer` reports them.
            max_pending_bytes: Maximum number of bytes in the buffer. Defaults to 64 MiB.
            reply_prefixes: Additional prefixes of reply subjects that `CoreMessage.respond` may send to. Replies to
                inboxes are always allowed.

        Raises:
            InvalidNameError: The subject or the queue group is invalid.
            ConfigError: The callback can't be called with a message, a limit is out of range, or a prefix is invalid.
            ClosedError: The connection is closed.

        If the user isn't allowed to subscribe to the subject, `CoreSubscription.next` raises `PermissionDeniedError`,
        and the event `PermissionDenied` is emitted.
        """
        check_filter_subject(subject)
        if queue:
            check_queue(queue)
        if callback is not None:
            check_handler("callback", callback)
        check_count("concurrency", concurrency)
        if callback is None and concurrency != 1:
            raise ConfigError(
                "concurrency is given without a callback: it is the number of callbacks at once"
            )
        tracker = CoreTracker(
            subject,
            check_count("max_pending", max_pending),
            check_count("max_pending_bytes", max_pending_bytes),
            chosen().runs.total_size,
        )
        subscription = CoreSubscription(
            self._context,
            subject,
            queue=queue,
            callback=callback,
            concurrency=concurrency,
            tracker=tracker,
            channel=ReplyChannel.of(self._context.connection, checked_prefixes(reply_prefixes)),
        )
        await subscription.open()
        return subscription

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has received all previously published messages.

        `publish` only adds messages to the write buffer. Call `flush` before you rely on other clients receiving them.

        Args:
            timeout: How long to wait, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            RequestTimeoutError: The server didn't respond in time.
            DisconnectedError: The connection was lost, or isn't open.
            ClosedError: The connection is closed.
        """
        seconds = self._context.timeout if timeout is None else check_seconds("timeout", timeout)
        await self._context.connection.ping(seconds)

    @opening
    async def add_service(
        self,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue: str = "q",
        reply_prefixes: Iterable[str] = (),
    ) -> Service:
        """Start an instance of a service, which clients and tools can discover.

        ::

            async with js.core.add_service("calculator", "1.0.0") as service:
                await service.add_endpoint("add", handler)
                ...

        Args:
            name: Name of the service, which is shared by all its instances. It may contain letters, digits, ``-`` and
                ``_``.
            version: Semantic version of the service, such as ``1.0.0``.
            description: Human-readable description. Empty by default.
            metadata: A mapping from names to strings, which is part of the service's information. It can't be changed
                later.
            queue: Queue group of the endpoints. Each request goes to one instance of the group. Defaults to ``"q"``,
                the default of all NATS clients. With ``""``, every instance receives every request.
            reply_prefixes: Additional prefixes of reply subjects that the service may respond to. Replies to inboxes
                are always allowed.

        Raises:
            InvalidNameError: The name or the queue group is invalid.
            ConfigError: The version, the metadata or a prefix is invalid.
            ClosedError: The connection is closed.

        See ADR-32 for the service protocol.
        """
        from .services.service import Service

        service = Service(
            self,
            self._context,
            name,
            version,
            description=description,
            metadata=metadata,
            queue=queue,
            reply_prefixes=checked_prefixes(reply_prefixes),
        )
        await service.open()
        return service

    async def services(self, name: str | None = None, *, timeout: float | None = None) -> list[ServiceInfo]:
        """Discover the running instances of a service, or of all services.

        Args:
            name: Name of the service. By default, all services are discovered.
            timeout: How long to wait for responses, in seconds. Defaults to 1. The call returns earlier if no further
                response arrives within a third of the timeout.

        Returns:
            One `ServiceInfo` for each instance that has responded. Empty if no service is running.

        Raises:
            InvalidNameError: The name is invalid.
            PermissionDeniedError: The user isn't allowed to send discovery requests.
            DisconnectedError: The connection was lost, or isn't open.
            ClosedError: The connection is closed.
        """
        from .services.discovery import instances

        return await instances(self, name, timeout)

    async def service_stats(
        self, name: str | None = None, *, timeout: float | None = None
    ) -> list[ServiceStats]:
        """Return the statistics of the running instances of a service, or of all services.

        Args:
            name: Name of the service. By default, all services are asked.
            timeout: How long to wait for responses, in seconds. Defaults to 1. The call returns earlier if no further
                response arrives within a third of the timeout.

        Returns:
            One `ServiceStats` for each instance that has responded. Empty if no service is running.

        Raises the same errors as `services`.
        """
        from .services.discovery import counters

        return await counters(self, name, timeout)

    def _remember(self, subject: str, encoded: bytes) -> None:
        """Prepare for more messages to a subject."""
        if len(self._lines) == _MOST_SUBJECTS:
            self._lines.clear()
        self._lines[subject] = PublishLines(encoded)

    def _checked(self, subject: str, timeout: float | None) -> float:
        """Check the subject of a request. Return the timeout to use, in seconds."""
        if type(subject) is not str or subject not in known_subjects:
            check_subject(subject)
        return self._context.timeout if timeout is None else check_seconds("timeout", timeout)

    @property
    def _replies(self) -> ReplyChannel:
        """The channel for responding to replies, which may be requests themselves."""
        if self._reply_channel is None:
            self._reply_channel = ReplyChannel.of(self._context.connection)
        return self._reply_channel


def checked_prefixes(prefixes: Iterable[str]) -> tuple[str, ...]:
    """Return the prefixes as a tuple. Raise `ConfigError` if one is empty or would match subjects of the server."""
    if isinstance(prefixes, str):
        raise ConfigError("reply_prefixes is a str: a list of prefixes is needed")
    checked = tuple(prefixes)
    for prefix in checked:
        if not isinstance(prefix, str) or not prefix or prefix.startswith("$"):
            raise ConfigError(
                f"reply_prefixes has {prefix!r:.60}: the start of a subject is needed, not of a subject with '$'"
            )
    return checked


def _is_empty(message: CoreMessage) -> bool:
    return not message.data
