"""Publishes one DataFrame with the sink, as in ``foreachBatch``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..options.sink import SinkOptions
from ..registering import register_once, source_class
from ..task_context import activate, driver_query, driver_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["publish_batch"]


def publish_batch(
    df: DataFrame,
    options: Mapping[str, str] | str,
    *,
    batch_id: int | None = None,
    query: str | None = None,
) -> None:
    """Publish the rows of a DataFrame from the executors and wait until all are stored.

    This runs the sink for a single DataFrame. In ``foreachBatch``::

        def write(df, batch_id):
            publish_batch(df, {"servers": url, "expectedStream": "OUT"}, batch_id=batch_id)

        stream.writeStream.foreachBatch(write).start()

    Args:
        df: Rows with the columns of the sink: ``data`` or ``value``; ``subject``, unless it is set by the option; and
            optionally ``headers`` and ``msg_id``.
        options: Options of the sink, or only the servers.
        batch_id: The batch id that ``foreachBatch`` passes. A repeated batch then stores no row twice, under the same
            conditions as with the sink. None: only retries of this call's tasks are deduplicated.
        query: Name of the query that the batches belong to. Defaults to the streaming query that calls
            ``foreachBatch``, which is unknown under Spark Connect. Calls that write one batch to different subjects
            (option ``subject``) share a name. Calls that write it to the same subjects, or to a column of subjects,
            are told apart by their order, which must be the same when the batch is repeated. Give them different
            names if it may vary, and always under Spark Connect.

    Raises:
        ConfigError: An option is wrong, or ``batch_id`` is given and the query is unknown. Nothing was published.

    Other errors are raised as Spark's exceptions. They quote the error of the task: which row was rejected, why, and
    how many rows are stored.
    """
    given = {"servers": options} if isinstance(options, str) else {k: str(v) for k, v in options.items()}
    if batch_id is not None:
        name = query or driver_query(df.sparkSession)
        if name is None:
            raise ConfigError(
                "batch_id is given, but Spark does not provide the query here: give query=, "
                "a name that is the same after a restart"
            )
        given |= {"dedupKey": name, "dedupBatch": str(batch_id)}
    elif query is not None:
        raise ConfigError("query is given without batch_id: give both, and a repeated batch is stored once")
    read = SinkOptions.parse(given)
    register_once(df.sparkSession, source_class())
    activate(df.sparkSession)
    with _numbered(df.sparkSession, read) as number:
        if number:
            given["dedupWrite"] = str(number)
        df.write.format("jetstream").mode("append").options(**given).save()


class _Batch:
    """The writes of the batch that a run of a streaming query is at."""

    def __init__(self, number: int) -> None:
        self.number: int = number
        # The numbers of the writes that succeeded or are running, by name and destination
        self.taken: dict[tuple[str | None, ...], set[int]] = {}


_batches: OrderedDict[str, _Batch] = OrderedDict()  # by run, the latest ones
_MAX_RUNS = 1000
_lock = Lock()


@contextmanager
def _numbered(spark: object, options: SinkOptions) -> Generator[int]:
    """Number the writes of a batch that have one name and destination, from 0, so that their rows have different ids.

    A write that fails gives its number back: when it is tried again, its rows have the same ids. Outside of
    ``foreachBatch``, and under Spark Connect, repeated writes cannot be told from others, and have number 0.
    """
    run = driver_run(spark)
    if run is None or options.dedup_batch is None:
        yield 0
        return
    destination = options.dedup_key, *options.connect.servers, options.expected_stream, options.subject
    with _lock:
        batch = _batches.get(run)
        if batch is None or batch.number != options.dedup_batch:
            batch = _batches[run] = _Batch(options.dedup_batch)
        _batches.move_to_end(run)
        while len(_batches) > _MAX_RUNS:
            _batches.popitem(last=False)
        taken = batch.taken.setdefault(destination, set())
        number = next(one for one in count() if one not in taken)
        taken.add(number)
    try:
        yield number
    except BaseException:
        with _lock:
            taken.discard(number)
        raise
