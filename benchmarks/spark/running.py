"""The server and the sessions of the measurements in Spark."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsclient
from jsclient.spark import register

__all__ = ["running_server", "spark_session"]


@contextlib.contextmanager
def running_server(folder: str | None = None) -> Iterator[Any]:
    """Run the server for synchronous code. It stores its files in a new folder in ``folder``."""
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(dir=folder) as store:
        server = jsclient.server.NatsServer(store_dir=store)
        loop.run_until_complete(server.__aenter__())
        try:
            yield server
        finally:
            loop.run_until_complete(server.__aexit__(None, None, None))
            loop.close()


def spark_session(slots: int, path: str | None = None) -> Any:
    """Return a session that runs up to ``slots`` tasks at a time, with jsclient registered.
    ~ ``path``: PYTHONPATH of Spark's Python processes. By default this checkout. => ``path`` is the PYTHONPATH of
    Spark's Python processes, by default this checkout.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = path or str(Path(__file__).resolve().parents[2])
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
    }
    builder = SparkSession.builder.master(f"local[{slots}]").appName("jsclient-benchmarks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
