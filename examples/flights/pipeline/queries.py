"""The three streaming queries, as a PySpark user would write them.

statistics  flights → delays by origin and hour, with the weather → a stream, each result exactly once
archive     that stream → Parquet
rebooking   cancelled flights, claimed from a durable consumer → Parquet, acked when they are written

All queries use the trigger AvailableNow. They read the existing messages in batches and then end, so that the results
can be compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsclient.spark import ack_batch

from .words import DriverJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Queries"]

_FLIGHT = "scheduled string, carrier string, flight int, origin string, dest string, dep_delay int"
_STATISTIC = (
    "hour string, origin string, flights bigint, cancelled bigint, mean_delay double, max_delay int, "
    "temp double, wind_speed double, precip double, visib double"
)
_MEASURED = ("temp", "wind_speed", "precip", "visib")
_TIME = "yyyy-MM-dd'T'HH:mm"
# The flights were published in the order of their planned departure, but with many publishes in flight, so neighbours
# can be in another order in the stream.
_LATENESS = "2 days"


class Queries:
    """The queries of the demonstration. Each method starts a query.

    The session has ``format("jetstream")``, and time zone UTC, so that local times stay as they are.
    """

    def __init__(self, spark: SparkSession, setup: DriverJob) -> None:
        self._spark = spark
        self._setup = setup
        self._files = Path(setup.directory)
        self._weather: DataFrame | None = None

    # --- flights → statistics ---------------------------------------------------------------------------------

    def statistics(self) -> StreamingQuery:
        """Start the query of delays by origin and hour. Each row is written once, when its hour is complete.

        In output mode append, a window is emitted once, when the watermark has passed its end, which gives one message
        per window. The last windows stay open until a later row arrives, so the demonstration publishes a message days
        after the last flight.
        """
        from pyspark.sql import functions as f

        flights = self._read(self._setup.stream, self._setup.rows_per_batch, startingOffsets="earliest")
        # An invalid departure time becomes null and belongs to no window, so that the comparison finds it missing.
        departures = _parsed(flights, _FLIGHT).withColumn("departure", f.to_timestamp("scheduled", _TIME))
        hours = (
            departures.withWatermark("departure", _LATENESS)
            .groupBy(f.window("departure", "1 hour"), "origin")
            .agg(
                f.count("*").alias("flights"),
                f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
                f.avg("dep_delay").alias("mean_delay"),
                f.max("dep_delay").alias("max_delay"),
            )
            .withColumn("hour", f.date_format("window.start", _TIME))
        )
        joined = hours.join(f.broadcast(self._measured()), ["origin", "hour"], "left")
        rows = joined.select(
            f.concat(f.lit(f"{self._setup.prefix}."), "origin").alias("subject"),
            f.concat_ws(" ", "origin", "hour").alias("msg_id"),
            f.to_json(f.struct(*_names(_STATISTIC)), {"ignoreNullFields": "false"})
            .cast("binary")
            .alias("data"),
        )
        writer = rows.writeStream.format("jetstream").outputMode("append")
        writer = writer.options(
            expectedStream=self._setup.statistics, exactlyOnce="ledger", ledger=self._setup.ledger
        )
        return self._start("statistics", writer.options(**self._setup.options))

    def _measured(self) -> DataFrame:
        """Return the weather by origin and hour. When summer time ends, the first of the equal hours counts."""
        from pyspark.sql import functions as f

        if self._weather is None:
            read = self._spark.read.csv(self._setup.weather, header=True, nullValue="NA")
            hour = f.format_string(
                "%s-%02d-%02dT%02d:00",
                "year",
                *(f.col(name).cast("int") for name in ("month", "day", "hour")),
            )
            values = [f.col(name).cast("double").alias(name) for name in _MEASURED]
            first = f.min(f.struct("time_hour", *values))
            self._weather = (
                read.groupBy("origin", hour.alias("hour"))
                .agg(first.alias("measured"))
                .select("origin", "hour", *(f"measured.{name}" for name in _MEASURED))
                .cache()
            )
        return self._weather

    # --- statistics → Parquet ---------------------------------------------------------------------------------

    def archive(self) -> StreamingQuery:
        """Start the query that writes the stream of the statistics to Parquet."""
        stored = self._read(self._setup.statistics, self._setup.rows_per_batch, startingOffsets="earliest")
        rows = _parsed(stored, _STATISTIC)
        return self._start("archive", rows.writeStream.foreachBatch(self._archive_batch))

    def _archive_batch(self, rows: DataFrame, batch: int) -> None:
        # A repeated batch overwrites its directory, so readers of Parquet see it exactly once.
        self._write(rows, "archive", batch)

    # --- cancelled flights → rebooked and acked ---------------------------------------------------------------

    def rebooking(self) -> StreamingQuery:
        """Start the query of the work list. Spark claims messages of the consumer, and knows them after a kill."""
        claimed = self._read(
            self._setup.stream,
            self._setup.items_per_batch,
            mode="queue",
            consumer=self._setup.consumer,
            ackOn="manual",
        )
        return self._start("rebooking", claimed.writeStream.foreachBatch(self._rebook))

    def _rebook(self, claimed: DataFrame, batch: int) -> None:
        claimed.persist()  # read once for both the write and the acks
        try:
            self._write(_parsed(claimed, _FLIGHT, "sequence"), "rebooking", batch)
            # Acks follow the write, so that a batch that is not written is delivered again. The batch is small, so the
            # driver acks it.
            ack_batch(claimed, self._setup.options, on="driver")
        finally:
            claimed.unpersist()

    # --- for all ----------------------------------------------------------------------------------------------

    def _read(self, stream: str, per_batch: int, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("jetstream").options(**self._setup.options)
        return reader.options(stream=stream, maxMessagesPerTrigger=str(per_batch), **options).load()

    def _start(self, name: str, writer: DataStreamWriter) -> StreamingQuery:
        checkpoint = str(self._files / "checkpoints" / name)
        named = writer.queryName(name).option("checkpointLocation", checkpoint)
        return named.trigger(availableNow=True).start()

    def _write(self, rows: DataFrame, name: str, batch: int) -> None:
        rows.write.mode("overwrite").parquet(str(self._files / name / f"batch={batch}"))


def _names(ddl: str) -> list[str]:
    return [column.split()[0] for column in ddl.split(", ")]


def _parsed(messages: DataFrame, ddl: str, *others: str) -> DataFrame:
    """Parse the JSON of ``data`` into columns. With FAILFAST, invalid JSON ends the query."""
    from pyspark.sql import functions as f

    value: Any = f.from_json(f.col("data").cast("string"), ddl, {"mode": "FAILFAST"})
    return messages.select(value.alias("value"), *others).select("value.*", *others)
