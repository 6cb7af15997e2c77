"""Random programs of the campaign, in Spark: a few of each kind. The campaign itself runs a hundred."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration.campaign.programs.scenario import run_seeds
from integration.campaign.report import Report

pytestmark = pytest.mark.full

PROGRAMS = [8, 46, 48]
"""Seeds of random programs: a kill, a row that raises, and a batch whose end was not recorded."""


@pytest.mark.limit(600)
async def test_programs() -> None:
    outcome = await run_seeds(PROGRAMS)
    report = Report({}, [outcome])
    assert not report.failures, report.text()


@pytest.mark.limit(300)
def test_expected_of_programs() -> None:
    """What is expected of them is what their steps give in Spark, without a stream and a fault."""
    command = [sys.executable, "-m", "integration.campaign.programs.compare", "0-40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
