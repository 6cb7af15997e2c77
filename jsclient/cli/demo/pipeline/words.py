"""What the Spark driver and the one that started it say to each other, over the driver's standard input and output.

The driver gets a `Setup`, and then nothing more: when its input ends, it goes, with its JVM.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = [
    "BatchDone",
    "Failed",
    "Finished",
    "FromDriver",
    "QueryBegins",
    "QueryEnded",
    "QueryStartsAgain",
    "Setup",
    "SparkIsUp",
]


class Setup(msgspec.Struct, tag=True, array_like=True):
    """What to run. Not on the command line: ``environment`` may hold a password."""

    options: dict[str, str]  # how Spark reaches the server
    environment: dict[str, str]
    directory: str  # for all that is written: checkpoints, results, temporary files
    weather: str  # the file
    stream: str  # of the flights
    consumer: str  # its durable consumer with the work list
    statistics: str  # the stream of the results
    prefix: str  # of the subjects of the results
    ledger: str  # the bucket in which the sink keeps its books
    rows_per_batch: int
    items_per_batch: int  # of the work list
    partitions: int


class SparkIsUp(msgspec.Struct, tag=True, array_like=True):
    """The session is there."""

    spark: str  # versions
    java: str


class QueryBegins(msgspec.Struct, tag=True, array_like=True):
    """A query was started."""

    query: str


class BatchDone(msgspec.Struct, tag=True, array_like=True):
    """What a StreamingQueryProgress says of a batch."""

    query: str
    batch: int
    rows: int  # read
    rate: float  # rows a second
    took: dict[str, int]  # milliseconds, by phase
    state: int = 0  # rows that it keeps from batch to batch
    late: int = 0  # rows that came after their window had closed


class QueryEnded(msgspec.Struct, tag=True, array_like=True):
    """A query has read all there is."""

    query: str


class QueryStartsAgain(msgspec.Struct, tag=True, array_like=True):
    """A query failed through a fault of Spark, and is started again from its checkpoint."""

    query: str
    reason: str  # in one line


class Finished(msgspec.Struct, tag=True, array_like=True):
    """All results are written."""


class Failed(msgspec.Struct, tag=True, array_like=True):
    """It goes no further; in a line, why."""

    reason: str


FromDriver: TypeAlias = (
    SparkIsUp | QueryBegins | BatchDone | QueryEnded | QueryStartsAgain | Finished | Failed
)
