"""A lazy scan of a stream for Polars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl
from polars.io.plugins import register_io_source

from ..tables.columns import arrow_schema
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
    """Return a Polars lazy frame of the messages between two positions of a stream::

        frame = scan_jetstream("nats://127.0.0.1:4222", "ORDERS", subjects="orders.eu.>")
        frame.group_by("subject").len().collect()

    Each ``collect`` resolves ``start`` and ``end`` again, so ``end="now"`` includes messages that have been stored
    meanwhile. Projections and row limits are pushed down: only the columns that the query needs are read, and the read
    stops at the limit. Filters aren't pushed down, but applied after the messages have been received. To receive fewer
    messages, use ``subjects``, ``start`` and ``end``.

    The arguments are the same as for `read_jetstream`, and are validated immediately. ``collect`` raises all other
    errors.

    Raises:
        ConfigError: An argument or option is missing, invalid or unknown.
    """
    settings = in_one_piece(read_options(options, stream, subjects, start, end))
    names = check_columns(columns, settings)
    empty = pl.DataFrame(arrow_schema(names).empty_table())

    def frames(
        selected: list[str] | None, predicate: pl.Expr | None, rows: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        needed = {*(selected or names), *(predicate.meta.root_names() if predicate is not None else ())}
        read = replace(settings, batch_rows=min(filter(None, (settings.batch_rows, rows, size))))
        remaining = rows
        for batch in read_tasks(plan_tasks(read, tuple(name for name in names if name in needed))):
            frame = pl.DataFrame(batch)
            if remaining is not None:  # the limit counts rows before the predicate
                frame = frame.head(remaining)
                remaining -= frame.height
            yield (frame if predicate is None else frame.filter(predicate)).select(selected or names)
            if remaining == 0:
                return

    return register_io_source(frames, schema=empty.schema, explain_name="jetstream")
