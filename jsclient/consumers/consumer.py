"""A consumer as a handle: `Stream.consumer`. Source: ADR-37."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from .._runtime.context import Context
from ..errors import ConfigError, PermissionDeniedError
from ..protocol.consumers.priority import check_group_name
from ..protocol.models.consumer import AckPolicy, ConsumerConfig, ConsumerInfo
from ..protocol.wire.codec import from_wire
from ..protocol.wire.units import format_time, parse_time, time_of
from ..protocol.wire.version import check_server
from .message import Message
from .pull.fetch import Batch, Puller
from .pull.messages import Messages
from .worker.run import Running
from .worker.sources import PullSource, Source

__all__ = ["Consumer"]


class Consumer(Running):
    """A consumer that exists on the server. Made by `Stream.consumer` and `Stream.create_consumer`.

    `fetch`, `next` and `messages` pull from it, `run` has its messages handled; a push consumer is read with
    `JetStream.subscribe`.
    """

    def __init__(self, context: Context, info: ConsumerInfo) -> None:
        self._context = context
        self._info = info
        silent = info.config.ack_policy == AckPolicy.NONE
        self._puller = Puller(context, info.stream_name, info.name, silent=silent, config=info.config)
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
        self._puller.config = self._info.config
        return self._info

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Batch:
        """Ask the server for up to ``batch`` messages; as `PullSubscription.fetch`."""
        return await self._puller.fetch(
            batch,
            expires=expires,
            max_bytes=max_bytes,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
            group=self._puller.group(
                group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
            ),
        )

    async def next(
        self,
        timeout: float = 5.0,
        *,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Message:
        """One message. Raises `RequestTimeoutError` when none comes in ``timeout`` seconds; else as `fetch`."""
        asks = self._puller.group(
            group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
        )
        return await self._puller.next(timeout, asks)

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Messages:
        """Read on and on, with a bounded buffer; as `PullSubscription.messages`."""
        return Messages(
            self._puller,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            group=self._puller.group(
                group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
            ),
        )

    def __aiter__(self) -> AsyncIterator[Message]:
        """One `messages` reader for all loops over this: what a loop that was left had waiting, the next one gets."""
        if self._reader is None or self._reader.is_closed:
            self._reader = self.messages()
        return self._reader

    def _source(self, group: Mapping[str, Any]) -> Source:
        self._puller.check_open()
        self._puller.group(**{"group": None, **group})
        return PullSource(
            self._context,
            self.stream,
            self.name,
            owner=self,
            messages=partial(self.messages, **group),
            emit=self._puller.emit,
            known=self.config,
        )

    async def pause(self, until: datetime | timedelta | float) -> datetime | None:
        """Deliver nothing until a time, or for a time: a ``timedelta`` or seconds, over 0, by this machine's clock.

        Readers go on and wait. Needs server 2.11.

        Returns: until when, as the server has it; None if that is past.

        Raises:
            ConfigError: No usable time (one without a time zone, for instance), or an older server.
            ConsumerNotFoundError: It is gone. And those of any request.
        """
        moment = time_of(until, datetime.now(UTC))
        return await self._pause({"pause_until": format_time(moment)})

    async def resume(self) -> None:
        """Deliver again; nothing happens if it is not paused. Raises as `pause`."""
        await self._pause({})

    async def _pause(self, body: dict[str, Any]) -> datetime | None:
        self._needs((2, 11), "pausing a consumer")
        answer = await self._call(
            self._context.api.consumer_pause(self.stream, self.name), body, what="pause"
        )
        return parse_time(answer["pause_until"]) if answer.get("paused") else None

    async def reset(self, seq: int | None = None) -> int:
        """Begin again: behind the ack floor, or at stream sequence ``seq``. Needs server 2.14. Source: ADR-60.

        What was delivered and not acked is delivered again, and counted from 1 (``metadata.consumer_seq``). Readers go
        on; a push subscription tells it as the event `ConsumerReset`. What readers have in their buffers stays there,
        so some of it may come twice.

        Returns: the stream sequence at which it begins.

        Raises:
            ConfigError: ``seq`` is no sequence, or an older server.
            ApiError: 10204: it may not begin there. ``seq`` needs the deliver policy all, or one of by_start_sequence
                and by_start_time, and then nothing below that start.
            ConsumerNotFoundError: It is gone. And those of any request.
        """
        if seq is not None and (isinstance(seq, bool) or not isinstance(seq, int) or not 1 <= seq < 2**64):
            raise ConfigError(f"seq is {seq!r:.60}: it must be a whole number of 1 or more")
        self._needs((2, 14), "resetting a consumer")
        with suppress(PermissionDeniedError):
            await self.info()  # nobody would answer for one that is gone
        body = {} if seq is None else {"seq": seq}
        answer = await self._call(
            self._context.api.consumer_reset(self.stream, self.name), body, what="reset"
        )
        begins = answer.pop("reset_seq", 0)
        self._info = from_wire(ConsumerInfo, answer)
        return int(begins)

    async def unpin(self, group: str) -> None:
        """Let the server choose anew to which client of a priority group it delivers. Source: ADR-42.

        Raises:
            ConfigError: ``group`` is no legal name, or a server before 2.11.
            ApiError: 10160: the consumer has no such group.
            ConsumerNotFoundError: It is gone. And those of any request.
        """
        body = {"group": check_group_name(group)}
        self._needs((2, 11), "unpinning")
        await self._call(self._context.api.consumer_unpin(self.stream, self.name), body, what="unpin")

    def _needs(self, version: tuple[int, int], what: str) -> None:
        check_server(self._context.connection.server_version, version, what)

    async def delete(self) -> None:
        """Delete it. Raises `ConsumerNotFoundError` if it is gone."""
        await self._call(self._context.api.consumer_delete(self.stream, self.name), what="delete consumer")

    async def close(self) -> None:
        """Stop reading through this handle; the consumer stays."""
        await self._puller.close(give_back=True)

    async def _call(self, subject: str, body: Any = None, *, what: str) -> dict[str, Any]:
        return await self._context.call(subject, body, what=what)
