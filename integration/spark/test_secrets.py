"""Secrets in options: never in a plan, a query's progress, an error or a log, and every way to say who we are works.

A password or token that is given by value is hidden by ``spark.redaction.regex`` when Spark itself shows options. The
output of jsclient has none, whatever that setting is.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from contextlib import redirect_stdout
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.servers.certificates import Certificate
from integration.kit.spark.sessions import PASSWORD, PASSWORD_VARIABLE
from jsclient.spark import ack_batch, publish_batch
from jsclient.tables.server_options import ServerOptions
from jsclient.tables.session import session

pytestmark = pytest.mark.server(">=2.11")

PLAIN, TOKEN = "pw-93ab-plain", "tk-77cd-plain"
USERS = {
    "authorization": {
        "users": [{"user": "ann", "password": PLAIN}, {"user": "bob", "password": PASSWORD}],
    }
}


@pytest.fixture
async def guarded(own_server: Any) -> Any:
    """A server that wants a password, with a stream of five messages."""
    own = await own_server(config=USERS)
    async with Oracle(own.url, user="ann", password=PLAIN) as oracle:
        await oracle.create_stream("S", ["s.>"], storage="memory", allow_direct=True)
        await oracle.create_consumer("S", "work", ack_policy="explicit")
        await oracle.publish_many("s.x", 5)
        yield own


def shown(frame: Any) -> str:
    """All that `explain` prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        frame.explain(extended=True)
        frame.explain("formatted")
        frame.explain("cost")
    return out.getvalue()


@pytest.mark.covers("L33")
@pytest.mark.full
async def test_password_in_no_plan_and_no_progress(spark, guarded, in_thread, drain):
    options = {"servers": guarded.url, "stream": "S", "user": "ann", "password": PLAIN}

    def use() -> str:
        batch = spark.read.format("jetstream").options(**options).load()
        assert batch.count() == 5
        stream = spark.readStream.format("jetstream").options(**options, startingOffsets="earliest").load()
        plans: list[str] = []

        def copy_rows(rows: Any, number: int) -> None:
            publish_batch(rows.selectExpr("'s.copy' as subject", "data"), {**connect, "expectedStream": "S"})

        connect = {name: options[name] for name in ("servers", "user", "password")}
        drained = drain(stream, also=copy_rows)
        assert len(drained.rows) == 5
        query = stream.writeStream.format("noop").trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        out = io.StringIO()
        with redirect_stdout(out):
            query.explain(extended=True)
        queue = {**options, "mode": "queue", "consumer": "work", "ackOn": "manual"}
        frame = spark.readStream.format("jetstream").options(**queue).load()
        plans += [shown(frame), shown(batch), shown(stream), out.getvalue(), str(drained.progress)]
        return "\n".join(plans)

    reports = await in_thread(use)
    assert "jetstream" in reports
    assert PLAIN not in reports


@pytest.mark.covers("L33")
@pytest.mark.full
@pytest.mark.parametrize(
    "wrong",
    [
        {"user": "ann", "password": "pw-0000-wrong"},
        {"user": "ann", "password": PLAIN, "token": TOKEN},
        {"user": "ann", "password": PLAIN, "pasword": "pw-0000-wrong"},
        {"user": "ann", "password": PLAIN, "maxBytesPerTrigger": "much"},
        {"token": TOKEN, "tokenEnv": "NO_SUCH"},
    ],
    ids=["wrong password", "two identities", "misspelt", "another option", "twice"],
)
async def test_no_error_has_a_secret(spark, guarded, in_thread, wrong):
    def use() -> str:
        errors: list[str] = []
        for writes in (False, True):
            options = {"servers": guarded.url, **wrong}
            try:
                if writes:
                    frame = spark.range(1).selectExpr("'s.x' as subject", "'x' as data")
                    frame.write.format("jetstream").options(**options).mode("append").save()
                else:
                    spark.read.format("jetstream").options(**options, stream="S").load().count()
            except Exception as error:  # noqa: BLE001 - whatever Spark makes of it
                errors.append(repr(error) + str(error))
        rows = spark.createDataFrame([("$JS.ACK.S.work.1.1.1.1.1",)], "reply string")
        for on in ("driver", "executors"):
            try:
                ack_batch(rows, {"servers": guarded.url, **wrong}, on=on)
            except Exception as error:  # noqa: BLE001
                errors.append(repr(error) + str(error))
        assert len(errors) == 4
        return "\n".join(errors)

    reports = await in_thread(use)
    for secret in (PLAIN, TOKEN, "pw-0000-wrong"):
        assert secret not in reports


@pytest.mark.covers("L33")
async def test_url_with_password_refused(spark, in_thread):
    """Spark shows URLs: no setting of it hides what is in them."""
    url = f"nats://ann:{PLAIN}@127.0.0.1:4222"

    def use() -> str:
        with pytest.raises(Exception, match="use 'user' and 'passwordEnv'") as raised:
            spark.read.format("jetstream").options(servers=url, stream="S").load()
        return str(raised.value)

    assert PLAIN not in await in_thread(use)


