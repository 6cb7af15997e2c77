"""Publishes one DataFrame with the sink, as in ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..options.sink import SinkOptions
from ..registering import register_once, source_class
from ..task_context import activate, driver_query

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
            ``foreachBatch``, which is unknown under Spark Connect. If one batch is written to the same stream by two
            calls, they need different names.

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
    SinkOptions.parse(given)
    register_once(df.sparkSession, source_class())
    activate(df.sparkSession)
    df.write.format("jetstream").mode("append").options(**given).save()
