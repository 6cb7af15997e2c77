"""Fuzz: every parser and tracker on damaged input, made by grammar, from a seed."""

from integration.campaign.options import Options
from integration.campaign.report import Outcome

__all__ = ["run"]


async def run(options: Options) -> list[Outcome]:
    from integration.campaign.fuzz.engine import fuzz_all
    from integration.campaign.fuzz.targets import TARGETS  # they import all of the library

    return fuzz_all(TARGETS, options)
