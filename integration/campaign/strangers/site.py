"""A server of an administrator, and a stranger who gets some rights on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import jsclient
from integration.kit.clients.foreign import Client, closed
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.servers.nats_server import OwnServer

ADMIN = {"user": "admin", "password": "x"}
VICTIM = "VICTIM"


def with_user(url: str, user: str) -> str:
    return url.replace("nats://", f"nats://{user}:x@")


class Site:
    """The server, the administrator's connections, and what lies in the streams."""

    def __init__(self, own: OwnServer, js: Any, oracle: Oracle, *, apart: bool = False) -> None:
        self.apart = apart
        self.own, self.js, self.oracle = own, js, oracle
        self.events: list[Any] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, *, apart: bool = False) -> AsyncIterator[Site]:
        """With ``apart``, strangers are in a separate account."""
        own = OwnServer(config=two_accounts({}) if apart else {"authorization": {"users": [ADMIN]}})
        await own.start()
        try:
            events: list[Any] = []
            url = with_user(own.url, "admin")
            async with Oracle(url) as oracle, jsclient.connect(url, on_event=events.append) as js:
                await oracle.create_stream(VICTIM, ["victim.>"], storage="memory")
                site = cls(own, js, oracle, apart=apart)
                site.events = events
                yield site
        finally:
            await own.stop()

    @contextlib.asynccontextmanager
    async def stranger(self, permissions: dict[str, Any]) -> AsyncIterator[Stranger]:
        """A user with these rights. With ``apart``, a user of the account with these rights."""
        user = {"user": "stranger", "password": "x", "permissions": permissions}
        self.own.reload(
            two_accounts(permissions) if self.apart else {"authorization": {"users": [ADMIN, user]}}
        )
        stranger = Stranger(self)

        async def connected() -> bool:
            try:
                await stranger.connect()
            except Exception:  # noqa: BLE001  the server has not read its configuration yet
                return False
            return True

        await eventually(connected, 10, "the stranger's connection", interval=0.1)
        await eventually(lambda: self.js.is_connected, 10, "the administrator's connection")
        try:
            yield stranger
        finally:
            await closed(stranger.nc)

    async def stored(self) -> dict[str, list[tuple[int, str, bytes]]]:
        """All messages of all streams."""
        results = {}
        for name in await self.oracle.stream_names():
            messages = await self.oracle.messages(name)
            results[name] = [(one.seq, one.subject, one.payload) for one in messages]
        return results

    async def configs(self) -> dict[str, Any]:
        """The configuration and the consumers' names of each stream."""
        results = {}
        for name in await self.oracle.stream_names():
            config = (await self.oracle.stream_info(name))["config"]
            results[name] = json.dumps(config, sort_keys=True), sorted(await self.oracle.consumer_names(name))
        return results


class Stranger:
    """A connection that asks nothing but what its attacks need: raw publishes of any reply."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.nc = Client()
        self.errors: list[str] = []
        self.heard: list[tuple[str, bytes]] = []

    async def connect(self) -> None:
        async def keep(error: Exception) -> None:
            self.errors.append(str(error))

        self.nc = Client()
        try:
            await self.nc.connect(
                with_user(self._site.own.url, "stranger"),
                allow_reconnect=False,
                connect_timeout=20,
                error_cb=keep,
                inbox_prefix="_INBOX_stranger",
            )
        except Exception:
            await closed(self.nc)  # without reconnects, nats-py leaves the socket of a refused login open
            raise

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        await self.nc.publish(subject, payload, reply=reply)

    async def settled(self) -> None:
        """Wait until the server has handled everything, and stored what it stores."""
        for _ in range(3):
            await self.nc.flush(5)
            await asyncio.sleep(0.1)

    async def listen(self, subjects: list[str]) -> None:
        async def keep(message: Any) -> None:
            self.heard.append((message.subject, message.data))

        for subject in subjects:
            await self.nc.subscribe(subject, cb=keep)
        await self.settled()


def two_accounts(rights: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a server with the administrator's account and one of strangers."""
    app = {"jetstream": "enabled", "users": [ADMIN], **rights.get("APP", {})}
    guests = {"users": [{"user": "stranger", "password": "x"}], **rights.get("GUESTS", {})}
    return {"accounts": {"APP": app, "GUESTS": guests}}


def allowed(permissions: dict[str, Any], kind: str) -> list[str]:
    """The subjects that a user may publish or subscribe to."""
    if "GUESTS" in permissions:
        imports = permissions["GUESTS"]["imports"] if kind == "publish" else []
        return [one.get("to", one["service"]["subject"]) for one in imports if "service" in one]
    rights = permissions.get(kind, {})
    return list(rights.get("allow", [])) if isinstance(rights, dict) else list(rights)
