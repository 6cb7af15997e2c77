"""The command ``jsclient spark offsets``: shows a checkpoint, compares it with its stream, and rewinds it."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import time
from datetime import datetime
from typing import Any

from ...errors import ConfigError, JetStreamError
from ...protocol.wire.units import format_time
from ...spark.engine import session
from ...spark.log.checkpoint import BatchEntry, Checkpoint, CheckpointError
from ...spark.log.lookup import Lookup, NoSuchStreamError
from ...spark.log.offsets import LogOffset, StreamFacts
from ...spark.log.ranges import SequenceRange, without
from ...spark.options.connect import ConnectOptions
from ...spark.options.source import SourceOptions

__all__ = ["run"]

_QUIET = 60.0  # seconds without a new file before a checkpoint is rewound


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code. See `jsclient.cli.main`."""
    others = (options.stream, options.credentials, options.rewind_to, *options.option)
    if options.server is None and any(value is not None for value in others):
        options.parser.error("--stream, --credentials, --option and --rewind-to need --server")
    try:
        report = _report(options)
    except (JetStreamError, OSError) as error:
        print(f"jsclient spark offsets: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) if options.json else "\n".join(_lines(report)))
    return 0


def _report(options: argparse.Namespace) -> dict[str, Any]:
    found = Checkpoint.read(options.checkpoint)
    report = {
        "checkpoint": str(found.path),
        "id": found.id,
        "stateful": found.stateful,
        "sources": _sources(found),
    }
    if options.rewind_to is not None:
        found.rewindable_offset()
    if options.server is not None:
        _compare(report, found, options)
    return report


def _sources(found: Checkpoint) -> list[dict[str, Any]]:
    last = found.planned or found.committed
    sources: list[dict[str, Any]] = []
    for number, entry in enumerate(last.sources if last else ()):
        one: dict[str, Any] = {"source": number, "mode": entry.mode}
        if entry.name is not None:
            one["name"] = entry.name
        if entry.streams is not None:
            one["streams"] = {name: _progress(found, number, name) for name in sorted(entry.streams)}
        else:
            one |= _progress(found, number)
        sources.append(one)
    return sources


def _progress(found: Checkpoint, source: int, stream: str | None = None) -> dict[str, Any]:
    """What the batches say about a source, or about one of its streams."""
    last = _offset(found.planned or found.committed, source, stream)
    return {
        **({"created": last.created} if last is not None else {}),
        "planned": _batch(found.planned, source, stream),
        "committed": _batch(found.committed, source, stream),
    }


def _offset(batch: BatchEntry | None, source: int, stream: str | None) -> LogOffset | None:
    if batch is None or source >= len(batch.sources):
        return None
    entry = batch.sources[source]
    return entry.offset if stream is None else (entry.streams or {}).get(stream)


def _batch(batch: BatchEntry | None, source: int, stream: str | None) -> dict[str, Any] | None:
    if batch is None or source >= len(batch.sources):
        return None
    offset = _offset(batch, source, stream)
    if offset is None:
        return {"batch": batch.number} if stream is None else None
    # Not every batch reads all streams, so the cuts of one may be those of an earlier batch.
    first = offset.cuts[0] if offset.cuts and stream is None else None
    return {"batch": batch.number, "first": first, "last": offset.seq}


def _compare(report: dict[str, Any], found: Checkpoint, options: argparse.Namespace) -> None:
    _compare_several(report, found, options)
    offsets = _offsets(found)
    wanted = {offset.created for offset in offsets if offset is not None}
    named = _look(options.stream, options) if options.stream is not None and wanted else None
    for one, offset in zip(report["sources"], offsets, strict=False):
        if offset is None:
            continue
        looked = named
        # A named stream that one source has read is not that of the others.
        if named is None or (named[1].created != offset.created and named[1].created in wanted):
            name = _stream_created(offset.created, options)
            looked = None if name is None else _look(name, options)
        if looked is None:
            one["stream"] = {"name": None, "recreated": True}
            continue
        lookup, facts = looked
        one["stream"] = _state(offset, facts)
        if options.rewind_to is not None:
            report["rewound"] = _rewind(found, lookup, facts, options)
    if options.rewind_to is not None and "rewound" not in report:
        raise CheckpointError(
            f"no stream of the server was created at {found.rewindable_offset().created}: it was deleted or recreated; "
            "use a new checkpoint"
        )


def _compare_several(report: dict[str, Any], found: Checkpoint, options: argparse.Namespace) -> None:
    """Compare the streams of sources that read several, which the checkpoint names."""
    for one in report["sources"]:
        for name, shown in one.get("streams", {}).items():
            batch = found.committed or found.planned
            offset = _offset(batch, one["source"], name)
            if offset is None:
                continue
            shown["stream"] = {"name": name, "recreated": True}
            with contextlib.suppress(NoSuchStreamError):
                facts = _look(name, options)[1]
                if facts.created == offset.created:
                    shown["stream"] = _state(offset, facts)


def _offsets(found: Checkpoint) -> list[LogOffset | None]:
    """The committed offset of each source; the planned one before the first commit."""
    batch = found.committed or found.planned
    return [entry.offset for entry in batch.sources] if batch else []


def _asked(options: argparse.Namespace, stream: str) -> SourceOptions:
    given = {"servers": options.server, "stream": stream}
    if options.credentials is not None:
        given["credentialsFile"] = options.credentials
    for name, value in options.option:
        if name.lower() in {"servers", "stream", "credentialsfile"}:
            raise ConfigError(f"--option {name}: use --server, --stream or --credentials")
        given[name] = value
    ConnectOptions.of({name: value for name, value in given.items() if name != "stream"})  # no other options
    return SourceOptions.parse(given)


def _look(stream: str, options: argparse.Namespace) -> tuple[Lookup, StreamFacts]:
    lookup = Lookup(_asked(options, stream))
    return lookup, lookup.facts()


def _stream_created(created: str, options: argparse.Namespace) -> str | None:
    opened = session(_asked(options, "any").connect)

    async def look() -> str | None:
        async for info in opened.js.streams():
            if info.created is not None and info.created.isoformat() == created:
                return info.name
        return None

    return opened.run(look())


def _state(offset: LogOffset, facts: StreamFacts) -> dict[str, Any]:
    same = offset.created == facts.created
    state: dict[str, Any] = {
        "name": facts.name,
        "created": facts.created,
        "recreated": False if same else None,  # None: it was recreated, or it is another stream
        "first": facts.first_seq,
        "last": facts.last_seq,
    }
    if same:
        state["lag"] = max(0, facts.last_seq - max(offset.seq, facts.first_seq - 1))
        state["removed"] = max(0, facts.first_seq - 1 - offset.seq)
        state["ends_before"] = facts.last_seq < offset.seq
    return state


def _rewind(
    found: Checkpoint, lookup: Lookup, facts: StreamFacts, options: argparse.Namespace
) -> dict[str, Any]:
    offset = found.rewindable_offset()
    if offset.created != facts.created:
        raise CheckpointError(
            f"stream {facts.name!r}, created {facts.created}, is not the stream that the query has read, created "
            f"{offset.created}: it was recreated, or it is another one; give the name of the stream that was read, or "
            "use a new checkpoint"
        )
    first = _sequence(options.rewind_to, lookup, facts)
    if not options.force:
        found.refuse_running(time.time(), _QUIET)
    committed, planned = found.covered(facts.created)
    files = found.rewind(LogOffset(first - 1, facts.created, owner=offset.owner))
    return {
        "first": first,
        "read_twice": _from(first, committed),
        "maybe_read_twice": _from(first, planned),
        "skipped": _passed(first, committed),
        "added": [str(file) for file in files],
    }


def _from(first: int, ranges: list[SequenceRange]) -> list[list[int]]:
    clipped = [one.clipped(first, one.last) for one in ranges]
    return [[one.first, one.last] for one in clipped if one is not None]


def _passed(first: int, committed: list[SequenceRange]) -> list[list[int]]:
    """The sequences before ``first`` that no batch has committed, from the start of the query on."""
    began = min((one.first for one in committed), default=first)
    rest = without(SequenceRange(began, first - 1), committed) if began < first else []
    return [[one.first, one.last] for one in rest]


def _sequence(text: str, lookup: Lookup, facts: StreamFacts) -> int:
    """The sequence to read from next. Raises `ConfigError` for one that the stream does not store."""
    if re.fullmatch("[0-9]{1,19}", text):
        first = int(text)
        if not facts.first_seq <= first <= facts.last_seq + 1:
            raise ConfigError(
                f"--rewind-to is {first}, but stream {facts.name!r} has sequences {facts.first_seq} to "
                f"{facts.last_seq}: give one of them, or {facts.last_seq + 1} for the next message"
            )
        return first
    try:
        moment = format_time(text)
    except ConfigError:
        raise ConfigError(
            f"--rewind-to is {text!r}: a sequence is needed, or a time such as 2026-01-31T12:00:00Z, with a time zone"
        ) from None
    if facts.seen_at is not None and datetime.fromisoformat(moment) > facts.seen_at:
        raise ConfigError(
            f"--rewind-to is {moment}, which is in the future (on the server it is {facts.seen_at.isoformat()}): give "
            f"an earlier time, or {facts.last_seq + 1} for the next message"
        )
    return max(lookup.sequence_at(moment, facts), facts.first_seq)


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"query {report['id']}{', with state' if report['stateful'] else ''}"]
    for one in report["sources"]:
        name = f" ({one['name']})" if "name" in one else ""
        title = f"source {one['source']}{name}: mode {one['mode']}"
        if "streams" not in one:
            lines += _source(title, one)
            continue
        lines.append(f"{title}, {len(one['streams'])} streams")
        for name, shown in one["streams"].items():
            lines += _source(f"  {name}", shown, "    ")
    if not report["sources"]:
        lines.append("no batch is planned")
    if "rewound" in report:
        lines += _rewound(report["rewound"])
    return lines


