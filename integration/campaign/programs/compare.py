"""Compares what programs store by `expected` with what their steps give in Spark, without a stream and a fault.

    python -m integration.campaign.programs.compare 0-40

It shows that the campaign itself does not cause a difference that it finds.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from integration.campaign.programs.expected import counted, messages_of, stored_by, subject_of
from integration.campaign.programs.frames import Run, all_steps, labels, parsed, written
from integration.campaign.programs.generate import program_of
from integration.campaign.programs.judge import Rows, told
from integration.campaign.programs.program import FLUSH, Program
from integration.kit.spark.sessions import running_spark

_COLUMNS = "stream string, stream_created timestamp, sequence bigint, data string"


def compare(spark: Any, program: Program, run: Run) -> str:
    """What differs. Nothing if all is equal."""
    differences = []
    for number, outs in stored_by(program).items():
        expected, actual = counted(outs), rows_of_sink(spark, program, number, run)
        if expected != actual:
            differences.append(f"missing {told(expected - actual)}, too many {told(actual - expected)}")
    return "; ".join(differences)


def rows_of_sink(spark: Any, program: Program, number: int, run: Run) -> Rows:
    """What a sink stores if all messages are one batch."""
    messages = [
        (name, None, seq, one.payload.decode())
        for place, name in enumerate(program.names)
        for seq, one in enumerate(messages_of(program, place), 1)
    ]
    rows = all_steps(spark, program, parsed(spark.createDataFrame(messages, _COLUMNS)), run)
    if program.has("window"):  # the last query never ends
        rows = rows.where(f"unix_timestamp(t) < {FLUSH - 1000}")
    actual = Rows()
    sink = program.sinks[number]
    for count, write in enumerate(sink.writes):
        frame = written(program, sink, rows, number, count, run)
        subject = subject_of(program, write, number, None)
        subjects = frame.selectExpr(f"'{subject}' as subject" if write.fixed else "subject", "data")
        actual += Counter((row.subject, row.data) for row in subjects.collect())
    return actual


def main(seeds: str) -> int:
    first, _, last = seeds.partition("-")
    failed = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as files:
        Path(files, "labels.json").write_text(labels())
        with running_spark(Path(files), "local[2]") as spark:
            for seed in range(int(first), int(last or first) + 1):
                program = program_of(seed)
                difference = compare(spark, program, Run("", files))
                failed += bool(difference)
                print(f"program {seed}: {difference or 'equal'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
