"""Nothing to read: zero rows with the columns that were asked for, and no error."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from jsclient.arrow import read_jetstream
from jsclient.errors import ConfigError
from jsclient.tables.columns import arrow_schema

COLUMNS = ["sequence", "subject", "data"]
CASES = [
    "empty stream",
    "purged stream",
    "start now",
    "start after the last",
    "filter without matches",
    "times",
]


async def _arguments(stream, case):
    """The arguments of a reader that finds nothing."""
    if case != "empty stream":
        await stream.publish(30)
    if case == "purged stream":
        await stream.purge()
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    return {
        "start now": {"start": "now"},
        "start after the last": {"start": 31},
        "filter without matches": {"subjects": stream.subject("nothing", "here")},
        "times": {"start": long_ago, "end": long_ago + dt.timedelta(days=1)},
    }.get(case, {})


@pytest.mark.parametrize("case", CASES)
async def test_reader(server, stream, case):
    arguments = await _arguments(stream, case)
    reader = await asyncio.to_thread(
        lambda: read_jetstream(server.url, stream.name, columns=COLUMNS, **arguments)
    )
    table = await asyncio.to_thread(reader.read_all)
    assert (table.num_rows, table.schema) == (0, arrow_schema(tuple(COLUMNS)))


async def test_start_far_beyond(server, stream):
    """The stream ends before the start: the argument belongs to another stream, or to an earlier one of this name."""
    await stream.publish(30)
    with pytest.raises(ConfigError, match="1000"):
        await asyncio.to_thread(read_jetstream, server.url, stream.name, start=1000)
