"""One run, in a separate process: ``python -m benchmarks.topics.child JOB``. JOB is a `Job` as JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import sys

from benchmarks.job import job_of
from benchmarks.topics.epochs import filtering, subscribing
from benchmarks.topics.notifier import notifier, notifier_turns
from benchmarks.topics.publishing import publishing
from benchmarks.topics.reading import catching_up, keeping, live
from benchmarks.topics.waiting import waiting

__all__ = ["RUNS", "main"]

RUNS = {
    run.__name__: run
    for run in (
        waiting,
        notifier,
        notifier_turns,
        publishing,
        filtering,
        subscribing,
        catching_up,
        keeping,
        live,
    )
}


def main(text: str) -> None:
    """Run the job, and print the figures as one line of JSON."""
    job = job_of(text)
    gc.collect()
    print(json.dumps(asyncio.run(RUNS[job.kind](job))))


if __name__ == "__main__":
    main(sys.argv[1])
