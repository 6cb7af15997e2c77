"""The columns of rows and their types in Spark's DDL. Sinks accept the first four columns by name as well."""

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
"""Columns of a message read by its sequence; ``headers`` is null for a message without headers."""

QUEUE_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        **LOG_COLUMNS,
        "consumer": "string",
        "consumer_sequence": "bigint",
        "num_delivered": "int",
        "num_pending": "bigint",
        "reply": "string",  # the subject for its ack
    }
)
"""Columns of a message claimed from a durable consumer."""

EPOCH_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "epoch": "bigint",  # or string, JSON, if times are not numbers
        "partition": "int",
        **LOG_COLUMNS,
    }
)
"""Columns of data of a topic of epochs."""


def ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
