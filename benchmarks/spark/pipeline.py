"""A pipeline of many rows: stream, parsing, JetStream sink. Checked without jsclient. The same run measures
Spark's Parquet source with the same parsing, a loop with nats-py, and reading with 1, 2 and 4 task slots.

    python -m benchmarks.spark.pipeline --rows 10_000_000 --save

fills a stream with JSON events of 128 bytes, which needs about 450 bytes of disk per row until the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsclient
from benchmarks.spark.recount import recount
from benchmarks.spark.running import running_server, spark_session
from benchmarks.spark.workers import KINDS, cpu
from jsclient.tables.server_options import ServerOptions
from jsclient.tables.session import session

RESULTS = Path(__file__).parents[1] / "results"
SIZE = 128  # bytes of an event
EVENT = "id bigint, device string, value bigint, pad string"
SOURCE = "subject string, data binary, stream string, stream_created timestamp, sequence bigint"
# seconds for which the target remembers message ids, at 220 bytes of the server's memory for each
WINDOW = 60.0

Figures = dict[str, float]


def event(number: int) -> bytes:
    text = b'{"id":%d,"device":"d-%d","value":%d,"pad":"' % (number, number % 1000, number * 37 % 100_003)
    return text + b"x" * (SIZE - 2 - len(text)) + b'"}'


@contextlib.contextmanager
def measured(rows: int, figures: Figures) -> Iterator[None]:
    """Add the rate, and the CPU per row in microseconds by kind of process."""
    before, own, start = cpu(), time.process_time(), time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    figures.update(rows=rows, seconds=seconds, rate=rows / seconds)
    used = {kind: seconds - before[kind] for kind, seconds in cpu().items()} | {
        "own": time.process_time() - own
    }
    figures["cores"] = sum(used.values()) / seconds
    figures.update({f"{kind}_us": seconds / rows * 1e6 for kind, seconds in used.items()})


class Pipeline:
    """The steps of the run, in order. Each returns its figures."""

    def __init__(self, options: argparse.Namespace, url: str, folder: Path) -> None:
        self.rows, self.batch, self.sample = options.rows, options.batch, min(options.sample, options.rows)
        self.side, self.numbers = min(options.side, options.rows), options.slots
        self.url, self.folder = url, folder
        self.opened = session(ServerOptions.of(url))
        self.checksum = 0  # sum of the CRC-32 of all events
        self.spark: Any = None

    def fill(self) -> Figures:
        def events() -> Iterator[bytes]:
            for number in range(self.rows):
                data = event(number)
                self.checksum += zlib.crc32(data)
                yield data

        async def publish(js: jsclient.JetStream) -> None:
            await js.create_stream("EVENTS", subjects=["events.>"], storage="file", allow_direct=True)
            await js.create_stream("OUT", subjects=["out.>"], storage="file", duplicate_window=WINDOW)
            await js.publish_many("events.all", events(), timeout=60.0)

        figures: Figures = {}
        with measured(self.rows, figures):
            self.opened.run(publish(self.opened.js))
        return figures

    def stream(self) -> Figures:
        """Parse all events and write them to the target with a streaming query that ends after the last event."""
        from pyspark.sql.functions import col, from_json, to_json

        self.spark = spark_session(2)
        limits = {"maxMessagesPerTrigger": str(self.batch), "minPartitions": "2"}
        source = {"servers": self.url, "stream": "EVENTS", "startingOffsets": "earliest", **limits}
        sink = {
            "servers": self.url,
            "subject": "out.all",
            "dedup": "source",
            "minDuplicateWindow": str(WINDOW),
        }
        frame = self.spark.readStream.format("jetstream").options(**source).schema(SOURCE).load()
        parsed = frame.select(
            to_json(from_json(col("data").cast("string"), EVENT)).alias("data"),
            "stream",
            "stream_created",
            "sequence",
        )
        writer = parsed.writeStream.format("jetstream").options(**sink).trigger(availableNow=True)
        figures: Figures = {}
        remainder: Figures = {}  # without the first batch, which starts and compiles everything
        with measured(self.rows, figures):
            query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
            while query.isActive and query.lastProgress is None:
                time.sleep(0.05)
            remaining = self.rows - (query.lastProgress or {"numInputRows": 0})["numInputRows"]
            with measured(max(remaining, 1), remainder):
                query.awaitTermination()
        figures.update({f"rest_{key}": value for key, value in remainder.items()})
        batches = [one["durationMs"] for one in query.recentProgress if one["numInputRows"] == self.batch]
        if batches:
            whole = statistics.median(one["triggerExecution"] for one in batches) / 1000
            tasks = statistics.median(one["addBatch"] for one in batches) / 1000
            figures.update(
                batches=len(batches), batch_seconds=whole, batch_besides_tasks_seconds=whole - tasks
            )
        return figures

    def recount(self) -> Figures:
        start = time.perf_counter()
        result = recount(self.url, "OUT", self.rows)
        expected = self.rows, self.rows, self.checksum
        if (result.messages, result.distinct, result.checksum) != expected:
            raise RuntimeError(f"{result}: {self.rows} rows with checksum {self.checksum} were written")
        return {"rows": result.messages, "distinct": result.distinct, "seconds": time.perf_counter() - start}

    def beside_parquet(self) -> Figures:
        """Read the same rows from Parquet and from the stream, with the same parsing, and discard them."""
        source, path = self._source(self.side, 2), str(self.folder / "parquet")
        source.select("data").write.parquet(path)
        both: dict[str, list[Figures]] = {"parquet": [], "stream": []}
        for _ in range(3):
            for name, frame in (("parquet", self.spark.read.parquet(path)), ("stream", source)):
                both[name].append(self._discard(frame, self.side))
        figures: Figures = {"rows": self.side}
        for name, result in both.items():
            for key in result[0]:
                figures[f"{name}_{key}"] = statistics.median(one[key] for one in result)
        return figures

    def nats_py(self) -> Figures:
        figures: Figures = {}
        asyncio.run(_loop(self.url, self.sample, figures))
        return figures

    def slots(self) -> Figures:
        """Read with other numbers of concurrent tasks, and as many partitions."""
        figures: Figures = {"rows": self.side}
        for slots in self.numbers:
            self.spark.stop()
            self.spark = spark_session(slots)
            self._discard(self._source(min(self.side, 20_000), slots), self.side)  # starts the workers
            result = self._discard(self._source(self.side, slots), self.side)
            figures.update({f"{slots}_{key}": value for key, value in result.items()})
        return figures

    def _source(self, rows: int, partitions: int) -> Any:
        options = {
            "servers": self.url,
            "stream": "EVENTS",
            "endingSequence": str(rows),
            "minPartitions": str(partitions),
        }
        return self.spark.read.format("jetstream").options(**options).schema("data binary").load()

    @staticmethod
    def _discard(frame: Any, rows: int) -> Figures:
        from pyspark.sql.functions import col, from_json

        figures: Figures = {}
        with measured(rows, figures):
            parsed = frame.select(from_json(col("data").cast("string"), EVENT).alias("event")).select(
                "event.*"
            )
            parsed.write.format("noop").mode("overwrite").save()
        return figures


async def _loop(url: str, rows: int, figures: Figures) -> None:
    """Consume, parse and publish with nats-py, with fetches of 1,000 and 4,000 publishes in flight."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    nc = await nats.connect(url)
    js = nc.jetstream(publish_async_max_pending=4000)
    await js.add_stream(name="LOOP", subjects=["loop.>"], duplicate_window=WINDOW)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
    consumer = await js.pull_subscribe("", stream="EVENTS", config=config)
    done = 0
    with measured(rows, figures):
        while done < rows:
            for message in await consumer.fetch(min(1000, rows - done), timeout=10.0):
                data = json.dumps(json.loads(message.data), separators=(",", ":")).encode()
                headers = {"Nats-Msg-Id": f"EVENTS.{message.metadata.sequence.stream}"}
                await js.publish_async("loop.all", data, headers=headers, wait_stall=10.0)
                done += 1
        await js.publish_async_completed()
    if (stored := (await js.stream_info("LOOP")).state.messages) != rows:
        raise RuntimeError(f"nats-py stored {stored} messages, not {rows}")
    await nc.close()


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(
        prog="python -m benchmarks.spark.pipeline", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = command_line.add_argument
    add("--rows", type=int, default=1_000_000, metavar="N", help="of the pipeline (1000000)")
    add("--batch", type=int, default=500_000, metavar="N", help="rows of a batch (500000)")
    add("--side", type=int, default=2_000_000, metavar="N", help="rows of each other reading (2000000)")
    add("--sample", type=int, default=50_000, metavar="N", help="rows of the loop with nats-py (50000)")
    add("--slots", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="numbers of task slots (1 2 4)")
    add("--folder", metavar="DIR", help="for everything on disk; it is removed (a temporary one)")
    add("--save", action="store_true", help="keep the figures as JSON in benchmarks/results/")
    return command_line


def shown(name: str, figures: Figures) -> str:
    return f"{name}: " + ", ".join(f"{key} {value:,.2f}".replace(".00", "") for key, value in figures.items())


def table(options: argparse.Namespace, found: dict[str, Figures]) -> str:
    """Return the CPU per row of each measurement."""
    loads = {
        "fill, publish_many": (found["fill"], ""),
        "stream → parse → sink": (found["stream"], ""),
        "the same without the first batch": (found["stream"], "rest_"),
        "nats-py: consume, parse, publish": (found["nats_py"], ""),
        "Parquet → parse": (found["beside_parquet"], "parquet_"),
        "stream → parse": (found["beside_parquet"], "stream_"),
        **{f"stream → parse, local[{slots}]": (found["slots"], f"{slots}_") for slots in options.slots},
    }
    kinds = [*KINDS, "own"]
    lines = [
        f"| µs of CPU a row | rows | rows/s | cores | {' | '.join(kinds)} |",
        "|---|---:|---:|---:|" + "---:|" * len(kinds),
    ]
    for name, (figures, begin) in loads.items():
        each = " | ".join(f"{figures[f'{begin}{kind}_us']:.2f}" for kind in kinds)
        rows, rate, cores = (figures[begin + key] for key in ("rows", "rate", "cores"))
        head = f"{rows:,.0f} | {rate:,.0f} | {cores:.2f}"
        lines.append(f"| {name} | {head} | {each} |")
    return "\n".join(lines)


def save(options: argparse.Namespace, found: dict[str, Figures]) -> None:
    import pyspark

    about = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "spark": pyspark.__version__,
        "cores": os.cpu_count(),
        "rows": options.rows,
        "batch": options.batch,
        "size": SIZE,
    }
    path = RESULTS / f"{about['date']}-pipeline-{options.rows}.json"
    path.write_text(json.dumps({"about": about, "figures": found}, indent=1) + "\n", encoding="utf-8")
    print(f"saved as benchmarks/results/{path.name}")


def main() -> int:
    options = parser().parse_args()
    results: dict[str, Figures] = {}
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        running_server(options.folder) as server,
    ):
        pipeline = Pipeline(options, server.url, Path(folder))
        try:
            for name in ("fill", "stream", "recount", "beside_parquet", "nats_py", "slots"):
                start = time.perf_counter()
                results[name] = getattr(pipeline, name)()
                took = time.perf_counter() - start
                print(f"[{took:.0f} s] {shown(name, results[name])}", flush=True)
        finally:
            if pipeline.spark is not None:
                pipeline.spark.stop()
            pipeline.opened.run(pipeline.opened.js.close())
    print(f"\n{options.rows:,} rows are in the target, each once and unchanged\n\n{table(options, results)}")
    if options.save:
        save(options, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
