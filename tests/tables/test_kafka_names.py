"""Each option of Kafka's connector is known here too, or refused with the name that the page for migrants has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.options.sink import SinkOptions
from jsclient.tables.kafka_names import instead_of_kafkas
from jsclient.tables.source_options import SourceOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "spark-from-kafka.md"
ROW = re.compile(r"^\| `([\w.*]+)` \| ([^|]*) \|", re.MULTILINE)
SHARED = {
    "startingOffsets": "latest",
    "failOnDataLoss": "true",
    "includeHeaders": "false",
    "maxTriggerDelay": "5m",
}


def rows(heading):
    """Kafka's name and our names, of each row of a table."""
    part = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [(name, re.findall(r"`([\w.]+)`", here)) for name, here in ROW.findall(part)]


def parse(heading, options):
    if heading == "Options of the source":
        return SourceOptions.parse({"servers": "nats://x", "stream": "S", **options})
    return SinkOptions.parse({"servers": "nats://x", **options})


HEADINGS = ("Options of the source", "Options and columns of the sink")
CASES = [(heading, *row) for heading in HEADINGS for row in rows(heading)]


def test_page_has_all_options_of_connector():
    """The values of KafkaSourceProvider of Spark 4."""
    ours = """assign endingOffsets endingOffsetsByTimestamp endingTimestamp failOnDataLoss fetchOffset.numRetries
        fetchOffset.retryIntervalMs groupIdPrefix includeHeaders kafka.bootstrap.servers kafkaConsumer.pollTimeoutMs
        maxOffsetsPerTrigger maxRecordsPerPartition maxTriggerDelay minOffsetsPerTrigger minPartitions startingOffsets
        startingOffsetsByTimestamp startingOffsetsByTimestampStrategy startingTimestamp subscribe subscribePattern"""
    assert set(ours.split()) <= {name for name, _ in rows("Options of the source")}
    assert {"topic", "includeHeaders"} <= {name for name, _ in rows("Options and columns of the sink")}


@pytest.mark.parametrize(("heading", "name", "here"), CASES, ids=[case[1] for case in CASES])
def test_option_is_what_page_says(heading, name, here):
    name = name.replace("*", "x")
    if name in here:
        parse(
            heading,
            {name: SHARED.get(name, "5"), **({"minOffsetsPerTrigger": "5"} if "Delay" in name else {})},
        )
        return
    with pytest.raises(ConfigError, match=f"has no option '{re.escape(name)}'") as caught:
        parse(heading, {name: "5"})
    text = re.findall(r"'([\w.]+)'", str(caught.value).split(f"'{name}'", 1)[1])
    if here:
        assert set(text) & set(here)
        # Its target exists, so setting it is not an unknown option.
        for one in text:
            with pytest.raises(ConfigError) as refused:
                parse(heading, {one: "", "zzz": "1"})
            assert "no option 'zzz'" in str(refused.value) or f"'{one}'" in str(refused.value)
    elif instead_of_kafkas(name.lower()) is not None:
        assert " of Kafka, and needs none: " in str(caught.value)


def test_option_of_another():
    assert instead_of_kafkas("maxmessagespertrigger") is None
    assert instead_of_kafkas("kafka.sasl.mechanism") == (
        ": that of Kafka is 'credentialsFile', 'nkeySeedFile', 'user' with 'passwordEnv', or 'tokenEnv' here"
    )
