"""Ordered pull consumers on a fake connection."""

from __future__ import annotations

import asyncio

from tests.support.fake import SILENCE
from tests.support.virtual import settle


def creates(connection) -> list[dict]:
    return [sent.json["config"] for sent in connection.to("$JS.API.CONSUMER.CREATE.")]


def batches(connection) -> list[int]:
    return [pull.json["batch"] for pull in connection.pulls()]


def arrives(connection, *frames) -> None:
    """For the newest request."""
    inbox = connection.pulls()[-1].reply
    connection.deliver(inbox, [frame if frame[1] else (inbox.encode(), *frame[1:]) for frame in frames])


def read_inboxes(connection) -> list[str]:
    """The subject on which answers to pulls are received."""
    requests = {
        sent.reply.rpartition(".")[0] for sent in connection.to("$JS.API.") if sent not in connection.pulls()
    }
    return [inbox.subject for inbox in connection.inboxes if inbox.subject.rpartition(".")[0] not in requests]


async def taken(reader, count: int) -> list[int]:
    return [(await reader.next(timeout=60)).metadata.stream_seq for _ in range(count)]


def sequences(messages) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


async def start_next(reader) -> asyncio.Task:
    """A task that waits for the next message, so that there is a request."""
    waiting = asyncio.ensure_future(reader.next())
    await settle()
    return waiting


def unanswered(connection):
    """The next consumer is made, but the answer is lost."""
    connection.api.on("CONSUMER.CREATE", lambda request: connection.api._consumer_create(request) and SILENCE)
