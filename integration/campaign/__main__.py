"""`python -m integration.campaign`: runs the parts, prints a report, and exits with 1 if a predicate fails."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from integration.campaign.options import LONG, PARTS, Options, share
from integration.campaign.report import Outcome, Report, machine, told


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0, help="for everything together (default: 6)")
    parser.add_argument("--seed", type=int, help="the first seed (default: from the clock)")
    parser.add_argument("--seeds", type=int, default=1, help="seeds to run, one after the other (default: 1)")
    parser.add_argument(
        "--only", help=f"some of {','.join(PARTS)}; by default all that --minutes is enough for"
    )
    parser.add_argument(
        "--uvloop", action="store_true", help="run on uvloop (default: on the event loop of asyncio)"
    )
    parser.add_argument(
        "--reconnects",
        type=int,
        default=500,
        help="connections that the part of this name loses (default: 500)",
    )
    parser.add_argument("--report", type=Path, help="a file for the text; the JSON goes beside it, as .json")
    options = parser.parse_args(arguments)
    chosen = (
        options.only.split(",") if options.only else [p for p in PARTS if options.minutes >= LONG.get(p, 0)]
    )
    options.only = [part for part in PARTS if part in chosen]
    if not options.only:
        parser.error(f"--only: some of {','.join(PARTS)} are needed")
    if options.seeds < 1 or options.minutes <= 0 or options.reconnects < 1:
        parser.error("--seeds, --minutes and --reconnects must be above 0")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1, 1 << 31)
    return options


async def campaign(given: argparse.Namespace) -> Report:
    seeds = range(given.seed, given.seed + given.seeds)
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    options = {"minutes": given.minutes, "seeds": [*seeds], "only": given.only, "event loop": loop}
    report = Report(options, notes=[machine()])
    print(f"campaign: {', '.join(given.only)}; seeds {seeds[0]} to {seeds[-1]}", flush=True)
    for seed in seeds:
        for part in given.only:
            seconds = share(part, given.only, given.minutes * 60 / given.seeds)
            await one(part, Options(seed, seconds, given.reconnects), report)
            if given.report is not None:  # what was found is kept if a later part is killed
                report.write(given.report)
    return report


async def one(part: str, options: Options, report: Report) -> None:
    """Run a part, and print what it found."""
    print(f"\n--- {part}, seed {options.seed}, {options.seconds:.0f} s", flush=True)
    started = time.monotonic()
    try:
        outcomes = await importlib.import_module(f"integration.campaign.{part}").run(options)
    except Exception as error:  # noqa: BLE001  the other parts still run
        outcomes = [Outcome(part, "the part itself", options.seed)]
        outcomes[0].check("it runs to its end", holds=False, found=f"{type(error).__name__}: {error}")
    report.outcomes += outcomes
    for outcome in outcomes:
        print("\n".join(told(outcome)[:-1]), flush=True)
    print(f"--- {part}: {time.monotonic() - started:.0f} s", flush=True)


def loop_factory(*, uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop. None for asyncio's own."""
    return importlib.import_module("uvloop").new_event_loop if uvloop else None


def main(arguments: list[str] | None = None) -> int:
    values = parse(arguments)
    with asyncio.Runner(loop_factory=loop_factory(uvloop=values.uvloop)) as runner:
        report = runner.run(campaign(values))
    print(f"\n{report.text().splitlines()[-1 - len(report.failures)]}")
    for outcome, predicate in report.failures:
        print(
            f"FAILS: {outcome.part} / {outcome.kind} (seed {outcome.seed}): {predicate.name}: {predicate.found}"
        )
    if values.report is not None:
        print(f"report: {values.report} and {values.report.with_suffix('.json')}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
