"""Options that cannot work in log mode: the error names the option and a remedy, on the driver, before any read."""

from __future__ import annotations

import io

import pytest
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import BinaryType, StructField, StructType

from integration.kit.calls.source import BatchRead, Query, options_of
from integration.kit.judge.streams import OwnStream
from jsclient.errors import AuthenticationError, ConfigError
from jsclient.spark.source import JetStreamSource

GETS = pytest.mark.server(">=2.11")
READS = pytest.mark.parametrize("read", ["stream", "batch"])


def plan(read, server, stream, **options):
    """The steps of a read on the driver until its tasks are known."""
    if read == "stream":
        reader = (query := Query(server, stream, startingOffsets="earliest", **options)).reader()
        start = query.start(reader)
        return reader.partitions(start, query.ask(reader, start))
    return BatchRead(server, stream, **options).partitions


# --- the stream ----------------------------------------------------------------------------------------------


@READS
async def test_a_stream_that_is_not_there(server, read):
    with pytest.raises(ConfigError, match=r"option 'stream': stream 'NOWHERE' does not exist on nats://"):
        plan(read, server, "NOWHERE")


@READS
async def test_direct_gets_not_allowed(server, oracle, make_stream, read):
    stream = await make_stream(allow_direct=False)
    await stream.publish(5)
    with pytest.raises(ConfigError, match=r"option 'readMode' is 'direct', .* allow_direct = true"):
        plan(read, server, stream, readMode="direct")
    assert plan(read, server, stream)


@READS
async def test_work_queue_without_direct_gets(server, oracle, make_stream, read):
    stream = await make_stream(retention="workqueue", allow_direct=False)
    await stream.publish(5)
    with pytest.raises(ConfigError, match=r"is a work queue, .* allow_direct = true"):
        plan(read, server, stream)


@READS
async def test_a_work_queue_by_consumer(server, oracle, make_stream, read):
    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.publish(5)
    with pytest.raises(ConfigError, match="use 'readMode' = 'direct' to look at it, or 'mode' = 'queue'"):
        plan(read, server, stream, readMode="consumer")


@GETS
@READS
async def test_work_queue_with_two_filters(server, oracle, make_stream, read):
    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.publish(5, "a")
    with pytest.raises(ConfigError, match="option 'subjects' has more than one filter"):
        plan(read, server, stream, subjects=f"{stream.subject('a')},{stream.subject('b')}")


@GETS
async def test_work_queue_looked_at_and_left_alone(server, oracle, make_stream):
    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.publish(700)
    await stream.create_consumer("worker", ack_policy="explicit")
    assert BatchRead(server, stream, minPartitions=2).sequences == list(range(1, 701))
    assert (await stream.state())["messages"] == 700
    assert await stream.consumer_names() == ["worker"]


@pytest.mark.covers("L6")
@READS
async def test_filter_that_matches_nothing_refused(server, stream, read):
    await stream.publish(5)
    with pytest.raises(
        ConfigError, match=r"option 'subjects': 'foo\.bar' can match no message of stream 'test_"
    ):
        plan(read, server, stream, subjects="foo.bar")
    with pytest.raises(ConfigError, match=r"'foo\.\*' can match no message"):
        plan(read, server, stream, subjects=f"foo.*,{stream.subject('a')}")


@READS
async def test_filter_on_former_subjects(server, stream, oracle, read):
    """Messages on subjects that the stream had before are still read."""
    await stream.publish(5, "a")
    await oracle.update_stream(stream.name, subjects=[stream.subject("b")])
    assert plan(read, server, stream, subjects=stream.subject("a"))
    with pytest.raises(ConfigError, match="can match no message"):
        plan(read, server, stream, subjects=stream.subject("c"))


async def test_filter_on_mirror_warned_of(server, stream, oracle, js, caplog):
    """A mirror has the subjects of its origin, which may be in another domain."""
    mirror = f"{stream.name}_m"
    await js.create_stream(name=mirror, mirror={"name": stream.name})
    try:
        plan("stream", server, mirror, subjects="foo.bar")
    finally:
        await oracle.delete_stream(mirror)
    assert "option 'subjects': 'foo.bar' matches no message of stream" in caplog.text


