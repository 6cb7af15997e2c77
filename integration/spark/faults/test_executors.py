"""Executors of a standalone cluster are killed, or stopped and woken, in mid-batch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.waiting import eventually
from integration.kit.servers.certificates import Certificate
from integration.kit.servers.creds import operator_config
from integration.kit.spark import copying
from integration.kit.spark.copies import by_claims, filled, query, with_consumer
from integration.kit.spark.processes import with_children
from integration.kit.spark.standalone import StandaloneCluster, Submitted

pytestmark = [
    pytest.mark.full,
    pytest.mark.limit(600),
    pytest.mark.server(">=2.11"),
    pytest.mark.xdist_group("standalone"),  # one cluster for all
]

COUNT, BATCH = 20_000, 5_000
EVERY = 10  # a row at which a task sleeps, so a batch takes some four seconds
IN_SMALL_PARTS = ("--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=200")


@pytest.fixture
def submit(standalone: StandaloneCluster, tmp_path: Path) -> Iterator[Callable[..., Submitted]]:
    """Hands a copy to the cluster: `submit(query(…), *arguments_of_spark_submit)`."""
    started: list[Submitted] = []

    def start(copy: dict[str, Any], *extra_arguments: str) -> Submitted:
        job = {**copy, "register": True, "checkpoint": str(tmp_path / "checkpoint")}
        env = {"PYSPARK_PYTHON": str(standalone.python)}
        program = Path(copying.__file__)
        driver = tmp_path / "driver"
        started.append(
            standalone.submit(
                driver, program, json.dumps(job), given=[*IN_SMALL_PARTS, *extra_arguments], env=env
            )
        )
        return started[-1]

    yield start
    for application in started:
        application.close()


async def stored(oracle: Oracle, application: Submitted, count: int) -> bool:
    if application.process.poll() is not None:
        raise RuntimeError(f"the application has ended:\n{application.log[-6000:]}")
    return int((await oracle.state("OUT"))["messages"]) >= count


async def in_batch(oracle: Oracle, application: Submitted, number: int) -> None:
    """Wait until a part of a batch, counted from 0, is stored."""
    count = number * BATCH + BATCH // 10
    await eventually(lambda: stored(oracle, application, count), 240, what=f"{count} rows in OUT")


async def kill_executors(cluster: StandaloneCluster, oracle: Oracle, application: Submitted) -> None:
    """SIGKILL to one executor in the first batch, and to one in the third."""
    for number in (0, 2):
        await in_batch(oracle, application, number)
        victim, *_ = await eventually(cluster.executors, 60, what="an executor")
        os.kill(victim, signal.SIGKILL)
    await asyncio.to_thread(application.finish)
    assert application.log.count("Lost executor") >= 2


@pytest.mark.covers("L2", "L25", "L32", "L33")
@pytest.mark.fault("executors killed in mid-batch, standalone cluster, TLS and credentials in files")
async def test_killed_with_secrets(
    own_server: Any, oracle_for: Any, standalone: Any, submit: Any, recount: Any, tmp_path: Path
) -> None:
    certificate, creds = Certificate.issue(tmp_path), tmp_path / "app.creds"
    ca = certificate.ca
    server = await own_server(config={**operator_config(creds), **certificate.tls()})
    rights = {"tls": ssl.create_default_context(cafile=str(ca)), "user_credentials": str(creds)}
    oracle = await oracle_for(server, **rights)
    await filled(oracle, COUNT, {"OUT": 600})
    secrets = {"tlsCa": ca.name, "credentialsFile": creds.name}
    copy = query(server.url, "out", batch=BATCH, every=EVERY, **secrets)
    copy["source"] |= secrets
    application = submit(copy, "--files", f"{ca},{creds}")
    await kill_executors(standalone, oracle, application)
    await recount(server, "OUT", COUNT, **rights)


@pytest.mark.covers("L16", "L32")
@pytest.mark.fault("queue mode: executors killed in mid-batch, standalone cluster")
async def test_killed_with_claims(
    own_server: Any, oracle_for: Any, standalone: Any, submit: Any, recount: Any
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"OUT": 600}, retention="workqueue")
    await with_consumer(oracle, BATCH)
    application = submit(by_claims(query(server.url, "out", batch=BATCH, every=EVERY)))
    await kill_executors(standalone, oracle, application)
    await recount(server, "OUT", COUNT)
    work = await oracle.consumer_info("IN", "work")
    assert (work["num_pending"], work["num_ack_pending"], work["num_redelivered"]) == (0, 0, 0)
    assert (await oracle.state("IN"))["messages"] == 0


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
    "spark.sql.execution.pandas.udf.buffer.size": "4096",  # the worker receives every part of the rows at once
}


@pytest.mark.covers("L2", "L25")
@pytest.mark.fault("speculation: an executor stands still until the copy of its task has ended, then goes on")
async def test_speculation(
    own_server: Any, oracle_for: Any, standalone: Any, submit: Any, recount: Any
) -> None:
    """A batch ends while one of two executors stands still, which only a copy of its task makes possible. Rows that its
    Python worker has received, it publishes when it wakes."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"OUT": 600})
    arguments = [part for name, value in SPECULATION.items() for part in ("--conf", f"{name}={value}")]
    application = submit(query(server.url, "out", batch=BATCH, every=EVERY), *arguments)
    await in_batch(oracle, application, 1)
    executor, *workers = with_children(standalone.executors()[0])
    signal_all(workers, signal.SIGSTOP)
    await asyncio.sleep(3)  # rows for the worker to find when it wakes
    signal_all([executor], signal.SIGSTOP)
    await eventually(lambda: stored(oracle, application, 2 * BATCH), 90, what="the end of the batch")
    async with oracle.listen("out.>") as sent:
        signal_all(workers, signal.SIGCONT)
        await eventually(
            lambda: any(BATCH < number_of(message.data) <= 2 * BATCH for message in sent),
            60,
            what="a row of the batch that has ended",
        )
        signal_all([executor], signal.SIGCONT)
        await asyncio.to_thread(application.finish)
    await recount(server, "OUT", COUNT)


def signal_all(processes: Iterable[int], number: int) -> None:
    for pid in processes:
        os.kill(pid, number)
