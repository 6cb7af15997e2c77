"""A program with two stateful queries on one stream of JSON events: sums of windows to a stream, events to Parquet.

    shop.py nats://127.0.0.1:4222 /path/for/checkpoints/and/files

Events come twice and late. A broken one is left out. It ends when all messages are processed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVENT = "id long, at timestamp, category string, cents long"
DELAY = 240  # seconds by which an event is late at most


def events(count: int, seed: int) -> Iterator[dict[str, Any] | None]:
    """Events in the order in which they are published, None for a broken one. The last message ends all windows."""
    rolls = random.Random(seed)
    begin = 1_780_000_000
    for number in range(1, count):
        late = rolls.randrange(DELAY) if rolls.random() < 0.005 else 0
        event = {
            "id": number,
            "at": begin + number // 2 - late,
            "category": f"c{number % 7}",
            "cents": rolls.randrange(10_000),
        }
        yield None if rolls.random() < 0.001 else event
        if rolls.random() < 0.02:
            yield event
    yield {"id": count, "at": begin + count + 3600, "category": "end", "cents": 0}


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col, expr, from_json, window

    from jsclient.spark import register

    url, folder = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    source = {"servers": url, "stream": "EVENTS", "startingOffsets": "earliest"}
    rows = spark.readStream.format("jetstream").options(**source, maxMessagesPerTrigger="2500").load()
    event = rows.select(from_json(col("data").cast("string"), EVENT).alias("event")).select("event.*")
    once = (
        event.where("id is not null").withWatermark("at", "5 minutes").dropDuplicatesWithinWatermark(["id"])
    )
    sums = once.groupBy(window("at", "1 minute"), "category")
    sums = sums.agg(expr("count(*) as n"), expr("sum(cents) as cents"))
    windows = sums.selectExpr(
        "concat('windows.', category) as subject",
        "to_json(struct(unix_timestamp(window.start) as start, category, n, cents)) as data",
    )
    to_stream = windows.writeStream.format("jetstream").options(servers=url, expectedStream="WINDOWS")
    to_files = once.writeStream.format("parquet").option("path", str(Path(folder, "events")))
    queries = []
    for name, sink in (("windows", to_stream), ("files", to_files)):
        options = {"checkpointLocation": str(Path(folder, name))}
        queries.append(query := sink.options(**options).queryName(name).trigger(availableNow=True).start())
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.1)  # Spark gives its Python process ten seconds to start
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
