"""A data source for Ray Data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

from ..errors import JetStreamError
from ..tables.columns import arrow_schema
from ..tables.source_options import SourceOptions
from .options import Bound, check_columns, read_options
from .reader import RangeTask, plan_tasks, read_tasks, stored_bytes

__all__ = ["read_ray_dataset"]


def read_ray_dataset(
    options: Mapping[str, str] | str,
    stream: str,
    *,
    subjects: str | Iterable[str] = (),
    start: Bound = "first",
    end: Bound = "now",
    columns: Sequence[str] | None = None,
    **of_ray: Any,
) -> Dataset:
    """Return a Ray dataset of the messages between two positions of a stream.

    The call resolves the positions. Ray chooses the number of tasks, and each task reads a part of the range over its
    own connection. The options ``minPartitions`` and ``maxMessagesPerPartition`` can increase the number of tasks. File
    paths and environment variables are resolved on the machine of the task.

    The other arguments and the errors are the same as for `read_jetstream`. If a task fails, Ray raises its
    ``RayTaskError`` with the name and the text of the error.

    If the range has no messages, the dataset has no rows, and its ``schema()`` has the columns. Ray forgets the columns
    of a dataset without rows when the dataset is materialized or converted.

    Args:
        of_ray: Arguments of ``ray.data.read_datasource``, such as ``concurrency`` or ``override_num_blocks``.
    """
    settings = read_options(options, stream, subjects, start, end)
    return ray.data.read_datasource(JetStreamDatasource(settings, check_columns(columns, settings)), **of_ray)


class JetStreamDatasource(Datasource):
    """Ray data source of `read_ray_dataset`. It plans only once, so all executions read the same range."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        super().__init__()
        self._options = options
        self._columns = columns
        self._size = stored_bytes(options)
        self._planned: list[RangeTask] | None = None

    def estimate_inmemory_data_size(self) -> int:
        """Return the size in bytes of the whole streams, which may exceed the range.

        Ray derives the parallelism from this size.
        """
        return self._size

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        if self._planned is None:
            least = max(self._options.min_partitions, parallelism)
            self._planned = plan_tasks(replace(self._options, min_partitions=least), self._columns)
        schema = arrow_schema(self._columns)
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        # Create a task even for an empty range, because Ray doesn't know the columns of a dataset without tasks.
        parts: list[RangeTask | None] = [*self._planned] or [None]
        return [
            ReadTask(partial(_tables, task), unknown, schema=schema, per_task_row_limit=per_task_row_limit)
            for task in parts
        ]


def _tables(task: RangeTask | None) -> Iterator[pa.Table]:
    try:
        for batch in () if task is None else read_tasks([task]):
            yield pa.Table.from_batches([batch])
    except JetStreamError as error:
        # Raise a plain error, because Ray extends the ``args`` of an exception, and one with fields couldn't be
        # unpickled then.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
