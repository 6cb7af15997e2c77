"""Conversion between JSON and models, for all payloads of the JetStream API.

A model is a frozen record whose field names are the wire's. Its fields are None unless set. Fields of the
server that this version does not know are stored in ``extra`` and sent back with the next update, so that a
read-modify-write loses no field.

- A model created by a user, ``StreamConfig(...)``, checks every value and raises ``ConfigError``.
- A model created from an answer, ``from_wire``, raises only ``ProtocolError``, whatever the answer contains.

The annotation of a field decides its conversion. ``Seconds`` is a float in Python and integer nanoseconds on the wire,
``Time`` is a ``datetime`` and RFC 3339 text, ``SettableTime`` is either and is not converted. An enum accepts a word of
the server that this version does not know. ``msgspec.convert`` cannot do this: it drops unknown fields inside a model,
accepts neither ``StrEnum | str`` nor ``datetime | str``, and calls no hook for a float. Source: ADR-1, ADR-7.
"""

from __future__ import annotations

import copy
import math
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec.structs import force_setattr

from ...errors import ConfigError, ProtocolError
from .checks import Named, check_fields, no_such_name
from .units import GO_ZERO_TIME, format_time, ns_to_seconds, parse_time, parse_time_ns, seconds_to_ns

__all__ = [
    "Model",
    "Seconds",
    "SettableTime",
    "Time",
    "WireStruct",
    "decode",
    "encode",
    "from_wire",
    "made",
    "to_wire",
]

Seconds: TypeAlias = Annotated[float, "seconds"]
"""A duration: seconds in Python, nanoseconds on the wire. A user may also pass a ``timedelta``."""

Time: TypeAlias = Annotated[datetime, "time"]
"""A time from the server: aware, UTC, microseconds. Go's zero time, which means *not set*, is read as None."""

SettableTime: TypeAlias = Annotated[datetime | str, "settable time"]
"""A time that a user sets: an aware ``datetime`` or RFC 3339 text. A value from the server is always text."""


# --- models ----------------------------------------------------------------------------------------------


