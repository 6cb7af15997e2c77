"""Restores a lost connection, by attempts that continue until a server confirms one or the client gives up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...errors import DisconnectedError, JetStreamError
from ...protocol.connection.pool import Server
from .attempt import ServerLink
from .connect_errors import reason
from .credentials import expiry_of
from .lasting_task import LastingTask
from .outage import Outage
from .pings import Pings

if TYPE_CHECKING:
    from .connector import Connector

__all__ = ["Restorable", "Restorer"]

AFTER_BUG: Final = 1.0
"""How long to wait before the next attempt after an error that no server should cause, in seconds."""


class Restorable(Protocol):
    """The methods of a connection that a `Restorer` calls."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection is restored."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed permanently."""

    def use_link(self, link: ServerLink) -> None:
        """Send the subscriptions on a connection whose handshake is complete, and read from it."""

    def drop_link(self) -> None:
        """Close the connection to the server, if there is one."""

    def restored(self, link: ServerLink) -> None:
        """Resume, because the server has read the subscriptions."""

    def give_up(self, why: str) -> None:
        """Close permanently, for the reason ``why``."""

    def report(self, error: BaseException) -> None:
        """Report an error that can't be raised to a caller."""


class Restorer:
    """Restores one connection after each outage.

    Attributes:
        task: Restores the connection. It is started by `begin`.
    """

    def __init__(self, connection: Restorable, pings: Pings) -> None:
        self._connection = connection
        self._pings = pings
        self._connector: Connector | None = None
        self._options: dict[str, Any] = {}
        self._outage = Outage()
        self._broken: Exception | None = None  # the reason why a connection ended before it was confirmed
        self.task: LastingTask = LastingTask(self._restore, "reconnect")

    def __str__(self) -> str:
        """Describe why the connection is lost, if the reason is known."""
        return str(self._outage)

    def use(self, connector: Connector, options: dict[str, Any]) -> None:
        """Set the connector that makes the attempts, and the options of `connect`."""
        self._connector, self._options = connector, options

    def begin_outage(self, error: BaseException) -> str:
        """Record why the connection was lost, and return the reason as a text. Call `begin` afterwards."""
        self._outage = Outage(error)
        if self._connector is not None:
            self._connector.begin_outage()
        return self._outage.lost

    def begin(self) -> None:
        """Begin to restore the connection. Does nothing if the connection is closed."""
        self.task.start()

    def link_ended(self, error: Exception) -> None:
        """Record that a link ended before it was confirmed, so that its attempt has failed."""
        self._broken = error
        self._pings.stop(DisconnectedError(reason(error)))

    async def _restore(self) -> None:
        # A connection may be lost again at the very moment it is restored, so repeat the attempts.
        while not self._connection.is_connected and not self._connection.is_closed:
            try:
                await self._make_attempts()
            except Exception as error:  # noqa: BLE001  otherwise reconnecting would end silently
                self._connection.report(error)
                self._connection.drop_link()
                await asyncio.sleep(AFTER_BUG)

    async def _make_attempts(self) -> None:
        """Make attempts until a handshake is complete, and use that connection if its server confirms it."""
        assert self._connector is not None
        link = await self._connector.again(self._attempt_failed)
        if link is None:
            self._give_up()
        elif not await self._is_confirmed(link):
            self._connection.drop_link()
        else:
            self._connector.confirmed(link)
            self._connection.restored(link)

    async def _is_confirmed(self, link: ServerLink) -> bool:
        """Send the subscriptions, and return whether the server has read them.

        If the credentials expire just after a server has accepted them, the server ends the connection before it
        reads the subscriptions. The attempt has then failed.
        """
        self._broken = None
        self._connection.use_link(link)
        if self._broken is None:
            try:
                await self._pings.round_trip(self._options["connect_timeout"], str, reconnecting=True)
            except JetStreamError as error:
                self._broken = self._broken or error
        if self._broken is None:
            return True
        assert self._connector is not None
        if self._connector.attempt_failed(link.server, self._broken, self._attempt_failed):
            self._give_up()
        return False

    def _attempt_failed(self, server: Server, error: Exception) -> None:
        if refused := self._outage.attempt_failed(server, error, lambda: expiry_of(self._options)):
            self._connection.report(refused)

    def _give_up(self) -> None:
        self._connection.give_up(f"{self._outage.failed}, as often in a row as max_refusals allows")
