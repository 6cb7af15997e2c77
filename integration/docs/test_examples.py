"""Every file of examples/, and of the programs for type checkers, is run as a user runs it, against a server.

Those of examples/spark/ are run by tests in `integration/spark`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.servers.choice import URL_VARIABLE
from integration.kit.servers.nats_server import OwnServer, ServerUnderTest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
LIMIT = 90.0  # seconds. They take about one

SAID: dict[str, list[str | set[str]]] = {
    "01_push_worker.py": [
        "order 2: delivery 1",
        "event: message 2 failed: the database is busy",
        "order 2: delivery 2",
        "handled: [1, 2, 3]",
    ],
    "02_queue_group.py": [
        "one created the consumer: True, two: False",
        "one leaves; the group continues with crew",
        "each job once: True",
    ],
    "03_pull_worker.py": [
        "fetch(10): 10 messages, ending full",
        "no_wait: 10 messages, the first one returned",
        "messages(): 6 more, 1 of them redelivered",
        "nothing left: 0 messages, ending expired",
        "acked up to 25, 0 unacked",
    ],
    "04_ordered_reader.py": [
        "event: new consumer, resumes at 6: no message and no heartbeat",
        "read: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
    ],
    "05_graceful_stop.py": ["working", "stop: time limit", "done and acked: "],
    "06_events.py": [
        {"handler failed on message 1: no such column", "too slow: messages dropped"},
        "slow: 10 pending, 20 dropped",
        "ConsumerDeleted: EVENT_LOG/",
        "is silent",
    ],
    "07_worker.py": [
        "dead letter 5, attempt 1: no such customer",
        "dead letter 7, attempt 3: the database is busy",
        "handled 28, failed 5, retried 3",
    ],
    "08_price_board.py": [
        " of 2000 changes, in order: True",
        "after 2000 changes",
    ],
    "09_audit_follower.py": [
        "1 to 10, each once: True",
        "1 to 4000, each once: True",
        "4001 is gone, the first available is 4501",
    ],
    "10_hourly_partitions.py": [
        "hour 1: 120 rows, from [0, 1, 2, 3]",
        "producer 3 crashed in the middle of hour 2",
        "hour 5: 120 rows, from [0, 1, 2, 3]",
        "no row is stored twice: [120, 120, 120, 120, 120, 120]",
    ],
    "11_tenant_feed.py": [
        "bolt: the feed is for plan gold",
        "acme reads 1.09",
        "acme reads 1.1",
        "acme: the invoice is open",
    ],
    "12_seat.py": ["allocated: {'money': 6, 'tickets': 1}", "paid out: True"],
    "13_service.py": [
        "pear 120 cents",
        "lime no such fruit (code 404)",
        "2 instances answered 1000 requests, each some: True",
    ],
    "14_feature_flags.py": [
        "500 services, 2000 flags",
        "deployed: each service has v2",
        "rolled back: each service has v1 again",
    ],
}


NEEDS = {"14_feature_flags.py": ">=2.12"}  # the nats-server that an example needs
LINES = {"14_feature_flags.py": 100}  # the limit of an example that shows a whole fleet. The others have 60


# The last line of each program of tests/support/programs. That for Spark is only type-checked.
PROGRAMS = {
    "administration.py": "['ORDERS'] b'1' {'audit': 1, 'billing': 1} 1 1 10059 LOG 1",
    "epochs.py": "[2] [4, 6]",
    "notifiers.py": "{'rows': 1} 2 10 20 ['extract', 'load']",
    "ordered.py": "10 55 10 1",
    "peers.py": "prices.EURUSD 60 1 3 1",
    "publishing.py": "10071 12 50 62",
    "pulling.py": "25 0 10.0",
    "topics.py": "['10', '20'] 20 settings.audit ['20', 'on'] 3",
    "worker.py": "19 13",
}


async def start(example: str, *arguments: str, folder: str = "examples") -> asyncio.subprocess.Process:
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        str(ROOT / folder / example),
        *arguments,
        env={**os.environ, "PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finish(process: asyncio.subprocess.Process) -> str:
    """The output of the program. It must end well, in time, and write nothing to stderr."""
    try:
        async with asyncio.timeout(LIMIT):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        pytest.fail(f"it did not end; it said\n{out.decode()}{err.decode()}")
    assert (process.returncode, err.decode()) == (0, ""), out.decode()
    return out.decode()


def assert_said(example: str, output: str) -> None:
    """All of it, in this order, but what is in a set in any."""
    at = 0
    for texts in SAID[example]:
        actual = {text: output.find(text, at) for text in ({texts} if isinstance(texts, str) else texts)}
        assert min(actual.values()) >= 0, f"one of {texts!r} is missing or out of order in\n{output}"
        at = max(actual.values())


@pytest.mark.limit(LIMIT + 30)
@pytest.mark.parametrize(
    "example",
    [pytest.param(one, marks=pytest.mark.server(NEEDS[one]) if one in NEEDS else ()) for one in EXAMPLES],
)
async def test_example_shows_promises(example: str, own_server: Callable[..., Awaitable[OwnServer]]) -> None:
    server = await own_server()
    assert_said(example, await finish(await start(example, server.url)))


@pytest.mark.limit(LIMIT + 30)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, marks=[] if one in ("pulling.py", "topics.py") else [pytest.mark.full])
        for one in PROGRAMS
    ],
)
async def test_program_runs(program: str, own_server: Callable[..., Awaitable[OwnServer]]) -> None:
    server = await own_server()
    output = await finish(await start(program, server.url, folder="tests/support/programs"))
    assert output.splitlines()[-1] == PROGRAMS[program]


@pytest.mark.limit(LIMIT + 30)
async def test_an_example_needs_no_set_up() -> None:
    if os.environ.get(URL_VARIABLE):
        pytest.skip("a server was named for this run: none is to be started")
    assert_said("01_push_worker.py", await finish(await start("01_push_worker.py")))


@pytest.mark.core_cases(1)
@pytest.mark.limit(LIMIT + 30)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.covers("J110", "J112")
async def test_stopped_worker_loses_nothing(
    signum: signal.Signals,
    own_server: Callable[..., Awaitable[OwnServer]],
    oracle_for: Callable[..., Awaitable[Oracle]],
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    process = await start("05_graceful_stop.py", server.url)
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        assert await process.stdout.readline() == b"working\n"
        await oracle.wait_consumer("STOP_TASKS", "crew", lambda info: info["ack_floor"]["stream_seq"] > 5)
    process.send_signal(signum)
    output = await finish(process)

    assert f"stop: {signum.name}" in output
    done = int(re.findall(r"done and acked: (\d+)", output)[0])
    assert 5 < done < 1000
    # Its acks were sent before it ended, and the server counts them soon. It did not delete the consumer.
    info = await oracle.wait_consumer(
        "STOP_TASKS", "crew", lambda info: info["ack_floor"]["stream_seq"] >= done
    )
    assert info["ack_floor"]["stream_seq"] == done
    assert info["num_redelivered"] == 0
    assert info["num_pending"] + info["num_ack_pending"] == 1000 - done


async def test_every_example_listed_here_and_short(server: ServerUnderTest) -> None:
    assert list(SAID) == EXAMPLES
    for example in EXAMPLES:
        text = (ROOT / "examples" / example).read_text()
        assert len(text.splitlines()) <= LINES.get(example, 60), example
        assert f"python examples/{example} [url]" in text
