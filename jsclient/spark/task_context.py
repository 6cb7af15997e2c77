"""Where a task is: the one place that knows names inside Spark.

Spark tells a sink in Python neither its query nor its epoch. Both are local properties of the job, under names that are
not documented and could change. So a property that is missing or looks different is an error, and the epoch that tasks
have read is compared with the one that Spark gives to `check_epoch`'s caller on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError

__all__ = ["Task", "activate", "check_epoch", "current_task", "driver_query", "epoch_of"]

_QUERY = "sql.streaming.queryId"
_EPOCH = "streaming.sql.batchId"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_FIX = (
    "this release of Spark keeps it in another place than jsclient knows: use a column msg_id with exactlyOnce=window, "
    "or exactlyOnce=none, and report it with the version of Spark"
)


@dataclass(frozen=True, slots=True)
class Task:
    """A task that writes.

    Attributes:
        partition: From 0.
        attempt: From 0; a copy of a slow task counts, too.
    """

    partition: int
    attempt: int


def current_task() -> Task:
    """The task that this process runs.

    Raises:
        ConfigError: It runs none.
    """
    context = _context()
    return Task(context.partitionId(), context.attemptNumber())


def epoch_of(properties: Callable[[str], str | None] | None = None) -> tuple[str, int]:
    """The id of the streaming query whose job this task is part of, and of its batch.

    Args:
        properties: Local properties by name; by default those of the task.

    Raises:
        ConfigError: Spark does not tell.
    """
    get = properties or _context().getLocalProperty
    query, epoch = get(_QUERY), get(_EPOCH)
    if query is None or not _UUID.fullmatch(query):
        raise ConfigError(f"the local property {_QUERY!r} of this task is {query!r}, and no query id: {_FIX}")
    if epoch is None or not (epoch.isascii() and epoch.isdecimal()):
        raise ConfigError(f"the local property {_EPOCH!r} of this task is {epoch!r}, and no batch id: {_FIX}")
    return query, int(epoch)


def driver_query(spark: object) -> str | None:
    """The id of the streaming query in whose ``foreachBatch`` this is called; None where Spark does not tell.

    Spark Connect does not.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    query = context.getLocalProperty(_QUERY)
    return query if isinstance(query, str) and _UUID.fullmatch(query) else None


def activate(spark: object) -> None:
    """Make this session the one of this thread: Spark looks for data sources in Python in no other.

    A thread that Python has started has none. Spark Connect needs none.
    """
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is not None and session is not None:
        getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session)


def check_epoch(told: int, read: Iterable[int]) -> None:
    """On the driver: compare the epoch that Spark tells with those that the tasks have read.

    Raises:
        ConfigError: They differ, so message ids are wrong.
    """
    if wrong := sorted({epoch for epoch in read if epoch != told}):
        raise ConfigError(f"batch {told} was written as {', '.join(map(str, wrong))}: {_FIX}")


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ConfigError("a sink writes in a task of Spark, and this is none")
    return context
