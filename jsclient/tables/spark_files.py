"""The files that Spark distributes with ``--files``, where a table is read or written by one of its processes."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["distributed_files"]


def distributed_files() -> Path | None:
    """Return the directory of the files that Spark distributes with ``--files``, or None without an application."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is None:
        return None  # this process belongs to another engine, or to none
    try:
        directory = Path(pyspark.SparkFiles.getRootDirectory()).absolute()
    except Exception:  # noqa: BLE001  an AssertionError without an application, an error of py4j after its end
        return None
    # The process that plans the batches of a stream gets a directory within the right directory, which has no files.
    return directory.parent if directory.name == "streaming_job" else directory
