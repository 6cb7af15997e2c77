"""The files that Spark distributes with ``--files`` to the processes that read or write a table."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["distributed_files"]


def distributed_files() -> Path | None:
    """Return the directory of the files that Spark distributes with ``--files``.

    Returns None if this process does not belong to a running Spark application.
    """
    pyspark = sys.modules.get("pyspark")
    if pyspark is None:
        return None  # this process belongs to another engine, or to none
    try:
        directory = Path(pyspark.SparkFiles.getRootDirectory()).absolute()
    except Exception:  # noqa: BLE001  an AssertionError without an application, or an error of py4j after its end
        return None
    # In the process that plans the batches of a stream, Spark returns an empty subdirectory, so use its parent.
    return directory.parent if directory.name == "streaming_job" else directory
