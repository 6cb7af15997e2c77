"""A server with messages to copy, for the tests in which a session of this process runs the copies."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.spark.copies import run


@pytest.fixture
async def copies(own_server: Any, oracle_for: Any, in_thread: Any, spark: Any, checkpoint: Path) -> Any:
    """A private server, its judge, and what runs a copy to its end."""
    server = await own_server()
    oracle: Oracle = await oracle_for(server)
    return server, oracle, partial(in_thread, run, spark, checkpoint=checkpoint)
