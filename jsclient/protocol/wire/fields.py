"""Conversion of a model's fields between values of the user, values of the server, and JSON.

A model declares its fields by annotation, and ``kind_of`` returns the kind for an annotation: ``Seconds`` is a float
in Python and integer nanoseconds on the wire, ``Time`` is a ``datetime`` in Python and RFC 3339 text on the wire,
``SettableTime`` is either and is kept as given, an enum falls back to the server's word if this version does not know
it. Every kind raises ``WrongValueError`` and nothing else. Source: ADR-1 (data
types).
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from ...errors import ConfigError, ProtocolError
from .units import GO_ZERO_TIME, format_time, ns_to_seconds, parse_time, parse_time_ns, seconds_to_ns

__all__ = ["Kind", "Seconds", "SettableTime", "Time", "WrongValueError", "kind_of"]

Seconds: TypeAlias = Annotated[float, "seconds"]
"""A duration: seconds here, nanoseconds on the wire. A user may also give a ``timedelta``."""

Time: TypeAlias = Annotated[datetime, "time"]
"""A time from the server: aware, UTC, microseconds. Go's zero time, *not set*, reads as None."""

SettableTime: TypeAlias = Annotated[datetime | str, "settable time"]
"""A time that a user sets: an aware ``datetime`` or RFC 3339 text; from the server always its text."""


class WrongValueError(Exception):
    """A value that a field does not accept.

    Attributes:
        path: The place inside the value, for example ``[2].name``; empty for the value itself.
        reason: What is wrong with it.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path


class Kind:
    """The base of all kinds, and the kind of a field that may hold anything."""

    def take(self, value: Any) -> Any:
        """Convert a value given by the user for storage in the model."""
        return self.read(value)

    def read(self, value: Any) -> Any:
        """Convert a value from the wire for storage in the model; never called with None."""
        return value

    def write(self, value: Any) -> Any:
        """Convert a stored value for the wire."""
        return value


class Flag(Kind):
    """A bool."""

    def read(self, value: Any) -> Any:
        if not isinstance(value, bool):
            raise _unlike("true or false", value)
        return value


class Whole(Kind):
    """An integer of 64 bits, signed or unsigned. The user may pass a float without fraction, but no bool."""

    def take(self, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return self.read(int(value))
        if not isinstance(value, bool) and hasattr(value, "__index__"):
            return self.read(operator.index(value))
        raise _unlike("an integer", value)

    def read(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _unlike("an integer", value)
        if not -(2**63) <= value < 2**64:
            raise WrongValueError("the number does not fit into 64 bits")
        return value


class Text(Kind):
    """A str that can be encoded as UTF-8."""

    def read(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise _unlike("a str", value)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WrongValueError("the str contains a lone surrogate, which UTF-8 cannot encode") from None
        return value


class Duration(Kind):
    """Seconds in Python, integer nanoseconds on the wire."""

    def take(self, value: Any) -> Any:
        try:
            seconds_to_ns(value, what="value", minimum=None)
        except ConfigError as exc:
            raise WrongValueError(str(exc)) from None
        return value / timedelta(seconds=1) if isinstance(value, timedelta) else float(value)

    def read(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
            raise _unlike("whole nanoseconds", value)
        return ns_to_seconds(value)

    def write(self, value: Any) -> Any:
        return seconds_to_ns(value, minimum=None)


class Moment(Kind):
    """A time that only the server sets."""

    def take(self, value: Any) -> Any:
        text = _formatted(value)
        return parse_time(text) if isinstance(value, str) else value.astimezone(UTC)

    def read(self, value: Any) -> Any:
        try:
            moment = parse_time(value)
        except ProtocolError as exc:
            raise WrongValueError(str(exc)) from None
        return None if moment == GO_ZERO_TIME else moment

    def write(self, value: Any) -> Any:
        return format_time(value)


class GivenMoment(Kind):
    """A time that a user sets: stored as given, so that the server's goes back to it to the nanosecond."""

    def take(self, value: Any) -> Any:
        _formatted(value)
        return value

    def read(self, value: Any) -> Any:
        try:
            parse_time_ns(value)
        except ProtocolError as exc:
            raise WrongValueError(str(exc)) from None
        return value

    def write(self, value: Any) -> Any:
        return format_time(value)


