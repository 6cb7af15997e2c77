"""Strangers: a user with exactly the rights that the library prints attacks, also through where answers go."""

from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.campaign.strangers.attack import Make, attack
from integration.campaign.strangers.cases import APART, CASES
from integration.campaign.strangers.site import Site, allowed

__all__ = ["one", "run"]


async def run(options: Options) -> list[Outcome]:
    outcomes = []
    for make in CASES:
        try:
            outcomes.append(await one(make, options.seed))
        except Exception as error:  # noqa: BLE001  the other cases still run
            outcomes.append(Outcome("strangers", f"case {len(outcomes) + 1}", options.seed))
            outcomes[-1].check("it runs to its end", holds=False, found=f"{type(error).__name__}: {error}")
    return outcomes


async def one(make: Make, seed: int) -> Outcome:
    async with Site.open(apart=make in APART) as site, make(site) as case:
        outcome = Outcome("strangers", case.kind, seed)
        async with site.stranger(case.permissions) as stranger:
            await attack(site, stranger, case, outcome)
        outcome.ran["may publish"] = allowed(case.permissions, "publish")
        return outcome
