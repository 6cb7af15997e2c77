"""Each part of the campaign, for seconds and from one seed. The campaign itself runs for minutes to hours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.campaign import healthy, hostile, reconnects, soak, strangers
from integration.campaign.__main__ import main, parse
from integration.campaign.chaos import readers
from integration.campaign.chaos.judge import Message, Stored
from integration.campaign.chaos.readers import Reading
from integration.campaign.chaos.scenario import Kinds, chaos
from integration.campaign.flood.scenario import Size, flood
from integration.campaign.fuzz.engine import Target, fuzz_all, same
from integration.campaign.fuzz.grammar import TEXT as BYTES
from integration.campaign.fuzz.targets import TARGETS
from integration.campaign.hostile.scenarios import AFTER_CONNECT, after_connect
from integration.campaign.options import Options
from integration.campaign.programs.generate import program_of
from integration.campaign.programs.judge import judge
from integration.campaign.programs.program import Program
from integration.campaign.report import Outcome, Report
from integration.campaign.rotation.scenario import rotation
from integration.campaign.strangers import one
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


def test_judge_sees_lost_doubled_disorder() -> None:
    stored = Stored([Message(seq, "a", payload) for seq, payload in enumerate(["1", "2", "4", "3", "3"], 1)])
    assert stored.missing("a", ["1", "5"]) == ["5"]
    assert stored.doubled("a") == ["3"]
    assert stored.out_of_order("a", {"1", "2", "3", "4"}) == [("4", "3"), ("3", "3")]
    assert stored.out_of_order("a", {"1", "2", "4"}) == []
    reading = Reading("ordered push", None, "S", ">")
    reading.tally.seqs = [1, 3, 2, 2]
    outcome = Outcome("chaos", "x", SEED)
    readers.judge(reading, [1, 2, 3, 4], 4, outcome)
    failed = [predicate.name for predicate in outcome.predicates if not predicate.holds]
    assert failed == ["gaps: 0", "doubled: 0", "out of order: 0", "it never had to be opened again"]


def test_fuzz_sees_errors_and_differences() -> None:
    def take(data: bytes) -> None:
        if data.startswith(b"x"):
            raise KeyError("odd")
        same(len(data) < 3, True, "two ways to count")

    target = Target("x", lambda _: take, [b"xyz", b"abcd"], BYTES)
    failed = [
        one.name for one in fuzz_all([target], Options(SEED, 0), inputs=50)[0].predicates if not one.holds
    ]
    assert failed == ["no undocumented exception", "implementations agree"]


@pytest.mark.full
@pytest.mark.limit(150)
async def test_soak() -> None:
    passed(await soak.run(Options(SEED, 24)))


@pytest.mark.full
@pytest.mark.limit(150)
async def test_reconnects() -> None:
    passed(await reconnects.run(Options(SEED, 0, reconnects=200)))


@pytest.mark.full
@pytest.mark.limit(240)
@pytest.mark.server(">=2.14")
async def test_chaos() -> None:
    passed(await chaos(Options(SEED, 45), Kinds(small=True)))


@pytest.mark.full
@pytest.mark.limit(150)
async def test_rotation() -> None:
    passed(await rotation(Options(SEED, 15), Kinds(small=True)))


@pytest.mark.full
@pytest.mark.limit(150)
async def test_healthy() -> None:
    passed(await healthy.run(Options(SEED, 20)))


async def test_flood() -> None:
    passed([await flood(Options(SEED, 0), Size(forged=4000, seconds=6.0, dead=40, acked=300))])


@pytest.mark.full
async def test_strangers() -> None:
    passed(await strangers.run(Options(SEED, 0)))


def test_same_seed_same_inputs() -> None:
    def figures() -> list[object]:
        actual = fuzz_all(TARGETS, Options(SEED, 0), inputs=50)
        return [(one.kind, one.ran["refused"], one.ran["of 20 kB"]) for one in actual[:-1]]

    assert figures() == figures()


def test_verdict() -> None:
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


def test_spark_takes_minutes() -> None:
    assert "spark" not in parse(["--minutes", "4"]).only
    assert "spark" in parse(["--minutes", "5"]).only
    assert parse(["--minutes", "1", "--only", "spark,fuzz"]).only == ["spark", "fuzz"]


def test_programs_take_long() -> None:
    assert "programs" not in parse(["--minutes", "29"]).only
    assert "programs" in parse(["--minutes", "30"]).only


@pytest.mark.full
def test_program_of_a_seed() -> None:
    """It is the same each time, it is printed and read again, and each kind of step and fault is met."""
    programs = [program_of(seed) for seed in range(60)]
    assert programs[:5] == [program_of(seed) for seed in range(5)]
    assert programs == [Program.read(one.json()) for one in programs]
    steps = {step.kind for one in programs for step in one.steps}
    assert steps == {"filter", "union", "explode", "join", "repartition", "coalesce", "distinct", "window"}
    assert {one.fault.kind for one in programs} == {"kill", "fail", "forget", "server"}
    assert {one.reads for one in programs} == {"one", "list", "pattern", "union", "queue"}
    assert {len(sink.writes) for one in programs for sink in one.sinks} == {1, 2, 3}


def test_verdict_on_program() -> None:
    program = program_of(1)
    row, other = ("s", "1"), ("s", "2")
    expected = Counter({row: 2, other: 1})
    actual = {
        "exact": expected,
        "lost": Counter({row: 1, other: 1}),
        "doubled": Counter({row: 3, other: 1}),
    }
    assert {kind: judge(program, expected, rows, None).kind for kind, rows in actual.items()} == {
        kind: kind for kind in actual
    }
    assert judge(program, expected, expected, "Error: odd").kind == "failed"


@pytest.mark.full
def test_program_writes_report(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    code = main(["--only", "fuzz", "--minutes", "0.01", "--seed", str(SEED), "--report", str(file)])
    answer = json.loads(file.with_suffix(".json").read_text())
    assert code == (0 if answer["passed"] else 1)
    assert answer["options"]["seeds"] == [SEED]
    assert "fuzz / acks: JSAck (seed 7)" in file.read_text()
