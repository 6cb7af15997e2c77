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
from ...spark.log.checkpoint import BatchEntry, Checkpoint, CheckpointError
from ...tables.lookup import Lookup, NoSuchStreamError
from ...tables.offsets import LogOffset, StreamFacts
from ...tables.ranges import SequenceRange, without
from ...tables.server_options import ServerOptions
from ...tables.session import session
from ...tables.source_options import SourceOptions

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
    checkpoint = Checkpoint.read_directory(options.checkpoint)
    report = {
        "checkpoint": str(checkpoint.path),
        "id": checkpoint.id,
        "stateful": checkpoint.stateful,
        "sources": _sources(checkpoint),
    }
    if options.rewind_to is not None:
        checkpoint.rewindable_offset()
    if options.server is not None:
        _compare(report, checkpoint, options)
    return report


def _sources(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    last = checkpoint.planned or checkpoint.committed
    sources: list[dict[str, Any]] = []
    for number, entry in enumerate(last.sources if last else ()):
        source: dict[str, Any] = {"source": number, "mode": entry.mode}
        if entry.name is not None:
            source["name"] = entry.name
        if entry.streams is not None:
            source["streams"] = {name: _progress(checkpoint, number, name) for name in sorted(entry.streams)}
        else:
            source |= _progress(checkpoint, number)
        sources.append(source)
    return sources


def _progress(checkpoint: Checkpoint, source: int, stream: str | None = None) -> dict[str, Any]:
    """Describe the planned and committed batches of a source, or of one of its streams."""
    last = _offset(checkpoint.planned or checkpoint.committed, source, stream)
    return {
        **({"created": last.created} if last is not None else {}),
        "planned": _batch(checkpoint.planned, source, stream),
        "committed": _batch(checkpoint.committed, source, stream),
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
    # With several streams, a batch needn't read all of them, so the cuts of a stream may be from an earlier batch and
    # not say where this one began.
    first = offset.cuts[0] if offset.cuts and stream is None else None
    return {"batch": batch.number, "first": first, "last": offset.seq}


def _compare(report: dict[str, Any], checkpoint: Checkpoint, options: argparse.Namespace) -> None:
    _compare_several(report, checkpoint, options)
    offsets = _offsets(checkpoint)
    created = {offset.created for offset in offsets if offset is not None}
    named = _facts(options.stream, options) if options.stream is not None and created else None
    for source, offset in zip(report["sources"], offsets, strict=False):
        if offset is None:
            continue
        lookup_and_facts = named
        # If the stream of option --stream belongs to a different source, find the stream by its creation time.
        if named is None or (named[1].created != offset.created and named[1].created in created):
            name = _stream_created(offset.created, options)
            lookup_and_facts = None if name is None else _facts(name, options)
        if lookup_and_facts is None:
            source["stream"] = {"name": None, "recreated": True}
            continue
        lookup, facts = lookup_and_facts
        source["stream"] = _state(offset, facts)
        if options.rewind_to is not None:
            report["rewound"] = _rewind(checkpoint, lookup, facts, options)
    if options.rewind_to is not None and "rewound" not in report:
        raise CheckpointError(
            f"no stream of the server was created at {checkpoint.rewindable_offset().created}: it was deleted or "
            "recreated; use a new checkpoint"
        )


def _compare_several(report: dict[str, Any], checkpoint: Checkpoint, options: argparse.Namespace) -> None:
    """Compare the streams of sources that read several streams. Their names are in the checkpoint."""
    for source in report["sources"]:
        for name, shown in source.get("streams", {}).items():
            batch = checkpoint.committed or checkpoint.planned
            offset = _offset(batch, source["source"], name)
            if offset is None:
                continue
            shown["stream"] = {"name": name, "recreated": True}
            with contextlib.suppress(NoSuchStreamError):
                facts = _facts(name, options)[1]
                if facts.created == offset.created:
                    shown["stream"] = _state(offset, facts)


def _offsets(checkpoint: Checkpoint) -> list[LogOffset | None]:
    """Return the committed offset of each source, or the planned offset before the first commit."""
    batch = checkpoint.committed or checkpoint.planned
    return [entry.offset for entry in batch.sources] if batch else []


def _source_options(options: argparse.Namespace, stream: str) -> SourceOptions:
    values = {"servers": options.server, "stream": stream}
    if options.credentials is not None:
        values["credentialsFile"] = options.credentials
    for name, value in options.option:
        if name.lower() in {"servers", "stream", "credentialsfile"}:
            raise ConfigError(f"--option {name}: use --server, --stream or --credentials")
        values[name] = value
    # Parse the options only to report invalid ones.
    ServerOptions.of({name: value for name, value in values.items() if name != "stream"})
    return SourceOptions.parse(values)


def _facts(stream: str, options: argparse.Namespace) -> tuple[Lookup, StreamFacts]:
    lookup = Lookup(_source_options(options, stream))
    return lookup, lookup.facts()


def _stream_created(created: str, options: argparse.Namespace) -> str | None:
    opened = session(_source_options(options, "any").connect)

    async def find() -> str | None:
        async for info in opened.js.streams():
            if info.created is not None and info.created.isoformat() == created:
                return info.name
        return None

    return opened.run(find())


def _state(offset: LogOffset, facts: StreamFacts) -> dict[str, Any]:
    same = offset.created == facts.created
    state: dict[str, Any] = {
        "name": facts.name,
        "created": facts.created,
        "recreated": False if same else None,  # None: the stream was recreated, or is a different one
        "first": facts.first_seq,
        "last": facts.last_seq,
    }
    if same:
        state["lag"] = max(0, facts.last_seq - max(offset.seq, facts.first_seq - 1))
        state["removed"] = max(0, facts.first_seq - 1 - offset.seq)
        state["ends_before"] = facts.last_seq < offset.seq
    return state


def _rewind(
    checkpoint: Checkpoint, lookup: Lookup, facts: StreamFacts, options: argparse.Namespace
) -> dict[str, Any]:
    offset = checkpoint.rewindable_offset()
    if offset.created != facts.created:
        raise CheckpointError(
            f"stream {facts.name!r}, created {facts.created}, is not the stream that the query has read, created "
            f"{offset.created}: it was recreated, or it is another one; give the name of the stream that was read, or "
            "use a new checkpoint"
        )
    first = _sequence(options.rewind_to, lookup, facts)
    if not options.force:
        checkpoint.refuse_running(time.time(), _QUIET)
    committed, planned = checkpoint.covered(facts.created)
    files = checkpoint.rewind(LogOffset(first - 1, facts.created, owner=offset.owner))
    return {
        "first": first,
        "read_twice": _from(first, committed),
        "maybe_read_twice": _from(first, planned),
        "skipped": _passed(first, committed),
        "added": [str(file) for file in files],
    }


def _from(first: int, ranges: list[SequenceRange]) -> list[list[int]]:
    clipped = [range_.clipped(first, range_.last) for range_ in ranges]
    return [[range_.first, range_.last] for range_ in clipped if range_ is not None]


def _passed(first: int, committed: list[SequenceRange]) -> list[list[int]]:
    """Return the sequences before ``first`` that no batch has committed, from the start of the query on."""
    began = min((range_.first for range_ in committed), default=first)
    skipped = without(SequenceRange(began, first - 1), committed) if began < first else []
    return [[range_.first, range_.last] for range_ in skipped]


def _sequence(text: str, lookup: Lookup, facts: StreamFacts) -> int:
    """Return the sequence to read from next. Raises `ConfigError` if the stream does not store it."""
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
    for source in report["sources"]:
        name = f" ({source['name']})" if "name" in source else ""
        title = f"source {source['source']}{name}: mode {source['mode']}"
        if "streams" not in source:
            lines += _source(title, source)
            continue
        lines.append(f"{title}, {len(source['streams'])} streams")
        for name, shown in source["streams"].items():
            lines += _source(f"  {name}", shown, "    ")
    if not report["sources"]:
        lines.append("no batch is planned")
    if "rewound" in report:
        lines += _rewound(report["rewound"])
    return lines


def _source(title: str, source: dict[str, Any], indent: str = "  ") -> list[str]:
    created = f", stream created {source['created']}" if "created" in source else ""
    lines = [f"{title}{created}"]
    lines += [f"{indent}{word:<10} {_batch_text(source[word])}" for word in ("planned", "committed")]
    if "stream" in source:
        lines.append(f"{indent}{'stream':<10} {_compared(source['stream'])}")
    return lines


def _batch_text(batch: dict[str, Any] | None) -> str:
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
    text = f"{state['name']}, sequences {state['first']} to {state['last']}"
    if state["ends_before"]:
        return f"{text}: it ends before the committed offset"
    lost = f", {state['removed']} removed before they were read" if state["removed"] else ""
    return f"{text}, lag {state['lag']}{lost}"


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
