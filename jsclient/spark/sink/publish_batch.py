"""Publishing a DataFrame from ``foreachBatch``: `publish_batch`."""

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
    """Publish the rows of a DataFrame, from the executors, and wait until all are stored.

    It is the sink, for one DataFrame. In ``foreachBatch``::

        def write(df, batch_id):
            publish_batch(df, {"servers": url, "expectedStream": "OUT"}, batch_id=batch_id)

        stream.writeStream.foreachBatch(write).start()

    Args:
        df: Rows as the sink takes them: ``data`` or ``value``; ``subject``, unless the option says it; ``headers``,
            ``msg_id``.
        options: Options of the sink, or just the servers.
        batch_id: That of ``foreachBatch``. A batch that is repeated then stores nothing twice, under the same
            conditions as the sink. None: only the tasks of this call are protected.
        query: What the batches belong to. By default the streaming query in whose ``foreachBatch`` this is called;
            Spark Connect does not tell that. Two calls for one batch that write to one stream need two names.

    Raises:
        ConfigError: An option is wrong; or ``batch_id`` is given, and there is no query. Nothing was published.

    Other errors come as Spark's, and quote that of the task: which row was refused, why, and how many are stored.
    """
    given = {"servers": options} if isinstance(options, str) else {k: str(v) for k, v in options.items()}
    if batch_id is not None:
        name = query or driver_query(df.sparkSession)
        if name is None:
            raise ConfigError(
                "batch_id is given, but Spark does not tell here which query it belongs to: give query=, "
                "a name that is the same after a restart"
            )
        given |= {"dedupKey": name, "dedupBatch": str(batch_id)}
    elif query is not None:
        raise ConfigError("query is given without batch_id: give both, and a repeated batch is stored once")
    SinkOptions.parse(given)
    register_once(df.sparkSession, source_class())
    activate(df.sparkSession)
    df.write.format("jetstream").mode("append").options(**given).save()
