"""The HTTP headers of the request that opens a WebSocket, from a mapping or a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ....errors import ConfigError
from ..credentials import CallbackError, check_arguments

__all__ = ["HeadersOption", "UpgradeHeaders"]

HeaderValues: TypeAlias = Mapping[str, str | Sequence[str]]
HeadersOption: TypeAlias = HeaderValues | Callable[[], HeaderValues | Awaitable[HeaderValues]]

_OPTION: Final = "ws_connection_headers"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OWN: Final = {"connection", "upgrade", "content-length", "transfer-encoding"}


class UpgradeHeaders:
    """The headers of each attempt to connect. The repr does not show them.

    Raises:
        ConfigError: The option is not a mapping or a function without arguments, or a header is not valid.
    """

    def __init__(self, headers: HeadersOption | None) -> None:
        self._call: Callable[[], Any] | None = None
        self._pairs: list[tuple[str, str]] = []
        if callable(headers):
            check_arguments(_OPTION, headers, (), "no argument")
            self._call = headers
        else:
            self._pairs = _pairs(headers or {}, f"{_OPTION} is")

    async def pairs(self) -> list[tuple[str, str]]:
        """Return the headers of the next request.

        Raises:
            CallbackError: The function raised, or did not return headers.
        """
        if self._call is None:
            return self._pairs
        try:
            headers = self._call()
            if inspect.isawaitable(headers):
                headers = await headers
        except Exception as error:
            raise CallbackError(f"{_OPTION} raised {error!r}") from error
        try:
            return _pairs(headers, f"{_OPTION} returned")
        except ConfigError as error:
            raise CallbackError(str(error)) from None


def _pairs(headers: Any, what: str) -> list[tuple[str, str]]:
    """Return each header with each of its values. Raises `ConfigError`, which shows names, but no values."""
    if not isinstance(headers, Mapping):
        raise ConfigError(
            f"{what} {type(headers).__name__}: a mapping of names to values is needed, or a function that returns one"
        )
    pairs = []
    for name, values in headers.items():
        _check_name(name)
        several = isinstance(values, Sequence) and not isinstance(values, str | bytes)
        for value in values if several else [values]:
            _check_value(name, value)
            pairs.append((name, value.strip(" \t")))
    return pairs


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        shown = repr(name) if isinstance(name, str) else type(name).__name__
        raise ConfigError(f"{_OPTION} has a header with the name {shown:.60}, which is not valid in HTTP")
    if name.lower() in _OWN or name.lower().startswith("sec-websocket-"):
        raise ConfigError(f"{_OPTION} has the header {name}, which the client sets itself")


def _check_value(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{_OPTION} has {type(value).__name__} as the value of {name}: a str is needed")
    if _VALUE.fullmatch(value) is None:
        raise ConfigError(
            f"{_OPTION} has a value of {name} with a line break, another control character, or a character outside of "
            "latin-1"
        )
