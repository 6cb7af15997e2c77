"""Copy the messages of one stream to another with Spark, until nothing is left, or for ever with --follow.

spark-submit examples/spark/copy_orders.py nats://127.0.0.1:4222 checkpoint --from ORDERS --to COPY

Needs jsclient[spark] and Java 17. The streams ORDERS (orders.>) and COPY (copy.>) exist. Options of the connection
follow as --option credentialsFile=/etc/orders/orders.creds. kubernetes/ has the files to run it on Kubernetes, and
copy_orders_dag.py runs it every hour.
"""

import argparse

from pyspark.sql import SparkSession

from jsclient.spark import register


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers")
    parser.add_argument("checkpoint", help="a directory that the driver and all executors reach")
    parser.add_argument("--from", dest="source", default="ORDERS")
    parser.add_argument("--to", dest="target", default="COPY")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--follow", action="store_true", help="wait for new messages")
    given = parser.parse_args()

    connection = {"servers": given.servers, **dict(one.split("=", 1) for one in given.option)}
    spark = SparkSession.builder.appName("copy-orders").getOrCreate()
    register(spark)  # first: see docs/howto/spark-on-a-cluster.md
    rows = (
        spark.readStream.format("jetstream")
        .options(**connection, stream=given.source, startingOffsets="earliest")
        .load()
        .selectExpr("regexp_replace(subject, '^orders', 'copy') as subject", "data", "headers")
    )
    query = (
        rows.writeStream.format("jetstream")
        .queryName("copy-orders")
        .options(**connection, expectedStream=given.target, exactlyOnce="ledger")
        .option("checkpointLocation", given.checkpoint)
        .trigger(**({"processingTime": "1 second"} if given.follow else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()
    print(f"rows: {sum(progress['numInputRows'] for progress in query.recentProgress)}", flush=True)


if __name__ == "__main__":
    main()
