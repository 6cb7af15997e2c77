"""Credentials from files and callbacks: checked before connecting, and the error of a callback that fails."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import ConfigError
from ..handlers import check_plain

__all__ = ["CallbackError", "check_credentials"]


class _Call(NamedTuple):
    """How a callback is called, and what it has to return."""

    arguments: tuple[Any, ...]
    returns: tuple[type, ...]
    needs: str


_CALLBACKS: Final = {
    "token": _Call((), (str,), "a str"),
    "signature_cb": _Call(("nonce",), (bytes, bytearray), "bytes"),
    "user_jwt_cb": _Call((), (bytes, bytearray), "bytes"),
}


class CallbackError(Exception):
    """A callback raised, which is the cause, or returned a value that cannot be sent."""


def check_credentials(given: Mapping[str, Any]) -> dict[str, Any]:
    """The callbacks among the options, so that they raise `CallbackError` only.

    Raises:
        ConfigError: A callback is not a plain function of the arguments that it gets, or a file cannot be read.
    """
    for name in ("user_credentials", "nkeys_seed"):
        _check_files(name, given.get(name))
    return {
        name: _guarded(name, given[name], call)
        for name, call in _CALLBACKS.items()
        if name in given and not (name == "token" and isinstance(given[name], str))
    }


def _guarded(name: str, function: Any, call: _Call) -> Callable[..., Any]:
    if not callable(function):
        also = "a str or " if name == "token" else ""
        raise ConfigError(f"{name} is {type(function).__name__}: it must be {also}a function")
    check_plain(name, function)
    _check_signature(name, function, call)

    def guarded(*arguments: Any) -> Any:
        try:
            result = function(*arguments)
        except Exception as error:
            raise CallbackError(f"{name} raised {error!r}") from error
        if not isinstance(result, call.returns):
            if inspect.iscoroutine(result):
                result.close()
            raise CallbackError(f"{name} returned {type(result).__name__}: {call.needs} is needed")
        return result

    return guarded


def _check_signature(name: str, function: Callable[..., Any], call: _Call) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # some builtins have none
    try:
        signature.bind(*call.arguments)
    except TypeError as error:
        wanted = "one argument, the nonce" if call.arguments else "no argument"
        raise ConfigError(f"{name} is called with {wanted}, and takes {signature}: {error}") from None


def _check_files(name: str, value: Any) -> None:
    """Raise `ConfigError` if a file with credentials cannot be read."""
    for path in value if isinstance(value, tuple) else (value,):
        if isinstance(path, str | os.PathLike):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise ConfigError(
                    f"{name}: the file {os.fspath(path)!r} cannot be read: {error.strerror}"
                ) from None
