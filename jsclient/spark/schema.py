"""The columns of a row, as Spark's DDL. Sinks take the first four of them by name, too."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["EPOCH_COLUMNS", "LOG_COLUMNS", "QUEUE_COLUMNS", "ddl"]

LOG_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "subject": "string",
        "data": "binary",
        "headers": "map<string,array<string>>",
        "stream": "string",
        "sequence": "bigint",
        "timestamp": "timestamp",  # microseconds
        "timestamp_ns": "bigint",
    }
)
"""Of a message that is read by its place in the stream; ``headers`` is null where there are none."""

QUEUE_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        **LOG_COLUMNS,
        "consumer": "string",
        "consumer_sequence": "bigint",
        "num_delivered": "int",
        "num_pending": "bigint",
        "reply": "string",  # what an ack is sent to
    }
)
"""Of a message that is claimed from a durable consumer."""

EPOCH_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "epoch": "bigint",  # or string, JSON, where times are no numbers
        "partition": "int",
        **LOG_COLUMNS,
    }
)
"""Of data of a topic of epochs."""


def ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