@pytest.mark.covers("L33")
@pytest.mark.full
async def test_no_log_has_a_secret(connect_spark, guarded, tmp_path):
    """All that a driver, its JVM and its workers write, at level INFO, with queries that succeed and that fail."""
    code = """
        import logging
        logging.basicConfig(level=logging.DEBUG)
        told = []
        for who in identities:
            options = dict(servers=servers, **who)
            try:
                read = spark.read.format("jetstream").options(**options, stream="S").load()
                told.append(read.count())
                stream = spark.readStream.format("jetstream").options(**options, stream="S", startingOffsets="earliest")
                out = stream.load().selectExpr("'s.copy' as subject", "data")
                query = (
                    out.writeStream.format("jetstream")
                    .options(**options, checkpointLocation=f"{files}/{len(told)}")
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination(60)
                told.append(str(query.exception()))
            except Exception as error:
                told.append(str(error))
        result = told
    """
    identities = [
        {"user": "ann", "password": PLAIN},
        {"user": "bob", "passwordEnv": PASSWORD_VARIABLE},
        {"user": "ann", "password": "pw-0000-wrong"},
    ]
    reports = await asyncio.to_thread(
        connect_spark, code, servers=guarded.url, identities=identities, files=str(tmp_path)
    )
    assert reports[:2] == [5, "None"], reports
    assert reports[2:4] == [10, "None"], reports
    assert "uthoriz" in str(reports[4:]) or "uthentic" in str(reports[4:]), reports
    log = connect_spark.log
    assert "INFO org.apache.spark" in log
    assert guarded.url in log, "what queries do is told"
    for secret in (PLAIN, PASSWORD, "pw-0000-wrong"):
        assert secret not in log
        assert secret not in str(reports)


# --- who we are ---------------------------------------------------------------------------------------------------


async def counts(in_thread: Any, spark: Any, url: str, **options: str) -> int:
    def use() -> int:
        return int(spark.read.format("jetstream").options(servers=url, stream="S", **options).load().count())

    return int(await in_thread(use))


async def test_password_from_environment(spark, guarded, in_thread, monkeypatch):
    """The workers of a local session have the environment of its start, so the driver alone is not enough."""
    monkeypatch.setenv("ONLY_HERE", PLAIN)
    with pytest.raises(Exception, match="variable 'ONLY_HERE' is not set") as raised:
        await counts(in_thread, spark, guarded.url, user="ann", passwordEnv="ONLY_HERE")
    assert "spark.executorEnv" in str(raised.value)


@pytest.mark.covers("L33")
@pytest.mark.full
async def test_file_handed_to_spark(spark, own_server, in_thread, tmp_path):
    """By its name alone: Spark has a copy on the driver and on each executor, and none in the working directory."""
    from integration.kit.servers.creds import USER, Key

    mine = Key.make(USER)
    file = tmp_path / f"{secrets.token_hex(4)}.nk"
    file.write_bytes(mine.seed)
    own = await own_server(config={"authorization": {"users": [{"nkey": mine.public}]}})
    async with Oracle(own.url, nkeys_seed=str(file)) as oracle:
        await oracle.create_stream("S", ["s.>"], storage="memory", allow_direct=True)
        await oracle.publish_many("s.x", 5)
    with pytest.raises(
        Exception, match=r"neither in the working directory '.*' nor in '.*', where Spark puts"
    ):
        await counts(in_thread, spark, own.url, nkeySeedFile=file.name)
    spark.sparkContext.addFile(str(file))
    assert await counts(in_thread, spark, own.url, nkeySeedFile=file.name) == 5
    options = ServerOptions.of({"servers": own.url, "nkeySeedFile": file.name})
    assert (await in_thread(session, options)).js.is_connected  # in the driver itself, as helpers do


@pytest.mark.covers("L33")
@pytest.mark.full
async def test_credentials_nkey_token_and_tls(spark, own_server, in_thread, tmp_path):
    from integration.kit.servers.creds import USER, Key, operator_config

    mine = Key.make(USER)
    file = tmp_path / "seed.nk"
    file.write_bytes(mine.seed)
    creds = tmp_path / "ann.creds"
    files = Certificate.issue(tmp_path)

    nkey = await own_server(config={"authorization": {"users": [{"nkey": mine.public}]}})
    operator = await own_server(config=operator_config(creds))
    token = await own_server(config={"authorization": {"token": TOKEN}})
    tls = await own_server(config=files.tls(ca_file=str(files.ca), verify=True))
    who = {
        nkey.url: {"nkeySeedFile": str(file)},
        operator.url: {"credentialsFile": str(creds)},
        token.url: {"token": TOKEN},
        tls.url: {"tlsCa": str(files.ca), "tlsCert": str(files.cert), "tlsKey": str(files.key)},
    }
    for url, options in who.items():
        arguments = ServerOptions.of({"servers": url, **options}).arguments()
        async with jsclient.connect(**arguments) as js:
            await js.create_stream("S", subjects=["s.>"])
            await js.publish("s.x", b"one")
        assert await counts(in_thread, spark, url, **options) == 1
    with pytest.raises(Exception, match="no file"):
        await counts(in_thread, spark, nkey.url, nkeySeedFile=str(tmp_path / "none.nk"))


@pytest.mark.full
async def test_tls_first_and_other_host_name(spark, own_server, in_thread, tmp_path):
    files = Certificate.issue(tmp_path, "nats.example.com")
    own = await own_server(config=files.tls(handshake_first=True))
    options = {"tlsCa": str(files.ca), "tlsHostname": "nats.example.com", "tlsHandshakeFirst": "true"}
    async with jsclient.connect(**ServerOptions.of({"servers": own.url, **options}).arguments()) as js:
        await js.create_stream("S", subjects=["s.>"])
        await js.publish("s.x", b"one")
    assert await counts(in_thread, spark, own.url, **options) == 1
