"""nats-py's client with another reader: the only module that overrides private methods of nats-py.

nats-py connects, does TLS and authentication, discovers servers and reconnects. The parser and the read loop are
replaced; callbacks of nats-py are guarded, so that no exception ends reading or reconnecting silently.
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
from ..retry import varied
from ..tasks import until_done
from .certificates import (
    alert,
    begins_with_info,
    begins_with_tls,
    certificate_error,
    is_unfinished,
    late_alert,
    rejection,
    said_in_the_clear,
)
from .transports import TcpTransport, WebSocketTransport, refusal_in
from .urls import Attempt, announced, url_identity
from .wire import READ_SIZE, FrameReader, Host, Outbox, Tap

__all__ = ["NatsClient", "Owner", "WireSubscription"]

_random = random.Random()  # noqa: S311  no secret. A program that seeds the shared one gets the numbers it expects
_ENDED = (nats.aio.client.Client.CLOSED, nats.aio.client.Client.RECONNECTING)
_BUFFER_SIZE = 32 * 1024  # nats-py's, of its stream reader

REVIVE = 1.0
"""Seconds after which cancelled tasks of the connection are started again."""


class Owner(Host, Protocol):
    """The connection that this client works for."""

    def lost(self, error: BaseException) -> None:
        """The connection broke."""

    def report(self, error: BaseException) -> None:
        """An error that has no caller."""

    def ping_sent(self) -> None:
        """A PING is about to be written."""

    def pong_received(self) -> None:
        """A PONG arrived."""

    def lame_duck(self, others: int) -> None:
        """The server is about to stop; so many others are known."""


class WireSubscription:
    """The entry in nats-py's table for a subscription of jsclient: nats-py subscribes it again after a reconnect."""

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
        """A no-op: jsclient drains its own handles."""


