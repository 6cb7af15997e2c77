"""Functions that provide credentials. An option names a function, which is called at each attempt to connect."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from typing import Any

from .._runtime.connection.credentials_file import provided_credentials
from ..errors import ConfigError

__all__ = ["provided"]

_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)


def provided(token: str | None, credentials: str | None) -> dict[str, Any]:
    """Return the arguments of `jsclient.connect` for the options ``tokenProvider`` and ``credentialsProvider``.

    Raises `ConfigError` if a function cannot be imported on this machine.
    """
    if token is not None:
        return {"token": _function("tokenProvider", token)}
    if credentials is None:
        return {}
    function = _function("credentialsProvider", credentials)
    return {
        "user_credentials": provided_credentials(function, "credentialsProvider", credentials),
    }


def _function(option: str, name: str) -> Callable[[], str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"option {option!r} is {name!r}: package.module:function is needed")
    try:
        function = getattr(importlib.import_module(match[1]), match[2])
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"option {option!r} is {name!r}, on {os.uname().nodename}: {error}") from None
    if not callable(function):
        raise ConfigError(f"option {option!r} is {name!r}: that is {type(function).__name__}, not a function")
    provider: Callable[[], str] = function
    return provider
