"""Runs the programs of some seeds: `python -m integration.campaign.programs 17 20-29`. `--show` prints them only."""

from __future__ import annotations

import asyncio
import sys

from integration.campaign.programs.generate import program_of
from integration.campaign.programs.scenario import run_seeds
from integration.campaign.report import Report


def main(arguments: list[str]) -> int:
    seeds: list[int] = []
    for one in arguments:
        if one != "--show":
            first, _, last = one.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    if "--show" in arguments or not seeds:
        for seed in seeds:
            print(program_of(seed).json())
        return 0
    report = Report({"seeds": seeds}, [asyncio.run(run_seeds(seeds))])
    print(report.text())
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
