"""Each part of the campaign, for seconds and from one seed. The campaign itself runs for minutes to hours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.campaign import hostile, soak, strangers
from integration.campaign.__main__ import main
from integration.campaign.chaos.scenario import Kinds, chaos
from integration.campaign.fuzz.engine import fuzz_all
from integration.campaign.fuzz.targets import TARGETS
from integration.campaign.hostile.scenarios import AFTER_CONNECT, after_connect
from integration.campaign.options import Options
from integration.campaign.report import Outcome, Report
from integration.campaign.strangers.attack import one
from integration.campaign.strangers.cases import epochs_live

SEED = 7


def passed(outcomes: Sequence[Outcome]) -> None:
    report = Report({}, list(outcomes))
    assert not report.failures, report.text()


def test_fuzz() -> None:
    passed(fuzz_all(TARGETS, Options(SEED, 0), inputs=200))


@pytest.mark.full
def test_fuzz_at_length() -> None:
    passed(fuzz_all(TARGETS, Options(SEED + 1, 0), inputs=5000))


@pytest.mark.parametrize("name", ["all lies", "breaks off"])
async def test_hostile_server(name: str) -> None:
    passed([await after_connect(name, AFTER_CONNECT[name], SEED)])


@pytest.mark.full
async def test_hostile_servers() -> None:
    passed(await hostile.run(Options(SEED, 0)))


async def test_stranger() -> None:
    passed([await one(epochs_live, SEED)])


@pytest.mark.full
@pytest.mark.limit(150)
async def test_soak() -> None:
    passed(await soak.run(Options(SEED, 24)))


@pytest.mark.full
@pytest.mark.limit(240)
@pytest.mark.server(">=2.14")
async def test_chaos() -> None:
    passed(await chaos(Options(SEED, 45), Kinds(small=True)))


@pytest.mark.full
async def test_strangers() -> None:
    passed(await strangers.run(Options(SEED, 0)))


def test_the_same_seed_gives_the_same_inputs() -> None:
    def figures() -> list[object]:
        found = fuzz_all(TARGETS, Options(SEED, 0), inputs=50)
        return [(one.kind, one.ran["refused"], one.ran["of 20 kB"]) for one in found[:-1]]

    assert figures() == figures()


def test_a_failing_predicate_fails_the_campaign_and_an_expected_one_does_not() -> None:
    outcome = Outcome("fuzz", "x", SEED)
    outcome.check("a", holds=True)
    outcome.check("b", holds=False, known="issue 1")
    assert outcome.is_fine
    outcome.check("c", holds=True, known="issue 1")  # the mark is out of date
    assert not outcome.is_fine
    report = Report({}, [outcome])
    assert [predicate.name for _, predicate in report.failures] == ["c"]
    assert [predicate.name for _, predicate in report.known] == ["b"]
    assert "expected failure b [issue 1]" in report.text()
    assert json.loads(report.json())["passed"] is False


def test_the_program_writes_its_report(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    code = main(["--only", "fuzz", "--minutes", "0.01", "--seed", str(SEED), "--report", str(file)])
    found = json.loads(file.with_suffix(".json").read_text())
    assert code == (0 if found["passed"] else 1)
    assert found["options"]["seeds"] == [SEED]
    assert "fuzz / acks: JSAck (seed 7)" in file.read_text()
