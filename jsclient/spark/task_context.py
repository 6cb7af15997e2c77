"""Reads Spark's task context and job properties. Only this module uses Spark's internal names.

Spark passes neither its query nor its epoch to a sink in Python. Both are local properties of the job, under names that
are undocumented and could change. So a property that is missing or malformed is an error, and the epochs read by the
tasks are compared with the epoch that Spark passes to the caller of `check_epoch` on the driver.
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
    """The current task of Spark."""

    partition: int  # from 0
    attempt: int  # from 0, including speculative copies


def current_task() -> Task:
    """Return the task run by this process. Raises `ConfigError` outside a task."""
    context = _context()
    return Task(context.partitionId(), context.attemptNumber())


def epoch_of(properties: Callable[[str], str | None] | None = None) -> tuple[str, int]:
    """Return the ids of the streaming query of this task and of its batch.

    Args:
        properties: Looks up local properties, by default the properties of the task.

    Raises:
        ConfigError: Spark does not provide them.
    """
    get = properties or _context().getLocalProperty
    query, epoch = get(_QUERY), get(_EPOCH)
    if query is None or not _UUID.fullmatch(query):
        raise ConfigError(f"the local property {_QUERY!r} of this task is {query!r}, not a query id: {_FIX}")
    if epoch is None or not (epoch.isascii() and epoch.isdecimal()):
        raise ConfigError(f"the local property {_EPOCH!r} of this task is {epoch!r}, not a batch id: {_FIX}")
    return query, int(epoch)


def driver_query(spark: object) -> str | None:
    """Return the id of the streaming query whose ``foreachBatch`` is running, or None if unknown (Spark Connect)."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    query = context.getLocalProperty(_QUERY)
    return query if isinstance(query, str) and _UUID.fullmatch(query) else None


def driver_run(spark: object) -> str | None:
    """Return an id of the run of the streaming query whose ``foreachBatch`` is running, or None like `driver_query`.

    A query that is started again has the same id and another run.
    """
    query = driver_query(spark)
    context = getattr(spark, "_sc", None)
    if query is None or context is None:
        return None
    return f"{query} {context.getLocalProperty(_JOB_GROUP)}"


def activate(spark: object) -> None:
    """Make this the active session of the thread, the only one in which Spark looks up Python data sources.

    A thread started by Python has no active session. Spark Connect does not need one.
    """
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is not None and session is not None:
        getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session)


def check_epoch(epoch: int, read: Iterable[int]) -> None:
    """Compare Spark's epoch with the epochs read by the tasks, on the driver. Raises `ConfigError` if they differ."""
    if wrong := sorted({other for other in read if other != epoch}):
        raise ConfigError(f"batch {epoch} was written as {', '.join(map(str, wrong))}: {_FIX}")


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ConfigError("no Spark task is running: a sink writes inside a task")
    return context
