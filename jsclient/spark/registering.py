"""Making the data source known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

    from .source import JetStreamSource

__all__ = ["register", "register_once", "source_class"]

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


_registered: set[tuple[str, str]] = set()  # sessions, and names of sources


def register_once(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a source known, if this process has not done so: Spark warns each time that one is replaced."""
    key = (_identity(spark), source.name())
    if key not in _registered:
        spark.dataSource.register(source)
        _registered.add(key)


def _identity(spark: Any) -> str:
    """Of a session on the server's side: the objects of Python come and go."""
    session = getattr(spark, "_jsparkSession", None)
    return str(spark.session_id if session is None else session.sessionUUID())