def _source(title: str, one: dict[str, Any], indent: str = "  ") -> list[str]:
    created = f", stream created {one['created']}" if "created" in one else ""
    lines = [f"{title}{created}"]
    lines += [f"{indent}{word:<10} {_told(one[word])}" for word in ("planned", "committed")]
    if "stream" in one:
        lines.append(f"{indent}{'stream':<10} {_compared(one['stream'])}")
    return lines


def _told(batch: dict[str, Any] | None) -> str:
    if batch is None:
        return "none"
    if "last" not in batch:
        return f"batch {batch['batch']}"
    if batch["first"] is None:
        return f"batch {batch['batch']}, up to sequence {batch['last']}"
    return f"batch {batch['batch']}, sequences {batch['first']} to {batch['last']}"


def _compared(state: dict[str, Any]) -> str:
    if state["recreated"]:
        hint = " (--stream NAME compares with one)" if state["name"] is None else ""
        return f"deleted or recreated: none was created at that time{hint}"
    if state["recreated"] is None:
        return (
            f"{state['name']}, created {state['created']}: not the stream that the query has read, so the offsets are "
            "not valid in it"
        )
    told = f"{state['name']}, sequences {state['first']} to {state['last']}"
    if state["ends_before"]:
        return f"{told}: it ends before the committed offset"
    lost = f", {state['removed']} removed before they were read" if state["removed"] else ""
    return f"{told}, lag {state['lag']}{lost}"


def _rewound(done: dict[str, Any]) -> list[str]:
    lines = [f"rewound: the next start reads from sequence {done['first']}"]
    for name, text in (
        ("read_twice", "read twice, since they are committed"),
        ("maybe_read_twice", "perhaps written twice, since a batch of them was planned"),
        ("skipped", "skipped, since they are not committed"),
    ):
        if done[name]:
            shown = ", ".join(f"{first} to {last}" for first, last in done[name])
            lines.append(f"  sequences {shown}: {text}")
    return [*lines, f"  to undo this before the next start, delete {' and '.join(done['added'])}"]
