"""Credentials from files and callbacks, which are checked before the client connects."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...errors import ConfigError
from ..handlers import check_plain
from .credentials_file import (
    CredentialsError,
    UserCredentials,
    check_seed,
    credentials_of,
    expired,
    is_secret,
    jwt_in,
    read_file,
)

__all__ = ["CallbackError", "FileError", "check_arguments", "check_credentials", "check_file", "expiry_of"]

_log = logging.getLogger("jsclient.connection")


class _Call(NamedTuple):
    """The arguments of a callback, and the types that it must return."""

    arguments: tuple[Any, ...]
    returns: tuple[type, ...]
    needs: str


_CALLBACKS: Final = {
    "token": _Call((), (str,), "a str"),
    "signature_cb": _Call(("nonce",), (bytes, bytearray), "bytes"),
    "user_jwt_cb": _Call((), (bytes, bytearray), "bytes"),
}


class CallbackError(Exception):
    """Raised when a callback raises its ``__cause__`` or returns an invalid value, or a file cannot be used."""


class FileError(CallbackError):
    """Raised when a credentials file cannot be used.

    `connect` does not try again, because only the user can correct the file.
    """


def check_credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the callbacks of the options and of a credentials file. These callbacks raise only `CallbackError`.

    Raises:
        ConfigError: A callback is not a plain function with the expected arguments, or a file cannot be used.
        ConnectError: The package nkeys is missing.
    """
    _check_seeds(options)
    callbacks = {
        name: _guarded(name, options[name], call)
        for name, call in _CALLBACKS.items()
        if name in options and not (name == "token" and isinstance(options[name], str))
    }
    if "user_jwt_cb" in callbacks:
        callbacks["user_jwt_cb"] = _Jwt(callbacks["user_jwt_cb"])
    # Check the file now, so that mistakes are reported before connecting. An expired JWT is only logged, because the
    # server decides by its own clock.
    if "user_credentials" not in options:
        return callbacks
    user = credentials_of(options["user_credentials"])
    user.check()
    if remark := user.expired(time.time()):
        _log.warning(
            "user_credentials: %s: connecting all the same, since the server decides by its clock", remark
        )
    return {**callbacks, **_replaced(user)}


def _replaced(user: UserCredentials) -> dict[str, Any]:
    """Return callbacks that replace the credentials file. As in nats-py, the file takes precedence over an nkey."""
    none = dict.fromkeys(("user_credentials", "nkeys_seed", "nkeys_seed_str"))
    return {**none, "signature_cb": _Signature(user), "user_jwt_cb": user.jwt}


class _Signature:
    """The ``signature_cb`` for a credentials file."""

    def __init__(self, user: UserCredentials) -> None:
        self.user = user

    def __call__(self, nonce: str) -> bytes:
        try:
            return self.user.signature(nonce)
        except CredentialsError as error:
            kind = CallbackError if self.user.is_provided else FileError
            raise kind(str(error)) from error.__cause__

    def expired(self, now: float) -> str:
        return self.user.expired(now)


class _Jwt:
    """A ``user_jwt_cb`` that checks the JWT and stores it, so that its expiry can be reported later."""

    _SHOWN = "what user_jwt_cb returned"

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._jwt = ""

    def __call__(self) -> bytes:
        try:
            self._jwt = jwt_in(bytes(self._function()).decode("utf-8", "replace"), self._SHOWN)
        except CredentialsError as error:
            raise CallbackError(str(error)) from None
        return self._jwt.encode()

    def expired(self, now: float) -> str:
        return expired(self._jwt, self._SHOWN, now)


def check_file(failures: Sequence[BaseException]) -> None:
    """Raise `ConfigError` if a credentials file could not be used in one of these attempts to connect."""
    for error in failures:
        if isinstance(error, FileError):
            raise ConfigError(str(error)) from None


def expiry_of(options: Mapping[str, Any]) -> str:
    """Return a remark on refused credentials if the JWT has expired by the local clock, otherwise ""."""
    sent = options.get("signature_cb"), options.get("user_jwt_cb")
    source = next((callback for callback in sent if isinstance(callback, _Signature | _Jwt)), None)
    remark = source.expired(time.time()) if source is not None else ""
    return f" ({remark})" if remark else ""


def _guarded(name: str, function: Any, call: _Call) -> Callable[..., Any]:
    if not callable(function):
        also = "a str or " if name == "token" else ""
        raise ConfigError(f"{name} is {type(function).__name__}: it must be {also}a function")
    check_plain(name, function)
    check_arguments(
        name, function, call.arguments, "one argument, the nonce" if call.arguments else "no argument"
    )

    def guarded(*arguments: Any) -> Any:
        try:
            result = function(*arguments)
        except Exception as error:
            raise CallbackError(f"{name} raised {error!r}") from error
        if not isinstance(result, call.returns):
            if inspect.iscoroutine(result):
                result.close()  # otherwise, Python would warn that the coroutine was never awaited
            raise CallbackError(f"{name} returned {type(result).__name__}: {call.needs} is needed")
        return result

    return guarded


def check_arguments(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], shown: str) -> None:
    """Raise `ConfigError` if an option is a function that cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # some builtins have no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{name} is called with {shown}, and takes {signature}: {error}") from None


def _check_seeds(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the seed of an nkey cannot be read or is not valid. No error shows the seed."""
    try:
        if isinstance(seed := options.get("nkeys_seed_str"), str):
            check_seed(seed.strip(), "nkeys_seed_str")
        if isinstance(path := options.get("nkeys_seed"), str | os.PathLike):
            check_seed(_seed_file(str(path)), f"nkeys_seed: the seed in the file {str(path)!r}")
    except CredentialsError as error:
        raise ConfigError(str(error)) from None


def _seed_file(name: str) -> str:
    text, problem = read_file(name)
    if problem and is_secret(name):
        raise ConfigError(
            "nkeys_seed is a seed, not shown here, where the path of a file is needed: use nkeys_seed_str"
        )
    if problem:
        raise ConfigError(f"nkeys_seed: the file {name!r} cannot be read: {problem}")
    return text.strip()
