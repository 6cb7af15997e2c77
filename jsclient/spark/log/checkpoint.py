"""The checkpoint of a streaming query in a local directory, which can be read and rewound.

Spark stores the end offset of each batch in ``offsets/N`` before it runs the batch, and writes ``commits/N`` after the
batch. It creates these files exclusively, so two writers of the same batch cannot both succeed. Spark fails the query
that loses.

A file of offsets has a line for each source. From Spark 4.3 on, a query whose sources have names writes version 2 of
this file, in which each line begins with the name of its source, for example ``orders:{"seq": 8, ...}``.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from ...errors import ConfigError, PositionInvalidError
from ...tables.offsets import LogOffset, StreamOffsets
from ...tables.ranges import SequenceRange, merged, without

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "NotACheckpointError",
    "QueryRunningError",
    "SeveralSourcesError",
    "SourceEntry",
    "UnknownOffsetError",
]

_VERSION = "v1"
_NAMED = "v2"  # version of a file of offsets whose lines begin with the names of the sources
_VOID = "-"  # the line of a source without an offset in this batch
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE | re.ASCII)  # a single letter is a drive
_FILE_URL = re.compile(r"file:(?://)?(/(?!/).*)", re.IGNORECASE | re.ASCII | re.DOTALL)  # without a host


class CheckpointError(ConfigError):
    """Raised when a checkpoint cannot be read, or cannot be rewound."""


class NotACheckpointError(CheckpointError):
    """Raised for a directory that is not the checkpoint of a streaming query."""


class SeveralSourcesError(CheckpointError):
    """Raised when a checkpoint with several sources, or a source of several streams, is rewound."""


class UnknownOffsetError(CheckpointError):
    """Raised for a file or offset of an unknown version, or for a source whose offsets are not sequences."""


class QueryRunningError(CheckpointError):
    """Raised when a checkpoint cannot be rewound because its query seems to be running."""


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """The record of one source in a batch."""

    mode: Literal["log", "queue", "other", "none"]  # "none": the source had no offset yet
    offset: LogOffset | None = None  # offset in mode "log", for a source of one stream
    streams: Mapping[str, LogOffset] | None = None  # offsets by name, for a source of several streams
    name: str | None = None  # Spark's name of the source, in version 2 of the file

    @classmethod
    def parse_named(cls, line: str, where: Path) -> SourceEntry:
        """Parse a line of version 2 of an offset file.

        Raises `UnknownOffsetError` if the line has no name, or for an offset of a newer release.
        """
        name, colon, offset = line.partition(":")
        if not colon:
            raise UnknownOffsetError(f"{where} has a line without the name of a source: {line[:60]!r}")
        return replace(cls.parse(offset, where), name=name)

    @classmethod
    def parse(cls, line: str, where: Path) -> SourceEntry:
        """Parse a line of an offset file. Raises `UnknownOffsetError` for an offset of a newer release."""
        if line == _VOID:
            return cls("none")
        try:
            fields = json.loads(line)
        except ValueError:
            return cls("other")
        if not isinstance(fields, dict):
            return cls("other")
        # The checkpoint doesn't name the source, so recognize the source by the form of its offsets.
        if {"b", "runs"} <= fields.keys():
            return cls("queue")
        several = isinstance(fields.get("streams"), dict) and "seq" not in fields
        if not (several or {"seq", "created"} <= fields.keys()):
            return cls("other")
        try:
            if several:
                return cls("log", streams=StreamOffsets.of_json(fields).streams)
            return cls("log", LogOffset.of_json(fields))
        except PositionInvalidError as error:
            raise UnknownOffsetError(f"{where} has an offset of an unknown version: {error}") from None


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """The record of one batch in a checkpoint."""

    number: int
    metadata: str  # Spark's JSON with the watermark and settings
    sources: tuple[SourceEntry, ...]

    def in_order_of(self, other: BatchEntry) -> BatchEntry:
        """Return this batch with its sources in the order of another batch.

        Sources that only the other batch has are added without an offset, and sources that it lacks are dropped. A
        batch of sources without names is returned unchanged.
        """
        if any(source.name is None for source in (*self.sources, *other.sources)):
            return self
        named = {source.name: source for source in self.sources}
        return replace(
            self,
            sources=tuple(
                named.get(source.name, SourceEntry("none", name=source.name)) for source in other.sources
            ),
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a checkpoint when it was read.

    Attributes:
        id: Spark's id of the query, which stays the same over restarts.
        planned: The last batch in ``offsets``, or None before the first batch.
        committed: The last batch in ``offsets`` that has a commit, or None before the first commit.
        stateful: Whether the query has state, for example of an aggregation.
        written: When the newest file was written, in seconds since 1970.
    """

    path: Path
    id: str
    planned: BatchEntry | None
    committed: BatchEntry | None
    stateful: bool
    written: float

    @classmethod
    def read_directory(cls, path: Path | str) -> Checkpoint:
        """Read a checkpoint, given the path of its directory, or a ``file:`` URL that Spark accepts.

        Raises:
            NotACheckpointError: The directory is not local, does not exist, or is not a checkpoint.
            UnknownOffsetError: A file has a version that this release does not know.
        """
        path = _local(str(path))
        if not path.is_dir():
            raise NotACheckpointError(
                f"{path} does not exist, or is not a directory: give a checkpointLocation"
            )
        try:
            query = json.loads((path / "metadata").read_text(encoding="utf-8"))["id"]
        except (OSError, ValueError, KeyError, TypeError):
            raise NotACheckpointError(
                f"{path} is not the checkpoint of a streaming query: it has no file 'metadata' with an id; give the "
                "directory of option 'checkpointLocation'"
            ) from None
        offsets, commits = _numbers(path / "offsets"), _numbers(path / "commits")
        # Spark removes old files, so the last committed batch is the last batch that has both files.
        done = [number for number in offsets if number in set(commits)]
        files = [path / "metadata", *(path / "offsets" / str(number) for number in offsets[-1:])]
        files += [path / "commits" / str(number) for number in commits[-1:]]
        planned = _batch(path, offsets[-1]) if offsets else None
        committed = _batch(path, done[-1]) if done else None
        if planned is not None and committed is not None:
            committed = committed.in_order_of(planned)
        return cls(
            path=path,
            id=str(query),
            planned=planned,
            committed=committed,
            stateful=(path / "state").is_dir(),
            written=max(file.stat().st_mtime for file in files),
        )

    def rewindable_offset(self) -> LogOffset:
        """Return the committed offset of the only source, if it can be rewound.

        Raises:
            CheckpointError: No batch is committed, or the query has state, which would count rows twice.
            SeveralSourcesError: The query has several sources, or a source of several streams.
            UnknownOffsetError: The source is not in log mode.
        """
        if self.stateful:
            raise CheckpointError(
                f"{self.path} has state, which cannot be rewound and would count rows twice: use a new checkpoint, "
                "with 'startingSequence' or 'startingTimestamp'"
            )
        if self.committed is None:
            raise CheckpointError(
                f"{self.path} has no committed batch: delete it, and start the query with 'startingSequence' or "
                "'startingTimestamp'"
            )
        if len(self.committed.sources) != 1:
            raise SeveralSourcesError(
                f"{self.path} has {len(self.committed.sources)} sources, and only a query with one can be rewound: use "
                "a new checkpoint, with a start for each source"
            )
        (source,) = self.committed.sources
        if source.streams is not None:
            raise SeveralSourcesError(
                f"{self.path} has a source of several streams ({', '.join(source.streams)}), which cannot be rewound: "
                "use a new checkpoint, with 'startingTimestamp'"
            )
        if source.offset is None:
            raise UnknownOffsetError(
                f"{self.path} has an offset of mode {source.mode!r}: only sources of jsclient in mode 'log' can be "
                "rewound"
            )
        return source.offset

    def covered(self, created: str) -> tuple[list[SequenceRange], list[SequenceRange]]:
        """Return the sequences of a stream in committed batches, and the other sequences in planned batches.

        Batches before an earlier rewind are included. The empty batch that the rewind added and the messages that it
        skipped are not. Spark keeps only the last 100 batches, so everything before them counts as committed.
        """
        commits = set(_numbers(self.path / "commits"))
        done: list[SequenceRange] = []
        planned: list[SequenceRange] = []
        reached: int | None = None
        for number in _numbers(self.path / "offsets"):
            for offset in (source.offset for source in _batch(self.path, number).sources):
                if offset is None or offset.created != created:
                    continue
                first = 1 if reached is None else reached + 1
                if number == 0 and offset.cuts:
                    first = offset.cuts[0]  # where the query started
                if not offset.rewound and first <= offset.seq:
                    (done if number in commits else planned).append(SequenceRange(first, offset.seq))
                reached = offset.seq
        committed = merged(done)
        return committed, [part for one in merged(planned) for part in without(one, committed)]

    def refuse_running(self, now: float, least: float) -> None:
        """Raise `QueryRunningError` if a file was written less than ``least`` seconds ago."""
        age = now - self.written
        if age < least:
            raise QueryRunningError(
                f"{self.path} was written {max(0, age):.0f} seconds ago, so its query may be running: stop it, and "
                f"wait until the newest file is {least:g} seconds old"
            )

    def rewind(self, offset: LogOffset) -> tuple[Path, Path]:
        """Add an empty, committed batch that ends at ``offset``, and return its two files.

        No existing file is changed. A query that is still running fails at its next batch, because the files of that
        batch already exist.

        Raises:
            CheckpointError: See `rewindable_offset`.
            QueryRunningError: Another process has written the batch.
        """
        self.rewindable_offset()
        assert self.planned is not None
        assert self.committed is not None
        number = str(self.planned.number + 1)
        offset = msgspec.structs.replace(offset, rewound=True)
        text = json.dumps(offset.to_json())
        name = self.committed.sources[0].name
        lines = (
            [_VERSION, self.planned.metadata, text]
            if name is None
            else [_NAMED, self.planned.metadata, f"{name}:{text}"]
        )
        commit = _lines(self.path / "commits" / str(self.committed.number), (_VERSION,))
        # Write the offsets first. If the process stops in between, Spark replays the batch, because it has no commit.
        # The opposite order would leave a commit without a batch.
        planned = _create(self.path / "offsets" / number, "\n".join(lines))
        return planned, _create(self.path / "commits" / number, "\n".join(commit))


