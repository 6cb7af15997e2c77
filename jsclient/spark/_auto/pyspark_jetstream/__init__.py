"""Register ``format("jetstream")`` automatically. Spark looks for sources in packages named ``pyspark_...``.

In a wheel, this package is at the top level. Spark imports the package when a session first uses a Python source of any
kind, and does not catch errors of the import. This module must therefore never raise, whatever is missing, and imports
jsclient only when ``jetstream`` is used.
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
            """Create the actual source.

            Raises:
                ConfigError: PySpark is too old, or pyarrow is not installed.
            """
            from jsclient.spark.registering import source_class

            return source_class()(options)

    __all__ += ["DefaultSource"]
