"""Claim orders of a durable consumer in Spark, write each batch to a table, and ack it."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from jsclient import ConfigError, spark


class Writer:
    """Writes batches and acks them: a batch that fails is delivered again."""

    def __init__(self, url: str, table: str) -> None:
        self.servers = {"servers": url, "timeout": "10"}
        self.table = table
        self.acked = 0

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        with spark.heartbeat(rows, self.servers):
            try:
                rows.select("subject", "data").write.mode("append").saveAsTable(self.table)
            except ConfigError:
                spark.nak_batch(rows, self.servers, delay=5.0)
                raise
            spark.publish_batch(rows.select("subject", "data"), self.servers, batch_id=batch_id)
            self.acked += spark.ack_batch(rows, self.servers, on="driver")


def main(url: str, checkpoint: Path) -> None:
    session = SparkSession.builder.appName("orders").getOrCreate()
    spark.register(session)
    options = {"servers": url, "stream": "ORDERS", "consumer": "spark"}
    orders = session.readStream.format("jetstream").options(**options).load()
    writer = Writer(url, "orders")
    query = orders.writeStream.foreachBatch(writer).option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    print(writer.acked)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
