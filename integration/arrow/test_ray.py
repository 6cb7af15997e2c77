"""`read_ray_dataset`, in a cluster of Ray on this machine. Marked `full`: only the session `spark-full` has Ray."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from integration.kit.judge.leaks import no_leaks
from jsclient.errors import ConfigError, HistoryTruncatedError

pytestmark = [
    pytest.mark.full,
    pytest.mark.limit(300),
    pytest.mark.xdist_group("ray"),
    # Ray's own.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
    ),
]
PAGE = Path(__file__).resolve().parents[2] / "docs/howto/arrow.md"


@pytest.fixture(scope="module")
def ray():
    """Imported here: tests that are not marked `full` are collected without Ray."""
    # Short: the paths of its sockets are limited.
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # else it does not listen on loopback
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it leaves a token in the home directory
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=folder)
        yield ray
        ray.shutdown()


def sequences(dataset):
    return sorted(row["sequence"] for row in dataset.take_all())


@pytest.mark.covers("L39")
async def test_messages_as_they_are(ray, server, oracle, stream):
    from jsclient.arrow import read_ray_dataset

    await stream.publish(20)
    await oracle.publish(stream.subject("h"), b"\x00\xff", headers={"Kind": "odd"})
    stored = [(one.seq, one.subject, one.payload) for one in await stream.messages()]
    rows = sorted(read_ray_dataset(server.url, stream.name).take_all(), key=lambda row: row["sequence"])
    assert [(row["sequence"], row["subject"], row["data"]) for row in rows] == stored
    assert rows[-1]["headers"] == [("Kind", ["odd"])]


async def test_one_task_for_each_range(ray, server, oracle, stream):
    """Each sequence once, over connections that end with their tasks."""
    from jsclient.arrow import read_ray_dataset
    from jsclient.arrow.options import read_options
    from jsclient.arrow.ray import JetStreamDatasource

    await stream.publish(4000)
    arguments = {"servers": server.url, "maxMessagesPerPartition": "500"}
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        dataset = read_ray_dataset(arguments, stream.name, start=101, end=3900, columns=["sequence"])
        await stream.publish(10)
        assert sequences(dataset) == sequences(dataset) == list(range(101, 3901))
        assert dataset.limit(5).count() == 5
    for options, tasks in ((arguments, 9), (server.url, 4)):
        source = JetStreamDatasource(read_options(options, stream.name, (), "first", "now"), ("sequence",))
        assert len(source.get_read_tasks(4)) == len(source.get_read_tasks(50)) == tasks


async def test_errors(ray, server, oracle, stream):
    from jsclient.arrow import read_ray_dataset

    with pytest.raises(ConfigError, match="start is 0"):
        read_ray_dataset("nats://127.0.0.1:1", stream.name, start=0)
    await stream.publish(50)
    empty = read_ray_dataset(server.url, stream.name, start="now")
    assert empty.take_all() == []
    dataset = read_ray_dataset(server.url, stream.name)
    await oracle.purge(stream.name, seq=21)
    with pytest.raises(HistoryTruncatedError, match="messages 5 to 20"):
        read_ray_dataset(server.url, stream.name, start=5)
    with pytest.raises(ray.exceptions.RayTaskError, match=r"HistoryTruncatedError: .* is 21"):
        dataset.take_all()


async def test_python_of_page_does_page_says(ray, server, stream, capsys):
    await stream.publish(20)
    [code] = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(code.replace("nats://127.0.0.1:4222", server.url).replace("ORDERS", stream.name), {})
    assert "20\n" in capsys.readouterr().out


NOTHING = {
    "empty stream": {},
    "start now": {"start": "now"},
    "start after the last": {"start": 31},
    "filter without matches": {"subjects": "{}.nothing"},
}


@pytest.mark.covers("L39")
@pytest.mark.parametrize("case", NOTHING)
async def test_nothing_to_read(ray, server, stream, case):
    """Zero rows with the requested columns: as rows, as a table, and after another operation."""
    from jsclient.arrow import read_ray_dataset
    from jsclient.tables.columns import arrow_schema

    if case != "empty stream":
        await stream.publish(30)
    arguments = dict(NOTHING[case], columns=["sequence", "subject", "data"])
    if "subjects" in arguments:
        arguments["subjects"] = arguments["subjects"].format(stream.prefix)
    dataset = read_ray_dataset(server.url, stream.name, **arguments)
    assert (dataset.count(), dataset.take_all()) == (0, [])
    assert dataset.schema().base_schema == arrow_schema(("sequence", "subject", "data"))
    # Ray drops blocks without rows, even blocks of a table in memory.
    in_memory = ray.data.from_arrow(arrow_schema(("sequence",)).empty_table())
    assert len(dataset.to_pandas()) == len(in_memory.to_pandas()) == 0
    assert dataset.select_columns(["sequence"]).schema().names == ["sequence"]
