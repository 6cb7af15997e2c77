"""Publish a single DataFrame with the sink, for example in ``foreachBatch``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
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
    """Publish the rows of a DataFrame from the executors, and wait until all have been stored.

    It works like the sink, but for a single DataFrame. Use it in ``foreachBatch``::

        def write(df, batch_id):
            publish_batch(df, {"servers": url, "expectedStream": "OUT"}, batch_id=batch_id)

        stream.writeStream.foreachBatch(write).start()

    Args:
        df: A DataFrame with a ``data`` or ``value`` column, a ``subject`` column unless the option sets the subject,
            and optionally ``headers`` and ``msg_id`` columns.
        options: Options of the sink, or only the URLs of the servers.
        batch_id: The batch id that ``foreachBatch`` passes. A repeated batch then stores no row twice, under the same
            conditions as with the sink. By default, only retries of this call's tasks are deduplicated.
        query: Name of the query that the batches belong to. Defaults to the streaming query that calls
            ``foreachBatch``, which is unknown under Spark Connect. A name belongs to one checkpoint. With a new
            checkpoint, batch ids start at 0 again, so choose a different name. Otherwise, rows that are equal to old
            rows of the same batch are omitted. Calls that write one batch to different subjects (option ``subject``)
            can share a name. Calls that write a batch to the same subjects, or that take subjects from a column, are
            distinguished by their order, which must be the same when the batch is repeated. If the order may vary, and
            always under Spark Connect, give these calls different names.

    Raises:
        ConfigError: An option is invalid, ``batch_id`` is given but the query is unknown, or ``query`` is given without
            ``batch_id``. No row was published.

    Other errors are raised as Spark's exceptions. They quote the error of the task, which says which row was rejected,
    why, and how many rows have been stored.
    """
    settings = {"servers": options} if isinstance(options, str) else {k: str(v) for k, v in options.items()}
    if batch_id is not None:
        name = query or driver_query(df.sparkSession)
        if name is None:
            raise ConfigError(
                "batch_id is given, but Spark does not provide the query here: give query=, "
                "a name that is the same after a restart"
            )
        settings |= {"dedupKey": name, "dedupBatch": str(batch_id)}
    elif query is not None:
        raise ConfigError("query is given without batch_id: give both, and a repeated batch is stored once")
    read = SinkOptions.parse(settings)
    register_once(df.sparkSession, source_class())
    activate(df.sparkSession)
    # With a column of subjects, the option only applies to rows without a subject, so it doesn't identify this write.
    subject = None if any(name.lower() == "subject" for name in df.columns) else read.subject
    with _numbered(df.sparkSession, read, subject) as number:
        if number:
            settings["dedupWrite"] = str(number)
        df.write.format("jetstream").mode("append").options(**settings).save()


class _Batch:
    """The writes of the current batch of a run of a streaming query."""

    def __init__(self, number: int) -> None:
        self.number: int = number
        # Subjects of the writes that succeeded or are running, by name and number. None means a column of subjects.
        self.taken: dict[str | None, list[set[str | None]]] = {}


_batches: OrderedDict[str, _Batch] = OrderedDict()  # the latest batch of each run
_MAX_RUNS = 1000
_lock = Lock()


@contextmanager
def _numbered(spark: object, options: SinkOptions, subject: str | None) -> Generator[int]:
    """Number the writes of a batch that have the same name and may share subjects, so that their rows get other ids.

    Numbers begin with 0. A write whose subjects are in a column may share subjects with every other write. It is
    unknown whether two writes go to the same stream, because a server can have several names, and the stream is
    optional. So two writes with a common subject always have different numbers.

    A write that fails gives its number back, so that its rows have the same ids when it is tried again. Outside of
    ``foreachBatch`` and under Spark Connect, repeated writes cannot be recognized, and all writes have number 0.
    """
    run = driver_run(spark)
    if run is None or options.dedup_batch is None:
        yield 0
        return
    with _lock:
        batch = _batches.get(run)
        # A replayed batch must number its writes in the same way, so begin at 0 again with each batch.
        if batch is None or batch.number != options.dedup_batch:
            batch = _batches[run] = _Batch(options.dedup_batch)
        _batches.move_to_end(run)
        while len(_batches) > _MAX_RUNS:
            _batches.popitem(last=False)
        number, subjects = _number_write(batch.taken.setdefault(options.dedup_key, []), subject)
    try:
        yield number
    except BaseException:
        with _lock:
            subjects.discard(subject)
        raise


def _number_write(taken: list[set[str | None]], subject: str | None) -> tuple[int, set[str | None]]:
    """Return the first number that no write with a common subject has, and the subjects of the writes that have it."""
    number = 0
    while number < len(taken) and _overlap(taken[number], subject):
        number += 1
    if number == len(taken):
        taken.append(set())
    taken[number].add(subject)
    return number, taken[number]


def _overlap(subjects: set[str | None], subject: str | None) -> bool:
    return bool(subjects) and (subject is None or None in subjects or subject in subjects)
