"""Fast reading: of stored records, and of records that are published meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import nats
from nats.js.api import ConsumerConfig, DeliverPolicy

import jsclient
from benchmarks.clients.on_jsclient import from_here
from benchmarks.job import Job, Meter, Part
from benchmarks.pacer import flooded
from benchmarks.wire import SUBJECTS
from jsclient.topics.log_reader import open_reader

__all__ = ["catching_up", "keeping", "live"]

_AT_ONCE = 500


async def catching_up(job: Job) -> dict[str, float]:
    """Read the last ``job.count`` records of a full stream, which all clients share."""
    return await _measured(job, _STORED[job.client])


async def live(job: Job) -> dict[str, float]:
    """Read ``job.count`` records that another process publishes as fast as the server stores them."""
    return await _own_stream(job, _LIVE[job.client])


async def keeping(job: Job) -> dict[str, float]:
    """Keep the newest record of each of 500 subjects, while another process publishes."""
    return await _own_stream(replace(job, subject=f"{job.subject}.*"), _KEEPING[job.client])


async def _own_stream(job: Job, work: Any) -> dict[str, float]:
    async with jsclient.connect(job.url) as js:
        await js.create_stream(
            job.stream,
            subjects=[job.subject],
            storage="memory",
            allow_direct=True,
            republish={
                "src": job.subject.replace("*", ">"),
                "dest": f"pushed.{job.subject.replace('*', '>')}",
            },
        )
        try:
            return await _measured(job, work)
        finally:
            await js.delete_stream(job.stream)


async def _measured(job: Job, work: Any) -> dict[str, float]:
    meter = Meter(job)
    results: dict[str, float] = {}
    if work in (_ordered_natspy, _live_natspy, _table_natspy):
        nc = await nats.connect(job.url)
        try:
            for part in meter.parts():
                await work(nc.jetstream(), job, part)
        finally:
            await nc.close()
    else:
        async with jsclient.connect(job.url) as js:
            for part in meter.parts():
                results = await work(js, job, part) or {}
    return {**meter.figures(), **results}


# --- what is stored ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _reader(
    js: jsclient.JetStream, job: Job, part: Part, *, directly: bool = True
) -> AsyncIterator[Any]:
    """Open a reader in the same way as `Topic.since`."""
    log = await js.topic(job.subject).log()
    if not directly:
        info = log.handle._info
        log.handle._info = msgspec.structs.replace(info, config=info.config.replace(allow_direct=False))
    async with await open_reader(log, (await log.extent()).end.at(part.start - 1)) as reader:
        yield reader


async def _batches(reader: Any, part: Part) -> None:
    seen, count = 0, part.count
    async for records in reader.batches(_AT_ONCE):
        seen += len(records)
        if seen >= count:
            break
    part.done(seen, records[-1].seq)


async def _pages(js: jsclient.JetStream, job: Job, part: Part) -> None:
    async with _reader(js, job, part) as reader:
        await _batches(reader, part)


async def _fetches(js: jsclient.JetStream, job: Job, part: Part) -> None:
    async with _reader(js, job, part, directly=False) as reader:
        await _batches(reader, part)


async def _one_by_one(js: jsclient.JetStream, job: Job, part: Part) -> None:
    topic = js.topic(job.subject)
    position = (await (await topic.log()).extent()).end.at(part.start - 1)
    seen, count = 0, part.count
    async with topic.since(position) as reader:
        async for record in reader:  # noqa: B007 - looked at below
            seen += 1
            if seen == count:
                break
    part.done(seen, record.seq)


async def _ordered(js: jsclient.JetStream, job: Job, part: Part) -> None:
    sub = await js.subscribe(job.subject, ordered=True, config=from_here(part.start))
    seen, count = 0, part.count
    async for message in sub:  # noqa: B007 - looked at below
        seen += 1
        if seen == count:
            break
    part.done(seen, message.metadata.stream_seq)
    await sub.unsubscribe()


async def _ordered_natspy(js: Any, job: Job, part: Part) -> None:
    config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=part.start)
    sub = await js.subscribe(job.subject, ordered_consumer=True, config=config)
    seen, count = 0, part.count
    async for message in sub.messages:  # noqa: B007 - looked at below
        seen += 1
        if seen == count:
            break
    part.done(seen, message.metadata.sequence.stream)
    await sub.unsubscribe()


# --- what comes --------------------------------------------------------------------------------------------------


async def _live_topic(js: jsclient.JetStream, job: Job, part: Part, push: Any) -> dict[str, float]:
    async with js.topic(job.subject).each("now", push=push) as reader:
        tracker = reader._reader.tracker
        while not tracker.is_subscribed or tracker._in_flight is not None:
            await reader._reader._arrived.wait()
        with flooded(job, part.count):
            part.begin(0)
            await _batches(reader._reader, part)
        return {"pushed": 1 - tracker.discarded / part.count}


async def _live_republish(js: jsclient.JetStream, job: Job, part: Part) -> dict[str, float]:
    return await _live_topic(js, job, part, "republish")


async def _live_consumer(js: jsclient.JetStream, job: Job, part: Part) -> dict[str, float]:
    return await _live_topic(js, job, part, "consumer")


async def _live_ordered(js: jsclient.JetStream, job: Job, part: Part) -> None:
    sub = await js.subscribe(job.subject, ordered=True, config=jsclient.ConsumerConfig(deliver_policy="new"))
    seen, count = 0, part.count
    with flooded(job, count):
        part.begin(0)
        async for message in sub:  # noqa: B007 - looked at below
            seen += 1
            if seen == count:
                break
        part.done(seen, message.metadata.stream_seq)
    await sub.unsubscribe()


async def _live_natspy(js: Any, job: Job, part: Part) -> None:
    config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    sub = await js.subscribe(job.subject, ordered_consumer=True, config=config)
    seen, count = 0, part.count
    with flooded(job, count):
        part.begin(0)
        async for message in sub.messages:  # noqa: B007 - looked at below
            seen += 1
            if seen == count:
                break
        part.done(seen, message.metadata.sequence.stream)
    await sub.unsubscribe()


# --- the newest of each subject -------------------------------------------------------------------------------------


async def _table(js: jsclient.JetStream, job: Job, part: Part) -> dict[str, float]:
    async with js.topic(job.subject).table() as table:
        tracker = table._reader.tracker
        while not tracker.is_subscribed or tracker._in_flight is not None:
            await table._reader._arrived.wait()
        with flooded(job, part.count):
            part.begin(0)
            final = job.subject.replace("*", f"s{(part.count - 1) % SUBJECTS}")
            await table.wait_for(lambda records: final in records and records[final].seq >= part.last)
            part.done(part.count, table.position.seq)
        assert len(table) == min(SUBJECTS, part.count)
        return {"pushed": 1 - tracker.discarded / part.count}


async def _table_ordered(js: jsclient.JetStream, job: Job, part: Part) -> None:
    sub = await js.subscribe(job.subject, ordered=True, config=jsclient.ConsumerConfig(deliver_policy="new"))
    seen, count, table = 0, part.count, {}
    with flooded(job, count):
        part.begin(0)
        async for message in sub:
            table[message.subject] = message
            seen += 1
            if seen == count:
                break
        part.done(seen, message.metadata.stream_seq)
    await sub.unsubscribe()


async def _table_natspy(js: Any, job: Job, part: Part) -> None:
    config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    sub = await js.subscribe(job.subject, ordered_consumer=True, config=config)
    seen, count, table = 0, part.count, {}
    with flooded(job, count):
        part.begin(0)
        async for message in sub.messages:
            table[message.subject] = message
            seen += 1
            if seen == count:
                break
        part.done(seen, message.metadata.sequence.stream)
    await sub.unsubscribe()


_STORED = {
    "pages": _pages,
    "async for": _one_by_one,
    "fetch": _fetches,
    "ordered": _ordered,
    "nats-py": _ordered_natspy,
}
_LIVE = {
    "republish": _live_republish,
    "consumer": _live_consumer,
    "ordered": _live_ordered,
    "nats-py": _live_natspy,
}
_KEEPING = {"table": _table, "ordered": _table_ordered, "nats-py": _table_natspy}
