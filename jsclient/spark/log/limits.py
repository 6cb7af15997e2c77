"""Convert the limits of a micro-batch to and from Spark's classes."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from ...tables.source_options import SourceOptions

__all__ = ["limits", "read_limit"]


def read_limit(options: SourceOptions) -> ReadLimit:
    """Return the limit that Spark requests for a micro-batch.

    If the options limit both rows and bytes, this is the limit of rows, and `limits` adds the limit of bytes.
    """
    if options.max_messages_per_trigger is not None:
        return ReadMaxRows(options.max_messages_per_trigger)
    if options.max_bytes_per_trigger is not None:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    return ReadAllAvailable()


def limits(options: SourceOptions, limit: ReadLimit) -> tuple[int | None, int | None]:
    """Return the maximum rows and bytes of a micro-batch, given the limit that Spark requests. None is no limit."""
    if isinstance(limit, ReadAllAvailable):
        return None, None
    rows, size = options.max_messages_per_trigger, options.max_bytes_per_trigger
    if isinstance(limit, ReadMaxRows):
        rows = min(rows or limit.max_rows, limit.max_rows)
    elif isinstance(limit, ReadMaxBytes):
        size = min(size or limit.max_bytes, limit.max_bytes)
    return rows, size
