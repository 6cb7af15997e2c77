"""The connection of a process, and what it does to a Python worker of Spark."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from jsclient.errors import ConnectError, RequestTimeoutError
from jsclient.tables.server_options import ServerOptions
from jsclient.tables.session import session


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_objects_of_worker_frozen(spark: Any, server: Any) -> None:
    """Spark collects all garbage after each task. Objects that modules have made are left out, only in workers."""
    url = server.url

    def work(batches: Any) -> Any:
        import gc

        import pyarrow as pa

        from jsclient.tables.server_options import ServerOptions
        from jsclient.tables.session import session

        for _ in batches:
            session(ServerOptions.of(url))
            yield pa.record_batch({"frozen": [gc.get_freeze_count()]})

    ((frozen,),) = spark.range(1, numPartitions=1).mapInArrow(work, "frozen long").collect()
    assert frozen > 20_000
    before = gc.get_freeze_count()
    session(ServerOptions.of(url))
    assert gc.get_freeze_count() <= before  # a frozen object may end meanwhile


def test_error_without_chain() -> None:
    """Spark prints every error of a chain with its stack."""
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1") as raised:
        session(ServerOptions.of({"servers": "nats://127.0.0.1:1", "timeout": "0.5"}))
    assert "option 'nats.wait' = '30' waits up to 30 s" in str(raised.value)
    assert "connect(" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_frozen_server_named(own_server: Any) -> None:
    """Whatever failed, Spark prints the notes of an error with it."""
    own = await own_server()
    opened = session(ServerOptions.of({"servers": own.url, "timeout": "0.5"}))
    own.pause()
    try:
        with pytest.raises(RequestTimeoutError) as raised:
            opened.run(opened.js.stream("S"))
    finally:
        own.resume()
    assert raised.value.__notes__ == [f"servers: {own.url}"]
    opened.run(opened.js.close())
