"""A user's nats-py connection, used through its public API. This is the only module that imports nats-py.

It is slower than a connection that jsclient opens, and has nats-py's limits. Messages pass one at a time through its
queue and task, nats-py handles malformed input, and reconnects are detected by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats.aio.client
import nats.aio.msg
import nats.errors

from ...errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    MaxPayloadError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ...protocol.connection.connection_stats import ConnectionStats
from ...protocol.events import Disconnected, ErrorRaised, Reconnected
from ...protocol.wire.frames import Frame, Sink
from ...protocol.wire.headers import Headers, parse_headers
from ..event_hub import OnEvent
from ..tasks import Tasks, until_done
from .connection import CLOSED, Connection, Inbox, Lifecycle

__all__ = ["UserConnection"]

# Seconds between checks. The state of the nats-py client is polled, because its callbacks belong to the user.
_POLL_EVERY = 0.05
_PONG = 600  # seconds to wait for a PONG, longer than nats-py keeps a connection that does not answer
_DRAINED = 9.0  # seconds to wait for nats-py's drain, which fails if no PONG arrives within 10 seconds
_DRAIN_LIMIT = 15.0  # seconds after which a drain that is still running is cancelled
_NO_LIMIT = 0  # In nats-py, 0 disables a limit. The tracker has its own limit

T = TypeVar("T")


class _Subscription:
    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.denied: PermissionDeniedError | None = None
        self.nats_subscription: Any = None


class _AllValues(dict[str, str]):
    """Headers for nats-py's ``publish``. ``items`` repeats a name for each of its values."""

    def __init__(self, headers: Headers) -> None:
        super().__init__(headers)
        self._pairs = headers.pairs()

    def items(self) -> list[tuple[str, str]]:  # type: ignore[override]  # nats-py iterates over it
        return self._pairs


def _frame(msg: nats.aio.msg.Msg) -> Frame:
    """Convert a message to a frame. This rebuilds the header block that nats-py has parsed."""
    subject = msg.subject.encode("utf-8", "surrogateescape")
    reply = (msg.reply or "").encode("utf-8", "surrogateescape")
    if not msg.headers:
        return subject, reply, b"", msg.data
    fields = dict(msg.headers)
    status = fields.pop("Status", "") if not msg.data and not reply.startswith(b"$JS.ACK.") else ""
    line = "NATS/1.0"
    if status:
        line += f" {status} {fields.pop('Description', '')}".rstrip()
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return subject, reply, f"{line}\r\n{lines}\r\n".encode("utf-8", "surrogateescape"), msg.data


def _prefix_of(nc: nats.aio.client.Client) -> str:
    """Return the prefix of the inboxes that the user's client creates, which is all but the last token."""
    try:
        return nc.new_inbox().rpartition(".")[0]
    except nats.errors.Error:  # the client is closed
        return "_INBOX"


