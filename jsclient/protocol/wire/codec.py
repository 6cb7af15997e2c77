"""Conversion between JSON and models, for all payloads of the JetStream API.

A model is a frozen record whose field names are the wire's. Its fields are None unless set. Fields of the
server that this version does not know are kept in ``extra`` and sent back with the next update, so a
read-modify-write loses nothing.

- Made by a user, ``StreamConfig(...)``, a model checks every value: ``ConfigError``.
- Made from an answer, ``from_wire``, it raises ``ProtocolError`` and nothing else, whatever the answer holds.

Units (seconds and nanoseconds, times) are those of ``units`` and can be imported from here. Source: ADR-1,
ADR-7.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

import msgspec
from msgspec.structs import force_setattr

from ...errors import ConfigError, ProtocolError
from .fields import Kind, Seconds, SettableTime, Time, WrongValueError, kind_of
from .units import format_time, ns_to_seconds, parse_time, parse_time_ns, seconds_to_ns

__all__ = [
    "Model",
    "Seconds",
    "SettableTime",
    "Time",
    "WireStruct",
    "decode",
    "encode",
    "format_time",
    "from_wire",
    "ns_to_seconds",
    "parse_time",
    "parse_time_ns",
    "seconds_to_ns",
    "to_wire",
]


class WireStruct(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The base of all structs that are sent as JSON objects. It does not check its values; `Model` does.

    Which fields are durations or times is declared by their annotation, ``Seconds``, ``Time`` or
    ``SettableTime``.

    Attributes:
        extra: Fields that this version does not know, as on the wire.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {}
    """Fields that ``to_wire`` sends even if they are None, with the value sent."""

    required: ClassVar[frozenset[str]] = frozenset()
    """Fields that an answer must have."""

    envelope: ClassVar[frozenset[str]] = frozenset()
    """Fields of the answer around the model, not of the model: ``from_wire`` skips them."""

    extra: dict[str, Any] = {}

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, None for unset.

        Only these are checked, so unknown words of the server survive.

        Raises:
            ConfigError: The field does not accept the value.
            TypeError: No such field.
        """
        model = copy.copy(self)
        force_setattr(model, "extra", dict(self.extra))
        kinds = _kinds(type(self))
        for name, value in changes.items():
            if name == "extra":
                force_setattr(model, name, _taken_extra(type(self), value))
            elif name not in kinds:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            else:
                unset = getattr(_blank(type(self)), name)
                force_setattr(
                    model, name, unset if value is None else _taken(type(self), name, kinds[name], value)
                )
        return model

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (type(self), {name: getattr(self, name) for name in self.__struct_fields__}))


class Model(WireStruct, frozen=True, kw_only=True):
    """A struct that users may create: every value is checked."""

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                force_setattr(self, name, _taken(type(self), name, kind, value))
        force_setattr(self, "extra", _taken_extra(type(self), self.extra))


ModelT = TypeVar("ModelT", bound=WireStruct)


class Nested(Kind):
    """A model inside a model. A dict of its fields is accepted too."""

    def __init__(self, cls: type[WireStruct]) -> None:
        self.cls = cls

    def take(self, value: Any) -> Any:
        if isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            raise WrongValueError(f"a {self.cls.__name__} is needed, not {type(value).__name__}")
        try:
            return self.cls(**value)
        except (ConfigError, TypeError) as exc:
            raise WrongValueError(str(exc)) from None

    def read(self, value: Any) -> Any:
        return _read(self.cls, value)

    def write(self, value: Any) -> Any:
        return to_wire(value)


def to_wire(model: WireStruct) -> dict[str, Any]:
    """The JSON object of ``model``: fields that are None are left out, ``extra`` is merged in."""
    found: dict[str, Any] = {}
    for name, kind in _kinds(type(model)).items():
        value = getattr(model, name)
        if value is None:
            value = model.always_sent.get(name)
        if value is not None:
            found[name] = kind.write(value)
    return {**model.extra, **found}


def from_wire(cls: type[ModelT], data: Mapping[str, Any]) -> ModelT:
    """The model in a decoded JSON object. A null means that the field is not set; unknown fields go to ``extra``.

    Raises:
        ProtocolError: A field has the wrong type, or a required one is missing; the text names it, for example
            ``ConsumerInfo.config.ack_wait``.
    """
    try:
        return _read(cls, data)
    except WrongValueError as exc:
        raise ProtocolError(f"{cls.__name__}{exc.path}: {exc.reason}") from None


