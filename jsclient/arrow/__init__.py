"""Bounded reads of streams for engines that accept Arrow: pyarrow, DuckDB, Polars and Ray Data.

The reads are planned and executed like the batch reads of `jsclient.spark`, but need neither Spark nor Java.
`read_jetstream` needs the extra ``arrow``, `scan_jetstream` the extra ``polars``, and `read_ray_dataset` the extra
``ray``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .polars import scan_jetstream
    from .ray import read_ray_dataset
    from .reader import ArrowReader, read_jetstream

__all__ = ["ArrowReader", "read_jetstream", "read_ray_dataset", "scan_jetstream"]

# These are imported on first use, because each needs the packages of its extra.
_WHERE = {
    "ArrowReader": "reader",
    "read_jetstream": "reader",
    "read_ray_dataset": "ray",
    "scan_jetstream": "polars",
}


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = _WHERE[name]
        try:
            return getattr(import_module(f".{module}", __name__), name)
        except ModuleNotFoundError as error:
            extra = "arrow" if module == "reader" else module
            raise ImportError(
                f"jsclient.arrow.{name} needs {error.name}: pip install 'jsclient[{extra}]'"
            ) from error