class UserConnection(Connection):
    """A `Connection` on a nats-py client that the user opened and will close."""

    def __init__(self, nc: nats.aio.client.Client, on_event: OnEvent | None) -> None:
        super().__init__(on_event, _prefix_of(nc))
        self._nc = nc
        self.echoes = not nc.options.get("no_echo")
        self._tasks = Tasks(self._failed)
        self._watcher: asyncio.Task[Any] | None = None
        self._reconnects = nc.stats["reconnects"]
        self._was_up = bool(nc.is_connected)
        self._ended = False
        self._inboxes: set[_Subscription] = set()
        # Tasks that wait for a PONG, and the number of reconnects before each started.
        self._waiting: dict[asyncio.Task[Any], int] = {}

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, JetStreamError):
            self.hub.emit(ErrorRaised(error=error))
        else:
            self.hub.emit(ErrorRaised(error=DisconnectedError(f"{type(error).__name__}: {error}")))

    @property
    def is_connected(self) -> bool:
        return bool(self._nc.is_connected)

    @property
    def is_closed(self) -> bool:
        return self._ended or bool(self._nc.is_closed)

    @property
    def max_payload(self) -> int:
        return int(self._nc.max_payload)

    @property
    def server_version(self) -> str:
        version = self._nc.connected_server_version
        try:
            return f"{version.major}.{version.minor}.{version.patch}"
        except ValueError:
            return ""

    # --- polling for reconnects ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self.is_closed:
            await asyncio.sleep(_POLL_EVERY)
            self._poll()
        self._notify(Lifecycle.CLOSED)

    def _poll(self) -> None:
        up, reconnects = self.is_connected, self._nc.stats["reconnects"]
        if self._was_up and (not up or reconnects != self._reconnects):
            self._was_up = False
            self._end_waiting()
            self.hub.emit(Disconnected())
            self._notify(Lifecycle.DISCONNECTED)
        if up and not self._was_up:
            self._was_up, self._reconnects = True, reconnects
            self.hub.emit(Reconnected())
            self._notify(Lifecycle.CONNECTED)

    def _end_waiting(self) -> None:
        """End the tasks that wait for a PONG that was lost with an earlier connection."""
        up, reconnects = self.is_connected, self._nc.stats["reconnects"]
        for task, connection in list(self._waiting.items()):
            if not up or connection != reconnects:
                task.cancel()

    # --- traffic -----------------------------------------------------------------------------------------------

    def send(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        self.check_sendable(len(header) + len(payload))
        self._tasks.start(self.publish(subject, payload, reply=reply, header=header), "send")

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        self.check_sendable(len(header) + len(payload))
        fields: dict[str, str] | None = None
        if header:
            fields = _AllValues(parse_headers(header)[1])
        try:
            await self._nc.publish(subject, payload, reply=reply, headers=fields)
        except nats.errors.MaxPayloadError as error:
            raise MaxPayloadError(len(payload), self.max_payload) from error
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
            raise ClosedError(CLOSED) from error
        except nats.errors.Error as error:
            raise DisconnectedError(str(error)) from error

    async def ack(self, reply: bytes, payload: bytes, *, settles: bool) -> None:
        await self.publish(reply.decode("utf-8", "surrogateescape"), payload)

    def check_sendable(self, size: int = 0) -> None:
        self.check_open()  # nats-py's client may still be connected after this connection was closed
        super().check_sendable(size)

    async def subscribe(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> Inbox:
        self.check_open()
        if self._watcher is None:
            self._watcher = self._tasks.start(self._watch(), "watch")

        async def receive(msg: nats.aio.msg.Msg) -> None:
            sink([_frame(msg)])

        subscription = _Subscription(subject)
        try:
            subscription.nats_subscription = await self._nc.subscribe(
                subject, queue, cb=receive, pending_msgs_limit=_NO_LIMIT, pending_bytes_limit=_NO_LIMIT
            )
            if limit:
                await subscription.nats_subscription.unsubscribe(limit)
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
            raise ClosedError(CLOSED) from error
        self._inboxes.add(subscription)
        return subscription

    def end_after(self, inbox: Any, count: int, *, earlier: int) -> None:
        if inbox.nats_subscription is not None and self.is_connected:
            self._tasks.start(
                self._unsubscribe_after(inbox.nats_subscription, count), "limit of a subscription"
            )

    async def _unsubscribe_after(self, nats_subscription: Any, count: int) -> None:
        with contextlib.suppress(nats.errors.Error):  # the client or the subscription is closed or draining
            await nats_subscription.unsubscribe(count)

    async def unsubscribe(self, inbox: Any) -> None:
        self._inboxes.discard(inbox)
        nats_subscription, inbox.nats_subscription = inbox.nats_subscription, None
        if nats_subscription is None or self._nc.is_closed:
            return
        try:
            await nats_subscription.unsubscribe()
        except nats.errors.Error:
            pass  # the client is closed, draining or drained, so the subscription no longer exists

    async def drain(self, inbox: Any, timeout: float) -> None:
        nats_subscription, deadline = inbox.nats_subscription, self.now() + timeout
        try:
            if nats_subscription is not None and self.is_connected:
                # Check first that the server answers a PING. nats-py's drain() also waits for a PONG, and must not be
                # cancelled during that wait.
                await self.ping(timeout)
                draining = self._start_waiting(nats_subscription.drain(), ends_with_connection=False)
                # If drain() failed at its own timeout, the subscription would be orphaned, and nats-py would
                # resubscribe after every reconnect. So stop waiting earlier, while `unsubscribe` can still end the
                # subscription.
                if not await self._drained(draining, min(deadline, self.now() + _DRAINED)):
                    asyncio.get_running_loop().call_later(_DRAIN_LIMIT, draining.cancel)
        except JetStreamError:
            pass
        finally:
            await self.unsubscribe(inbox)

    async def _drained(self, draining: asyncio.Task[Any], deadline: float) -> bool:
        """Wait for the end of a drain, at most until ``deadline`` or until the connection is lost."""
        reconnects = self._nc.stats["reconnects"]
        while self.is_connected and reconnects == self._nc.stats["reconnects"]:
            left = min(_POLL_EVERY, deadline - self.now())
            if left <= 0:
                break
            if await until_done(draining, left):
                return True
        return draining.done()

    def stats(self) -> ConnectionStats:
        stats = self._nc.stats
        return ConnectionStats(
            messages_received=stats["in_msgs"],
            bytes_received=stats["in_bytes"],
            bytes_sent=stats["out_bytes"],
            reconnects=stats["reconnects"],
            subscriptions=len(self._inboxes),
            bytes_waiting=self._nc.pending_data_size,
        )

    async def ping(self, timeout: float) -> float:
        self.check_sendable()
        pinging = self._start_waiting(self._round_trip())
        if not await until_done(pinging, timeout):
            raise RequestTimeoutError("no PONG to a PING", timeout)
        try:
            took = pinging.result()
        except (nats.errors.Error, asyncio.CancelledError) as error:
            raise DisconnectedError(str(error) or "the connection was lost before a PONG came") from error
        # Messages that arrived before the PONG may still be in nats-py's queue. Give nats-py time to process them, so
        # that a ping really confirms all earlier messages.
        for _ in range(3):
            await asyncio.sleep(0)
        return took

    async def _round_trip(self) -> float:
        # nats-py writes a PING before the commands that still wait for its flusher. Send a second PING, which comes
        # after these commands, so that its PONG confirms them.
        reconnects = self._nc.stats["reconnects"]
        await self._nc.flush(_PONG)
        if self._ended or reconnects != self._nc.stats["reconnects"]:
            raise nats.errors.ConnectionClosedError  # without this, the wait for the second PONG would never end
        started = time.perf_counter()
        await self._nc.flush(_PONG)  # `Client.rtt` of nats-py 2.15 and later does the same
        return time.perf_counter() - started

    def _start_waiting(
        self, work: Coroutine[Any, Any, T], *, ends_with_connection: bool = True
    ) -> asyncio.Task[T]:
        """Start a task that waits for a PONG. It continues when its caller is cancelled or stops waiting.

        nats-py keeps the future of a PONG. If that future were cancelled, the PONG would end the read loop.
        """
        task = asyncio.get_running_loop().create_task(work, name="jsclient:PONG")
        if ends_with_connection:
            self._waiting[task] = self._nc.stats["reconnects"]
        task.add_done_callback(self._waited)
        return task

    def _waited(self, task: asyncio.Task[Any]) -> None:
        self._waiting.pop(task, None)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved, because the caller may have been cancelled

    async def close(self) -> None:
        """Stop using the connection, which the user closes."""
        self._end()
        self._end_waiting()
        await self._tasks.cancel()
        for inbox in list(self._inboxes):  # these inboxes belong to handles whose close was cancelled
            await self.unsubscribe(inbox)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._notify(Lifecycle.CLOSED)

    def abort(self) -> None:
        self._end()
        self._tasks.start(self.close(), "close")
