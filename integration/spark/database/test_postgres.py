"""`examples/spark/payments_to_postgres.py` against a real PostgreSQL server: every row once, wherever the driver dies.

The verdict is PostgreSQL's own (count, keys, a checksum of all rows), and the result of raw JetStream requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.recount import Recount
from integration.kit.judge.waiting import eventually
from integration.kit.spark.program import Program

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "spark" / "payments_to_postgres.py"
BATCH = 5000  # messages of a batch of the example, which has two tasks
COUNT = 6 * BATCH

pytestmark = pytest.mark.server(">=2.11")


def account(number: int) -> int:
    return number % 97


def cents(number: int) -> int:
    return number * 7919 % 100_003


async def filled(oracle: Oracle, count: int, ack_wait: int = 300) -> None:
    """The work queue and its consumer, with numbered payments."""
    await oracle.create_stream(
        "PAYMENTS", ["payments.>"], retention="workqueue", storage="file", allow_direct=True
    )
    await oracle.create_consumer(
        "PAYMENTS",
        "database",
        durable_name="database",
        ack_policy="explicit",
        ack_wait=ack_wait * 1_000_000_000,
        max_ack_pending=4 * BATCH,
    )
    for number in range(1, count + 1):
        payload = json.dumps({"account": account(number), "cents": cents(number)}).encode()
        # The server drops what comes faster than it stores: now and then wait until all is stored.
        publish = oracle.publish if number % 1000 == 0 or number == count else oracle.nc.publish
        await publish("payments.card", payload)
    assert (await oracle.state("PAYMENTS"))["messages"] == count


def loaded(database: str) -> dict[str, Any]:
    """What the example defines. Its tables are made. Executors find no module of its name: functions are pickled."""
    import psycopg

    names: dict[str, Any] = {"__name__": EXAMPLE.stem}
    exec(compile(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE, "exec"), names)
    with psycopg.connect(database) as db:
        db.execute(names["TABLES"])
    return names


def select(database: str, query: str) -> Any:
    """The first row."""
    import psycopg

    with psycopg.connect(database) as db:
        return db.execute(query).fetchone()


def rows_in(database: str, table: str = "payments") -> int:
    return int(select(database, f"SELECT count(*) FROM {table}")[0])


async def assert_each_once(oracle: Oracle, database: str, count: int, *, redelivered: bool = False) -> None:
    """Count, keys and values of all rows. No row is staged, and no message is pending or unacked in the queue."""
    text = ",".join(f"{number}:{account(number)}:{cents(number)}" for number in range(1, count + 1))
    actual = await asyncio.to_thread(
        select,
        database,
        """
        SELECT count(*), count(DISTINCT (stream_created, sequence)), count(DISTINCT stream_created),
            md5(string_agg(sequence || ':' || account || ':' || cents, ',' ORDER BY sequence))
        FROM payments
        """,
    )
    assert actual == (count, count, 1, hashlib.md5(text.encode()).hexdigest())
    assert await asyncio.to_thread(rows_in, database, "payments_staged") == 0
    assert (await oracle.state("PAYMENTS"))["messages"] == 0
    consumer = await oracle.consumer_info("PAYMENTS", "database")
    assert (consumer["num_pending"], consumer["num_ack_pending"], consumer["num_redelivered"]) == (0, 0, 0)
    assert (consumer["delivered"]["consumer_seq"] > count) == redelivered


@pytest.fixture
def payments(spark: Any) -> Callable[..., Any]:
    """`payments(server)`: the streaming frame of the example, in batches of up to 300 rows."""

    def load(server: Any) -> Any:
        source = {"servers": server.url, "stream": "PAYMENTS", "mode": "queue", "consumer": "database"}
        reader = spark.readStream.format("jetstream").options(**source, ackOn="manual")
        reader = reader.options(maxMessagesPerTrigger="300", minPartitions="2")
        return reader.schema("stream_created timestamp, sequence bigint, data binary, reply string").load()

    return load


def die(*_: Any) -> Any:
    raise RuntimeError("the driver dies")


@pytest.mark.covers("L22")
@pytest.mark.full
async def test_batch_again_changes_nothing(
    own_server: Any, oracle_for: Any, database: str, payments: Any, in_thread: Any, drain: Any
) -> None:
    """The first batch fails when its rows are committed, and the query is started again."""
    own = await own_server()
    oracle = await oracle_for(own)
    await filled(oracle, 500)
    example = loaded(database)
    write = partial(example["write"], own.url, database)
    ack, example["ack_batch"] = example["ack_batch"], die
    with pytest.raises(Exception, match="the driver dies"):
        await in_thread(drain, payments(own), also=write)
    assert rows_in(database) == 300
    assert (await oracle.state("PAYMENTS"))["messages"] == 500
    example["ack_batch"] = ack
    assert (await in_thread(drain, payments(own), also=write)).runs == [0, 1]
    await assert_each_once(oracle, database, 500)


@pytest.mark.covers("L22")
@pytest.mark.full
async def test_messages_again_in_other_batches(
    own_server: Any, oracle_for: Any, database: str, payments: Any, in_thread: Any, drain: Any, tmp_path: Path
) -> None:
    """The driver is away until the claims have lapsed, and the next query has a new checkpoint. A task runs twice."""
    own = await own_server()
    oracle = await oracle_for(own)
    await filled(oracle, 500, ack_wait=1)
    example = loaded(database)
    write = partial(example["write"], own.url, database)
    ack, example["ack_batch"] = example["ack_batch"], die
    with pytest.raises(Exception, match="the driver dies"):
        await in_thread(drain, payments(own), also=write)
    example["ack_batch"] = ack
    stage = example["stage"]

    def twice(database: str, rows: Any) -> None:
        arguments = list(rows)
        stage(database, arguments)
        stage(database, arguments)

    example["stage"] = twice
    await in_thread(drain, payments(own), checkpoint=tmp_path / "new", also=write)
    await assert_each_once(oracle, database, 500, redelivered=True)


@contextmanager
def held(database: str, table: str, sequence: int) -> Iterator[Callable[[], bool]]:
    """The insertion of one row waits until the block is left. Gives a function which says whether it waits."""
    import psycopg

    with psycopg.connect(database, autocommit=True) as db:
        db.execute(f"""
            CREATE OR REPLACE FUNCTION hold_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.sequence = {sequence} THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER hold BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION hold_{table}();
            SELECT pg_advisory_lock(1);
        """)

        def waits() -> bool:
            return bool(select(database, "SELECT count(*) FROM pg_locks WHERE NOT granted")[0])

        yield waits


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts the example: `start(command, stop=…)`."""
    started: list[Program] = []

    def program(command: list[str], stop: tuple[str, str, str, int] | None = None) -> Program:
        started.append(Program(tmp_path, command, stop))
        return started[-1]

    yield program
    for one in started:
        one.kill()


