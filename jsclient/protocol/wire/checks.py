"""Checks of arguments: names of fields, numbers, and features that the server must support.

The errors contain the name and the value of the argument.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from ...errors import ConfigError
from .nats_py import argument_hint

__all__ = [
    "Named",
    "NoOptions",
    "check_arguments",
    "check_count",
    "check_fields",
    "check_seconds",
    "check_server",
    "deadline_of",
    "is_at_least",
    "no_such_name",
]

_VAR = Parameter.VAR_KEYWORD


def no_such_name(owner: str, kind: str, name: str, known: Iterable[str]) -> str:
    """Return the error text for a name that does not exist, with the name that was probably meant."""
    from difflib import get_close_matches

    known = sorted(known)
    near = get_close_matches(name, known, 1) or [word for word in known if word in name or name in word]
    if name not in known and (hint := argument_hint(owner, name)):
        return f"{owner} has no {kind} {name!r}, as nats-py has; {hint}"
    if near:
        return f"{owner} has no {kind} {name!r}; did you mean {near[0]!r}?"
    return f"{owner} has no {kind} {name!r}; it has {', '.join(known)}"


def check_arguments(method: Callable[..., Any], names: Iterable[str], more: type) -> None:
    """Raise ``TypeError`` for an argument that is not a key of ``more``, the type of the method's ``**more``."""
    for name in names:
        if name not in more.__annotations__:
            own = [
                parameter.name
                for parameter in signature(method).parameters.values()
                if parameter.kind != _VAR
            ]
            known = {*own, *more.__annotations__} - {"self"}
            raise TypeError(no_such_name(f"{method.__name__}()", "argument", name, known))


class NoOptions(TypedDict):
    """The type of ``**more`` in a function without further arguments.

    `check_arguments` raises the error for any argument.
    """


def check_fields(cls: type[msgspec.Struct], fields: Iterable[str]) -> None:
    """Raise ``TypeError`` for a field that the struct does not have, with the field that was probably meant."""
    for name in fields:
        if name not in cls.__struct_fields__:
            raise TypeError(no_such_name(cls.__name__, "field", name, cls.__struct_fields__)) from None


if TYPE_CHECKING:
    Named = type
else:
    try:

        class Named(type(msgspec.Struct)):
            """The type of structs whose error for an unknown field names the field that was probably meant."""

            def __call__(cls, *args: Any, **fields: Any) -> Any:
                try:
                    return super().__call__(*args, **fields)
                except TypeError:
                    check_fields(cls, fields)
                    raise

    except TypeError:
        # Some releases of msgspec don't allow subclassing its metaclass. With these, an unknown field raises msgspec's
        # own error, which doesn't name the field that was probably meant.
        Named = type(msgspec.Struct)


def check_count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return ``value`` if it is an integer from ``least`` to ``most``. A bool is refused. Raises `ConfigError`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < least
        or (most is not None and value > most)
    ):
        bounds = f">= {least}" if most is None else f"from {least} to {most:,}"
        raise ConfigError(f"{name} is {value!r:.60}: it must be an integer {bounds}")
    return value


def check_seconds(name: str, value: object) -> float:
    """Return ``value`` if it is a finite number of seconds over 0. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r:.60}: a number of seconds is needed")
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value!r:.60} s: it must be over 0")
    return value


def deadline_of(timeout: Any, now: float) -> float | None:
    """Return when a timeout ends, or None if there is none. Raises `ConfigError` if it is not a number of seconds."""
    if timeout is None:
        return None
    # Refuse NaN too, because the event loop can't wait for it.
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise ConfigError(f"timeout is {timeout!r:.40}: a number of seconds or None is needed")
    return now + timeout


_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})")


@lru_cache(maxsize=64)
def is_at_least(version: str, minimum: tuple[int, int]) -> bool:
    """Return whether a server of this version is ``minimum`` or later. Return True if the version can't be parsed."""
    match = _VERSION.match(version)
    return not match or (int(match[1]), int(match[2])) >= minimum


def check_server(version: str, minimum: tuple[int, int], what: str) -> None:
    """Raise an error for a feature that the connected server would ignore.

    Args:
        version: The version that the server has sent. If it cannot be parsed, no feature is refused.
        minimum: The first version with the feature, major and minor.
        what: The name of the feature.

    Raises:
        ConfigError: The server is older.
    """
    if not is_at_least(version, minimum):
        raise ConfigError(
            f"{what} needs nats-server {minimum[0]}.{minimum[1]}; the server is {version} and would ignore it"
        )
