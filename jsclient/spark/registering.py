"""Registration of the data source with a Spark session."""

from __future__ import annotations

import tempfile
import threading
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

    from .source import JetStreamSource

__all__ = ["register", "register_once", "source_class"]

_NEEDED = "jsclient.spark needs PySpark 4.2 or newer, and pyarrow 18 or newer"


def register(spark: SparkSession) -> None:
    """Register ``format("jetstream")`` with this session.

    A classic session can then start any number of queries at the same moment. If Spark found the source automatically,
    such queries can fail with a Java serialization error. With Connect they can fail as well, unless this is called
    before each ``start()``, since a query keeps the registration that it started with.

    Args:
        spark: A session, classic or Connect.

    Raises:
        ConfigError: PySpark is too old, or pyarrow is not installed.
    """
    _register(spark, source_class())


def source_class() -> type[JetStreamSource]:
    """Return the data source. Raises `ConfigError` if PySpark is too old to run it, or pyarrow is not installed."""
    try:
        # New in PySpark 4.2, with rate limits and Trigger.AvailableNow.
        import pyspark.sql.streaming.datasource  # noqa: F401

        from .source import JetStreamSource
    except ImportError as error:
        raise ConfigError(f"{_NEEDED} ({error}): pip install 'jsclient[spark]'") from error
    return JetStreamSource


# The variables that Spark adds to the environment of a registered Python source when a query on it starts
# (PythonStreamingSourceRunner.init). This environment is one java.util.HashMap for all queries of the session, and
# Spark takes no lock. When two queries add the same key at the same moment, the map can count it twice. Every task that
# carries the map then fails with OptionalDataException, until the source is registered again. If a map has these keys
# from the beginning, only their values change. Spark replaces all values before a worker sees them. The values here are
# the ones that PySpark's workers assume for unset variables.
_SPARK_ADDS = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}

_registering = threading.Lock()


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    if _java_session(spark) is None:  # with Connect, the server creates the map, and it is always empty
        spark.dataSource.register(source)
        return
    context: Any = spark.sparkContext
    with _registering:
        own = context.environment
        # The environment is replaced, not modified, since the user's functions have it too and it must not change.
        context.environment = {**_SPARK_ADDS, **own}
        try:
            spark.dataSource.register(source)
        finally:
            context.environment = own


_registered: set[tuple[str, str]] = set()  # sessions, and names of sources


def register_once(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source, unless this process has done so, because Spark warns when a source replaces another."""
    key = (_identity(spark), source.name())
    if key not in _registered:
        _register(spark, source)
        _registered.add(key)


def _identity(spark: Any) -> str:
    """Return the session's id on the server, because a session can have several Python objects."""
    session = _java_session(spark)
    return str(spark.session_id if session is None else session.sessionUUID())


def _java_session(spark: Any) -> Any:
    """Return the session in the JVM, or None with Connect."""
    return getattr(spark, "_jsparkSession", None)
