"""Register the data source with a Spark session."""

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
    """Register ``format("jetstream")`` with a session, so that its queries can read from and write to JetStream.

    Call `register` once, after the session has been created::

        register(spark)
        spark.readStream.format("jetstream").options(servers=url, stream="ORDERS").load()

    Spark also discovers an installed jsclient by itself, but then queries that start at the same moment can fail with a
    Java serialization error. After this call, a classic session can start any number of queries at once. Under Spark
    Connect, call it before each ``start()``. Otherwise, the error can still occur. A query keeps the registration that
    it started with.

    Args:
        spark: A session, classic or Connect.

    Raises:
        ConfigError: PySpark is too old, or pyarrow isn't installed.
    """
    _register(spark, source_class())


def source_class() -> type[JetStreamSource]:
    """Return the class of the data source.

    Raises:
        ConfigError: PySpark is too old to run the source, or pyarrow is not installed.
    """
    try:
        # This module is new in PySpark 4.2, which added rate limits and Trigger.AvailableNow. Importing it checks the
        # version.
        import pyspark.sql.streaming.datasource  # noqa: F401

        from .source import JetStreamSource
    except ImportError as error:
        raise ConfigError(f"{_NEEDED} ({error}): pip install 'jsclient[spark]'") from error
    return JetStreamSource


# The variables that Spark adds to the environment of a registered Python source when a query on it starts
# (PythonStreamingSourceRunner.init). All queries of the session share this environment, a java.util.HashMap, and Spark
# takes no lock. When two queries add the same key at the same moment, the map can count the key twice. Every task that
# carries the map then fails with OptionalDataException, until the source is registered again. If the map has these keys
# from the beginning, only their values change. Spark replaces all values before a worker sees them. The values below
# are the defaults that PySpark's workers assume for unset variables.
_SPARK_ADDS = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}

_registering = threading.Lock()


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    if _java_session(spark) is None:  # under Connect, the server creates the map, which is always empty
        spark.dataSource.register(source)
        return
    context: Any = spark.sparkContext
    with _registering:
        own = context.environment
        # Replace the dictionary instead of modifying it, because the user's functions refer to it too.
        context.environment = {**_SPARK_ADDS, **own}
        try:
            spark.dataSource.register(source)
        finally:
            context.environment = own


_registered: set[tuple[str, str]] = set()  # pairs of a session's id and a source's name


def register_once(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source, unless this process has registered it with the session before.

    Spark warns when a source replaces another, so registering twice would log a warning.
    """
    key = (_identity(spark), source.name())
    if key not in _registered:
        _register(spark, source)
        _registered.add(key)


def _identity(spark: Any) -> str:
    """Return the session's id on the server. Python objects do not identify a session, which can have several."""
    session = _java_session(spark)
    return str(spark.session_id if session is None else session.sessionUUID())


def _java_session(spark: Any) -> Any:
    """Return the session object in the JVM, or None under Spark Connect."""
    return getattr(spark, "_jsparkSession", None)
