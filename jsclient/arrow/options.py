"""Arguments of the readers, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from ..errors import ConfigError
from ..protocol.wire.units import format_time
from ..tables.source_options import LOG_COLUMNS, Place, SourceOptions

__all__ = ["Bound", "check_columns", "in_one_piece", "read_options"]

Bound: TypeAlias = int | datetime | str
"""A position in a stream: a sequence, a time (aware, or RFC 3339 text), "now", or "first"."""

_ARGUMENTS = {
    "stream": "stream",
    "streampattern": "stream",
    "subjects": "subjects",
    "startingoffsets": "start",
    "startingsequence": "start",
    "startingtimestamp": "start",
    "endingsequence": "end",
    "endingtimestamp": "end",
    "includeheaders": "columns",
}
# Name of the readers' connections. Spark's have a different name, so that no connection is shared between the two.
_NAME = "jsclient-arrow"


def read_options(
    options: Mapping[str, str] | str, stream: str, subjects: str | Iterable[str], start: Bound, end: Bound
) -> SourceOptions:
    """Return the options of a batch read from the arguments of a reader.

    Raises:
        ConfigError: An option or an argument is missing, invalid or unknown, or contradicts another.
    """
    values = {"servers": options} if isinstance(options, str) else dict(options)
    for name in values:
        if argument := _ARGUMENTS.get(name.lower()):
            raise ConfigError(
                f"option {name!r} is not an option of this reader: use the argument {argument!r}"
            )
    filters = [subjects] if isinstance(subjects, str) else list(subjects)
    for one in filters:
        if "," in one:
            raise ConfigError(f"subjects has {one!r}: give each filter as an item of its own, without commas")
    if filters:
        values["subjects"] = ",".join(filters)
    read = SourceOptions.parse({**values, "stream": stream}, streaming=False)
    if read.pushdown:
        raise ConfigError("option 'pushdown' is for Spark: give subjects, start and end instead")
    first, last = _bound("start", start), _bound("end", end)
    # A sequence is a position in a single stream, so it can't be a bound for several streams.
    for bound in (first, last):
        if bound.kind == "sequence" and read.has_several:
            raise ConfigError(
                f"{bound.argument} is {bound.sequence}, a sequence of one stream, but 'stream' is {stream!r}: use a "
                "time, or read one stream after the other"
            )
    if first.kind == last.kind == "sequence" and first.sequence > last.sequence:
        raise ConfigError(f"start is {first.sequence}, which is after end, {last.sequence}")
    connect = replace(read.connect, client=(("name", _NAME), *read.connect.client))
    return replace(read, connect=connect, start=first, end=last)


def _bound(argument: str, value: Bound) -> Place:
    words = {"first": "earliest", "now": "latest"} if argument == "start" else {"now": "latest"}
    if isinstance(value, str) and value in words:
        return Place("earliest" if words[value] == "earliest" else "latest", argument=argument)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return Place("sequence", sequence=value, argument=argument)
    if isinstance(value, datetime | str):
        try:
            return Place("time", time=format_time(value), argument=argument)
        except ConfigError as error:
            raise ConfigError(f"{argument}: {error}; or use {_or(words)}, or a sequence") from None
    raise ConfigError(f"{argument} is {value!r}: {_or(words)}, a sequence from 1, or a time is needed")


def _or(words: Iterable[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def in_one_piece(options: SourceOptions) -> SourceOptions:
    """Return options for a reader that reads a stream in a single task."""
    return replace(options, min_partitions=1, max_messages_per_partition=None)


def check_columns(columns: Sequence[str] | None, options: SourceOptions) -> tuple[str, ...]:
    """Return the names of the columns, by default the default columns of Spark's source.

    Raises:
        ConfigError: The list is empty, or a name is unknown or repeated.
    """
    names = tuple(options.columns) if columns is None else tuple(columns)
    if (
        isinstance(columns, str)
        or not names
        or len(set(names)) < len(names)
        or not set(names) <= set(LOG_COLUMNS)
    ):
        raise ConfigError(
            f"columns is {columns!r}: a list of some of {', '.join(LOG_COLUMNS)} is needed, each once"
        )
    return names