class Word(Kind):
    """A value of an enum. The server may know words that this version does not; they are kept as text."""

    def __init__(self, enum: type[StrEnum]) -> None:
        self.enum = enum

    def take(self, value: Any) -> Any:
        try:
            return self.enum(value)
        except ValueError:
            allowed = ", ".join(repr(str(member)) for member in self.enum)
            raise WrongValueError(f"{value!r:.60} is none of {allowed}") from None

    def read(self, value: Any) -> Any:
        text = Text().read(value)
        return self.enum(text) if text in self.enum.__members__.values() else text

    def write(self, value: Any) -> Any:
        return str(value)


class ListOf(Kind):
    """A list of values of one kind."""

    def __init__(self, item: Kind) -> None:
        self.item = item

    def take(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _unlike("a list", value)
        return self._each(self.item.take, value)

    def read(self, value: Any) -> Any:
        if not isinstance(value, list):
            raise _unlike("a list", value)
        return self._each(self.item.read, value)

    def write(self, value: Any) -> Any:
        return [self.item.write(item) for item in value]

    def _each(self, convert: Callable[[Any], Any], value: Any) -> list[Any]:
        found = []
        for position, item in enumerate(value):
            try:
                found.append(convert(item))
            except WrongValueError as exc:
                raise WrongValueError(exc.reason, f"[{position}]{exc.path}") from None
        return found


class MapOf(Kind):
    """A map of text to values of one kind."""

    def __init__(self, item: Kind) -> None:
        self.item = item

    def take(self, value: Any) -> Any:
        return self._each(self.item.take, value)

    def read(self, value: Any) -> Any:
        return self._each(self.item.read, value)

    def write(self, value: Any) -> Any:
        return {name: self.item.write(item) for name, item in value.items()}

    def _each(self, convert: Callable[[Any], Any], value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _unlike("a map", value)
        found = {}
        for name, item in value.items():
            key = Text().read(name)
            try:
                found[key] = convert(item)
            except WrongValueError as exc:
                raise WrongValueError(exc.reason, f"[{key!r:.60}]{exc.path}") from None
        return found


def kind_of(annotation: Any, nested: Callable[[type], Kind | None]) -> Kind:
    """The kind of a field by its annotation; ``nested`` gives that of a model class.

    Raises:
        TypeError: No kind fits: a mistake in the model, not in the data.
    """
    if get_origin(annotation) in (Union, types.UnionType):
        choices = [choice for choice in get_args(annotation) if choice is not type(None)]
        enums = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, StrEnum)]
        return kind_of((enums or choices)[0], nested)
    if get_origin(annotation) is list:
        return ListOf(kind_of(get_args(annotation)[0], nested))
    if get_origin(annotation) is dict:
        return MapOf(kind_of(get_args(annotation)[1], nested))
    simple = {bool: Flag(), int: Whole(), str: Text(), Any: Kind()}
    special = {Seconds: Duration(), Time: Moment(), SettableTime: GivenMoment()}
    if kind := special.get(annotation) or simple.get(annotation):
        return kind
    if isinstance(annotation, type):
        if issubclass(annotation, StrEnum):
            return Word(annotation)
        if kind := nested(annotation):
            return kind
    raise TypeError(f"no kind for a field of type {annotation!r}")


def _formatted(value: Any) -> str:
    try:
        return format_time(value)
    except ConfigError as exc:
        raise WrongValueError(str(exc)) from None


def _unlike(wanted: str, value: object) -> WrongValueError:
    return WrongValueError(f"{wanted} is needed, not {type(value).__name__}")