@pytest.mark.covers("L22")
@pytest.mark.full
@pytest.mark.limit(900)
@pytest.mark.fault("work queue to PostgreSQL: driver, JVM and workers killed at five places")
async def test_each_row_once_over_kills(
    own_server: Any, oracle_for: Any, database: str, start: Any, recount: Any, tmp_path: Path
) -> None:
    """The driver, its JVM and all workers are killed at five places, each in the second batch of a run."""
    own = await own_server()
    oracle = await oracle_for(own)
    await filled(oracle, COUNT)
    loaded(database)
    command = [str(EXAMPLE), own.url, database, str(tmp_path / "checkpoint")]

    async def killed_in(table: str, sequence: int, rows: int, staged: int) -> None:
        """Kill the program while it inserts a row, and look at the rows that others see at that moment."""
        with held(database, table, sequence) as waits:
            program = start(command)
            await eventually(
                lambda: program.is_running() and waits() and rows_in(database, "payments_staged") == staged,
                240,
                what=f"row {sequence} on its way into {table}",
                interval=0.1,
            )
            program.kill()
            assert rows_in(database) == rows
        await eventually(lambda: not select(database, OTHERS)[0], what="the end of the killed transaction")
        assert rows_in(database) == rows

    async def killed_at(module: str, name: str, when: str, number: int) -> None:
        program = start(command, (module, name, when, number))
        await eventually(program.has_stopped, 240, what=f"the program {when} {name}", interval=0.1)
        program.kill()

    async def pending_count() -> int:
        return int((await oracle.state("PAYMENTS"))["messages"])

    # A task has staged its half of the batch. Another is in the middle of its half.
    await killed_in("payments_staged", BATCH + BATCH * 3 // 4, rows=BATCH, staged=BATCH // 2)
    assert await pending_count() == COUNT - BATCH
    # All is staged, and nothing merged. The first of the connections creates the tables.
    await killed_at("psycopg", "connect", "before", 3)
    assert rows_in(database) == 2 * BATCH
    assert rows_in(database, "payments_staged") == BATCH
    # In the middle of the transaction, of which others see nothing.
    await killed_in("payments", 3 * BATCH + BATCH // 2, rows=3 * BATCH, staged=BATCH)
    assert rows_in(database, "payments_staged") == BATCH
    # Committed, not acked.
    await killed_at("jsclient.spark", "ack_batch", "before", 2)
    assert rows_in(database) == 5 * BATCH
    assert await pending_count() == COUNT - 4 * BATCH
    # Acked, but the batch has not ended.
    await killed_at("jsclient.spark", "ack_batch", "after", 2)
    assert rows_in(database) == COUNT
    assert await pending_count() == 0
    await asyncio.to_thread(start(command).finish)
    await assert_each_once(oracle, database, COUNT)
    stored = await asyncio.to_thread(select, database, "SELECT array_agg(sequence) FROM payments")
    recount.exact(Recount.of("PostgreSQL", range(1, COUNT + 1), stored[0]))


OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid != pg_backend_pid()
"""