def _local(text: str) -> Path:
    """Return the local directory of a path or a ``file:`` URL. As in Spark, ``%20`` is not decoded."""
    if _URL.match(text) is None:
        return Path(text)
    if match := _FILE_URL.fullmatch(text):
        return Path(match[1])
    raise NotACheckpointError(f"{text} is not a local directory: copy the checkpoint here first")


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the batches in a folder, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(file.name) for file in folder.iterdir() if file.name.isascii() and file.name.isdigit())


def _lines(file: Path, versions: tuple[str, ...]) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise NotACheckpointError(f"{file} cannot be read: {error}") from None
    if len(lines) < 2 or lines[0] not in versions:  # version, metadata
        raise UnknownOffsetError(
            f"{file} has version {lines[0][:20] if lines else ''!r}, and this release reads {' and '.join(versions)}: "
            "upgrade jsclient, or use a new checkpoint with 'startingSequence' or 'startingTimestamp'"
        )
    return lines


def _batch(path: Path, number: int) -> BatchEntry:
    file = path / "offsets" / str(number)
    version, metadata, *sources = _lines(file, (_VERSION, _NAMED))
    parse = SourceEntry.parse_named if version == _NAMED else SourceEntry.parse
    return BatchEntry(number, metadata, tuple(parse(line, file) for line in sources))


def _create(file: Path, text: str) -> Path:
    """Write a new file atomically, so that no reader sees it incomplete. Raises `QueryRunningError` if it exists."""
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".tmp", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.chmod(0o644)
        if not file.exists():  # Hadoop would check the new file against the checksum of a removed file
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.hardlink_to(temporary)
    except FileExistsError:
        raise QueryRunningError(
            f"{file} exists now, so a query has written it: stop the query and try again"
        ) from None
    finally:
        temporary.unlink()
    return file
