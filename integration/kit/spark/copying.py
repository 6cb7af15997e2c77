"""An application for `spark-submit`: copies a stream to another stream, and ends when all messages are copied.

    spark-submit copying.py '{"register": true, "source": {...}, "sink": {...}, "columns": [...], "checkpoint": "..."}'

It needs only PySpark and jsclient.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = SparkSession.builder.appName("copying").getOrCreate()
    if job["register"]:
        from jsclient.spark import register

        register(spark)
    rows = spark.readStream.format("jetstream").options(**job["source"]).load().selectExpr(*job["columns"])
    writer = rows.writeStream.format("jetstream").options(**job["sink"])
    query = writer.option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
