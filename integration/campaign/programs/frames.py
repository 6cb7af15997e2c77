"""Runs a program in a session of Spark: its streaming queries, from their checkpoints until all is processed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.campaign.programs.expected import subject_of
from integration.campaign.programs.program import KEYS, Program, Sink, Step, Write

COLUMNS = "subject string, data binary, stream string, stream_created timestamp, sequence bigint"
_SLOW_STARTS = 5  # of one query: Spark gives its Python process ten seconds
FAULT = "the fault of the program"


@dataclass(frozen=True)
class Run:
    """How a program is run this time.

    Attributes:
        files: The directory of its checkpoints and of the table that it joins.
        again: Whether it was run before: it has other settings then.
        fails: The number of the row that raises. None: no row does.
        fails_after: In ``foreachBatch``, the write after which the function raises, from 1. 0: none.
        slow: Whether tasks sleep a little at some rows, to be met in the middle.
    """

    url: str
    files: str
    again: bool = False
    fails: int | None = None
    fails_after: int = 0
    slow: bool = False


def run_program(spark: Any, program: Program, run: Run) -> None:
    """Run all queries to their end. Raises the error of one that failed."""
    settings = {**program.settings, **(program.fault.settings if run.again else {})}
    settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = "100"
    for name, value in settings.items():
        spark.conf.set(name, value)  # a program has all options that another program has
    starts: list[Callable[[], Any]] = []
    queries: list[Any] = []
    try:
        for number, sink in enumerate(program.sinks):
            writer = _writer(spark, program, sink, number, run)
            starts.append(writer.start)
            queries.append(query := writer.start())
            while query.isActive and query.status["message"].startswith("Initializing"):
                time.sleep(0.05)
        errors = [_ended(start, query) for start, query in zip(starts, queries, strict=True)]
    finally:
        for query in spark.streams.active:
            query.stop()
    if failed := [one for one in errors if one]:
        raise RuntimeError("\n".join(failed))


def _ended(start: Callable[[], Any], query: Any) -> str:
    """Wait for the end of a query. Its error, or nothing."""
    for _ in range(_SLOW_STARTS):
        while query.isActive:
            time.sleep(0.05)
        error = query.exception()
        if error is None:
            return ""
        if "connect back" not in str(error):
            return str(error)
        time.sleep(5.0)  # the process that was too slow still runs
        query = start()
    return "the Python process of Spark was too slow"


def _writer(spark: Any, program: Program, sink: Sink, number: int, run: Run) -> Any:
    rows = _input(spark, program, run)
    if not sink.inside:
        rows = all_steps(spark, program, rows, run)
    options = {"servers": run.url, **sink.options}
    if sink.kind == "batch":
        writer = rows.writeStream.foreachBatch(_function(program, sink, number, run, options))
    else:
        [write] = sink.writes
        frame = written(program, sink, rows, number, 0, run)
        writer = frame.writeStream.format("jetstream").options(**_subject(program, write, number, options))
    writer = writer.option("checkpointLocation", str(Path(run.files, f"checkpoint-{number}")))
    return writer.queryName(f"p{program.seed}_{number}").trigger(availableNow=True)


def _function(
    program: Program, sink: Sink, number: int, run: Run, options: Mapping[str, str]
) -> Callable[[Any, int], None]:
    """The function for ``foreachBatch``."""
    from jsclient.spark import ack_batch, publish_batch

    def write_all(batch: Any, batch_id: int) -> None:
        if sink.persist:
            batch.persist()
        rows = all_steps(batch.sparkSession, program, batch, run) if sink.inside else batch
        for count, write in enumerate(sink.writes):
            frame = written(program, sink, rows, number, count, run)
            publish_batch(frame, _subject(program, write, number, options), batch_id=batch_id)
            # fail between two writes of a batch, as a killed driver would
            if run.fails_after == count + 1 and batch_id:
                raise RuntimeError(FAULT)
        if program.source.get("ackOn") == "manual":
            ack_batch(batch, run.url)
        if sink.persist:
            batch.unpersist()

    return write_all


def _input(spark: Any, program: Program, run: Run) -> Any:
    """The messages, parsed."""
    arguments = {**program.source, **(program.fault.source if run.again else {}), "servers": run.url}
    if program.reads == "queue":
        readers = [{**arguments, "stream": program.names[0], "mode": "queue", "consumer": "work"}]
    else:
        arguments["startingOffsets"] = "earliest"
        readers = {
            "list": [{**arguments, "stream": ",".join(program.names)}],
            "pattern": [{**arguments, "streamPattern": f"P{program.seed}_IN*"}],
        }.get(program.reads, [{**arguments, "stream": name} for name in program.names])
    manual = program.source.get("ackOn") == "manual"
    columns = COLUMNS + (", reply string" if manual else "")
    rows = None
    for options in readers:
        one = spark.readStream.schema(columns).format("jetstream").options(**options).load()
        one = parsed(one, *(["reply"] if manual else []))
        # each source needs a watermark, since the union takes the lowest of them
        if program.has("window"):
            one = one.withWatermark("t", "2 hours")
        rows = one if rows is None else rows.union(one)
    return rows


def parsed(messages: Any, *more: str) -> Any:
    """The first rows, made from messages."""
    parts = [f"cast(split(cast(data as string), ',')[{one}] as bigint)" for one in range(3)]
    return messages.selectExpr(
        "stream", "stream_created", "sequence", f"{parts[0]} as n", f"cast({parts[1]} as int) as k",
        f"timestamp_seconds({parts[2]}) as t", "'' as tag", "concat(stream, ':', sequence) as id", *more,
    )  # fmt: skip


def all_steps(spark: Any, program: Program, rows: Any, run: Run) -> Any:
    """The rows after all steps."""
    for number, step in enumerate(program.steps):
        rows = _after(spark, step, number, rows, run)
    return rows


def _after(spark: Any, step: Step, number: int, rows: Any, run: Run) -> Any:
    if step.kind == "filter":
        return rows.where(f"n < 0 or pmod(n, {step.number}) <> 0")
    if step.kind == "union":
        return rows.union(_marked(rows.where(f"pmod(n, {step.number}) = 0"), step, f"'u{number}'"))
    if step.kind == "explode":
        every = f"explode(sequence(0L, pmod(n, {step.number}))) as one"
        return _marked(rows.selectExpr("*", every), step, "concat('e', one)").drop("one")
    if step.kind == "join":
        table = spark.read.schema("key int, label string").json(str(Path(run.files, "labels.json")))
        joined = rows.join(table, rows["k"] == table["key"], step.how)
        return _marked(joined, step, "coalesce(label, '-')").drop("key", "label")
    # Spark keeps any of several equal rows, so the id must not depend on which.
    if step.kind == "distinct":
        once = rows.dropDuplicates(["stream", "n", "tag"])
        return _replaced(once, id="concat(stream, ':', n, ':', tag)")
    if step.kind == "window":
        return _windows(step, rows)
    if step.kind == "coalesce":
        return rows.coalesce(step.number)
    return rows.repartition(step.number, step.how) if step.how else rows.repartition(step.number)


def _windows(step: Step, rows: Any) -> Any:
    from pyspark.sql.functions import expr, window

    sums = rows.groupBy(window("t", f"{step.number} seconds"), "k")
    sums = sums.agg(expr("count(*) as many"), expr("sum(n) as total"))
    start = "unix_timestamp(window.start)"
    return sums.selectExpr(
        "'w' as stream", "cast(null as timestamp) as stream_created", "0L as sequence",
        f"cast({start} div {step.number} as bigint) as n", "k", "window.start as t",
        "concat('w', many, 's', total) as tag", f"concat({start}, ':', k) as id",
    )  # fmt: skip


def _marked(rows: Any, step: Step, mark: str) -> Any:
    tag = {"tag": f"concat(tag, {mark})"} if step.marked else {}
    return _replaced(rows, id=f"concat(id, {mark})", **tag)


def _replaced(rows: Any, **columns: str) -> Any:
    return rows.selectExpr(
        *(f"{columns[name]} as {name}" if name in columns else name for name in rows.columns)
    )


def written(program: Program, sink: Sink, rows: Any, number: int, count: int, run: Run) -> Any:
    """What a sink writes: count is the number of the write."""
    write = sink.writes[count]
    if write.rest is not None:
        rows = rows.where(f"pmod(n, 2) = {write.rest}")
    return rows.selectExpr(*_columns(program, sink, write, number, count, run))


def _columns(program: Program, sink: Sink, write: Write, number: int, count: int, run: Run) -> list[str]:
    data = {
        "own": "id",
        "tagged": "concat_ws('|', stream, n, k, tag)",
        "key": "concat('k', k)",
    }[program.data]
    if run.slow:
        data = f"if(n % 20 = 0 and length(reflect('java.lang.Thread', 'sleep', 20L)) = -1, null, {data})"
    # a task fails at this row, after it has written others
    if run.fails is not None:
        data = f"if(n = {run.fails}, raise_error('{FAULT}'), {data})"
    columns = [f"{data} as data"]
    if not write.fixed:
        some = subject_of(program, write, number, 0).removesuffix("0")
        columns.append(f"concat('{some}', k % 4) as subject")
    if sink.options.get("dedup") == "column":
        columns.append(f"concat('{number}.{count}.', id) as msg_id")
    if sink.options.get("dedup") == "source":
        columns += ["stream", "stream_created", "sequence"]
    return columns


def _subject(program: Program, write: Write, number: int, options: Mapping[str, str]) -> dict[str, str]:
    return {**options, **({"subject": subject_of(program, write, number, None)} if write.fixed else {})}


def labels() -> str:
    """The lines of the table that programs join: a key has as many labels as its remainder by three."""
    lines = [f'{{"key": {key}, "label": "l{one}"}}\n' for key in range(KEYS) for one in range(key % 3)]
    return "".join(lines)
