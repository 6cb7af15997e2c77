"""Heartbeats that prevent redelivery while a long batch is processed.

In queue mode the source sends them automatically.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..._runtime.calls import consumer_info
from ...errors import ConfigError, JetStreamError, PermissionDeniedError
from ...protocol.consumers.ack import AckKind, parse_jsack
from ...protocol.events import ClaimsLapsed
from ..engine import Session, session
from ..options.connect import ConnectOptions
from ..queue.checks import effective_ack_wait, not_permitted
from .ack_batch import need, replies_of
from .bulk_ack import confirm, context_of, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["heartbeat"]


@contextmanager
def heartbeat(
    df: DataFrame, servers: str | Mapping[str, str], *, every: float | None = None
) -> Iterator[int]:
    """Send in-progress acks for the messages of a batch until the block exits.

    The replies are collected on the driver (about 100 bytes per row), which sends the acks periodically, the first time
    before the block is entered. A failure to send is reported as an event and retried. If ``ack_wait`` expired before
    an ack succeeded, the event `ClaimsLapsed` reports it.

    Args:
        df: Rows with the column ``reply``.
        servers: See `ack_batch`.
        every: Seconds between in-progress acks; by default a third of the shortest ``ack_wait`` of the consumers.

    Yields:
        The number of messages.

    Raises:
        ConfigError: The column is missing, an option is wrong, or this user may not ack.

    `ack_batch` lists the other errors.
    """
    if every is not None and (
        isinstance(every, bool) or not isinstance(every, int | float) or not 0 < every < float("inf")
    ):
        raise ConfigError(f"every is {every!r} s: it must be over 0")
    opened = session(ConnectOptions.of(servers))
    need(df, "reply")
    replies = replies_of(df)
    if not replies:
        yield 0
        return
    try:
        wait = opened.run(_ack_wait(opened, replies)) if every is None else None
        opened.run(settle(opened.js, replies, AckKind.IN_PROGRESS.value))
    except PermissionDeniedError as error:
        raise not_permitted("servers", error, "messages are kept alive") from error
    pause = float(every) if every is not None else (wait or 0.0) / 3
    beating = opened.start(_beat(opened, replies, pause, wait))
    try:
        yield len(replies)
    finally:
        beating.cancel()


async def _ack_wait(opened: Session, replies: Sequence[bytes]) -> float:
    """The shortest ``ack_wait`` of the consumers of these replies, in seconds."""
    one_of_each = {reply.rsplit(b".", 5)[0]: reply for reply in replies}
    waits: list[float] = []
    for reply in one_of_each.values():
        of = parse_jsack(reply.decode("utf-8", "surrogateescape"))
        waits.append(effective_ack_wait(await consumer_info(context_of(opened.js), of.stream, of.consumer)))
    return min(waits)


async def _beat(opened: Session, replies: Sequence[bytes], pause: float, wait: float | None) -> None:
    context = context_of(opened.js)
    alive_at = context.connection.now()
    while not opened.js.is_closed:
        await asyncio.sleep(pause)
        asked = context.connection.now()
        try:
            await confirm(context, replies, AckKind.IN_PROGRESS.value, timeout=max(1.0, pause))
        except JetStreamError as error:
            context.report(error)
            continue
        late, alive_at = context.connection.now() - alive_at, asked
        if wait is not None and late > wait:
            reason = f"no sign of life for {late:.1f} s"
            context.emit(ClaimsLapsed(count=len(replies), reason=reason))
