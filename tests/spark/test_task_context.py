"""The context in which Spark runs a task of a query: read from two names, and checked."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.task_context import check_epoch, driver_query, epoch_of

QUERY = "0d9b1e0c-34a1-4a53-a7a1-0a3f4b6c7d8e"
PROPERTIES = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": "12"}


def test_reported() -> None:
    assert epoch_of(PROPERTIES.get) == (QUERY, 12)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"sql.streaming.queryId": None}, "sql.streaming.queryId"),
        ({"sql.streaming.queryId": "q"}, "not a query id"),
        ({"streaming.sql.batchId": None}, "streaming.sql.batchId"),
        ({"streaming.sql.batchId": "-1"}, "not a batch id"),
        ({"streaming.sql.batchId": "first"}, "not a batch id"),
    ],
)
def test_missing(change: dict[str, str | None], reported: str) -> None:
    """A property that is missing or strange is an error that says what to do."""
    with pytest.raises(ConfigError, match=f"{reported}.*exactlyOnce"):
        epoch_of({**PROPERTIES, **change}.get)


def test_driver_compares() -> None:
    """The offsets that tasks have read must be the offsets that Spark gives to the driver."""
    check_epoch(12, [12, 12])
    check_epoch(12, [])
    with pytest.raises(ConfigError, match="batch 12 was written as 11"):
        check_epoch(12, [12, 11])


def test_driver_query() -> None:
    """Of a session. Spark Connect has no context to ask."""

    class Context:
        def __init__(self, value: object) -> None:
            self.value = value

        def getLocalProperty(self, name: str) -> object:  # noqa: N802  Spark's name
            assert name == "sql.streaming.queryId"
            return self.value

    class Session:
        def __init__(self, value: object) -> None:
            self._sc = Context(value)

    assert driver_query(Session(QUERY)) == QUERY
    assert driver_query(Session(None)) is None
    assert driver_query(object()) is None
