"""JSON and models, both ways: the door through which everything that is not a subject or a header passes.

A model is a frozen record whose field names are the wire's. Its fields are None unless set. What the server
sends and this version does not know is kept in ``extra`` and goes back with the next update, so reading,
changing one field and writing loses nothing.

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
    """The base of all records that travel as JSON objects. It checks nothing that is given to it: see `Model`.

    Which fields are durations or times is declared by their annotation, ``Seconds``, ``Time`` or
    ``SettableTime``.

    Attributes:
        extra: Fields that this version does not know, as on the wire.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {}
    """Fields that ``to_wire`` sends even when they are None, and the value that is sent then."""

    required: ClassVar[frozenset[str]] = frozenset()
    """Fields without which an answer from the server makes no sense."""

    envelope: ClassVar[frozenset[str]] = frozenset()
    """Fields of the answer around the model, not of the model: ``from_wire`` skips them."""

    extra: dict[str, Any] = {}

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, None for unset.

        Only these are checked, so words that only the server knows survive.

        Raises:
            ConfigError: A value that the field does not take.
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
    """A record that a user may make: every value is checked."""

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                force_setattr(self, name, _taken(type(self), name, kind, value))
        force_setattr(self, "extra", _taken_extra(type(self), self.extra))


ModelT = TypeVar("ModelT", bound=WireStruct)


class Nested(Kind):
    """A model inside a model. A user may also give a dict of its fields."""

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
    """The model in a decoded JSON object. A null is a field that is not set; unknown fields go to ``extra``.

    Raises:
        ProtocolError: A field has another type than the protocol says, or a required one is missing; the text
            names it, for example ``ConsumerInfo.config.ack_wait``.
    """
    try:
        return _read(cls, data)
    except WrongValueError as exc:
        raise ProtocolError(f"{cls.__name__}{exc.path}: {exc.reason}") from None


def encode(obj: WireStruct | Mapping[str, Any]) -> bytes:
    """The JSON text of a model, or of a dict in which models may be, at any depth.

    Raises:
        ConfigError: Something in it has no JSON form here: bytes, times, NaN, lone surrogates, endless
            nesting.
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
    """The kind of each field but ``extra``, found once per class."""
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
        raise ConfigError(f"{cls.__name__}.extra: a dict with texts as keys is needed")
    if known := sorted(_kinds(cls).keys() & extra.keys()):
        raise ConfigError(f"{cls.__name__}.extra: {', '.join(known)} is a field of its own; give it as one")
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
            raise WrongValueError("an object has texts as keys")
        elif name not in cls.envelope:
            extra[name] = value
    for name in cls.required:
        if data.get(name) is None:
            raise WrongValueError("it is missing", f".{name}")
    force_setattr(model, "extra", extra)
    return model


def _blank(cls: type[ModelT]) -> ModelT:
    """A model with nothing set, to be copied; all but ``extra`` is immutable in it."""
    if cls not in _BLANK:
        _BLANK[cls] = cls()
    return _BLANK[cls]  # type: ignore[return-value]


def _restored(cls: type[ModelT], values: dict[str, Any]) -> ModelT:
    """A model from a pickle, as it was: what only the server knows must not be checked again."""
    model = copy.copy(_blank(cls))
    for name, value in values.items():
        force_setattr(model, name, value)
    return model


def _plain(obj: Any) -> Any:
    """``obj`` with its models written out. What JSON has no word for is refused, not guessed at."""
    if isinstance(obj, WireStruct):
        return _plain(to_wire(obj))
    if isinstance(obj, Mapping):
        if not all(isinstance(name, str) for name in obj):
            raise ConfigError("cannot be sent as JSON: a key that is no text")
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
