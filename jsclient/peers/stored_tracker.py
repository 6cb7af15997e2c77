"""A peer's tracker and its store: what is decided is stored before anything of it is told.

The tracker's picture is what the store holds. A write that meets another one tells the tracker what is there, and the
event is judged anew. A write whose outcome is not known (the server is away) is raised to whoever asked, and the entry
is read again until that succeeds, so that its outbox is told all the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

from .._runtime.tasks import Tasks
from .._runtime.wakeup import Signal
from ..errors import JetStreamError, MaxPayloadError
from ..protocol.peers.commands import Command, Done, PeerEvent, Store, Stored
from ..protocol.peers.outbox import Fresh, OutboxItem, Raise, Send
from ..protocol.peers.relationship import read_value, write_value
from ..protocol.peers.tracker import PeerTracker
from . import store as stores
from .pauses import Stopping, backoff

__all__ = ["Machine"]

_SECRET = "secret"  # the key under which it lies


class Machine:
    """Has events handled, one after the other, and keeps the store.

    Args:
        tracker: Decides.
        store: Holds what the tracker is to know.
        start: Is given what is to be sent and told, which may be at any time; `done` is to follow.
    """

    def __init__(
        self,
        tracker: PeerTracker,
        store: stores.Store,
        start: Callable[[OutboxItem], None],
        tasks: Tasks,
        stopping: Stopping,
    ) -> None:
        self.tracker = tracker
        self.changed = Signal()  # something was stored
        self._store = store
        self._start = start
        self._tasks = tasks
        self._stopping = stopping
        self._lock = asyncio.Lock()
        self._secret = b""
        self._read = 0  # all that was written up to this revision was read

    async def load(self) -> None:
        """Learn what the store holds. Raises `ProtocolError` where that is none of ours, and those of any request."""
        await self.catch_up()
        if not self._secret:
            await self._make_secret()

    async def catch_up(self) -> bool:
        """Learn what others have written meanwhile: another process of the same peer. Whether there was any."""
        async with self._lock:
            entries = await self._store.load(self._read)
            for entry in entries:
                self._read = max(self._read, entry.revision)
                if entry.key != _SECRET:
                    self._tell(_read(entry))
                elif entry.data is not None:
                    self._secret = entry.data
            return bool(entries)

    async def _make_secret(self) -> None:
        secret = secrets.token_bytes(32)
        try:
            await self._store.write(_SECRET, secret, 0)
        except stores.ConflictError as error:
            secret = error.found.data or secret
        self._secret = secret

    def fresh(self, message: bytes | None = None) -> Fresh:
        """Names that nobody can guess: for a message the same ones each time, since it may come again."""
        if message is None:
            return Fresh(secrets.token_hex(16), secrets.token_hex(16))

        def name(kind: bytes) -> str:
            return hmac.new(self._secret, kind + message, hashlib.sha256).hexdigest()[:32]

        return Fresh(name(b"id "), name(b"channel "))

    async def do(self, event: PeerEvent) -> list[Command]:
        """Have an event handled and stored. Returns what else is to be done, by the caller.

        Raises:
            ConfigError: As `PeerTracker.handle`.
            JetStreamError: It could not be stored, or nobody knows whether it was.
        Cancelled: as after an error.
        """
        async with self._lock:
            while True:
                rest: list[Command] = []
                for command in self.tracker.handle(event, time.time()):
                    if not isinstance(command, Store):
                        rest.append(command)
                    elif not await self._write(command):
                        break
                else:
                    return rest

    async def done(self, item: OutboxItem) -> None:
        """What the outbox held was carried out, or given up for good. Returns when that is stored, or cannot be."""
        for command in self.tracker.handle(Done(item.key, item.id), time.time()):
            if isinstance(command, Store):
                await self._write_until_done(command)
            else:
                self._route([command])

    async def _write(self, command: Store) -> bool:
        """False: somebody else was faster, and the tracker was told what is there."""
        try:
            told = await self._try(command)
        except MaxPayloadError:
            raise
        except BaseException:
            self._tasks.start(self._look(command.key), "read what a peer has stored")
            raise
        self._tell(told)
        return told.value is command.value

    async def _try(self, command: Store) -> Stored:
        data = None if command.value is None else write_value(command.value)
        try:
            revision = await self._store.write(command.key, data, command.revision)
        except stores.ConflictError as error:
            return _read(error.found)
        return Stored(command.key, command.value, revision)

    def _tell(self, stored: Stored) -> None:
        self._route(self.tracker.handle(stored, time.time()))
        self.changed.set()

    def _route(self, commands: list[Command]) -> None:
        """What follows from something stored or done: it needs nobody who waits for it."""
        for command in commands:
            if isinstance(command, Store):
                self._tasks.start(self._write_until_done(command), "store what a peer has done")
            else:
                assert isinstance(command, Send | Raise)
                self._start(command)

    async def _write_until_done(self, command: Store) -> None:
        attempt = 0
        while True:  # once at the end too: what was done is not to be done again the next time
            try:
                async with self._lock:
                    self._tell(await self._try(command))
                return
            except JetStreamError:
                attempt += 1
            if not await self._stopping.pause(backoff(attempt)):
                return

    async def _look(self, key: str) -> None:
        attempt = 0
        while not self._stopping.begun:
            try:
                async with self._lock:
                    self._tell(_read(await self._store.read(key)))
                return
            except JetStreamError:
                attempt += 1
            await self._stopping.pause(backoff(attempt))


def _read(entry: stores.Entry) -> Stored:
    value = None if entry.data is None else read_value(entry.key, entry.data)
    return Stored(entry.key, value, entry.revision)