class WireStruct(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Base class of structs that are sent as JSON objects. Unlike a `Model`, a plain struct doesn't check its values.

    Attributes:
        extra: Fields that this version of jsclient doesn't know, as they appear in the JSON object.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {}
    """Fields that ``to_wire`` sends even if they are None, with the value sent."""

    required: ClassVar[frozenset[str]] = frozenset()
    """Fields that an answer must have."""

    envelope: ClassVar[frozenset[str]] = frozenset()
    """Fields of the answer that do not belong to the model. ``from_wire`` skips them."""

    extra: dict[str, Any] = {}

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed values. None unsets a field.

        Only the new values are checked, so values that only a newer server knows remain valid.

        Raises:
            ConfigError: A field doesn't accept its new value.
            TypeError: A field doesn't exist.
        """
        cls = type(self)
        model = copy.copy(self)
        force_setattr(model, "extra", dict(self.extra))
        for name, value in changes.items():
            if name == "extra":
                checked: Any = _checked_extra(cls, value)
            elif name not in _kinds(cls):
                raise TypeError(no_such_name(cls.__name__, "field", name, _kinds(cls)))
            else:
                checked = getattr(_blank(cls), name) if value is None else _checked_value(cls, name, value)
            force_setattr(model, name, checked)
        return model

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (type(self), {name: getattr(self, name) for name in self.__struct_fields__}))


class Model(WireStruct, frozen=True, kw_only=True, metaclass=Named):
    """Base class of structs that applications create, such as `StreamConfig`. Every value is checked."""

    def __post_init__(self) -> None:
        cls = type(self)
        for name in _kinds(cls):
            value = getattr(self, name)
            if value is not None:
                force_setattr(self, name, _checked_value(cls, name, value))
        force_setattr(self, "extra", _checked_extra(cls, self.extra))


ModelT = TypeVar("ModelT", bound=WireStruct)


def made(cls: type[ModelT], **fields: Any) -> ModelT:
    """Create a model with these fields. Raises ``TypeError`` for a field that it does not have."""
    check_fields(cls, fields)
    return cls(**fields)


def to_wire(model: WireStruct) -> dict[str, Any]:
    """Return the JSON object of ``model``, without fields that are None, and with the fields of ``extra``."""
    fields: dict[str, Any] = {}
    for name, kind in _kinds(type(model)).items():
        value = getattr(model, name)
        if value is None:
            value = model.always_sent.get(name)
        if value is not None:
            fields[name] = kind.write(value)
    return {**model.extra, **fields}


def from_wire(cls: type[ModelT], data: Mapping[str, Any]) -> ModelT:
    """Create a model from a decoded JSON object. A null leaves the field unset. Unknown fields go to ``extra``.

    Raises:
        ProtocolError: A field has the wrong type, or a required field is missing. The text names the field, for
            example ``ConsumerInfo.config.ack_wait``.
    """
    try:
        return _read(cls, data)
    except _WrongValueError as exc:
        raise ProtocolError(f"{cls.__name__}{exc.path}: {exc.reason}") from None


def _read(cls: type[ModelT], data: Any) -> ModelT:
    """Like ``from_wire``, but raise _WrongValueError, so that the outermost caller can name the whole path."""
    if not isinstance(data, Mapping):
        raise _WrongValueError(f"an object is needed, not {type(data).__name__}")
    kinds = _kinds(cls)
    # Bypass the constructor, which would check the values and refuse words that it doesn't know.
    model: ModelT = copy.copy(_blank(cls))
    extra: dict[str, Any] = {}
    for name, value in data.items():
        if kind := kinds.get(name):
            # Convert plain values without a call. Most values are plain, and a stream info has 60 of them.
            same = kind.same if type(value) is kind.same else None
            if same is str and value.isascii():
                force_setattr(model, name, kind.words.get(value, value))
            elif same is bool or (same is int and value.bit_length() < 64):
                force_setattr(model, name, value)
            elif value is not None:
                try:
                    force_setattr(model, name, kind.read(value))
                except _WrongValueError as exc:
                    raise _WrongValueError(exc.reason, f".{name}{exc.path}") from None
        elif not isinstance(name, str):
            raise _WrongValueError("the keys of an object must be str")
        elif name not in cls.envelope:
            extra[name] = value
    for name in cls.required:
        if data.get(name) is None:
            raise _WrongValueError("it is missing", f".{name}")
    force_setattr(model, "extra", extra)
    return model


@cache
def _blank(cls: type[Any]) -> Any:
    """Return an empty model to be copied. All its fields except ``extra`` are immutable."""
    return cls()


def _restored(cls: type[ModelT], values: dict[str, Any]) -> ModelT:
    """Create a model from a pickle, without a check, because it may contain words that only the server knows."""
    model: ModelT = copy.copy(_blank(cls))
    for name, value in values.items():
        force_setattr(model, name, value)
    return model


def _checked_value(cls: type[WireStruct], name: str, value: Any) -> Any:
    try:
        return _kinds(cls)[name].take(value)
    except _WrongValueError as exc:
        raise ConfigError(f"{cls.__name__}.{name}{exc.path}: {exc.reason}") from None


def _checked_extra(cls: type[WireStruct], extra: Any) -> dict[str, Any]:
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise ConfigError(f"{cls.__name__}.extra: a dict with str keys is needed")
    if known := sorted(_kinds(cls).keys() & extra.keys()):
        raise ConfigError(f"{cls.__name__}.extra: {', '.join(known)} is a declared field; pass it by name")
    return dict(extra)


# --- fields ----------------------------------------------------------------------------------------------

_Convert: TypeAlias = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


class _Kind(NamedTuple):
    """The conversions of a field. ``take`` and ``read`` raise only _WrongValueError."""

    read: _Convert = _same  # converts a value from the wire, which is never None
    take: _Convert = _same  # converts a value from a user
    write: _Convert = _same  # converts a value for the wire
    same: type[Any] | None = None  # bool, a 63-bit int or an ASCII str, which ``read`` returns unchanged
    words: Mapping[str, Any] = {}  # the members of an enum, which ``read`` returns instead of their words


class _WrongValueError(Exception):
    """Raised for a value that a field does not accept. ``path`` leads to it in the value, for example ``[2].name``."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path


def _unlike(expected: str, value: object) -> _WrongValueError:
    return _WrongValueError(f"{expected} is needed, not {type(value).__name__}")


def _bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _unlike("true or false", value)
    return value


def _int(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unlike("an integer", value)
    if not -(2**63) <= value < 2**64:
        raise _WrongValueError("the number does not fit into 64 bits")
    return value


def _user_int(value: Any) -> Any:
    """Accept an integer, including numpy's, or a float without a fraction."""
    if isinstance(value, float) and value.is_integer():
        return _int(int(value))
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return _int(operator.index(value))
    raise _unlike("an integer", value)


def _str(value: Any) -> Any:
    if not isinstance(value, str):
        raise _unlike("a str", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _WrongValueError("the str contains a lone surrogate, which UTF-8 cannot encode") from None
    return value


def _checked(check: _Convert, value: Any) -> Any:
    """Return ``check(value)``, a function of ``units``, and convert its error to _WrongValueError."""
    try:
        return check(value)
    except (ConfigError, ProtocolError) as exc:
        raise _WrongValueError(str(exc).removeprefix("value: ")) from None


def _ns(value: Any) -> int:
    return seconds_to_ns(value, what="value", minimum=None)


def _seconds(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise _unlike("whole nanoseconds", value)
    return ns_to_seconds(value)


def _user_seconds(value: Any) -> Any:
    _checked(_ns, value)
    return value / timedelta(seconds=1) if isinstance(value, timedelta) else float(value)


def _time(value: Any) -> Any:
    try:
        moment = parse_time(value)
    except ProtocolError as exc:
        raise _WrongValueError(str(exc)) from None
    return None if moment == GO_ZERO_TIME else moment


def _user_time(value: Any) -> Any:
    text = _checked(format_time, value)
    return parse_time(text) if isinstance(value, str) else value.astimezone(UTC)


def _settable(check: _Convert, value: Any) -> Any:
    """Return the value unchanged if ``check`` accepts it, so that the server gets its text back with nanoseconds."""
    _checked(check, value)
    return value


_SIMPLE: dict[Any, _Kind] = {
    Any: _Kind(),
    bool: _Kind(_bool, _bool, same=bool),
    int: _Kind(_int, _user_int, same=int),
    str: _Kind(_str, _str, same=str),
    Seconds: _Kind(_seconds, _user_seconds, _ns),
    Time: _Kind(_time, _user_time, format_time),
    SettableTime: _Kind(partial(_settable, parse_time_ns), partial(_settable, format_time), format_time),
}


@cache
def _kinds(cls: type[WireStruct]) -> dict[str, _Kind]:
    """Return the kind of each field except ``extra``, cached per class."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: _kind(hints[name]) for name in cls.__struct_fields__ if name != "extra"}


def _kind(annotation: Any) -> _Kind:
    """Return the kind of a field by its annotation.

    Raises:
        TypeError: No kind exists for the annotation, which is a mistake in the model, not in the data.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if kind := _SIMPLE.get(annotation):
        return kind
    if origin in (Union, types.UnionType):
        # For ``StrEnum | str``, use the enum, because its conversion keeps words that only a newer server knows.
        choices = [choice for choice in arguments if choice is not type(None)]
        enums = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, StrEnum)]
        return _kind((enums or choices)[0])
    if origin is list:
        return _list_of(_kind(arguments[0]))
    if origin is dict:
        return _map_of(_kind(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return _word_of(annotation)
    if isinstance(annotation, type) and issubclass(annotation, WireStruct):
        return _nested(annotation)
    raise TypeError(f"no kind for a field of type {annotation!r}")


def _word_of(enum: type[StrEnum]) -> _Kind:
    """Return the kind of an enum. From the wire, a word that this version does not know stays a str."""
    words = {str(member): member for member in enum}

    def take(value: Any) -> Any:
        try:
            return enum(value)
        except ValueError:
            allowed = ", ".join(map(repr, words))
            raise _WrongValueError(f"{value!r:.60} is none of {allowed}") from None

    return _Kind(lambda value: words.get(_str(value), value), take, str, same=str, words=words)


def _nested(cls: type[WireStruct]) -> _Kind:
    """Return the kind of a model inside a model. A user may also pass a dict of its fields."""

    def take(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise _unlike(f"a {cls.__name__}", value)
        try:
            return cls(**value)
        except (ConfigError, TypeError) as exc:
            raise _WrongValueError(str(exc).removeprefix("value: ")) from None

    return _Kind(partial(_read, cls), take, to_wire)


def _item(convert: _Convert, key: Any, value: Any) -> Any:
    try:
        return convert(value)
    except _WrongValueError as exc:
        raise _WrongValueError(exc.reason, f"[{key!r:.60}]{exc.path}") from None


def _are_ascii(values: Iterable[Any]) -> bool:
    """Return whether all values are ASCII strings, which need no conversion."""
    return {*map(type, values)} <= {str} and "".join(values).isascii()


def _list_of(kind: _Kind) -> _Kind:
    def converted(convert: _Convert, allowed: tuple[type[Any], ...], value: Any) -> Any:
        if not isinstance(value, allowed):
            raise _unlike("a list", value)
        if convert is _str and _are_ascii(value):
            return [*value]
        return [_item(convert, position, item) for position, item in enumerate(value)]

    return _Kind(
        partial(converted, kind.read, (list,)),
        partial(converted, kind.take, (list, tuple)),
        lambda value: [kind.write(item) for item in value],
    )


def _map_of(kind: _Kind) -> _Kind:
    def converted(convert: _Convert, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _unlike("a map", value)
        if convert is _str and _are_ascii(value) and _are_ascii(value.values()):
            return {**value}
        return {_str(name): _item(convert, name, item) for name, item in value.items()}

    return _Kind(
        partial(converted, kind.read),
        partial(converted, kind.take),
        lambda value: {name: kind.write(item) for name, item in value.items()},
    )


# --- JSON ------------------------------------------------------------------------------------------------


def encode(obj: WireStruct | Mapping[str, Any]) -> bytes:
    """Encode a model, or a dict that may contain models at any depth, as JSON.

    Raises:
        ConfigError: A value cannot be sent as JSON: bytes, times, NaN, lone surrogates, endless nesting.
    """
    try:
        return msgspec.json.encode(_plain(obj))
    except RecursionError:
        raise ConfigError("nested too deeply to be sent as JSON") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as exc:  # UnicodeEncodeError is a ValueError
        raise ConfigError(f"cannot be sent as JSON: {exc}") from None


def decode(data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``.

    Raises:
        ProtocolError: The data is not JSON, not an object, or nested too deeply.
    """
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise ProtocolError("the answer is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as exc:  # UnicodeDecodeError is a ValueError
        raise ProtocolError(f"the answer is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"the answer is not a JSON object but {type(value).__name__}")
    return value


_PLAIN: Final = {str, int, bool, type(None)}  # the types whose values are sent as they are


def _plain(obj: Any) -> Any:
    """Return ``obj`` with its models as dicts. Refuse values without a JSON form."""
    if isinstance(obj, WireStruct):
        return _plain(to_wire(obj))
    if isinstance(obj, Mapping):
        if not all(isinstance(name, str) for name in obj):
            raise ConfigError("cannot be sent as JSON: a key is not a str")
        return {str(name): value if type(value) in _PLAIN else _plain(value) for name, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [value if type(value) in _PLAIN else _plain(value) for value in obj]
    if isinstance(obj, str):
        return str(obj)  # turns a StrEnum into a plain str
    if obj is None or isinstance(obj, bool | int):
        return obj
    if isinstance(obj, float) and math.isfinite(obj):
        return obj
    raise ConfigError(f"cannot be sent as JSON: {obj!r:.60} of type {type(obj).__name__}")
