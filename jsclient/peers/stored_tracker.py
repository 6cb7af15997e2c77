"""Connects a peer's tracker to its store. Every decision is stored before its messages are sent.

The state of the tracker always equals the stored state. If another process has changed an entry, the tracker adopts
the stored entry and handles the event again. If the outcome of a write is unknown, for example because the server
can't be reached, the error is raised to the caller. A background task then reads the entry, and retries until it
succeeds. If the entry was stored after all, the messages in its outbox are sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

from .._runtime.tasks import Signal, Tasks
from ..buckets.state import StateConflictError, StateEntry
from ..errors import JetStreamError, MaxPayloadError
from ..protocol.peers.channel import channel_eci
from ..protocol.peers.relationship import Fresh, OutboxItem, Raise, Send, read_value, write_value
from ..protocol.peers.rules import STARTS, Command, Done, PeerEvent, Stored, StoreValue
from ..protocol.peers.tracker import PeerTracker
from .backend import Stopping, Store, backoff
from .keys import ChannelKeys, public_keys

__all__ = ["Machine"]

_SECRET = "secret"  # the key under which the secret is stored


class Machine:
    """Passes events to the tracker one after another, and stores the results.

    ``start`` is called with each outbox item that is to be carried out. `done` must be called after each item has
    been carried out or abandoned.
    """

    def __init__(
        self,
        tracker: PeerTracker,
        store: Store,
        start: Callable[[OutboxItem], None],
        tasks: Tasks,
        stopping: Stopping,
    ) -> None:
        self.tracker = tracker
        self.changed: Signal = Signal()  # set whenever an entry was stored or read
        self._store = store
        self._start = start
        self._tasks = tasks
        self._stopping = stopping
        self._lock = asyncio.Lock()
        self._secret = b""
        self.keys: ChannelKeys = ChannelKeys(lambda: self._secret, tracker.established)
        self._read = 0  # all entries up to this revision have been read

    async def load(self) -> None:
        """Load the stored state. Raises `ProtocolError` if an entry is invalid, or any error of a request."""
        await self.catch_up()
        if not self._secret:
            await self._make_secret()

    async def catch_up(self) -> bool:
        """Load the entries that other processes of this peer have written. Return whether there were any."""
        async with self._lock:
            entries = await self._store.entries(self._read)
            for entry in entries:
                self._read = max(self._read, entry.revision)
                if entry.is_stray:
                    # Another client wrote this entry, so ignore it. The value known so far stays in effect, and the
                    # next change of the value overwrites the entry.
                    continue
                if entry.key != _SECRET:
                    self._apply(_read(entry))
                elif entry.value is not None:
                    self._secret = entry.value
            return bool(entries)

    async def _make_secret(self) -> None:
        secret = secrets.token_bytes(32)
        try:
            await self._store.update(_SECRET, secret, 0)
        except StateConflictError as error:
            secret = error.stored_entry.value or secret
        self._secret = secret

    def fresh(self, message: bytes | None = None, *, event: str = "") -> Fresh:
        """Return unguessable names for new records. Each delivery of the same message gets the same names.

        If ``event`` starts a relationship, the result also contains the public keys of its channel.
        """

        def name(kind: bytes) -> str:
            if message is None:
                return secrets.token_hex(16)
            return hmac.new(self._secret, kind + message, hashlib.sha256).hexdigest()[:32]

        fresh = Fresh(name(b"id "), name(b"channel "))
        if event not in STARTS:
            return fresh
        keys = public_keys(self._secret, channel_eci(self.tracker.name, fresh.channel))
        return Fresh(fresh.id, fresh.channel, keys.verify_key, keys.public_key)

    async def do(self, event: PeerEvent) -> list[Command]:
        """Handle an event and store the results. Return the remaining commands for the caller to carry out.

        If the call is cancelled, the results may or may not have been stored.

        Raises:
            ConfigError: See `PeerTracker.handle`.
            JetStreamError: The results could not be stored, or it is unknown whether they were stored.
        """
        async with self._lock:
            while True:
                remaining: list[Command] = []
                for command in self.tracker.handle(event, time.time()):
                    if not isinstance(command, StoreValue):
                        remaining.append(command)
                    elif not await self._write(command):
                        # Another process changed the entry first. The tracker has adopted the change, so handle the
                        # event again, based on the changed entry.
                        break
                else:
                    return remaining

    async def done(self, item: OutboxItem) -> None:
        """Mark an outbox item as carried out or abandoned. Return once this has been stored, or when the peer stops."""
        for command in self.tracker.handle(Done(item.key, item.id), time.time()):
            if isinstance(command, StoreValue):
                await self._until_known(partial(self._try, command))
            else:
                self._route([command])

    async def _write(self, command: StoreValue) -> bool:
        """Write an entry.

        Return False if another process has changed the entry. The tracker then adopts the entry of that process.
        """
        try:
            stored = await self._try(command)
        except MaxPayloadError:
            # Nothing was sent, so there is no need to find out whether the value was stored.
            raise
        except BaseException:
            self._tasks.start(
                self._until_known(partial(self._read_key, command.key)), "read what a peer has stored"
            )
            raise
        self._apply(stored)
        return stored.value is command.value

    async def _try(self, command: StoreValue) -> Stored:
        data = None if command.value is None else write_value(command.value)
        try:
            revision = await self._store.update(command.key, data, command.revision)
        except StateConflictError as error:
            return _read(error.stored_entry)
        return Stored(command.key, command.value, revision)

    def _apply(self, stored: Stored) -> None:
        self._route(self.tracker.handle(stored, time.time()))
        self.changed.set()

    def _route(self, commands: list[Command]) -> None:
        """Carry out, in the background, the commands that follow from a stored entry or a finished item."""
        for command in commands:
            if isinstance(command, StoreValue):
                self._tasks.start(
                    self._until_known(partial(self._try, command)), "store what a peer has done"
                )
            else:
                assert isinstance(command, Send | Raise)
                self._start(command)

    async def _until_known(self, request: Callable[[], Awaitable[Stored]]) -> None:
        """Repeat a request until it succeeds or the peer stops.

        Even while the peer is stopping, at least one attempt is made. Without it, a finished item would be repeated
        at the next start.
        """
        attempt = 0
        while True:
            try:
                async with self._lock:
                    self._apply(await request())
                return
            except JetStreamError:
                attempt += 1
            if not await self._stopping.pause(backoff(attempt)):
                return

    async def _read_key(self, key: str) -> Stored:
        return _read(await self._store.get(key))


def _read(entry: StateEntry) -> Stored:
    value = None if entry.value is None else read_value(entry.key, entry.value)
    return Stored(entry.key, value, entry.revision)
