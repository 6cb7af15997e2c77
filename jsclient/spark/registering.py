"""Making the data source known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .source import JetStreamSource

__all__ = ["register", "source_class"]

_NEEDED = "jsclient.spark needs PySpark 4.2 or newer, and pyarrow 18 or newer"


def register(spark: SparkSession) -> None:
    """Make ``format("jetstream")`` known to this session.

    Args:
        spark: A session, classic or Connect.

    Raises:
        ConfigError: PySpark is too old, or pyarrow is not there.
    """
    spark.dataSource.register(source_class())


def source_class() -> type[JetStreamSource]:
    """The data source, where Spark can use it.

    Raises:
        ConfigError: PySpark is too old, or pyarrow is not there.
    """
    try:
        # It came with PySpark 4.2, and rate limits and Trigger.AvailableNow with it.
        import pyspark.sql.streaming.datasource  # noqa: F401

        from .source import JetStreamSource
    except ImportError as error:
        raise ConfigError(f"{_NEEDED} ({error}): pip install 'jsclient[spark]'") from error
    return JetStreamSource
