"""Peers on a NATS system. Events are stored in a stream, and queries are requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from .._runtime.connection.connection import Inbox
from .._runtime.event_hub import OnEvent
from .._runtime.publish import publish
from .._runtime.tasks import Tasks
from ..buckets.state import open_state
from ..client import JetStream, connect
from ..errors import (
    ClosedError,
    ConfigError,
    ConsumerNotFoundError,
    DisconnectedError,
    JetStreamError,
    MaxPayloadError,
    StreamNotFoundError,
)
from ..protocol.events import Event
from ..protocol.models.stream_config import StreamConfig
from ..protocol.peers.channel import event_subject, inbox_subject, queries_subject
from ..protocol.peers.options import EngineOptions
from ..protocol.peers.relationship import Send
from ..protocol.wire.frames import Frame
from ..protocol.wire.names import subject_matches
from ..protocol.wire.replies import ACCOUNTS, may_answer
from .backend import (
    Answerer,
    Attendance,
    Backend,
    Delivery,
    Receiver,
    Stopping,
    Store,
    backoff,
    pack,
    refusal,
)
from .errors import HostNotAllowedError

if TYPE_CHECKING:
    from ..consumers.message import Message
    from ..consumers.pull.consumer import Consumer
    from ..consumers.worker.worker import Worker
    from ..streams.stream import Stream

__all__ = ["Hosts", "ServerBackend", "ensure_streams", "events_config", "state_config"]


class Hosts:
    """Connections to other NATS systems. The connection to an allowed host is opened when it is first needed."""

    def __init__(self, options: EngineOptions, on_event: OnEvent) -> None:
        allowed = options.allowed_hosts
        how: Mapping[str, Mapping[str, Any]] = allowed if isinstance(allowed, Mapping) else {}
        self._options = {host: how.get(host, {}) for host in allowed}
        self._on_event = on_event
        self._dialed: dict[str, asyncio.Task[JetStream]] = {}
        self._closed = False

    async def connection(self, host: str) -> JetStream:
        """Return a connection to a host. Concurrent calls wait for the same attempt to connect.

        Raises:
            HostNotAllowedError: The host is not allowed, and no connection was opened.
            ConnectError, AuthenticationError: The host cannot be reached now.
        """
        if host not in self._options:
            raise HostNotAllowedError(host)
        if self._closed:
            raise ClosedError("the engine is closed")
        dialed = self._dialed.get(host)
        if dialed is None or (dialed.done() and _has_ended(dialed)):
            dialed = self._dialed[host] = asyncio.create_task(self._dial(host), name=f"jsclient:dial {host}")
        return await asyncio.shield(dialed)

    async def _dial(self, host: str) -> JetStream:
        return await connect(host, **{"on_event": self._on_event, **self._options[host]})

    async def close(self) -> None:
        """Close all connections. A cancelled call may be repeated."""
        self._closed = True
        if self._dialed:
            await asyncio.wait(self._dialed.values())
        while self._dialed:
            host, dialed = next(iter(self._dialed.items()))
            if not _failed(dialed):
                await dialed.result().close()
            self._dialed.pop(host, None)

    def abort(self) -> None:
        """Close all connections at once, and end the attempts to connect. Call `close` afterwards."""
        self._closed = True
        for dialed in self._dialed.values():
            if not dialed.done():
                dialed.cancel()
            elif not _failed(dialed):
                dialed.result()._connection.abort()  # noqa: SLF001  internal to this package


def _failed(dialed: asyncio.Task[JetStream]) -> bool:
    return dialed.cancelled() or dialed.exception() is not None


def _has_ended(dialed: asyncio.Task[JetStream]) -> bool:
    return _failed(dialed) or dialed.result().is_closed


_QUERIES = 100  # maximum number of queries that a peer answers at the same time
_LONG = 60.0  # if a worker ran for this many seconds, the delay before its restart is short again


class ServerBackend(Backend):
    """A `Backend` for peers on the NATS system of ``js``. Closing the backend also closes ``js`` if it is ``owned``."""

    def __init__(self, js: JetStream, options: EngineOptions, *, owned: bool) -> None:
        super().__init__(options)
        self.js = js
        self._owned = owned
        self._hosts = Hosts(options, self.emit)
        self._opening = asyncio.Lock()
        self._is_open = False

    async def open_streams(self) -> None:
        async with self._opening:
            if not self._is_open:
                await ensure_streams(self.js, self.options)
                self._is_open = True

    def store(self, peer: str) -> Store:
        prefix = f"{self.options.prefix}.state.{peer}."
        return open_state(self.js._context, self.options.state_stream, prefix, own=True)  # noqa: SLF001

    async def attend(self, peer: str, receiver: Receiver, answerer: Answerer) -> Attendance:
        attendance = _ServerAttendance(self, peer, receiver, answerer)
        try:
            await attendance.open_worker()
        except BaseException:
            await attendance.close(0.0)
            raise
        return attendance

    async def publish(self, send: Send) -> None:
        js = await self._connection(send.host)
        subject = event_subject(send.eci, send.domain, send.type, self.options.prefix)
        await publish(js._context, subject, pack(send.attrs), msg_id=send.id)  # noqa: SLF001

    async def ask(self, subject: str, data: bytes, host: str | None, timeout: float) -> bytes:
        context = (await self._connection(host))._context  # noqa: SLF001  internal to this package
        return (await context.requests.ask(subject, data, timeout=timeout, what=f"query {subject}"))[3]

    async def _connection(self, host: str | None) -> JetStream:
        if host is None or host == self.options.host:
            return self.js
        return await self._hosts.connection(host)

    async def forget_peer(self, peer: str) -> None:
        stream = await self.js.stream(self.options.events_stream)
        try:
            await stream.delete_consumer(peer)
        except ConsumerNotFoundError:
            pass
        await stream.purge(subject=inbox_subject(peer, self.options.prefix))

    def emit(self, event: Event) -> None:
        self.js._context.emit(event)  # noqa: SLF001  errors and events are reported by the connection

    async def close(self) -> None:
        await self._hosts.close()
        if self._owned:
            await self.js.close()

    def abort(self, end: Coroutine[Any, Any, None]) -> None:
        self._hosts.abort()
        if self._owned:
            self.js._connection.abort()  # noqa: SLF001  internal to this package
        self.js._context.tasks.start(end, "close the engine")  # noqa: SLF001


class _ServerAttendance(Attendance):
    """Reads a peer's events from a durable consumer, and its queries from a NATS subscription.

    The worker that reads the events is restarted after failures.
    """

    def __init__(self, backend: ServerBackend, peer: str, receiver: Receiver, answerer: Answerer) -> None:
        self._backend = backend
        self._context = backend.js._context  # noqa: SLF001  internal to this package
        self._peer = peer
        self._receiver = receiver
        self._answerer = answerer
        self._tasks = Tasks(backend.report_error)
        self._stopping = Stopping()
        self._consumer: Consumer | None = None
        self._worker: Worker | None = None
        self._queries: Inbox | None = None
        self._early: deque[Frame] | None = deque(maxlen=_QUERIES)
        self._answering = 0

    async def open_worker(self) -> None:
        """Create the consumer, and subscribe to queries."""
        self._consumer = await self._ensure()
        self._queries = await self._context.connection.subscribe(
            queries_subject(self._peer, self._backend.options.prefix), self._receive_queries, self._peer
        )

    def begin_delivery(self) -> None:
        early, self._early = self._early or deque(), None
        self._receive_queries([*early])
        self._tasks.start(self._run_worker(), f"inbox of peer {self._peer}")

    async def _ensure(self) -> Consumer:
        options = self._backend.options
        try:
            stream = await self._backend.js.stream(options.events_stream)
        except StreamNotFoundError:  # the stream was deleted, so create it again
            stream = await ensure_streams(self._backend.js, options)
        return await stream.ensure_consumer(
            on_drift="update",
            durable_name=self._peer,
            filter_subject=inbox_subject(self._peer, options.prefix),
            ack_policy="explicit",
            max_ack_pending=-1,  # events that wait for redelivery must not hold up other events
        )

    # --- events ----------------------------------------------------------------------------------------------

    async def _run_worker(self) -> None:
        """Run a worker while the peer is open. After a failure, start the next worker with a growing delay."""
        attempt, now = 0, self._context.connection.now
        while not self._stopping.begun:
            began = now()
            try:
                await self._work()
            except ClosedError:
                return
            except JetStreamError as error:
                self._backend.report_error(error)
            if self._context.connection.is_closed:
                return
            attempt = 1 if now() > began + _LONG else attempt + 1
            await self._stopping.pause(backoff(attempt))

    async def _work(self) -> None:
        consumer = self._consumer or await self._ensure()
        self._consumer = None
        try:
            if self._stopping.begun:
                return
            # Handle the events of a channel in order, because a channel represents one sender.
            self._worker = consumer.run(
                self._handle_message,
                concurrency=self._backend.options.concurrency,
                key=_channel,
                handler_timeout=None,
            )
            await self._worker
        finally:
            await consumer.close()

    async def _handle_message(self, message: Message) -> None:
        meta = message.metadata
        await self._receiver(
            Delivery(
                subject=message.subject,
                data=message.data,
                # Include the time, because the sequences of a recreated stream start at 1 again.
                ident=f"{meta.stream_seq}.{meta.timestamp_ns}".encode(),
                attempt=meta.num_delivered,
                later=message.nak,
                refuse=message.term,
            )
        )

    # --- queries ---------------------------------------------------------------------------------------------

    def _receive_queries(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self._early is not None:
                self._early.append(frame)
            elif not self._stopping.begun:
                self._tasks.start(self._answer(frame), f"query to peer {self._peer}")

    async def _answer(self, frame: Frame) -> None:
        """Answer a query, unless its reply subject is not an inbox."""
        try:
            subject, where = frame[0].decode(), frame[1].decode()
        except UnicodeDecodeError:
            return
        if not may_answer(where, (self._backend.options.reply_prefix, ACCOUNTS)):
            return
        self._answering += 1
        try:
            if self._answering > _QUERIES:
                answer = refusal("BUSY")
            else:
                answer = await self._answerer(subject, frame[3])
            try:
                await self._context.connection.publish(where, answer)
            except MaxPayloadError as error:
                await self._context.connection.publish(where, refusal("FAILED", str(error)))
        except (DisconnectedError, ClosedError):
            pass  # the sender notices the lost connection
        finally:
            self._answering -= 1

    # --- the end ---------------------------------------------------------------------------------------------

    def stop_delivery(self, grace: float) -> None:
        self._stopping.begin_closing()
        if self._worker is not None:
            self._worker.stop(grace)

    async def close(self, grace: float) -> None:
        self.stop_delivery(grace)
        queries, self._queries = self._queries, None
        if queries is not None:
            await self._context.connection.unsubscribe(queries)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()
        worker = self._worker
        if worker is not None and (worker.has(asyncio.current_task()) or worker.has(self._context.closer)):
            return  # a handler of the worker is closing the peer, and the worker ends after that handler
        await self._tasks.settle(grace + 1.0)


def _channel(message: Message) -> str:
    return ".".join(message.subject.split(".")[-4:-2])


def events_config(options: EngineOptions) -> StreamConfig:
    """Return the configuration of the stream of events, which removes an event once it is handled.

    The number of waiting events is limited for each channel and event type. The stream refuses events beyond the
    limit, so a flood on a public channel affects no other channel.
    """
    return StreamConfig(
        name=options.events_stream,
        description="jsclient.peers: events on their way to peers",
        subjects=[f"{options.prefix}.ev.>"],
        retention="workqueue",
        discard="new",
        discard_new_per_subject=True,
        max_msgs_per_subject=options.max_waiting,
        max_msg_size=options.max_event_size,
        max_age=options.max_age,
        num_replicas=options.replicas,
        storage=options.storage,
    )


def state_config(options: EngineOptions) -> StreamConfig:
    """Return the configuration of the stream of peers' state, which keeps the newest entry of each key."""
    return StreamConfig(
        name=options.state_stream,
        description="jsclient.peers: channels and relationships of peers",
        subjects=[f"{options.prefix}.state.>"],
        max_msgs_per_subject=1,
        num_replicas=options.replicas,
        storage=options.storage,
    )