def encode(obj: WireStruct | Mapping[str, Any]) -> bytes:
    """The JSON text of a model, or of a dict in which models may be, at any depth.

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
    """The JSON object in ``data``.

    Raises:
        ProtocolError: It is not JSON, not an object, or nested too deeply.
    """
    try:
        found = msgspec.json.decode(data)
    except RecursionError:
        raise ProtocolError("the answer is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as exc:  # as is UnicodeDecodeError
        raise ProtocolError(f"the answer is not JSON: {exc}") from None
    if not isinstance(found, dict):
        raise ProtocolError(f"the answer is not a JSON object but {type(found).__name__}")
    return found


_KINDS: dict[type[WireStruct], dict[str, Kind]] = {}
_BLANK: dict[type[WireStruct], WireStruct] = {}


def _kinds(cls: type[WireStruct]) -> dict[str, Kind]:
    """The kind of each field except ``extra``, cached per class."""
    if cls not in _KINDS:
        hints = get_type_hints(cls, include_extras=True)
        names = [name for name in cls.__struct_fields__ if name != "extra"]
        _KINDS[cls] = {name: kind_of(hints[name], _nested) for name in names}
    return _KINDS[cls]


def _nested(cls: type) -> Kind | None:
    return Nested(cls) if issubclass(cls, WireStruct) else None


def _taken(cls: type[WireStruct], name: str, kind: Kind, value: Any) -> Any:
    try:
        return kind.take(value)
    except WrongValueError as exc:
        raise ConfigError(f"{cls.__name__}.{name}{exc.path}: {exc.reason}") from None


def _taken_extra(cls: type[WireStruct], extra: Any) -> dict[str, Any]:
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise ConfigError(f"{cls.__name__}.extra: a dict with str keys is needed")
    if known := sorted(_kinds(cls).keys() & extra.keys()):
        raise ConfigError(f"{cls.__name__}.extra: {', '.join(known)} is a declared field; pass it by name")
    return dict(extra)


def _read(cls: type[ModelT], data: Any) -> ModelT:
    """As ``from_wire``, but raises WrongValueError, so that the outermost caller can name the whole path."""
    if not isinstance(data, Mapping):
        raise WrongValueError(f"an object is needed, not {type(data).__name__}")
    kinds = _kinds(cls)
    model = copy.copy(_blank(cls))
    extra: dict[str, Any] = {}
    for name, value in data.items():
        if kind := kinds.get(name):
            if value is not None:
                try:
                    force_setattr(model, name, kind.read(value))
                except WrongValueError as exc:
                    raise WrongValueError(exc.reason, f".{name}{exc.path}") from None
        elif not isinstance(name, str):
            raise WrongValueError("the keys of an object must be str")
        elif name not in cls.envelope:
            extra[name] = value
    for name in cls.required:
        if data.get(name) is None:
            raise WrongValueError("it is missing", f".{name}")
    force_setattr(model, "extra", extra)
    return model


def _blank(cls: type[ModelT]) -> ModelT:
    """An empty model to be copied; all its fields except ``extra`` are immutable."""
    if cls not in _BLANK:
        _BLANK[cls] = cls()
    return _BLANK[cls]  # type: ignore[return-value]


def _restored(cls: type[ModelT], values: dict[str, Any]) -> ModelT:
    """A model from a pickle, unchecked: it may hold words that only the server knows."""
    model = copy.copy(_blank(cls))
    for name, value in values.items():
        force_setattr(model, name, value)
    return model


def _plain(obj: Any) -> Any:
    """``obj`` with its models as dicts. Values without a JSON form are refused."""
    if isinstance(obj, WireStruct):
        return _plain(to_wire(obj))
    if isinstance(obj, Mapping):
        if not all(isinstance(name, str) for name in obj):
            raise ConfigError("cannot be sent as JSON: a key is not a str")
        return {str(name): _plain(value) for name, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_plain(value) for value in obj]
    if isinstance(obj, str):
        return str(obj)
    if obj is None or isinstance(obj, bool | int):
        return obj
    if isinstance(obj, float) and math.isfinite(obj):
        return obj
    raise ConfigError(f"cannot be sent as JSON: {obj!r:.60} of type {type(obj).__name__}")
