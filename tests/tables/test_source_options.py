"""Options of the source: read, checked, and refused with the option's name and what to do."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.tables.source_options import Place, SourceOptions

LEAST = {"servers": "nats://127.0.0.1:4222", "stream": "ORDERS"}


def parse(streaming=True, **options):
    return SourceOptions.parse({**LEAST, **options}, streaming=streaming)


def test_holds_where_nothing_said():
    options = parse()
    assert (options.stream, options.subjects, options.mode, options.consumer) == ("ORDERS", (), "log", None)
    assert (options.start, options.end) == (Place("latest"), Place("latest"))
    assert parse(streaming=False).start == Place("earliest")
    assert (options.fail_on_data_loss, options.read_mode, options.poll_interval) == (True, "auto", 0.1)
    assert (options.fetch_max_bytes, options.batch_rows) == (8 << 20, 8192)
    assert (options.max_messages_per_trigger, options.max_bytes_per_trigger) == (None, None)


def test_names_come_in_any_case():
    options = SourceOptions.parse(
        {"SERVERS": "a:1,b:2", "Stream": "S", "failondataloss": "False"}, streaming=True
    )
    assert options.connect.servers == ("a:1", "b:2")
    assert not options.fail_on_data_loss


def test_every_option_of_a_stream():
    options = parse(
        subjects="a.*, b.>",
        consumer="progress",
        startingSequence="17",
        maxMessagesPerTrigger="1000",
        maxBytesPerTrigger="8m",
        minPartitions="4",
        maxMessagesPerPartition="500",
        readMode="consumer",
        includeHeaders="false",
        pollIntervalMs="250",
        fetchMaxBytes="1m",
        batchRows="100",
    )
    assert options.subjects == ("a.*", "b.>")
    assert options.consumer == "progress"
    assert options.start == Place("sequence", sequence=17)
    assert (options.max_messages_per_trigger, options.max_bytes_per_trigger) == (1000, 8 << 20)
    assert (options.min_partitions, options.min_partition_rows) == (4, 1)
    assert (options.max_messages_per_partition, options.read_mode) == (500, "consumer")
    assert (options.poll_interval, options.fetch_max_bytes, options.batch_rows) == (0.25, 1 << 20, 100)
    assert "headers" not in options.columns


def test_columns_by_mode():
    assert list(parse().columns) == ["subject", "data", "headers", "stream", "sequence", "timestamp"]
    assert list(parse(mode="queue", consumer="c").columns)[-1] == "reply"


@pytest.mark.parametrize(
    ("value", "time"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00.5+01:00", "2026-01-31T12:00:00.5+01:00"),
        ("1769860800000", "2026-01-31T12:00:00Z"),
    ],
)
def test_times_rfc_3339_or_milliseconds(value, time):
    assert parse(startingTimestamp=value).start == Place("time", time=time)
    assert parse(streaming=False, endingTimestamp=value).end == Place("time", time=time)


def test_all_subjects_are_no_filter():
    assert parse(subjects=">").subjects == ()


def test_several_streams():
    options = parse(stream="B, A", startingTimestamp="2026-01-31T12:00:00Z", subjects="a.>")
    assert (options.stream, options.streams, options.has_several) == ("", ("A", "B"), True)
    one = options.for_stream("B")
    assert (one.stream, one.has_several, one.subjects) == ("B", False, ("a.>",))
    assert not parse().has_several


def test_pattern_of_streams():
    options = SourceOptions.parse({"servers": "nats://x", "streamPattern": "ORDERS_*"}, streaming=True)
    assert (options.stream, options.streams, options.stream_pattern) == ("", (), "ORDERS_*")
    assert options.has_several
    assert options.for_stream("ORDERS_EU").stream_pattern is None


WRONG = [
    ({"streamPattern": "O*"}, "'stream' and 'streamPattern' are both set"),
    ({"stream": "", "streamPattern": "O*"}, "option 'stream' is empty"),
    ({"stream": "A,B,A"}, "there twice"),
    ({"stream": "A,"}, "one of its parts is empty"),
    ({"stream": "A,b.c"}, "option 'stream'"),
    ({"stream": "A,B", "mode": "queue", "consumer": "c"}, "mode 'queue' claims the messages of one stream"),
    ({"stream": "A,B", "startingSequence": "5"}, "'startingSequence' is for one stream"),
    ({"stream": "A,B", "consumer": "c"}, "'consumer' is for one stream"),
    ({"subjects": "a..b"}, "'subjects'"),
    ({"subjects": "a b"}, "'subjects'"),
    ({"subjects": "a.>,a.b"}, "overlap"),
    ({"subjects": "a,b", "readMode": "direct"}, "'readMode' = 'consumer'"),
    ({"stream": "a.b"}, "option 'stream'"),
    ({"consumer": "a.b"}, "option 'consumer'"),
    ({"mode": "batch"}, "'mode'"),
    ({"mode": "queue"}, "'consumer'"),
    (
        {"mode": "queue", "consumer": "c", "startingOffsets": "earliest"},
        "'startingOffsets' is for mode 'log'",
    ),
    ({"mode": "queue", "consumer": "c", "subjects": "a"}, "'subjects' is for mode 'log'"),
    ({"ackOn": "manual"}, "'ackOn' is for mode 'queue'"),
    ({"startingOffsets": "first"}, "'startingOffsets'"),
    ({"startingSequence": "0"}, "'startingSequence'"),
    ({"startingSequence": "x"}, "'startingSequence'"),
    ({"startingSequence": "1", "startingOffsets": "latest"}, "choose one"),
    ({"startingTimestamp": "yesterday"}, "'startingTimestamp'"),
    ({"startingTimestamp": "2026-01-31 12:00:00"}, "time zone"),
    ({"startingTimestamp": "999999999999999"}, "'startingTimestamp'"),
    ({"endingSequence": "5"}, "'endingSequence' is for batch reads"),
    ({"pushdown": "true"}, "'pushdown' is for batch reads"),
    ({"maxMessagesPerTrigger": "0"}, "'maxMessagesPerTrigger'"),
    ({"maxBytesPerTrigger": "lots"}, "'maxBytesPerTrigger'"),
    ({"fetchMaxBytes": "64m"}, "'fetchMaxBytes'"),
    ({"batchRows": "0"}, "'batchRows'"),
    ({"failOnDataLoss": "maybe"}, "'failOnDataLoss'"),
    ({"pollIntervalMs": "0"}, "'pollIntervalMs'"),
    ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
    ({"minOffsetsPerTrigger": "0"}, "'minOffsetsPerTrigger'"),
    ({"minOffsetsPerTrigger": "6", "maxMessagesPerTrigger": "5"}, "more than 'maxMessagesPerTrigger'"),
    ({"maxTriggerDelay": "5s"}, "needs 'minOffsetsPerTrigger'"),
    ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"}, "a time such as 15m"),
    (
        {"mode": "queue", "consumer": "c", "minOffsetsPerTrigger": "6"},
        "'minOffsetsPerTrigger' is for mode 'log'",
    ),
    ({"maxOffsetsPerTrigger": "5"}, "that of Kafka is 'maxMessagesPerTrigger' here"),
    ({"endingOffsets": "latest"}, "that of Kafka is 'endingSequence' or 'endingTimestamp' here"),
    ({"kafka.bootstrap.servers": "x:9092"}, "that of Kafka is 'servers' here"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[",".join(options) for options, _ in WRONG])
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        parse(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "queue", "consumer": "c"}, "'mode' is 'queue'"),
        ({"maxMessagesPerTrigger": "5"}, "'maxMessagesPerTrigger' is for streaming reads"),
        ({"pollIntervalMs": "5"}, "'pollIntervalMs' is for streaming reads"),
        ({"minOffsetsPerTrigger": "5"}, "'minOffsetsPerTrigger' is for streaming reads"),
        ({"consumer": "c"}, "'consumer' is for streaming reads"),
        ({"startingSequence": "5", "endingSequence": "4"}, "after 'endingSequence'"),
        ({"endingSequence": "5", "endingTimestamp": "0"}, "choose one"),
        ({"stream": "A,B", "endingSequence": "5"}, "'endingSequence' is for one stream"),
    ],
)
def test_cannot_work_in_batch_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        parse(streaming=False, **options)


def test_schema_before_read_kind():
    assert parse(streaming=None, endingSequence="5", maxMessagesPerTrigger="5").end.sequence == 5


WRONG_WITH_PATTERN = [
    ({"streamPattern": "ORDERS_.*"}, "in which \\* stands for any characters, .* not a regular expression"),
    ({"streamPattern": "ORDERS EU"}, "'streamPattern' is 'ORDERS EU'"),
    ({"streamPattern": "A_*,B_*"}, "'streamPattern' is 'A_\\*,B_\\*': one pattern is needed"),
    ({"mode": "queue", "consumer": "c"}, "'streamPattern' is 'O\\*', but mode 'queue'"),
    ({"startingSequence": "5"}, "'startingSequence' is for one stream, and 'streamPattern' is"),
    ({"consumer": "c"}, "'consumer' is for one stream"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_WITH_PATTERN)
def test_cannot_work_with_pattern_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SourceOptions.parse({"servers": "nats://x", "streamPattern": "O*", **options}, streaming=True)


@pytest.mark.parametrize("missing", ["servers", "stream"])
def test_what_is_needed(missing):
    options = {name: value for name, value in LEAST.items() if name != missing}
    with pytest.raises(ConfigError, match=f"option '{missing}' is missing"):
        SourceOptions.parse(options, streaming=True)


def test_no_secret_is_shown():
    options = parse(user="u", password="hunter2")
    assert "hunter2" not in repr(options)


def test_properties_of_table_ignored():
    table = {"provider": "jetstream", "owner": "me", "option.stream": "S", "option.servers": "nats://x"}
    options = {"servers": "nats://x", "stream": "S"}
    assert SourceOptions.parse({**options, **table}) == SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("15 M", None),
        ("2min", 120),
        ("30s", 30),
        ("500ms", 0.5),
        ("1500", 1.5),
        ("1H", 3600),
        ("0", 0),
        ("5\u017f", None),  # a long s is an "s" in another case
        ("5m\u0131n", None),
        ("\u0665s", None),
    ],
)
def test_delay_as_spark_writes_times(text, seconds):
    options = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    if seconds is None:
        with pytest.raises(ConfigError, match="'maxTriggerDelay'"):
            parse(**options)
    else:
        assert parse(**options).max_trigger_delay == seconds
    assert parse(minOffsetsPerTrigger="5").max_trigger_delay == 900


def test_misspelt_option_that_is_required():
    with pytest.raises(
        ConfigError, match="option 'stream' is missing, and there is no option 'streams': set the name"
    ):
        SourceOptions.parse({"servers": "nats://x", "streams": "ORDERS"}, streaming=True)
    with pytest.raises(ConfigError, match="option 'stream' is missing: set the name"):
        SourceOptions.parse({"servers": "nats://x", "mode": "log"}, streaming=True)
