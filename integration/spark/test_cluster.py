"""Applications on a standalone cluster: spark-submit, a master and two workers, credentials in files of ``--files``.

jsclient is in one executable only, which an application has to name. The environment of the cluster does not have it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.waiting import eventually
from integration.kit.servers.certificates import Certificate
from integration.kit.spark import copying
from integration.kit.spark.sessions import PASSWORD, PASSWORD_VARIABLE
from integration.kit.spark.standalone import StandaloneCluster, Submitted

# A cluster takes a good part of a minute to start on two slow cores, and each application does, too.
pytestmark = [
    pytest.mark.full,
    pytest.mark.limit(600),
    pytest.mark.server(">=2.11"),
    pytest.mark.xdist_group("standalone"),  # one cluster for all
]

ROOT = Path(__file__).resolve().parents[2]
COUNT, BATCH = 3_000, 1_000
COLUMNS = ["concat('out.', sequence) as subject", "data"]
# A batch takes five seconds, so that it can be met in the middle.
SLOWLY = [
    COLUMNS[0],
    "if(sequence % 10 = 0 and length(reflect('java.lang.Thread', 'sleep', 100L)) = -1, null, data) as data",
]
IN_SMALL_PARTS = "spark.sql.execution.arrow.maxRecordsPerBatch=50"


@pytest.fixture
def submit(standalone: StandaloneCluster, tmp_path: Path) -> Iterator[Callable[..., Submitted]]:
    """Hands `copying` to the cluster: `submit(options, *arguments_of_spark_submit, env=…)`."""
    started: list[Submitted] = []

    def start(
        options: dict[str, str],
        *arguments: str,
        register: bool = True,
        columns: list[str] = COLUMNS,
        env: dict[str, str] | None = None,
    ) -> Submitted:
        job = {
            "register": register,
            "source": {
                **options,
                "stream": "IN",
                "startingOffsets": "earliest",
                "maxMessagesPerTrigger": str(BATCH),
                "minPartitions": "2",
            },
            "columns": columns,
            "sink": {**options, "expectedStream": "OUT"},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        python = {"PYSPARK_PYTHON": str(standalone.python)} if env is None else env
        program = Path(copying.__file__)
        started.append(
            standalone.submit(tmp_path / "driver", program, json.dumps(job), given=arguments, env=python)
        )
        return started[-1]

    yield start
    for application in started:
        application.close()


async def filled(oracle: Oracle) -> None:
    for name in ("IN", "OUT"):
        await oracle.create_stream(name, [f"{name.lower()}.>"], storage="file", allow_direct=True)
    await oracle.publish_many("in.x", COUNT)


async def stored(oracle: Oracle) -> int:
    return int((await oracle.state("OUT"))["messages"])


async def assert_each_once(oracle: Oracle) -> None:
    results = Counter(map(number_of, await oracle.payloads("OUT")))
    assert sum(results.values()) == COUNT
    assert results == Counter(range(1, COUNT + 1))


@dataclass
class Guarded:
    """A server that asks who its clients are.

    Attributes:
        config: Its configuration.
        options: The options of source and sink, with names of `files` without directories.
        files: What ``--files`` takes.
        judge: The same for the judge.
        settings: More arguments of ``spark-submit``.
        env: More variables of the driver.
    """

    config: dict[str, Any]
    options: dict[str, str]
    files: list[Path]
    judge: dict[str, Any]
    settings: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def with_credentials(secrets: Path) -> Guarded:
    from integration.kit.servers.creds import operator_config

    file = secrets / "app.creds"
    config = operator_config(file)
    return Guarded(config, {"credentialsFile": file.name}, [file], {"user_credentials": str(file)})


def with_tls_and_password(secrets: Path) -> Guarded:
    issued = Certificate.issue(secrets)
    return Guarded(
        config={
            **issued.tls(),
            "authorization": {"users": [{"user": "ann", "password": PASSWORD}]},
        },
        options={"tlsCa": issued.ca.name, "user": "ann", "passwordEnv": PASSWORD_VARIABLE},
        files=[issued.ca],
        judge={"tls": ssl.create_default_context(cafile=str(issued.ca)), "user": "ann", "password": PASSWORD},
        settings=["--conf", f"spark.executorEnv.{PASSWORD_VARIABLE}={PASSWORD}"],
        env={PASSWORD_VARIABLE: PASSWORD},
    )


@pytest.mark.covers("L32", "L33")
@pytest.mark.parametrize("guard", [with_credentials, with_tls_and_password])
async def test_copies_stream_with_secrets_in_files(
    own_server: Any, oracle_for: Any, standalone: Any, submit: Any, tmp_path: Path, guard: Any
) -> None:
    """Their names alone are enough, on the driver and on executors."""
    (secrets := tmp_path / "secrets").mkdir()
    guarded = guard(secrets)
    server = await own_server(config=guarded.config)
    oracle = await oracle_for(server, **guarded.judge)
    await filled(oracle)
    application = submit(
        {"servers": server.url, **guarded.options},
        "--files",
        ",".join(map(str, guarded.files)),
        *guarded.settings,
        env={"PYSPARK_PYTHON": str(standalone.python), **guarded.env},
    )
    await asyncio.to_thread(application.finish)
    await assert_each_once(oracle)
    assert PASSWORD not in application.log


async def test_file_that_was_not_handed_over(own_server: Any, submit: Any, tmp_path: Path) -> None:
    """The error names the option and both places."""
    server = await own_server()
    application = submit({"servers": server.url, "credentialsFile": "app.creds"})
    assert await asyncio.to_thread(application.wait) == 1
    assert "option 'credentialsFile': no file 'app.creds'" in application.log
    assert f"neither in the working directory '{tmp_path / 'driver'}' nor in" in application.log


@pytest.mark.covers("L2", "L25", "L32")
@pytest.mark.fault("executor killed in mid-batch, standalone cluster")
async def test_executor_killed_in_middle_of_batch(
    own_server: Any, oracle_for: Any, standalone: Any, submit: Any, recount: Any
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle)
    application = submit({"servers": server.url}, "--conf", IN_SMALL_PARTS, columns=SLOWLY)

    async def in_the_middle() -> bool:
        if application.process.poll() is not None:
            raise RuntimeError(f"the application has ended:\n{application.log[-6000:]}")
        # Of any batch: the rows of the first ones are written at once if a Python worker starts late.
        return BATCH // 20 < await stored(oracle) % BATCH < BATCH * 3 // 4

    await eventually(in_the_middle, 240, what="the middle of a batch")
    os.kill(standalone.executors()[0], signal.SIGKILL)
    await asyncio.to_thread(application.finish)
    assert "Lost executor" in application.log
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L32")
@pytest.mark.parametrize("register", [True, False], ids=["registered", "discovered"])
async def test_python_of_setting(
    own_server: Any, oracle_for: Any, standalone: Any, submit: Any, register: bool
) -> None:
    """Spark looks for data sources with the Python of the environment, whatever `spark.pyspark.python` is."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle)
    setting = f"spark.pyspark.python={standalone.python}"
    application = submit({"servers": server.url}, "--conf", setting, register=register, env={})
    if register:
        await asyncio.to_thread(application.finish)
        await assert_each_once(oracle)
    else:
        assert await asyncio.to_thread(application.wait) == 1
        assert "DATA_SOURCE_NOT_FOUND" in application.log
        assert await stored(oracle) == 0


@pytest.mark.covers("L32")
async def test_packed_environment(
    own_server: Any, oracle_for: Any, standalone: Any, submit: Any, tmp_path: Path
) -> None:
    """The commands of the guide: no host has jsclient, and executors unpack it from the archive."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle)
    (driver := tmp_path / "driver").mkdir()
    for command in (
        [sys.executable, "-m", "venv", "orders"],
        ["orders/bin/pip", "install", "--quiet", f"{ROOT}[nkeys]", "pyarrow>=18", "venv-pack"],
        ["orders/bin/venv-pack", "--quiet", "-p", "orders", "--compress-level", "1", "-o", "orders.tar.gz"],
    ):
        await asyncio.to_thread(subprocess.run, command, cwd=driver, env=standalone.environment, check=True)
    (driver / "environment").symlink_to("orders")
    application = submit(
        {"servers": server.url},
        *("--archives", "orders.tar.gz#environment"),
        env={"PYSPARK_DRIVER_PYTHON": "orders/bin/python", "PYSPARK_PYTHON": "./environment/bin/python"},
    )
    await asyncio.to_thread(application.finish)
    await assert_each_once(oracle)
