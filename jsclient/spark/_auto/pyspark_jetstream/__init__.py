"""Makes ``format("jetstream")`` work without a line of code: Spark looks into every package named ``pyspark_...``.

In a wheel this package is at the top. Spark imports it, unguarded, for the first Python source of any kind that a
session uses: so nothing here may raise, whatever is missing, and jsclient is imported when somebody asks for
``jetstream``, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__: list[str] = []

try:
    from pyspark.sql.datasource import DataSource
except Exception:  # noqa: BLE001, S110  without data sources there is nothing to be found
    pass
else:

    class DefaultSource(DataSource):
        """Stands for the source until there are options to make it with."""

        @classmethod
        def name(cls) -> str:
            return "jetstream"

        def __new__(cls, options: MutableMapping[str, str]) -> Any:
            """Make the source itself.

            Raises:
                ConfigError: PySpark is too old, or pyarrow is not there.
            """
            from jsclient.spark.registering import source_class

            return source_class()(options)

    __all__ += ["DefaultSource"]
