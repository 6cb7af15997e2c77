"""The option ``ws_connection_headers``: a mapping, or a function that returns one."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient._runtime.connection.credentials import CallbackError
from jsclient._runtime.connection.websocket.upgrade_headers import UpgradeHeaders
from jsclient.errors import ConfigError
from tests.support.virtual import virtual


@virtual
async def test_mapping():
    headers = UpgradeHeaders({"Authorization": " Bearer x ", "X-Tenant": ["a", "b"]})
    assert await headers.pairs() == [("Authorization", "Bearer x"), ("X-Tenant", "a"), ("X-Tenant", "b")]
    assert await UpgradeHeaders(None).pairs() == []


@virtual
async def test_functions_are_called_each_time():
    numbers = iter(range(10))

    def plain() -> dict[str, str]:
        return {"N": str(next(numbers))}

    async def coroutine() -> dict[str, str]:
        return plain()

    assert await UpgradeHeaders(plain).pairs() == [("N", "0")]
    headers = UpgradeHeaders(coroutine)
    assert [await headers.pairs(), await headers.pairs()] == [[("N", "1")], [("N", "2")]]


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ("text", "str: a mapping"),
        ({7: "x"}, "name int"),
        ({"a b": "x"}, "name 'a b'"),
        ({"Upgrade": "x"}, "which the client sets itself"),
        ({"Sec-WebSocket-Key": "x"}, "which the client sets itself"),
        ({"X": 7}, "int as the value of X"),
        ({"X": "hush\r\nY: z"}, "line break"),
        ({"X": "hush\N{EURO SIGN}"}, "latin-1"),
        (lambda one: {}, "is called with no argument"),
    ],
)
def test_invalid_options(headers: Any, says: str):
    with pytest.raises(ConfigError, match=says) as caught:
        UpgradeHeaders(headers)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("result", "says"), [(None, "returned NoneType"), ({"X": "a\n"}, "line break"), (OSError("no"), "raised")]
)
@virtual
async def test_invalid_results(result: Any, says: str):
    def headers() -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(CallbackError, match=says):
        await UpgradeHeaders(headers).pairs()
