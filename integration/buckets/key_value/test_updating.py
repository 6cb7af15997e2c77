"""A value is changed by a function of it, and no change of another client is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jsclient import ConfigError, JsonCodec, KeyNotFoundError


async def test_update_with(make: Any) -> None:
    kv = await make(history=1)

    def one_more(value: bytes | None) -> bytes:
        return b"%d" % (int(value or 0) + 1)

    async def count() -> None:
        for _ in range(25):
            await kv.update_with("n", one_more)

    await asyncio.gather(*(count() for _ in range(8)))
    entry = await kv.get("n")
    assert (entry.value, entry.revision) == (b"200", 200)
    assert await kv.update_with("n", lambda value: None) == 200
    with pytest.raises(KeyNotFoundError):
        await kv.update_with("none", lambda value: None)
    await kv.delete("n")
    assert await kv.update_with("n", one_more) == 202
    assert (await kv.get("n")).value == b"1"
    with pytest.raises(ConfigError):
        await kv.update_with("n", lambda: None)
    with pytest.raises(ZeroDivisionError):
        await kv.update_with("n", lambda value: 1 / 0)


async def test_a_codec_that_decodes_none(js: Any, make: Any) -> None:
    kv = await js.key_value((await make(history=1)).bucket, codec=JsonCodec())
    assert await kv.put("n", None) == 1
    assert await kv.update_with("n", lambda value: None) == 1
