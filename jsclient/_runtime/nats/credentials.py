"""Credentials from files and callbacks: checked before connecting, and the error of a callback that fails."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ...errors import ConfigError
from ..handlers import check_plain
from .credentials_file import CredentialsError, UserCredentials, credentials_of, is_secret, read_file

__all__ = ["CallbackError", "check_credentials", "expiry_of"]


_log = logging.getLogger("jsclient.connection")


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
    """A callback raised, which is the cause, or returned a value that cannot be sent; or a file cannot be used."""


def check_credentials(given: Mapping[str, Any]) -> dict[str, Any]:
    """The callbacks among the options, so that they raise `CallbackError` only, and those for ``user_credentials``.

    Raises:
        ConfigError: A callback is not a plain function of the arguments that it gets, or a file cannot be used.
        ConnectError: The package nkeys is missing.
    """
    _check_seed_file(given.get("nkeys_seed"))
    callbacks = {
        name: _guarded(name, given[name], call)
        for name, call in _CALLBACKS.items()
        if name in given and not (name == "token" and isinstance(given[name], str))
    }
    if "user_credentials" not in given:
        return callbacks
    user = credentials_of(given["user_credentials"])
    user.check()
    if expired := user.expired(time.time()):
        _log.warning(
            "user_credentials: %s: connecting all the same, since the server decides by its clock", expired
        )
    return {**callbacks, **_replaced(user)}


def _replaced(user: UserCredentials) -> dict[str, Any]:
    """Callbacks instead of the file: nats-py reads one without a JWT for ever. As there, it wins over an nkey."""

    none = dict.fromkeys(("user_credentials", "nkeys_seed", "nkeys_seed_str"))
    return {**none, "signature_cb": _Signature(user), "user_jwt_cb": user.jwt}


class _Signature:
    """``signature_cb`` of a credentials file."""

    def __init__(self, user: UserCredentials) -> None:
        self.user = user

    def __call__(self, nonce: str) -> bytes:
        try:
            return self.user.signature(nonce)
        except CredentialsError as error:
            raise CallbackError(str(error)) from None


def expiry_of(options: Mapping[str, Any]) -> str:
    """A remark on credentials that a server refused: "" unless the JWT that was sent to it has expired by our clock."""
    signature = options.get("signature_cb")
    expired = signature.user.expired(time.time()) if isinstance(signature, _Signature) else ""
    return f" ({expired})" if expired else ""


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


def _check_seed_file(path: Any) -> None:
    """Raise `ConfigError` if the file with the seed of an nkey cannot be read."""
    if not isinstance(path, str | os.PathLike):
        return
    name = str(path)
    if not (problem := read_file(name)[1]):
        return
    if is_secret(name):
        raise ConfigError(
            "nkeys_seed is a seed, not shown here, where the path of a file is needed: use nkeys_seed_str"
        )
    raise ConfigError(f"nkeys_seed: the file {name!r} cannot be read: {problem}")
