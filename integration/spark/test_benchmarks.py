"""The measurement of a pipeline runs: its figures mean nothing with few rows, but it checks every row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.covers("L38")
@pytest.mark.full
@pytest.mark.limit(600.0)
def test_pipeline(java: None) -> None:
    command = [sys.executable, "-m", "benchmarks.spark.pipeline", "--rows", "20000", "--batch", "20000"]
    command += ["--side", "5000", "--sample", "1000", "--slots", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "20,000 rows are in the target, each once and unchanged" in done.stdout
    assert done.stdout.count("stream → parse, local[2]") == 1