# --- the server ----------------------------------------------------------------------------------------------


async def test_direct_gets_of_older_server(own_server, oracle_for):
    own = await own_server(version="2.10.25", ack_v2=False)
    stream = await OwnStream.create(await oracle_for(own), "old", allow_direct=True)
    await stream.publish(2500)
    with pytest.raises(
        ConfigError, match=r"needs nats-server 2.11; 2.10.25 is connected: use 'readMode' = 'consumer'"
    ):
        plan("batch", own, stream, readMode="direct")
    assert BatchRead(own, stream, minPartitions=2).sequences == list(range(1, 2501))
    query = Query(own, stream, subjects=stream.all, startingOffsets="earliest", maxMessagesPerTrigger=999)
    assert [len(batch) for batch in query.drain()] == pytest.approx([999, 999, 502], rel=0.2)
    assert query.sequences == list(range(1, 2501))


async def test_a_server_without_jetstream(own_server):
    own = await own_server(jetstream=False, config={})
    with pytest.raises(ConfigError, match="option 'servers': JetStream does not answer"):
        plan("batch", own, "S")


async def test_a_domain_that_is_another(server, stream):
    with pytest.raises(ConfigError, match="are 'domain' and 'prefix' right"):
        plan("batch", server, stream, domain="elsewhere")


# --- the user ------------------------------------------------------------------------------------------------


@pytest.fixture
async def guarded(own_server, oracle_for):
    """A server on which a user may not publish to some subjects: `await guarded("$JS.API.STREAM.INFO.S", ...)`."""

    async def start(*denied, allow_direct=True):
        rights = {"publish": {"deny": list(denied)}}
        users = [
            {"user": "judge", "password": "x"},
            {"user": "ann", "password": "hunter2", "permissions": rights},
        ]
        own = await own_server(config={"authorization": {"users": users}})
        oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
        await oracle.create_stream("S", ["s.>"], storage="memory", allow_direct=allow_direct)
        return own, OwnStream(oracle, "S", "s")

    return start


ANN = {"user": "ann", "password": "hunter2"}


@READS
async def test_user_who_may_not_ask_for_stream(guarded, read):
    own, _ = await guarded("$JS.API.STREAM.INFO.S")
    with pytest.raises(ConfigError, match=r"may not publish to '\$JS.API.STREAM.INFO.S'") as error:
        plan(read, own, "S", **ANN)
    assert "hunter2" not in str(error.value)


@READS
async def test_user_who_may_not_make_consumers(guarded, read):
    own, stream = await guarded("$JS.API.CONSUMER.>", allow_direct=False)
    await stream.publish(5)
    with pytest.raises(ConfigError, match=r"may not publish to '\$JS.API.CONSUMER.CREATE"):
        plan(read, own, "S", **ANN)


@GETS
async def test_no_consumers_direct_get(guarded):
    own, stream = await guarded("$JS.API.CONSUMER.>")
    await stream.publish(1000)
    assert BatchRead(own, "S", **ANN).sequences == list(range(1, 1001))
    query = Query(own, "S", startingOffsets="earliest", maxMessagesPerTrigger=600, subjects="s.>", **ANN)
    assert len(query.drain()) == 2
    assert query.sequences == list(range(1, 1001))
    with pytest.raises(ConfigError, match=r"CONSUMER.CREATE"):
        plan("batch", own, "S", readMode="consumer", **ANN)


async def test_password_wrong_not_shown(guarded):
    own, _ = await guarded()
    with pytest.raises(AuthenticationError) as error:
        plan("batch", own, "S", user="ann", password="correct horse")
    assert "correct horse" not in str(error.value)


# --- with Spark ----------------------------------------------------------------------------------------------

BAD = [
    ({"stream": "", "startingOffset": "latest"}, "option 'stream' is empty"),
    ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
    ({"subscribe": "orders"}, "has no option 'subscribe': that of Kafka is 'stream', the stream to read"),
    ({"subjects": "a..b"}, "option 'subjects'"),
    ({"password": "hunter2"}, "option 'user' is missing"),
    ({"servers": "nats://ann:hunter2@127.0.0.1"}, "option 'servers' contains a user in a URL"),
]


