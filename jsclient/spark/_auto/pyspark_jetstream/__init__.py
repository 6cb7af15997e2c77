"""Registers ``format("jetstream")`` automatically: Spark looks for sources in packages named ``pyspark_...``.

In a wheel this package is at the top level. Spark imports it, unguarded, for the first Python source of any kind that a
session uses. Therefore this module must not raise, whatever is missing, and jsclient is imported only when
``jetstream`` is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__: list[str] = []

try:
    from pyspark.sql.datasource import DataSource
except Exception:  # noqa: BLE001, S110  this PySpark has no Python data sources
    pass
else:

    class DefaultSource(DataSource):
        """Placeholder that creates the actual source when Spark passes the options."""

        @classmethod
        def name(cls) -> str:
            return "jetstream"

        def __new__(cls, options: MutableMapping[str, str]) -> Any:
            """Create the source.

            Raises:
                ConfigError: PySpark is too old, or pyarrow is not installed.
            """
            from jsclient.spark.registering import source_class

            return source_class()(options)

    __all__ += ["DefaultSource"]
