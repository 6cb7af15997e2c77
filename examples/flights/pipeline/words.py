"""The messages between the Spark driver and its parent process, over the driver's standard input and output.

The driver receives a `DriverJob` and no other message. When its input is closed, it ends with its JVM.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class DriverJob(msgspec.Struct, tag=True, array_like=True):
    """The job of the driver. It is not on the command line, because ``environment`` can contain a password."""

    options: dict[str, str]  # connection options for source and sink
    environment: dict[str, str]
    directory: str  # for checkpoints, results and temporary files
    weather: str  # the file of the weather
    stream: str  # the stream of the flights
    consumer: str  # its durable consumer with the work list
    statistics: str  # the stream of the results
    prefix: str  # the prefix of the results' subjects
    ledger: str  # the bucket of the sink's ledger
    rows_per_batch: int
    items_per_batch: int  # items of the work list
    partitions: int


class SparkIsUp(msgspec.Struct, tag=True, array_like=True):
    """The session has started."""

    spark: str  # versions
    java: str


class QueryBegins(msgspec.Struct, tag=True, array_like=True):
    """A query has started."""

    query: str


class BatchDone(msgspec.Struct, tag=True, array_like=True):
    """A finished batch, from its StreamingQueryProgress."""

    query: str
    batch: int
    rows: int  # rows read
    rate: float  # rows per second
    took: dict[str, int]  # milliseconds, by phase
    state: int = 0  # rows in the state store
    late: int = 0  # rows that arrived after their window was closed


class QueryEnded(msgspec.Struct, tag=True, array_like=True):
    """A query has read every row."""

    query: str


class QueryStartsAgain(msgspec.Struct, tag=True, array_like=True):
    """A query failed through a fault of Spark, and is started again from its checkpoint."""

    query: str
    reason: str  # the reason in one line


class Finished(msgspec.Struct, tag=True, array_like=True):
    """All results are written."""


class DriverFailed(msgspec.Struct, tag=True, array_like=True):
    """The driver has failed."""

    reason: str


FromDriver: TypeAlias = (
    SparkIsUp | QueryBegins | BatchDone | QueryEnded | QueryStartsAgain | Finished | DriverFailed
)
