"""Many values are put in order and with few waits, and each value that is not stored is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jsclient import ConfigError, InvalidNameError, PublishManyError, ReadOnlyError


async def test_all_are_stored(kv: Any, raw: Any) -> None:
    values = {f"a.{number}": b"%d" % number for number in range(2500)}
    revision = await kv.put_many(values)
    assert revision == 2500
    assert [(key, value) for key, value, _ in await raw()] == list(values.items())
    assert (await kv.get("a.2499", min_revision=revision)).revision == revision


async def test_pairs(kv: Any) -> None:
    """Values of one key are put in their order, whatever the window is."""

    def pairs() -> Iterator[tuple[str, bytes]]:
        for number in range(300):
            yield "a", b"%d" % number

    assert await kv.put_many(pairs(), max_in_flight=10) == 300
    assert [entry.value for entry in [entry async for entry in kv.history("a")]] == [
        b"295",
        b"296",
        b"297",
        b"298",
        b"299",
    ]


async def test_no_values(kv: Any, raw: Any) -> None:
    assert await kv.put_many({}) == 0
    assert await raw() == []


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"a": b"1", "b c": b"2"}, InvalidNameError),
        ({"a": b"1", "b": "2"}, ConfigError),
        ([("a", b"1"), ("_kv.b", b"2")], InvalidNameError),
    ],
)
async def test_bad_values(kv: Any, raw: Any, values: Any, error: type[Exception]) -> None:
    with pytest.raises(PublishManyError) as raised:
        await kv.put_many(values)
    assert isinstance(raised.value.__cause__, error)
    assert await raw() == [], "they are checked before any of them is sent"


@pytest.mark.parametrize("values", ["ab", b"ab", 7, None])
async def test_not_values(kv: Any, values: Any) -> None:
    with pytest.raises(ConfigError, match="a mapping is needed"):
        await kv.put_many(values)


async def test_bad_pairs(kv: Any, raw: Any) -> None:
    with pytest.raises(PublishManyError) as raised:
        await kv.put_many(["a", "b"])
    assert isinstance(raised.value.__cause__, ConfigError)
    assert await raw() == []


async def test_full_bucket(make: Any, raw: Any) -> None:
    kv = await make(max_bytes=20_000)
    with pytest.raises(PublishManyError) as raised:
        await kv.put_many({f"a.{number}": bytes(1000) for number in range(100)})
    stored = await raw()
    assert raised.value.stored == len(stored) > 5
    assert {index for index, _ in raised.value.failures} == set(range(len(stored), raised.value.sent))


async def test_reads_only(js: Any, kv: Any, raw: Any) -> None:
    reader = await js.key_value(kv.bucket, writable=False)
    with pytest.raises(ReadOnlyError):
        await reader.put_many({"a": b"1"})
    assert await raw() == []