async def ensure_streams(js: JetStream, options: EngineOptions) -> Stream:
    """Create missing streams, and return the stream of events. An existing stream is not changed.

    Raises:
        ConfigError: An existing stream is unsuitable.

        May raise any error common to API requests.
    """
    events = await js.ensure_stream(events_config(options), on_drift="ignore")
    state = await js.ensure_stream(state_config(options), on_drift="ignore")
    _check(events, f"{options.prefix}.ev.a.b.c.d")
    _check(state, f"{options.prefix}.state.a.b.c")
    # An event must expire before its relationship is forgotten. If it didn't, a late request would be mistaken for a
    # new one.
    if not 0 < (events.config.max_age or 0.0) < options.remember:
        raise ConfigError(
            f"the stream {events.name!r} has a max_age of {events.config.max_age or 0:g} s: it must have one, below "
            f"remember ({options.remember:g} s), or what is over might come to life again"
        )
    if str(events.config.retention) == "interest":
        raise ConfigError(
            f"the stream {events.name!r} has retention interest: it would store nothing for absent peers"
        )
    if state.config.max_msgs_per_subject != 1 or state.config.max_age:
        raise ConfigError(f"the stream {state.name!r} must have max_msgs_per_subject 1 and no max_age")
    return events


def _check(stream: Stream, subject: str) -> None:
    if not any(subject_matches(one, subject) for one in stream.config.subjects or ()):
        raise ConfigError(f"the stream {stream.name!r} does not hold subjects like {subject!r}")
