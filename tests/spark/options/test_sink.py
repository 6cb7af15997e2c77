"""The options of a sink: the settings they become, and the refusals, which name the option."""

from __future__ import annotations

import pickle

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.options.sink import SinkOptions

SERVERS = {"servers": "nats://127.0.0.1:4222"}


def parse(**options: str) -> SinkOptions:
    return SinkOptions.parse({**SERVERS, **options})


def test_defaults() -> None:
    """Exactly once within the window, 4,000 in flight, no subject, ids by the content of the rows."""
    options = parse()
    assert (options.exactly_once, options.window, options.subject, options.dedup) == (
        "window",
        4000,
        None,
        None,
    )
    assert options.dedup_scope == "partition"
    assert options.ids(column=False) == "content"
    assert options.ids(column=True) == "column"


def test_all_options_in_any_case() -> None:
    """Spark hands names over in lower case."""
    arguments = {
        "Subject": "out.a",
        "DEDUP": "source",
        "dedupScope": "epoch",
        "exactlyonce": "ledger",
        "minDuplicateWindow": "30",
        "expectedStream": "OUT",
        "ackTimeout": "2.5",
        "retries": "0",
        "window": "10",
        "windowBytes": "1m",
        "ledger": "mine",
        "dedupKey": "job",
        "dedupBatch": "7",
        "dedupWrite": "2",
        "headers": "keep",
    }
    options = parse(**arguments)
    assert options == SinkOptions(
        connect=options.connect,
        subject="out.a",
        dedup="source",
        dedup_scope="epoch",
        exactly_once="ledger",
        min_duplicate_window=30.0,
        expected_stream="OUT",
        ack_timeout=2.5,
        retries=0,
        window=10,
        window_bytes=1 << 20,
        ledger="mine",
        dedup_key="job",
        dedup_batch=7,
        dedup_write=2,
        headers="keep",
    )
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"exactlyOnce": "none"}, "none"),
        ({"dedup": "none"}, "none"),
        ({"exactlyOnce": "none", "dedup": "source"}, "source"),
        ({"exactlyOnce": "ledger", "subject": "x"}, "content"),
    ],
)
def test_ids(options: dict[str, str], ids: str) -> None:
    """Without exactly-once, rows have no ids unless they are asked for."""
    assert parse(**options).ids(column=False) == ids


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"dedup": "hash"}, "'dedup'.*content or source"),
        ({"exactlyOnce": "yes"}, "'exactlyOnce'"),
        ({"dedup": "none", "exactlyOnce": "window"}, "'dedup' and 'exactlyOnce'"),
        ({"dedupKey": "x", "dedupWrite": "1"}, "'dedupBatch' is missing"),
        ({"dedup": "none", "dedupKey": "x"}, "'dedupKey'"),
        ({"dedupBatch": "1"}, "'dedupKey' is missing"),
        ({"subject": "a.*"}, "wildcard"),
        ({"expectedStream": "a.b"}, "a.b"),
        ({"ledger": "a.b"}, "ledger"),
        ({"window": "0"}, "'window'"),
        ({"windowBytes": "much"}, "'windowBytes'"),
        ({"ackTimeout": "0"}, "'ackTimeout'"),
        ({"retries": "-1"}, "'retries'"),
        ({"exactlyOnce": "ledger"}, "option 'expectedStream' is missing: the ledger has to know"),
        ({"windw": "10"}, "did you mean 'window'"),
        ({"minDuplicateWindow": "soon"}, "'minDuplicateWindow'"),
    ],
)
def test_refused(options: dict[str, str], reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        parse(**options)


def test_column_to_be_there_and_to_be_used() -> None:
    """A column msg_id that would not be used is a mistake, as is one that is missing."""
    with pytest.raises(ConfigError, match="no column 'msg_id'"):
        parse(dedup="column").ids(column=False)
    with pytest.raises(ConfigError, match="have a column 'msg_id'"):
        parse(dedup="content").ids(column=True)
    assert parse(dedup="column").ids(column=True) == "column"
