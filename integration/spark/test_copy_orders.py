"""`examples/spark/copy_orders.py`, as a scheduler runs it: a run copies what is new, and may find nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.spark.sessions import environment

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "spark" / "copy_orders.py"


def copied(server: Any, checkpoint: Path) -> str:
    command = [sys.executable, str(PROGRAM), server.url, str(checkpoint), "--option", "nats.name=copy"]
    env = {**os.environ, **environment(), "PYSPARK_SUBMIT_ARGS": "--master local[2,4] pyspark-shell"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.full  # three starts of a driver
@pytest.mark.limit(900)
@pytest.mark.server(">=2.11")
async def test_runs_of_a_scheduler(own_server: Any, oracle_for: Any, checkpoint: Path) -> None:
    own = await own_server()
    oracle: Oracle = await oracle_for(own)
    await oracle.create_stream("ORDERS", ["orders.>"], allow_direct=True)
    await oracle.create_stream("COPY", ["copy.>"], allow_direct=True)
    await oracle.publish_many("orders.a", 100)
    assert "rows: 100\n" in await asyncio.to_thread(copied, own, checkpoint)
    assert "rows: 0\n" in await asyncio.to_thread(copied, own, checkpoint)
    await oracle.publish_many("orders.a", 5, first=101)
    assert "rows: 5\n" in await asyncio.to_thread(copied, own, checkpoint)
    assert (await oracle.state("COPY"))["messages"] == 105
