"""A consumer as a handle: `Stream.consumer`. Source: ADR-37."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from ._runtime.context import Context
from .errors import ConfigError
from .message import Message
from .messages import Messages
from .protocol.codec import from_wire
from .protocol.models.consumer import AckPolicy, ConsumerConfig, ConsumerInfo
from .protocol.units import format_time
from .pull import Batch, Puller

__all__ = ["Consumer"]


class Consumer:
    """A consumer that exists on the server. Made by `Stream.consumer` and `Stream.create_consumer`.

    `fetch`, `next` and `messages` pull from it; a push consumer is read with `JetStream.subscribe`.
    """

    def __init__(self, context: Context, info: ConsumerInfo) -> None:
        self._context = context
        self._info = info
        silent = info.config.ack_policy == AckPolicy.NONE
        self._puller = Puller(context, info.stream_name, info.name, silent=silent)
        self._reader: Messages | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.name

    @property
    def stream(self) -> str:
        """Its stream."""
        return self._info.stream_name

    @property
    def config(self) -> ConsumerConfig:
        """Its configuration as last seen; `info` asks the server."""
        return self._info.config

    @property
    def cached_info(self) -> ConsumerInfo:
        """What was last seen of it; `info` asks the server."""
        return self._info

    def __repr__(self) -> str:
        return f"<Consumer {self.stream}/{self.name}>"

    async def info(self) -> ConsumerInfo:
        """Ask the server for its present state. Raises `ConsumerNotFoundError` and those of any request."""
        answer = await self._call(
            self._context.api.consumer_info(self.stream, self.name), what="consumer info"
        )
        self._info = from_wire(ConsumerInfo, answer)
        return self._info

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
    ) -> Batch:
        """Ask the server for up to ``batch`` messages; as `PullSubscription.fetch`."""
        return await self._puller.fetch(
            batch, expires=expires, max_bytes=max_bytes, no_wait=no_wait, idle_heartbeat=idle_heartbeat
        )

    async def next(self, timeout: float = 5.0) -> Message:
        """One message. Raises `RequestTimeoutError` when none comes in ``timeout`` seconds; else as `fetch`."""
        return await self._puller.next(timeout)

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
    ) -> Messages:
        """Read on and on, with a bounded buffer; as `PullSubscription.messages`."""
        return Messages(
            self._puller,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
        )

    def __aiter__(self) -> AsyncIterator[Message]:
        """One `messages` reader for all loops over this: what a loop that was left had waiting, the next one gets."""
        if self._reader is None or self._reader.is_closed:
            self._reader = self.messages()
        return self._reader

    async def pause(self, until: datetime | timedelta) -> datetime | None:
        """Deliver nothing until a time, or for a time. Server 2.11 and newer.

        Returns: until when, as the server has it; None if that is past.
        """
        moment = datetime.now(UTC) + until if isinstance(until, timedelta) else until
        return await self._pause({"pause_until": format_time(moment)})

    async def resume(self) -> None:
        """Deliver again."""
        await self._pause({})

    async def _pause(self, body: dict[str, Any]) -> datetime | None:
        answer = await self._call(
            self._context.api.consumer_pause(self.stream, self.name), body, what="pause"
        )
        if not answer.get("paused"):
            return None
        config = ConsumerConfig(pause_until=answer["pause_until"])
        return config.pause_until if isinstance(config.pause_until, datetime) else None

    async def reset(self, seq: int | None = None) -> None:
        """Begin again: behind the ack floor, or at stream sequence ``seq``. Server 2.14 and newer."""
        if seq is not None and (isinstance(seq, bool) or seq < 1):
            raise ConfigError(f"seq is {seq!r}: it must be 1 or more")
        body = {} if seq is None else {"seq": seq}
        await self._call(self._context.api.consumer_reset(self.stream, self.name), body, what="reset")

    async def unpin(self, group: str) -> None:
        """Let another client be the pinned one of a priority group. Server 2.11 and newer. Source: ADR-42."""
        await self._call(
            self._context.api.consumer_unpin(self.stream, self.name), {"group": group}, what="unpin"
        )

    async def delete(self) -> None:
        """Delete it. Raises `ConsumerNotFoundError` if it is gone."""
        await self._call(self._context.api.consumer_delete(self.stream, self.name), what="delete consumer")

    async def close(self) -> None:
        """Stop reading through this handle; the consumer stays."""
        await self._puller.close(give_back=True)

    async def _call(self, subject: str, body: Any = None, *, what: str) -> dict[str, Any]:
        return await self._context.call(subject, body, what=what)