@pytest.mark.core_cases(4)
@pytest.mark.parametrize(("options", "message"), BAD, ids=[next(iter(options)) for options, _ in BAD])
@READS
def test_option_errors_on_load(spark, options, message, read):
    reader = spark.readStream if read == "stream" else spark.read
    arguments = {"servers": "nats://127.0.0.1:4222", "stream": "S", **options}
    with pytest.raises(Exception, match=message) as error:
        reader.format("jetstream").options(**arguments).load()
    assert "hunter2" not in str(error.value)


SCHEMAS = [
    ("subject string, value binary", "a column 'value', which mode 'log' does not have"),
    ("sequence int", "column 'sequence' as int: it is bigint"),
    ("headers map<string,string>", "column 'headers' as map<string,string>: it is map<string,array<string>>"),
    ("reply string", "a column 'reply'"),
]


@pytest.mark.parametrize(
    ("schema", "message"),
    [pytest.param(*one, id=one[0], marks=[pytest.mark.full] if at else []) for at, one in enumerate(SCHEMAS)],
)
async def test_foreign_schema_refused(spark, server, stream, schema, message):
    await stream.publish(1)
    frame = spark.read.format("jetstream").options(**options_of(server, stream)).schema(schema)
    with pytest.raises(Exception, match=message):
        frame.load().collect()


@pytest.mark.covers("L33")
async def test_spark_shows_no_secret_in_plan(spark, drain, guarded):
    own, stream = await guarded()
    await stream.publish(3)
    options = options_of(own, "S", **ANN)
    frame = spark.read.format("jetstream").options(**options).load()
    assert frame.count() == 3
    plans = frame._jdf.queryExecution().toString()
    assert "hunter2" not in plans
    streamed = spark.readStream.format("jetstream").options(**options, startingOffsets="earliest").load()
    drained = drain(streamed)
    assert len(drained.rows) == 3
    assert "hunter2" not in str(drained.progress)


# --- the sentence and nothing else -------------------------------------------------------------------------------


WRONG = pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"stream": "S", "endingSequence": "5"},
            "option 'endingSequence' is for batch reads: a streaming query has no end",
        ),
        ({"epochs": "t", "colour": "red"}, "has no option 'colour'"),
    ],
)


@WRONG
def test_reader_created_before_it_refuses(options, sentence):
    """PySpark stops a reader even if it was never made, and hides the error of its making behind UnboundLocalError."""
    schema = StructType([StructField("data", BinaryType())])
    reader = JetStreamSource({"servers": "nats://127.0.0.1:1", **options}).streamReader(schema)
    runner.check_support_func(reader, reports := io.BytesIO())
    both = runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    assert int.from_bytes(reports.getvalue(), "big") == both
    for ask in (
        runner.initial_offset_func,
        runner.prepare_for_trigger_available_now_func,
        runner.get_default_read_limit_func,
    ):
        with pytest.raises(ConfigError, match=sentence):
            ask(reader, io.BytesIO())
    with pytest.raises(ConfigError, match=sentence):
        reader.latestOffset({}, runner.ReadLimitRegistry().get({"_type": "ReadAllAvailable"}))
    with pytest.raises(ConfigError, match=sentence):
        reader.partitions({}, {})
    reader.stop()


@pytest.mark.full  # two starts of a query
async def test_spark_ends_with_the_sentence(spark, server, stream, in_thread, drain, tmp_path):
    options = options_of(server, stream, endingSequence=5)
    frame = spark.readStream.schema("data binary").format("jetstream").options(**options).load()
    with pytest.raises(Exception, match="ConfigError: option 'endingSequence' is for batch reads") as caught:
        await in_thread(drain, frame)
    assert "UnboundLocalError" not in str(caught.value)
    good = spark.readStream.format("jetstream").options(**options_of(server, stream)).load()

    def write():
        ledger = {"servers": server.url, "exactlyOnce": "ledger", "checkpointLocation": str(tmp_path)}
        good.writeStream.format("jetstream").options(**ledger).start().awaitTermination()

    with pytest.raises(Exception, match="ConfigError: option 'expectedStream' is missing") as caught:
        await in_thread(write)
    assert "PicklingError" not in str(caught.value)
    assert len(str(caught.value).splitlines()) < 25
