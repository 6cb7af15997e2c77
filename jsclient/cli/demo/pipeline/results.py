"""The results of the pipeline, read from the stream and from Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ....client import JetStream
from .rows import COLUMNS, Rebooking, Statistic, statistic_of

__all__ = ["read_archive", "read_rebooked", "read_stream"]


async def read_stream(js: JetStream, stream: str) -> list[Statistic]:
    """Every message of a stream, in order.

    Raises:
        msgspec.MsgspecError: A message is not a valid statistic.
    """
    decode = msgspec.json.Decoder(Statistic).decode
    found: list[Statistic] = []
    last = (await (await js.stream(stream)).info()).state.last_seq
    if not last:
        return found
    async with js.ordered_consumer(stream) as reader:
        async for message in reader:
            found.append(decode(message.data))
            if message.metadata.stream_seq >= last:
                break
    return found


def read_archive(directory: Path) -> list[Statistic]:
    """The rows of the query `archive`. Blocks."""
    return [statistic_of(row) for row in _rows(directory, COLUMNS)]


def read_rebooked(directory: Path) -> list[Rebooking]:
    """The rows of the query `rebooking`. Blocks."""
    return [Rebooking(**row) for row in _rows(directory, Rebooking._fields)]


def _rows(directory: Path, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of every batch. Unfinished files of a killed driver are in directories that begin with "_"."""
    from pyarrow import parquet

    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob("batch=*/part-*.parquet")):
        found += parquet.ParquetFile(path).read(columns=list(columns)).to_pylist()
    return found
