"""Runs of a batch that the tests of the sink repeat."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kit.calls.batch_runs import Runs
from integration.kit.judge.streams import OwnStream
from jsclient.spark.sink.ledger import ensure_bucket


@pytest.fixture
async def runs(connect: Any, server: Any, stream: OwnStream, oracle: Any) -> Any:
    js = await connect(server)
    bucket = f"runs_{stream.prefix}"
    await ensure_bucket(js, bucket, 1)
    yield Runs(js, stream, bucket)
    await oracle.delete_stream(f"KV_{bucket}")
