"""Write the messages of a work queue to PostgreSQL with Spark: each exactly once, wherever the program is killed.

python examples/spark/payments_to_postgres.py nats://127.0.0.1:4222 postgresql://127.0.0.1/shop checkpoint

Needs jsclient[spark], Java 17 and psycopg[binary]. The stream PAYMENTS and its durable consumer "database" exist:
docs/howto/spark-to-a-database.md creates them, and explains each step.
"""

import sys
from collections.abc import Iterable
from functools import partial

import psycopg
from pyspark.sql import DataFrame, Row, SparkSession

from jsclient.spark import ack_batch

COLUMNS = "stream_created, sequence, account, cents"
TABLES = """
    CREATE TABLE IF NOT EXISTS payments (
        stream_created bigint, sequence bigint, account bigint NOT NULL, cents bigint NOT NULL,
        PRIMARY KEY (stream_created, sequence)
    );
    CREATE TABLE IF NOT EXISTS payments_staged (LIKE payments)
"""
MERGE = f"""
    WITH staged AS (DELETE FROM payments_staged RETURNING {COLUMNS})
    INSERT INTO payments ({COLUMNS}) SELECT {COLUMNS} FROM staged ON CONFLICT DO NOTHING
"""


def stage(database: str, rows: Iterable[Row]) -> None:
    """Copy the rows of one task into the staging table. Runs on an executor."""
    copying = f"COPY payments_staged ({COLUMNS}) FROM STDIN"
    with psycopg.connect(database) as db, db.cursor() as cursor, cursor.copy(copying) as copy:
        for row in rows:
            copy.write_row(row)


def write(servers: str, database: str, rows: DataFrame, batch: int) -> None:
    """Stage a batch, move it into the table in one transaction, and then ack it."""
    payments = rows.selectExpr(
        "unix_micros(stream_created) AS stream_created",
        "sequence",
        "from_json(cast(data AS string), 'account bigint, cents bigint') AS payment",
    ).select("stream_created", "sequence", "payment.*")
    payments.foreachPartition(partial(stage, database))
    with psycopg.connect(database) as db:
        new = db.execute(MERGE).rowcount
    print(f"batch {batch}: {ack_batch(rows, servers)} messages, {new} new rows", flush=True)


def main(servers: str, database: str, checkpoint: str) -> None:
    with psycopg.connect(database) as db:
        db.execute(TABLES)
    source = SparkSession.builder.appName("payments").getOrCreate().readStream.format("jetstream")
    source = source.options(servers=servers, stream="PAYMENTS", mode="queue", consumer="database")
    source = source.options(ackOn="manual", maxMessagesPerTrigger="5000")
    rows = source.schema("stream_created timestamp, sequence bigint, data binary, reply string").load()
    query = rows.writeStream.foreachBatch(partial(write, servers, database))
    query = query.option("checkpointLocation", checkpoint).trigger(
        availableNow=True
    )  # ends when all is written
    query.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
