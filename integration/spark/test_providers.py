"""Credentials that change while an application runs: a function provides them, on the driver and in tasks."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
def provider(spark: Any, tmp_path: Path) -> tuple[str, Path]:
    """The name of a function that reads a file at each call, and the file. Its module is handed to Spark."""
    module, file = f"provider_{secrets.token_hex(4)}", tmp_path / "secret"
    program = tmp_path / f"{module}.py"
    program.write_text(
        f"from pathlib import Path\n\n\ndef current():\n    return Path({str(file)!r}).read_text()\n"
    )
    spark.sparkContext.addPyFile(str(program))
    return f"{module}:current", file


async def until_read(in_thread: Any, spark: Any, options: dict[str, str]) -> None:
    """All five messages, by connections of the driver and of tasks that may still have to be restored."""

    async def is_ready() -> bool:
        frame = spark.read.format("jetstream").options(**options)
        return await in_thread(lambda: frame.load().count()) == 5

    await eventually(is_ready, 60, what="a read with the new secret")


@pytest.mark.covers("L33")
@pytest.mark.full
async def test_token_replaced(spark, own_server, oracle_for, in_thread, provider):
    name, file = provider
    file.write_text("first-token")
    own = await own_server(config={"authorization": {"token": "first-token"}})
    oracle = await oracle_for(own, token="first-token")
    await oracle.create_stream("S", ["s.>"], storage="file", allow_direct=True)
    await oracle.publish_many("s.x", 5)
    options = {"servers": own.url, "stream": "S", "tokenProvider": name}
    await until_read(in_thread, spark, options)
    file.write_text("second-token")
    own.reload({"authorization": {"token": "second-token"}})
    await until_read(in_thread, spark, options)


@pytest.mark.covers("L33")
async def test_credentials_replaced(spark, own_server, oracle_for, in_thread, provider, tmp_path):
    """The user of the first credentials is revoked."""
    import time

    from integration.kit.servers.creds import USER, Key, Operator

    name, file = provider
    operator, first, second, judge = Operator.make(), Key.make(USER), Key.make(USER), tmp_path / "judge.creds"
    operator.write(judge, Key.make(USER))
    operator.write(file, first)
    own = await own_server(config=operator.config())
    oracle = await oracle_for(own, user_credentials=str(judge))
    await oracle.create_stream("S", ["s.>"], storage="file", allow_direct=True)
    await oracle.publish_many("s.x", 5)
    options = {"servers": own.url, "stream": "S", "credentialsProvider": name}
    await until_read(in_thread, spark, options)
    operator.write(file, second)
    own.reload(operator.config({first.public: int(time.time())}))
    await until_read(in_thread, spark, options)
