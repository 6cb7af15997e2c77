"""Functions that provide credentials: an option names one, and it is called at each attempt to connect."""

from __future__ import annotations

import base64
import importlib
import os
import re
from collections.abc import Callable
from typing import Any

from ...errors import ConfigError

__all__ = ["provided"]

_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)
_PARTS = re.compile(r"-+BEGIN [A-Z ]+-+\s+(\S+)\s+-+END [A-Z ]+-+")


def provided(token: str | None, credentials: str | None) -> dict[str, Any]:
    """The arguments of `jsclient.connect` for the options ``tokenProvider`` and ``credentialsProvider``.

    Raises `ConfigError` if a function cannot be imported on this machine.
    """
    if token is not None:
        return {"token": _function("tokenProvider", token)}
    if credentials is None:
        return {}
    parts = _Parts(_function("credentialsProvider", credentials))
    return {"user_jwt_cb": parts.jwt, "signature_cb": parts.signature}


def _function(option: str, name: str) -> Callable[[], str]:
    named = _NAME.fullmatch(name)
    if named is None:
        raise ConfigError(f"option {option!r} is {name!r}: package.module:function is needed")
    try:
        function = getattr(importlib.import_module(named[1]), named[2])
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"option {option!r} is {name!r}, on {os.uname().nodename}: {error}") from None
    if not callable(function):
        raise ConfigError(f"option {option!r} is {name!r}: that is {type(function).__name__}, not a function")
    found: Callable[[], str] = function
    return found


class _Parts:
    """The JWT and the signature of one attempt: from one text, so that they belong together."""

    def __init__(self, function: Callable[[], str]) -> None:
        self._function = function
        self._jwt, self._seed = "", ""

    def signature(self, nonce: str) -> bytes:
        """Asked for first."""
        import nkeys

        found = _PARTS.findall(text) if isinstance(text := self._function(), str) else []
        if len(found) != 2:
            raise ValueError("the text of a credentials file is needed, with a JWT and a seed")
        self._jwt, self._seed = found
        return base64.b64encode(nkeys.from_seed(bytearray(self._seed.encode())).sign(nonce.encode()))

    def jwt(self) -> bytes:
        return self._jwt.encode()