class _ParserSeam:
    """Replaces nats-py's parser."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader

    async def parse(self, data: bytes = b"") -> None:
        self._reader.feed(data)

    def reset(self) -> None:
        self._reader.reset()


class NatsClient(nats.aio.client.Client):
    """nats-py's client with our reader in it."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self.owner = owner
        self.out = Outbox(self)
        self.reader = FrameReader(owner)
        self._ps = _ParserSeam(self.reader)  # type: ignore[assignment]
        self.wants_tls = False
        self.identity: dict[str, str | None] = {}  # from the URLs, for servers whose URL has none
        self.first_connect = True
        self.failures: list[Attempt] = []  # of the first connect
        self.longest_pause = 1.0  # seconds between attempts to reconnect to one server
        self._over = False
        self._greeted = False  # the handshake is done, and nats-py has not noticed yet
        self._tap: Tap | None = None
        self._revival: asyncio.TimerHandle | None = None
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
        if self.identity:  # nats-py looks at the current server's URL only, and does not decode it
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
        """Connect to the next server that completes the handshake; on the first connect, try each one once."""
        while self._server_pool:
            server = self._server_pool.pop(0)
            self._server_pool.append(server)
            if self.first_connect and server.reconnects:
                break
            await asyncio.sleep(self._pause(server))
            try:
                await self._attempt(server)
            except Exception as error:  # noqa: BLE001  nats-py lets anything out of here
                server.reconnects += 1
                await self._failed(server, error)
                continue
            return
        raise nats.errors.NoServersError

    def _pause(self, server: Any) -> float:
        """Seconds to wait before an attempt: they grow with each failure, and vary between clients."""
        if server.last_attempt is None:
            return 0.0
        pause = self.options["reconnect_time_wait"] * 2.0 ** min(server.reconnects, 30)
        pause = min(pause, max(self.longest_pause, self.options["reconnect_time_wait"]))
        return max(0.0, float(server.last_attempt) + varied(pause) - time.monotonic())

    async def _attempt(self, server: Any) -> None:
        """Connect and complete the handshake. Raises anything."""
        self._end_if_over()
        # An attempt that failed after connecting: nats-py would leave its socket open, and its tasks.
        self._abort()
        self._end_tasks()
        server.last_attempt = time.monotonic()  # nats-py's clock for its pauses
        self._current_server, limit = server, self.options["connect_timeout"]
        if self.first_connect:
            self._server_info = {}  # of another server
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
        """An error that says more than that of a failed handshake; None if there is nothing more to say.

        What the server said comes first, since it closes the connection in the middle of the handshake: in the bytes
        that were not read, on a second connection if it refuses before TLS begins, and in an alert of TLS.
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
        # What was sent may have reset the connection, and the refusal was lost with it.
        lost = self.first_connect and transport.is_open and not transport.is_secure()
        if (transport.failed_before_tls or lost) and is_unfinished(error):
            refused = refusal_in(await said_in_the_clear(server.uri))
        if refused is not None:
            return refused
        return await self._alert(error, server) or await self._on_wrong_foot(server)

    async def _alert(self, error: OSError, server: Any) -> Exception | None:
        """The server's answer in TLS, if ``error`` came of one. A connection that was reset may have lost it."""
        transport, first = self._transport, bool(self.options["tls_handshake_first"])
        assert isinstance(transport, TcpTransport | WebSocketTransport)
        wants, uri = bool(self._server_info.get("tls_verify")), server.uri
        tell = functools.partial(alert, wants_ours=wants, scheme=uri.scheme, tls_first=first)
        if (told := tell(error) or tell(transport.failure())) is not None:
            return told
        if not wants or not isinstance(error, ConnectionError) or not isinstance(transport, TcpTransport):
            return None
        late = await late_alert(uri, self.ssl_context, self._name_of(server), tls_first=first)
        return tell(late)

    def _name_of(self, server: Any) -> str:
        """The name that the server's certificate must have."""
        return self.options.get("tls_hostname") or server.tls_name or server.uri.hostname or ""

    async def _on_wrong_foot(self, server: Any) -> Exception | None:
        """An error with a hint if a server took the first connection and said no INFO: who begins, and with what?"""
        silent = (
            isinstance(self._transport, TcpTransport) and self._transport.is_open and not self._server_info
        )
        if not silent or not self.first_connect:
            return None
        look = begins_with_info if self.options["tls_handshake_first"] else begins_with_tls
        return await look(server.uri)

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
            self.failures.append(Attempt(server.uri, error))
        else:
            self._status = nats.aio.client.Client.RECONNECTING  # the handshake has changed it
            await self._error_cb(error)

    async def _process_connect_init(self) -> None:
        if self._greeted:  # `_select_next_server` has done it
            self._greeted = False
            return
        raise nats.errors.Error("nats: not connected")  # not reached: nats-py selects a server before

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002  as nats-py has it
        """Take what INFO says: other servers, that this one is about to stop, and that it offers TLS."""
        if initial_connection and info.get("tls_available") and self._needs_tls():
            info["tls_required"] = True  # nats-py begins TLS only if the server requires it
        self._discover(info)
        if info.get("ldm") and not initial_connection:
            self.owner.lame_duck(sum(server is not self._current_server for server in self._server_pool))

    def _discover(self, info: dict[str, Any]) -> None:
        """Keep the servers that the newest INFO announces, and forget those of earlier ones."""
        current = self._current_server
        if current is None or not info.get("connect_urls"):
            return
        known = [server for server in self._server_pool if not server.discovered or server is current]
        found = announced(info, current, known)
        if not self.options["dont_randomize"]:
            _random.shuffle(found)
        kept = {server.uri.netloc: server for server in self._server_pool}
        self._server_pool[:] = known + [kept.get(server.uri.netloc, server) for server in found]

    async def _attempt_reconnect(self) -> None:
        self._abort()  # nats-py would wait until a peer that does not read has taken everything
        while True:
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001  else reconnecting would end silently
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
        self._pending_data_size = 0  # PINGs, which were written; nats-py would wait for them
        task, self._reconnection_task = self._reconnection_task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await until_done(task, 1.0)  # nats-py would wait as long as for a pause
        await super()._close(status, do_cbs)

    def abort(self) -> None:
        """Close at once, without waiting."""
        self._over, self._status = True, nats.aio.client.Client.CLOSED
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
        """Look soon whether the tasks of the connection were cancelled, as `asyncio.run` does with all at its end.

        A timer and not a task, which would be left over at the end of the loop.
        """
        if not self._over and self._revival is None:
            self._revival = asyncio.get_running_loop().call_later(REVIVE, self._revive)

    def _revive(self) -> None:
        """Start again what was cancelled: else the connection would seem connected, and be deaf."""
        self._revival = None
        state = nats.aio.client.Client
        if self._over or self.first_connect:
            return
        if self._status == state.CONNECTED:
            self._reading_task = self._running(self._reading_task, self._read_loop)
            self._ping_interval_task = self._running(self._ping_interval_task, self._ping_interval)
            self._flusher_task = self._running(self._flusher_task, self._flusher)
        elif self._status != state.CLOSED:
            if self._reconnection_task is None or self._reconnection_task.done():
                self._status = state.RECONNECTING
            self._reconnection_task = self._running(self._reconnection_task, self._attempt_reconnect)

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
            while data := await reader.read(READ_SIZE):  # it does not suspend before it is empty
                self._feed(data)
            raise nats.errors.UnexpectedEOF
        except asyncio.CancelledError:
            if self._status != nats.aio.client.Client.CONNECTED:
                tap.close()
            raise  # else it goes on reading: what ends with the loop still receives its answers
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
        """A message of a subscription made on nats-py itself."""
        process = functools.partial(self._process_msg, sid, frame[0], frame[1], frame[3], frame[2])
        self._do(process, ends=False)

    def _do(self, work: Callable[[], Coroutine[Any, Any, None]], *, ends: bool) -> None:
        """Run coroutine functions of nats-py one after the other. ``ends``: an error ends the connection.

        Functions, since a coroutine whose task is cancelled before it began would warn that it was never awaited.
        """
        before = self._doing

        async def do() -> None:
            if before is not None and not before.done():
                await asyncio.wait({before})
            try:
                await work()
            except Exception as caught:  # noqa: BLE001  poison for one subscription is not poison for all
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
