"""Acks by the hundred thousand: written at once, and confirmed by the last one.

The server handles what comes on a connection in its order. So where the last ack of a consumer is a request, its
answer says that all before it were counted; a flush, or a PING, says only that they were read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import islice

from ..._runtime.calls import consumer_info, is_gone
from ..._runtime.context import Context
from ..._runtime.nats.connection import Lifecycle
from ...client import JetStream
from ...errors import (
    ConfigError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    NotJetStreamMessageError,
    RequestTimeoutError,
)
from ...protocol.consumers.ack import match_jsack, parse_jsack, sequences

__all__ = ["check_replies", "confirm", "context_of", "settle"]

PATIENCE = 30.0  # seconds for which acks are tried again after a connection was lost
_CHUNK = 1000  # acks of one write
_FIRST = 5.0  # seconds until it is looked whether the server can answer at all
_CONFIRM = 30.0  # seconds that it has then to count what it was sent
_PAUSE = 0.1  # seconds between two tries
_NOT_IN_SUBJECTS = re.compile(rb"[\x00-\x20\x7f]")


def context_of(js: JetStream) -> Context:
    """What a `JetStream` is made of."""
    return js._context  # noqa: SLF001  the package's own


def check_replies(replies: Sequence[bytes]) -> None:
    """Raises `NotJetStreamMessageError` where one is no JSAck: acks are published to nothing else."""
    for reply in replies:
        if not match_jsack(reply):
            parse_jsack(reply.decode("utf-8", "backslashreplace"))
    if _NOT_IN_SUBJECTS.search(b"".join(replies)):
        wrong = next(reply for reply in replies if _NOT_IN_SUBJECTS.search(reply))
        raise NotJetStreamMessageError(wrong.decode("utf-8", "backslashreplace"))


async def settle(
    js: JetStream, replies: Sequence[bytes], payload: bytes, *, patience: float = PATIENCE
) -> list[bytes]:
    """Publish one answer to many messages, and return when the server has counted all.

    Tried again as a whole when the connection is lost: an ack that comes twice changes nothing.

    Args:
        replies: JSAcks, as they came or made from claims; those of several consumers may be mixed.
        payload: As of `jsclient.protocol.consumers.ack.ack_payload`.
        patience: Seconds for which it is tried again.

    Returns: those that cannot be settled, since the server does not know that it delivered the message: it was killed
        before that was on its disk. It will deliver it again.

    Raises:
        PermissionDeniedError: This user may not ack.
        NoRespondersError: There is no such consumer.
        RequestTimeoutError, DisconnectedError: Whether all were counted is unknown. ClosedError.

    Cancelled: some may have been counted.
    """
    context = context_of(js)
    connection = context.connection
    deadline = connection.now() + patience
    unknown: list[bytes] = []
    timeout = _FIRST
    while True:
        try:
            await confirm(context, replies, payload, timeout=timeout)
            return unknown
        except (DisconnectedError, RequestTimeoutError, NoRespondersError) as error:
            if isinstance(error, RequestTimeoutError) and (found := await _not_delivered(context, replies)):
                unknown += found
                replies = list(set(replies) - set(found))
                continue
            if connection.now() + _PAUSE >= deadline:
                raise
            timeout = _CONFIRM
            if isinstance(error, NoRespondersError) and await _is_gone(context, replies):
                raise
        await asyncio.sleep(_PAUSE)
        await connection.wait_connected(deadline)


async def _not_delivered(context: Context, replies: Sequence[bytes]) -> list[bytes]:
    """Those of messages behind the last one that their consumer delivered, as it thinks: it answers nothing to them."""
    last: dict[bytes, int] = {}
    found: list[bytes] = []
    for reply in replies:
        of = reply.rsplit(b".", 5)[0]
        if of not in last:
            read = parse_jsack(reply.decode("utf-8", "surrogateescape"))
            try:
                info = await consumer_info(context, read.stream, read.consumer)
            except JetStreamError:
                return []  # not known
            last[of] = info.delivered.stream_seq
        if sequences(reply)[0] > last[of]:
            found.append(reply)
    return found


async def _is_gone(context: Context, replies: Sequence[bytes]) -> bool:
    """Whether nobody answers since the consumer of the first one is gone, and not since it moves."""
    of = parse_jsack(replies[0].decode("utf-8", "surrogateescape"))
    return await is_gone(context, of.stream, of.consumer)


async def confirm(context: Context, replies: Sequence[bytes], payload: bytes, *, timeout: float) -> None:
    """As `settle`, once. The first one is a request, too: where acks are refused, only one is."""
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
        await requests.request(first, payload, timeout=min(timeout, _FIRST), what="the first ack")
        others = (reply for reply in islice(replies, 1, None) if reply not in final)
        while chunk := list(islice(others, _CHUNK)):
            if lost or not connection.is_connected:
                raise DisconnectedError("the connection was lost while acks were sent")
            await _write(context, chunk, payload)
        answers = await asyncio.gather(
            *(
                requests.request(
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
        await connection.make_room()
    tail = b" %d\r\n%b\r\n" % (len(payload), payload)
    outbox.write(b"PUB " + (tail + b"PUB ").join(replies) + tail)
    await asyncio.sleep(0)  # heartbeats and answers have their turn
