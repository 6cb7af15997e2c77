"""nats-py's client with another reader. This is the only module that overrides private methods of nats-py.

nats-py connects, does TLS and authentication, discovers servers and reconnects. The parser and the read loop are
replaced, and callbacks of nats-py are guarded, so that no exception ends reading or reconnecting silently.
``integration/connection/test_nats_client.py`` pins the names used here.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol

import nats.aio.client
import nats.errors

from ...errors import PermissionDeniedError, ProtocolError
from ...protocol.wire.frames import Frame
from ..loop_end import LoopEnd
from ..retry import varied
from ..tasks import until_done
from .certificates import (
    alert,
    begins_with_info,
    begins_with_tls,
    certificate_error,
    is_unfinished,
    late_alert,
    received_before_tls,
    rejection,
)
from .transports import TcpTransport, WebSocketTransport, refusal_in
from .urls import FailedAttempt, announced, url_identity
from .wire import READ_SIZE, FrameReader, Host, Outbox, Tap

__all__ = ["NatsClient", "Owner", "WireSubscription"]

_random = random.Random()  # noqa: S311  no secret; not the shared generator, which a program may have seeded
_ENDED = (nats.aio.client.Client.CLOSED, nats.aio.client.Client.RECONNECTING)
_BUFFER_SIZE = 32 * 1024  # the size of nats-py's stream reader

REVIVE = 1.0
"""Seconds after which cancelled tasks of the connection are started again."""


class Owner(Host, Protocol):
    """The connection that this client works for."""

    def lost(self, error: BaseException) -> None:
        """Called when the connection broke."""

    def report(self, error: BaseException) -> None:
        """Report an error that has no caller."""

    def ping_sent(self) -> None:
        """Called before a PING is written."""

    def pong_received(self) -> None:
        """Called when a PONG arrived."""

    def lame_duck(self, others: int) -> None:
        """Called when the server is about to stop. ``others``: how many other servers are known."""


class WireSubscription:
    """The entry of a jsclient subscription in nats-py's table, so that nats-py subscribes again after a reconnect."""

    _received: ClassVar[int] = 0
    _jsi: ClassVar[None] = None
    _wait_for_msgs_task: ClassVar[None] = None
    _message_iterator: ClassVar[None] = None
    _pending_next_msgs_calls: ClassVar[None] = None

    def __init__(self, sid: int, subject: str, queue: str, limit: int = 0) -> None:
        self._id = sid
        self._max_msgs = limit
        self._subject = subject
        self._queue = queue
        self.subject = subject
        self.denied: PermissionDeniedError | None = None

    async def _drain(self) -> None:
        """Do nothing: jsclient drains its handles itself."""


