"""The limits of a micro-batch: of the options, and of what Spark asks for."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from jsclient.spark.log.limits import limits, read_limit
from jsclient.tables.source_options import SourceOptions


def options(**named: str) -> SourceOptions:
    return SourceOptions.parse({"servers": "nats://a", "stream": "S", **named})


ROWS, BYTES = {"maxMessagesPerTrigger": "10"}, {"maxBytesPerTrigger": "1000"}


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, ReadAllAvailable()),
        (ROWS, ReadMaxRows(10)),
        (BYTES, ReadMaxBytes(1000)),
        (ROWS | BYTES, ReadMaxRows(10)),
    ],
)
def test_limit_that_spark_is_given(named: dict[str, str], expected: object) -> None:
    actual = read_limit(options(**named))
    assert (type(actual), vars(actual)) == (type(expected), vars(expected))


@pytest.mark.parametrize(
    ("named", "limit", "expected"),
    [
        (ROWS | BYTES, ReadAllAvailable(), (None, None)),
        (ROWS | BYTES, ReadMaxRows(10), (10, 1000)),
        (ROWS, ReadMaxRows(3), (3, None)),
        (ROWS, ReadMaxRows(30), (10, None)),
        ({}, ReadMaxRows(3), (3, None)),
        (BYTES, ReadMaxBytes(300), (None, 300)),
        (BYTES, ReadMaxBytes(3000), (None, 1000)),
        ({}, ReadMaxBytes(300), (None, 300)),
    ],
)
def test_smaller_limit_counts(named: dict[str, str], limit: object, expected: object) -> None:
    assert limits(options(**named), limit) == expected
