"""A scan for Polars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl
from polars.io.plugins import register_io_source

from ..spark.columns import arrow_schema
from .options import Bound, check_columns, in_one_piece, read_options
from .reader import plan_tasks, read_tasks

__all__ = ["scan_jetstream"]


def scan_jetstream(
    options: Mapping[str, str] | str,
    stream: str,
    *,
    subjects: str | Iterable[str] = (),
    start: Bound = "first",
    end: Bound = "now",
    columns: Sequence[str] | None = None,
) -> pl.LazyFrame:
    """Return a lazy frame of the messages between two places of a stream.

    Each ``collect`` resolves the places again, and reads only the columns that the query needs. A limit of rows ends
    the reading early. Filters of the query reduce what is kept, not what the server sends: give ``subjects``, ``start``
    and ``end`` for that.

    The arguments are those of `read_jetstream`, and are checked at once; all other errors are raised by ``collect``.

    Raises:
        ConfigError: An argument or option is missing, invalid or unknown.
    """
    asked = in_one_piece(read_options(options, stream, subjects, start, end))
    names = check_columns(columns, asked)
    empty = pl.DataFrame(arrow_schema(names).empty_table())

    def frames(
        wanted: list[str] | None, predicate: pl.Expr | None, rows: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        needed = {*(wanted or names), *(predicate.meta.root_names() if predicate is not None else ())}
        read = replace(asked, batch_rows=min(filter(None, (asked.batch_rows, rows, size))))
        left = rows
        for batch in read_tasks(plan_tasks(read, tuple(name for name in names if name in needed))):
            frame = pl.DataFrame(batch)
            if left is not None:  # counts rows before the predicate
                frame = frame.head(left)
                left -= frame.height
            yield (frame if predicate is None else frame.filter(predicate)).select(wanted or names)
            if left == 0:
                return

    return register_io_source(frames, schema=empty.schema, explain_name="jetstream")