class _ParserSeam:
    """Replaces nats-py's parser."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader

    async def parse(self, data: bytes = b"") -> None:
        self._reader.feed(data)

    def reset(self) -> None:
        self._reader.reset()


class NatsClient(nats.aio.client.Client):
    """nats-py's client with the reader of jsclient."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self.owner = owner
        self.out = Outbox(self)
        self.reader = FrameReader(owner)
        self._ps = _ParserSeam(self.reader)  # type: ignore[assignment]
        self.wants_tls = False
        self.identity: dict[str, str | None] = {}  # user info from the URLs, for servers whose URL has none
        self.first_connect = True
        self.failures: list[FailedAttempt] = []  # failed attempts of the first connect
        self.longest_pause = 1.0  # seconds between attempts to reconnect to one server
        self._over = False
        self._greeted = False  # the handshake is done, and nats-py has not noticed yet
        self._tap: Tap | None = None
        self._revival: asyncio.TimerHandle | None = None
        self._loop_end = LoopEnd(self._end_with_loop)
        self._doing: asyncio.Task[None] | None = None

    # --- connecting ----------------------------------------------------------------------------------------

    def _connect_command(self) -> bytes:
        transport = self._transport
        if self._over and transport is not None:
            transport.close()  # type: ignore[no-untyped-call]
        self._end_if_over()
        secure = isinstance(transport, TcpTransport | WebSocketTransport) and transport.is_secure()
        if self._needs_tls() and not secure:
            raise nats.errors.SecureConnRequiredError
        if self.identity:  # nats-py reads only the current server's URL, and does not decode it
            server = self._current_server
            self.options.update((server and url_identity(server.uri)) or self.identity)
        self.reader.reset()
        self.reader.max_payload = self._max_payload
        return super()._connect_command()

    def _needs_tls(self) -> bool:
        server = self._current_server
        return self.wants_tls or (server is not None and server.uri.scheme in {"tls", "wss"})

    def _end_if_over(self) -> None:
        """End a cancelled reconnect: `asyncio.wait_for` may have lost the cancellation."""
        if self._over:
            raise asyncio.CancelledError

    async def _select_next_server(self) -> None:
        """Connect to the next server that completes the handshake. The first connect tries each server once."""
        while self._server_pool:
            server = self._server_pool.pop(0)
            self._server_pool.append(server)
            if self.first_connect and server.reconnects:
                break
            await asyncio.sleep(self._pause(server))
            try:
                await self._attempt(server)
            except Exception as error:  # noqa: BLE001  nats-py can raise anything here
                server.reconnects += 1
                await self._failed(server, error)
                continue
            return
        raise nats.errors.NoServersError

    def _pause(self, server: Any) -> float:
        """Return the seconds to wait before an attempt, which grow with each failure and vary between clients."""
        if server.last_attempt is None:
            return 0.0
        pause = self.options["reconnect_time_wait"] * 2.0 ** min(server.reconnects, 30)
        pause = min(pause, max(self.longest_pause, self.options["reconnect_time_wait"]))
        return max(0.0, float(server.last_attempt) + varied(pause) - time.monotonic())

    async def _attempt(self, server: Any) -> None:
        """Connect and complete the handshake. It can raise any exception."""
        self._end_if_over()
        # After an attempt that failed when it had connected, nats-py would leave its socket and its tasks open.
        self._abort()
        self._end_tasks()
        server.last_attempt = time.monotonic()  # nats-py's clock for its pauses
        self._current_server, limit = server, self.options["connect_timeout"]
        if self.first_connect:
            self._server_info = {}  # the information of another server
        try:
            async with asyncio.timeout(limit):
                await self._shake_hands(server, limit)
        except TimeoutError as error:
            raise await self._on_wrong_foot(server) or TimeoutError(
                f"no answer within {limit:g} s"
            ) from error
        if not self.is_connected:
            self._end_tasks()
            raise nats.errors.Error("nats: the server sent something else than PONG")
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            assert task is not None
            task.add_done_callback(self._revive_later)
        self._greeted = True

    async def _shake_hands(self, server: Any, limit: float) -> None:
        try:
            await self._dial(server.uri, limit)
            await super()._process_connect_init()
        except (OSError, nats.errors.Error) as error:
            if (explained := await self._explained(error, server)) is not None:
                raise explained from error
            raise

    async def _explained(self, error: Exception, server: Any) -> Exception | None:
        """Return an error that explains more than the failed handshake, or None.

        The server's answer is checked first, because the server closes the connection during the handshake. The answer
        may be in the bytes that were not read, on a second connection if it refuses before TLS, or in a TLS alert.
        """
        transport, first = self._transport, bool(self.options["tls_handshake_first"])
        if (rejected := rejection(error)) is not None:
            return await certificate_error(rejected, server.uri, self._name_of(server), tls_first=first)
        if not isinstance(error, OSError) or not isinstance(transport, TcpTransport | WebSocketTransport):
            if "expecting INFO" in str(error):
                return nats.errors.Error(
                    "nats: what answers there is no NATS server: it does not begin with INFO"
                )
            return await self._on_wrong_foot(server) if "closed the connection" in str(error) else None
        if (refused := refusal_in(await transport.last_words())) is not None:
            return refused
        # What the client sent may have reset the connection, and the refusal was lost with it.
        lost = self.first_connect and transport.is_open and not transport.is_secure()
        if (transport.failed_before_tls or lost) and is_unfinished(error):
            refused = refusal_in(await received_before_tls(server.uri))
        if refused is not None:
            return refused
        return await self._alert(error, server) or await self._on_wrong_foot(server)

    async def _alert(self, error: OSError, server: Any) -> Exception | None:
        """Return the server's TLS alert if it caused ``error``. A connection that was reset may have lost the alert."""
        transport, first = self._transport, bool(self.options["tls_handshake_first"])
        assert isinstance(transport, TcpTransport | WebSocketTransport)
        wants, uri = bool(self._server_info.get("tls_verify")), server.uri
        alert_of = functools.partial(alert, wants_ours=wants, scheme=uri.scheme, tls_first=first)
        if (alert_error := alert_of(error) or alert_of(transport.failure())) is not None:
            return alert_error
        if not wants or not isinstance(error, ConnectionError) or not isinstance(transport, TcpTransport):
            return None
        late = await late_alert(uri, self.ssl_context, self._name_of(server), tls_first=first)
        return alert_of(late)

    def _name_of(self, server: Any) -> str:
        """Return the name that the server's certificate must have."""
        return self.options.get("tls_hostname") or server.tls_name or server.uri.hostname or ""

    async def _on_wrong_foot(self, server: Any) -> Exception | None:
        """Return an error with a hint if the server accepted the first connection and sent no INFO, otherwise None."""
        silent = (
            isinstance(self._transport, TcpTransport) and self._transport.is_open and not self._server_info
        )
        if not silent or not self.first_connect:
            return None
        # One side waits for the other: find out whether the server expects TLS first, or not.
        check = begins_with_info if self.options["tls_handshake_first"] else begins_with_tls
        return await check(server.uri)

    def _end_tasks(self) -> None:
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:
                task.cancel()

    async def _dial(self, uri: Any, limit: float) -> None:
        if uri.scheme not in {"ws", "wss"}:
            self._transport = transport = TcpTransport()  # type: ignore[no-untyped-call]
            await transport.connect(uri, _BUFFER_SIZE, limit)
            return
        self._transport = socket = WebSocketTransport(self.options["ws_connection_headers"])
        if uri.scheme == "wss":
            name = self.options.get("tls_hostname")
            await socket.connect_tls(uri, self.ssl_context, _BUFFER_SIZE, limit, name)
        else:
            await socket.connect(uri, _BUFFER_SIZE, limit)

    async def _failed(self, server: Any, error: Exception) -> None:
        if self.first_connect:
            self.failures.append(FailedAttempt(server.uri, error))
        else:
            self._status = nats.aio.client.Client.RECONNECTING  # the handshake has changed it
            await self._error_cb(error)

    async def _process_connect_init(self) -> None:
        if self._greeted:  # `_select_next_server` has done the handshake
            self._greeted = False
            return
        raise nats.errors.Error("nats: not connected")  # unreachable: nats-py selects a server first

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002  as nats-py has it
        """Process INFO: other servers, whether this server is about to stop, and whether it offers TLS."""
        if initial_connection and info.get("tls_available") and self._needs_tls():
            info["tls_required"] = True  # nats-py starts TLS only if the server requires it
        self._discover(info)
        if info.get("ldm") and not initial_connection:
            self.owner.lame_duck(sum(server is not self._current_server for server in self._server_pool))

    def _discover(self, info: dict[str, Any]) -> None:
        """Keep the servers that the newest INFO announces, and forget the servers that only earlier ones announced."""
        current = self._current_server
        if current is None or not info.get("connect_urls"):
            return
        known = [server for server in self._server_pool if not server.discovered or server is current]
        new = announced(info, current, known)
        if not self.options["dont_randomize"]:
            _random.shuffle(new)
        pool = {server.uri.netloc: server for server in self._server_pool}
        self._server_pool[:] = known + [pool.get(server.uri.netloc, server) for server in new]

    async def _attempt_reconnect(self) -> None:
        self._abort()  # nats-py would wait until the peer has read everything, which it may never do
        while True:
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001  otherwise reconnecting would end silently
                self.owner.report(error)
                await asyncio.sleep(self.options["reconnect_time_wait"])
                if not self._over:
                    continue
            finally:
                self._revive_later()
            return

    async def _process_op_err(self, e: Exception) -> None:
        self.owner.lost(e)
        await super()._process_op_err(e)

    # --- the end -------------------------------------------------------------------------------------------

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002  as nats-py has it
        self._over = True
        self._loop_end.forget()
        self._pending_data_size = 0  # nats-py would wait for these PINGs, which were written already
        task, self._reconnection_task = self._reconnection_task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await until_done(task, 1.0)  # nats-py would wait for a whole pause
        await super()._close(status, do_cbs)

    def abort(self) -> None:
        """Close at once, without waiting."""
        self._over, self._status = True, nats.aio.client.Client.CLOSED
        self._loop_end.forget()
        self._end_tasks()
        if self._reconnection_task is not None:
            self._reconnection_task.cancel()
        if self._revival is not None:
            self._revival.cancel()
        self._abort()

    def _abort(self) -> None:
        transport = self._transport
        if isinstance(transport, TcpTransport | WebSocketTransport):
            transport.abort()

    # --- cancelled tasks -------------------------------------------------------------------------------------

    def _revive_later(self, _: object = None) -> None:
        """Check soon whether the connection's tasks were cancelled, as `asyncio.run` cancels all tasks at its end.

        This is a timer and not a task, which would remain at the end of the loop.
        """
        if not self._over and self._revival is None:
            self._revival = asyncio.get_running_loop().call_later(REVIVE, self._revive)

    def _revive(self) -> None:
        """Start cancelled tasks again. Otherwise the connection would seem connected, but receive no messages."""
        self._revival = None
        state = nats.aio.client.Client
        if self._over or self.first_connect:
            return
        self._loop_end.watch()
        if self._status == state.CONNECTED:
            self._reading_task = self._running(self._reading_task, self._read_loop)
            self._ping_interval_task = self._running(self._ping_interval_task, self._ping_interval)
            self._flusher_task = self._running(self._flusher_task, self._flusher)
        elif self._status != state.CLOSED:
            if self._reconnection_task is None or self._reconnection_task.done():
                self._status = state.RECONNECTING
            self._reconnection_task = self._running(self._reconnection_task, self._attempt_reconnect)

    async def _end_with_loop(self) -> None:
        tasks = [self._reading_task, self._ping_interval_task, self._flusher_task, self._reconnection_task]
        self.abort()
        for task in tasks:
            if task is not None:
                task.cancel()
                await until_done(task, 1.0)

    def _running(
        self, task: asyncio.Task[None] | None, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(self._revive_later)
        return task

    # --- reading -------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        transport = self._transport
        error: Exception
        # A cancellation ends the loop. After any error the client reconnects, so every error is passed to nats-py.
        try:
            if isinstance(transport, TcpTransport):
                await self._read_tapped(transport)
            while not (self.is_closed or self.is_reconnecting) and transport is not None:
                data = await transport.read(READ_SIZE)
                if not data:
                    raise nats.errors.UnexpectedEOF
                self._feed(data)
            return
        except asyncio.CancelledError:
            return
        except Exception as caught:  # noqa: BLE001  the client reconnects after any error
            error = caught
        if isinstance(error, ProtocolError):
            self.owner.report(error)
        await self._process_op_err(error)

    async def _read_tapped(self, transport: TcpTransport) -> None:
        """Read directly from asyncio's transport, after the bytes that arrived earlier."""
        reader, writer = transport._io_reader, transport._io_writer
        assert reader is not None
        assert writer is not None
        if self._tap is None or not self._tap.reads(writer.transport):
            self._tap = Tap(writer.transport, reader, self, _ENDED)  # type: ignore[arg-type]  # it reads as well
        tap = self._tap
        try:
            while data := await reader.read(READ_SIZE):  # it does not wait as long as bytes are buffered
                self._feed(data)
            raise nats.errors.UnexpectedEOF
        except asyncio.CancelledError:
            if self._status != nats.aio.client.Client.CONNECTED:
                tap.close()
            raise  # while connected the tap keeps reading, so that handles that end with the loop get their answers
        except BaseException:
            tap.close()
            raise

    def _feed(self, data: bytes) -> None:
        if self._status not in _ENDED:
            self.out.answered = True
            self.reader.feed(data)

    def take_info(self, info: dict[str, Any]) -> None:
        """Pass INFO to nats-py, which discovers other servers."""
        self._do(functools.partial(self._process_info, info), ends=True)

    def take_message(self, sid: int, frame: Frame) -> None:
        """Process a message of a subscription that was created on nats-py itself."""
        process = functools.partial(self._process_msg, sid, frame[0], frame[1], frame[3], frame[2])
        self._do(process, ends=False)

    def _do(self, work: Callable[[], Coroutine[Any, Any, None]], *, ends: bool) -> None:
        """Run coroutine functions of nats-py one after another. ``ends``: an error ends the connection.

        It takes functions, because a coroutine whose task is cancelled before its start warns that it was never
        awaited.
        """
        before = self._doing

        async def do() -> None:
            if before is not None and not before.done():
                await asyncio.wait({before})
            try:
                await work()
            except Exception as caught:  # noqa: BLE001  an error of one subscription must not affect the others
                error = ProtocolError(
                    f"nats-py could not process a message: {type(caught).__name__}: {caught}"
                )
                self.owner.report(error)
                if ends:
                    await self._process_op_err(error)

        self._doing = asyncio.get_running_loop().create_task(do())

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self.owner.ping_sent()
        await super()._send_ping(future)

    def take_pong(self) -> None:
        """Count a PONG and wake its waiter."""
        self._pings_outstanding = 0
        self.owner.pong_received()
        if self._pongs:
            future = self._pongs.pop(0)
            if not future.done():
                future.set_result(True)
        self._pongs_received += 1

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except Exception as error:  # noqa: BLE001  odd headers must not end the reader
            self.owner.report(ProtocolError(f"odd headers: {error}"))
            return None
