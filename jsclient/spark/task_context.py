"""Access to Spark's task context and job properties. Only this module uses Spark's internal names.

Spark passes neither its query nor its epoch to a sink in Python. Both are local properties of the job, under names that
are undocumented and could change. A missing or malformed property is therefore an error. In addition, `check_epoch`
compares the epochs that the tasks have read with the epoch that Spark passes to the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError

__all__ = [
    "Task",
    "activate",
    "check_epoch",
    "current_task",
    "driver_query",
    "driver_run",
    "epoch_of",
]

_QUERY = "sql.streaming.queryId"
_EPOCH = "streaming.sql.batchId"
_JOB_GROUP = "spark.jobGroup.id"  # the local property with the run id of a streaming query
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_FIX = (
    "this release of Spark stores it under a name unknown to jsclient: use a column msg_id with exactlyOnce=window, "
    "or exactlyOnce=none, and report it with the version of Spark"
)


@dataclass(frozen=True, slots=True)
class Task:
    """Partition and attempt of a Spark task."""

    partition: int  # counted from 0
    attempt: int  # counted from 0, speculative copies included


def current_task() -> Task:
    """Return the Spark task that this process is running. Raises `ConfigError` outside a task."""
    context = _context()
    return Task(context.partitionId(), context.attemptNumber())


def epoch_of(properties: Callable[[str], str | None] | None = None) -> tuple[str, int]:
    """Return the id of the streaming query that runs this task, and the id of the query's current batch.

    Args:
        properties: A function that looks up a local property. The default looks up the properties of the task.

    Raises:
        ConfigError: Spark does not provide one of the ids, or its format is unknown.
    """
    get = properties or _context().getLocalProperty
    query, epoch = get(_QUERY), get(_EPOCH)
    if query is None or not _UUID.fullmatch(query):
        raise ConfigError(f"the local property {_QUERY!r} of this task is {query!r}, not a query id: {_FIX}")
    if epoch is None or not (epoch.isascii() and epoch.isdecimal()):
        raise ConfigError(f"the local property {_EPOCH!r} of this task is {epoch!r}, not a batch id: {_FIX}")
    return query, int(epoch)


def driver_query(spark: object) -> str | None:
    """Return the id of the streaming query whose ``foreachBatch`` is running, or None if it is unknown.

    Under Spark Connect, the id is always unknown.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    query = context.getLocalProperty(_QUERY)
    return query if isinstance(query, str) and _UUID.fullmatch(query) else None


def driver_run(spark: object) -> str | None:
    """Return an id for the current run of the query that `driver_query` returns, or None if the query is unknown.

    A restart keeps the id of a query, and changes the id of its run.
    """
    query = driver_query(spark)
    context = getattr(spark, "_sc", None)
    if query is None or context is None:
        return None
    return f"{query} {context.getLocalProperty(_JOB_GROUP)}"


def activate(spark: object) -> None:
    """Make this session the active session of the current thread.

    Spark looks up Python data sources only in the active session, which a thread started by Python does not have. Spark
    Connect needs no active session, so this does nothing there.
    """
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is not None and session is not None:
        getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session)


def check_epoch(epoch: int, read: Iterable[int]) -> None:
    """Check on the driver that the tasks have read the epoch that Spark passes to the driver.

    Raises:
        ConfigError: A task has read another epoch.
    """
    if wrong := sorted({other for other in read if other != epoch}):
        raise ConfigError(f"batch {epoch} was written as {', '.join(map(str, wrong))}: {_FIX}")


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ConfigError("no Spark task is running: a sink writes inside a task")
    return context
