"""The benchmarks run: with a thousandth of the work their figures mean nothing, but every run checks itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_every_work_of_table_does_to_do():
    command = [sys.executable, "-m", "benchmarks", "--rounds", "1", "--scale", "0.002"]
    command += ["--works", "table", "latency", "subscriptions/10", "--clients", "raw", "jsclient"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("`publish`, one by one") == 3


@pytest.mark.full
def test_works_of_workers_sizes_and_tls():
    command = [sys.executable, "-m", "benchmarks", "--rounds", "1", "--scale", "0.01"]
    command += ["--works", "workers", "ordered/header", "batches", "messages/512KiB", "publisher/1MiB", "tls"]
    command += ["--clients", "raw", "jsclient", "nats-py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(re.findall(r"`run\(\)`, 20 handlers +\|", done.stdout)) == 2
    assert len(re.findall(r", TLS +\|", done.stdout)) == 6


@pytest.mark.full
def test_works_with_core_messages():
    command = [sys.executable, "-m", "benchmarks", "--rounds", "1", "--scale", "0.01", "--works", "core"]
    command += ["--clients", "raw", "jsclient", "nats-py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("core `request`, one by one") == 2
    assert done.stdout.count("| core ") == 5


@pytest.mark.full
def test_every_work_on_topics_does_to_do():
    command = [sys.executable, "-m", "benchmarks.topics", "--rounds", "1", "--scale", "0.01", "--works"]
    command += ["waiting", "notifier", "publish", "filter", "epochs", "catch-up/128", "live"]
    command += ["--clients", "republish", "jsclient", "chained", "kit", "Product", "pages", "fetch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("####") == 7
    assert "| `republish` |                       0 |" in done.stdout, (
        "readers that cost the server no consumer"
    )
