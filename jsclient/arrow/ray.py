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
from ..spark.columns import arrow_schema
from ..spark.options.source import SourceOptions
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
    """Return a Ray dataset of the messages between two places of a stream, which are resolved now.

    Ray reads it in about as many tasks as it finds right, each of which reads a part of the range over a connection of
    its own; the options ``minPartitions`` and ``maxMessagesPerPartition`` demand more. Paths of files and variables of
    the environment are those of the machine of the task.

    The other arguments and the errors are those of `read_jetstream`. If a task fails, Ray raises its ``RayTaskError``
    with the name and the text of the error.

    Args:
        of_ray: Arguments of ``ray.data.read_datasource``, such as ``concurrency`` or ``override_num_blocks``.
    """
    asked = read_options(options, stream, subjects, start, end)
    return ray.data.read_datasource(JetStreamDatasource(asked, check_columns(columns, asked)), **of_ray)


class JetStreamDatasource(Datasource):
    """The source of `read_ray_dataset`. It plans once: all executions of a dataset read the same messages."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        super().__init__()
        self._options = options
        self._columns = columns
        self._size = stored_bytes(options)
        self._planned: list[RangeTask] | None = None

    def estimate_inmemory_data_size(self) -> int:
        """The size of the whole streams, so at least that of the range. Ray derives the parallelism from it."""
        return self._size

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        if self._planned is None:
            least = max(self._options.min_partitions, parallelism)
            self._planned = plan_tasks(replace(self._options, min_partitions=least), self._columns)
        schema = arrow_schema(self._columns)
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [
            ReadTask(partial(_tables, one), unknown, schema=schema, per_task_row_limit=per_task_row_limit)
            for one in self._planned
        ]


def _tables(task: RangeTask) -> Iterator[pa.Table]:
    try:
        for batch in read_tasks([task]):
            yield pa.Table.from_batches([batch])
    except JetStreamError as error:
        # Ray adds to the ``args`` of an exception; one with fields could not be unpickled after that.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
