"""Bulk acks. Hundreds of thousands of acks are written in large chunks, and the last ack confirms all of them.

The server processes the messages of a connection in order. The last ack for each consumer is sent as a request, and its
response confirms that the server has processed all earlier acks. A flush or PING only confirms that they were read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import islice

from ..._runtime.calls import consumer_info, is_gone
from ..._runtime.connection.connection import Lifecycle
from ..._runtime.context import Context
from ..._runtime.retry import Retry, RetryPolicy
from ...client import JetStream
from ...errors import (
    ConfigError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    NotJetStreamMessageError,
    RequestTimeoutError,
)
from ...protocol.consumers.ack import match_jsack, read_jsack, sequences
from ...tables.session import context_of

__all__ = ["check_replies", "confirm", "settle"]

_RETRY = RetryPolicy(0.1, 0.1, patience=30.0)
_CHUNK = 1000  # acks per write
_FIRST = 5.0  # timeout of the first attempt in seconds, before checking why no response came
_CONFIRM = 30.0  # timeout of later attempts in seconds, long enough to process all acks
_NOT_IN_SUBJECTS = re.compile(rb"[\x00-\x20\x7f]")


def check_replies(replies: Sequence[bytes]) -> None:
    """Raise `NotJetStreamMessageError` unless all replies are JSAck subjects, so that no other subject gets an ack."""
    for reply in replies:
        if not match_jsack(reply):
            read_jsack(reply)
    if _NOT_IN_SUBJECTS.search(b"".join(replies)):
        wrong = next(reply for reply in replies if _NOT_IN_SUBJECTS.search(reply))
        raise NotJetStreamMessageError(wrong.decode("utf-8", "backslashreplace"))


async def settle(js: JetStream, replies: Sequence[bytes], payload: bytes) -> list[bytes]:
    """Send the same ack payload for many messages and wait until the server has processed all acks.

    If the connection is lost, all acks are sent again. Duplicate acks have no effect.

    Args:
        replies: JSAck subjects, received or rebuilt from claims. They may belong to several consumers.
        payload: An ack payload, see `jsclient.protocol.consumers.ack.ack_payload`.

    Returns:
        The replies that cannot be settled, because the server crashed before it stored their deliveries. The server
        redelivers these messages.

    Raises:
        PermissionDeniedError: The user may not ack.
        NoRespondersError: The consumer does not exist.
        RequestTimeoutError, DisconnectedError: Some acks may not have been processed.
        ClosedError: The connection is closed.

    If cancelled, some acks may have been processed.
    """
    context, retry = context_of(js), Retry(_RETRY)
    unknown: list[bytes] = []
    timeout = _FIRST
    while True:
        try:
            await confirm(context, replies, payload, timeout=timeout)
            return unknown
        except JetStreamError as error:
            if isinstance(error, RequestTimeoutError) and (
                undelivered := await _not_delivered(context, replies)
            ):
                unknown += undelivered
                replies = list(set(replies) - set(undelivered))
                continue
            timeout = _CONFIRM
            deleted = isinstance(error, NoRespondersError) and await _was_deleted(context, replies)
            if deleted or not await retry.again(error):
                raise


async def _not_delivered(context: Context, replies: Sequence[bytes]) -> list[bytes]:
    """Return the replies whose delivery is later than the last one that the consumer has recorded.

    The server never responds to acks for such deliveries. Returns an empty list if the state of a consumer is unknown.
    """
    last: dict[bytes, int] = {}
    undelivered: list[bytes] = []
    for reply in replies:
        of = reply.rsplit(b".", 5)[0]
        if of not in last:
            read = read_jsack(reply)
            try:
                info = await consumer_info(context, read.stream, read.consumer)
            except JetStreamError:
                return []  # without the consumer's state, nothing is known to be undelivered
            last[of] = info.delivered.stream_seq
        if sequences(reply)[0] > last[of]:
            undelivered.append(reply)
    return undelivered


async def _was_deleted(context: Context, replies: Sequence[bytes]) -> bool:
    """Return whether the consumer of the first reply was deleted, rather than moved to another server."""
    of = read_jsack(replies[0])
    return await is_gone(context, of.stream, of.consumer)


async def confirm(context: Context, replies: Sequence[bytes], payload: bytes, *, timeout: float) -> None:
    """Send all acks once and wait until the server has processed them. This is one attempt of `settle`.

    The first ack is also sent as a request, so that the server rejects one ack instead of all if the user may not ack.
    """
    connection, requests = context.connection, context.requests
    if not replies:
        return
    lasts = {reply.rsplit(b".", 5)[0]: reply for reply in replies}
    final = set(lasts.values())
    lost = False

    def listener(what: Lifecycle) -> None:
        nonlocal lost
        lost = lost or what is not Lifecycle.CONNECTED

    connection.add_listener(listener)
    try:
        first = replies[0].decode("utf-8", "surrogateescape")
        await requests.ask(first, payload, timeout=min(timeout, _FIRST), what="the first ack")
        # Keep the last ack of each consumer until the end, because its answer confirms all acks before it.
        others = (reply for reply in islice(replies, 1, None) if reply not in final)
        while chunk := list(islice(others, _CHUNK)):
            if lost or not connection.is_connected:
                raise DisconnectedError("the connection was lost while acks were sent")
            await _write(context, chunk, payload)
        answers = await asyncio.gather(
            *(
                requests.ask(
                    last.decode("utf-8", "surrogateescape"), payload, timeout=timeout, what="the last ack"
                )
                for last in lasts.values()
                if last != replies[0]
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if lost:
            raise DisconnectedError("the connection was lost while acks were sent")
    finally:
        connection.remove_listener(listener)


async def _write(context: Context, replies: list[bytes], payload: bytes) -> None:
    connection, outbox = context.connection, context.connection.outbox
    if outbox is None:
        raise ConfigError("acks in bulk need a connection that jsclient opened")
    if outbox.is_full:
        await connection.wait_for_space()
    tail = b" %d\r\n%b\r\n" % (len(payload), payload)
    outbox.write(b"PUB " + (tail + b"PUB ").join(replies) + tail)
    await asyncio.sleep(0)  # let the event loop process heartbeats and responses
