"""One run, in a separate process: ``python -m benchmarks.child JOB``. JOB is a `Job` as JSON."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import sys

from benchmarks.clients import works_of
from benchmarks.job import Meter, job_of

__all__ = ["main"]


def main(text: str) -> None:
    """Run the job, and print the figures as one line of JSON."""
    job = job_of(text)
    work = works_of(job.client)[job.kind]
    meter = Meter(job)
    gc.collect()
    if not inspect.iscoroutinefunction(work):
        work(job, meter)
    elif job.loop == "uvloop":
        import uvloop

        uvloop.run(work(job, meter))
    else:
        asyncio.run(work(job, meter))
    print(json.dumps(meter.figures()))


if __name__ == "__main__":
    main(sys.argv[1])
