"""`jsclient spark offsets` on checkpoints of real queries: its output, and the position of a query after a rewind."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime

import pytest

from integration.kit.calls.source import Query
from integration.kit.spark.sessions import environment


def command(checkpoint, *arguments, server=None):
    """Run the command without PySpark: exit code, JSON, error text."""
    code = "import sys; sys.modules['pyspark'] = None; from jsclient.cli import main; sys.exit(main())"
    values = [] if server is None else ["--server", server.url]
    done = subprocess.run(
        [sys.executable, "-c", code, "spark", "offsets", str(checkpoint), "--json", *values, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(),
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.fixture
def frame(spark, server):
    def load(stream, **options):
        arguments = {"servers": server.url, "stream": stream.name, "startingOffsets": "earliest", **options}
        return spark.readStream.format("jetstream").options(**arguments).load()

    return load


@pytest.mark.covers("L35")
async def test_offsets_shown_compared_and_rewound(server, stream, in_thread, drain, checkpoint, frame):
    await stream.publish(20)
    first = await in_thread(drain, frame(stream, maxMessagesPerTrigger="8"))
    await stream.publish(5, first=21)

    code, shown, _ = await in_thread(command, checkpoint)
    assert code == 0
    (source,) = shown["sources"]
    assert source["planned"] == source["committed"] == {"batch": 2, "first": 17, "last": 20}

    code, shown, _ = await in_thread(command, checkpoint, server=server)
    state = shown["sources"][0]["stream"]
    assert (code, state["name"], state["recreated"]) == (0, stream.name, False)
    assert (state["lag"], state["removed"], state["last"]) == (5, 0, 25)

    code, _, error = await in_thread(command, checkpoint, "--rewind-to", "5", server=server)
    assert code == 1
    assert "may be running" in error
    code, shown, _ = await in_thread(command, checkpoint, "--rewind-to", "5", "--force", server=server)
    assert code == 0
    assert shown["rewound"]["first"] == 5
    assert shown["rewound"]["read_twice"] == [[5, 20]]

    again = await in_thread(drain, frame(stream))
    assert first.column("sequence") == [*range(1, 21)]
    assert again.column("sequence") == [*range(5, 26)]
    assert again.runs == [4]
    assert not any(name.name.endswith(".tmp") for name in checkpoint.rglob("*"))


@pytest.mark.covers("L35")
@pytest.mark.parametrize("rewound", [True, False])
@pytest.mark.full
async def test_named_source(spark, server, stream, in_thread, drain, checkpoint, rewound):
    """Spark writes version 2 of the file of offsets for a query whose sources have names."""
    if not hasattr(spark.readStream, "name"):
        pytest.skip("this release of Spark has no named sources")

    def load(**options):
        arguments = {"servers": server.url, "stream": stream.name, "startingOffsets": "earliest", **options}
        return spark.readStream.format("jetstream").options(**arguments).name("orders").load()

    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(setting, "true")
    try:
        await stream.publish(10)
        await in_thread(drain, load(maxMessagesPerTrigger="4"))
        assert (checkpoint / "offsets" / "0").read_text().startswith("v2\n")
        code, shown, error = await in_thread(command, checkpoint, server=server)
        assert (code, error) == (0, "")
        (source,) = shown["sources"]
        assert (source["name"], source["committed"]["last"]) == ("orders", 10)
        assert source["stream"]["lag"] == 0
        if rewound:
            code, _, error = await in_thread(
                command, checkpoint, "--rewind-to", "7", "--force", server=server
            )
            assert (code, error) == (0, "")
            assert (await in_thread(drain, load())).column("sequence") == [7, 8, 9, 10]
    finally:
        spark.conf.unset(setting)


@pytest.mark.covers("L35")
@pytest.mark.full  # two starts of a query
async def test_rewound_to_time(server, oracle, stream, in_thread, drain, checkpoint, frame):
    await stream.publish(10)
    await in_thread(drain, frame(stream))
    moment = (await oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": 7}))["message"]["time"]
    code, shown, error = await in_thread(command, checkpoint, "--rewind-to", moment, "--force", server=server)
    assert (code, error) == (0, "")
    assert shown["rewound"]["first"] == 7
    assert (await in_thread(drain, frame(stream))).column("sequence") == [7, 8, 9, 10]


@pytest.mark.full  # two starts of a query
async def test_rewind_passes_batch_that_fails(server, stream, in_thread, drain, checkpoint, frame):
    def fail(batch, number):
        assert number != 1, "the second batch fails"

    await stream.publish(20)
    with pytest.raises(Exception, match="the second batch fails"):
        await in_thread(drain, frame(stream, maxMessagesPerTrigger="8"), also=fail)
    code, shown, error = await in_thread(command, checkpoint, "--rewind-to", "12", "--force", server=server)
    assert (code, error) == (0, "")
    rewound = shown["rewound"]
    assert (rewound["read_twice"], rewound["maybe_read_twice"], rewound["skipped"]) == (
        [],
        [[12, 16]],
        [[9, 11]],
    )
    again = await in_thread(drain, frame(stream))
    assert (again.runs, again.column("sequence")) == ([3], [*range(12, 21)])


@pytest.mark.full
async def test_running_query_fails_after_rewind(server, stream, in_thread, checkpoint, frame):
    """Spark creates the file of a batch exclusively, so a rewind under a running query is not overwritten."""
    await stream.publish(10)

    def run():
        query = frame(stream).writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        query.processAllAvailable()
        return query

    query = await in_thread(run)
    code, _, error = await in_thread(command, checkpoint, "--rewind-to", "4", "--force", server=server)
    assert (code, error) == (0, "")
    await stream.publish(1, first=11)
    with pytest.raises(Exception, match="CONCURRENT_STREAM_LOG_UPDATE"):
        await in_thread(query.awaitTermination, 200)


@pytest.mark.full
async def test_recreated_stream_and_removed_messages(
    server, oracle, stream, in_thread, drain, checkpoint, frame
):
    await stream.publish(10)
    await in_thread(drain, frame(stream))
    await stream.publish(10, first=11)
    await oracle.purge(stream.name, seq=15)
    code, shown, _ = await in_thread(command, checkpoint, server=server)
    state = shown["sources"][0]["stream"]
    assert (code, state["first"], state["removed"], state["lag"]) == (0, 15, 4, 6)
    code, _, error = await in_thread(command, checkpoint, "--rewind-to", "5", "--force", server=server)
    assert code == 1
    assert "sequences 15 to 20" in error
    config = (await oracle.api(f"STREAM.INFO.{stream.name}", {}))["config"]
    await oracle.api(f"STREAM.DELETE.{stream.name}", {})
    await oracle.api(f"STREAM.CREATE.{stream.name}", config)
    code, shown, _ = await in_thread(command, checkpoint, server=server)
    assert shown["sources"][0]["stream"] == {"name": None, "recreated": True}
    code, _, error = await in_thread(
        command, checkpoint, "--stream", stream.name, "--rewind-to", "1", "--force", server=server
    )
    assert code == 1
    assert "was recreated" in error


async def test_server_that_asks_for_a_password(own_server, oracle_for, tmp_path):
    own = await own_server(config={"authorization": {"users": [{"user": "ann", "password": "hush"}]}})
    oracle = await oracle_for(own.url.replace("nats://", "nats://ann:hush@"))
    await oracle.create_stream("ORDERS", ["orders.>"])
    await oracle.publish_many("orders.a", 10)
    created = (await oracle.api("STREAM.INFO.ORDERS"))["created"]
    result = datetime.fromisoformat(created).isoformat()
    (tmp_path / "metadata").write_text(json.dumps({"id": "ca7f5223"}))
    for folder, text in (("offsets", json.dumps({"seq": 4, "created": result})), ("commits", "{}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text(f"v1\n{{}}\n{text}" if folder == "offsets" else f"v1\n{text}")
    code, _, error = command(tmp_path, server=own)
    assert (code, "Authorization" in error) == (1, True), error
    code, shown, error = command(tmp_path, "--option", "user=ann", "--option", "password=hush", server=own)
    assert (code, error) == (0, "")
    assert shown["sources"][0]["stream"]["lag"] == 6


@pytest.mark.full
async def test_several_streams_shown_one_by_one(server, oracle, make_stream, tmp_path):
    """Offsets as a query makes them, in files as Spark writes them."""
    first, second = await make_stream(), await make_stream()
    await first.publish(20)
    await second.publish(10)
    query = Query(server, f"{first.name},{second.name}", startingOffsets="earliest", maxMessagesPerTrigger=15)
    query.drain()
    assert len(query.offsets) == 2
    (tmp_path / "metadata").write_text(json.dumps({"id": "ca7f5223"}))
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number, (_, end) in enumerate(query.offsets):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
    (tmp_path / "commits" / "0").write_text("v1\n{}")

    code, shown, error = command(tmp_path, server=server)
    assert (code, error) == (0, "")
    streams = shown["sources"][0]["streams"]
    assert streams[first.name]["planned"] == {"batch": 1, "first": None, "last": 20}
    assert streams[first.name]["committed"] == {"batch": 0, "first": None, "last": 10}
    assert streams[first.name]["stream"]["lag"] == 10
    assert streams[second.name]["stream"]["lag"] == 5
    await second.delete()
    code, shown, _ = command(tmp_path, server=server)
    missing = shown["sources"][0]["streams"][second.name]["stream"]
    assert (code, missing) == (0, {"name": second.name, "recreated": True})
    code, _, error = command(tmp_path, "--rewind-to", "5", "--force", server=server)
    assert code == 1
    assert "has a source of several streams" in error
