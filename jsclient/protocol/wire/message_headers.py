"""The headers of a message, read from its bytes when they are needed. Source: ADR-4."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import msgspec

from .headers import Headers, find_header, parse_headers

__all__ = ["MessageHeaders"]

T = TypeVar("T")

if TYPE_CHECKING:
    _Base = MutableMapping[str, str]
else:
    # Message headers are a struct, because a struct is created in half the time. A struct can't derive from
    # `MutableMapping`, which has a different metaclass.
    class _Base:
        __slots__ = ()


class MessageHeaders(_Base, msgspec.Struct, eq=False, gc=False):
    """The headers of a received message, as a mapping from each name to its first value. Names are case-sensitive.

    ``headers[name]``, `get` and ``in`` are fast, because they search for one header in the bytes of the message. All
    other operations, such as iterating, comparing or changing the headers, parse all headers first. Changes don't
    affect the message.

    Headers compare equal to a dict with the same first values. ``dict(headers)`` returns such a dict, for example for
    ``json.dumps``.
    """

    _block: bytes = b""
    _find: Callable[[bytes, str], str | None] = find_header
    _headers: Headers | None = None

    def _read(self) -> Headers:
        headers = self._headers
        if headers is None:
            headers = self._headers = parse_headers(self._block)[1] if self._block else Headers()
        return headers

    def _value(self, name: str) -> str | None:
        if self._headers is not None:
            return self._headers.get(name)
        try:
            return self._find(self._block, name)
        except ValueError:  # a name that only the reader in Python supports
            return find_header(self._block, name)

    def __getitem__(self, name: str) -> str:
        # The code of `_value` is repeated here to save a call, because most programs do this with each message.
        if self._headers is not None:
            return self._headers[name]
        try:
            value = self._find(self._block, name)
        except ValueError:
            value = find_header(self._block, name)
        if value is None:
            raise KeyError(name)
        return value

    @overload
    def get(self, name: str, default: None = None) -> str | None: ...
    @overload
    def get(self, name: str, default: T) -> str | T: ...
    def get(self, name: str, default: T | None = None) -> str | T | None:
        """Return the first value of a header, or ``default`` if the header is missing. ``default`` defaults to None."""
        value = self._value(name)
        return default if value is None else value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._value(name) is not None

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header in order, or an empty list if the header is missing."""
        return self._read().get_all(name) if self._value(name) is not None else []

    def pairs(self) -> list[tuple[str, str]]:
        """Return all headers as a list of ``(name, value)`` tuples. The values of a repeated header are adjacent."""
        return self._read().pairs()

    def copy(self) -> Headers:
        """Return an independent copy as `Headers`, including repeated headers.

        Use it to change the headers, for example before publishing the message again.
        """
        return self._read().copy()

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._read())

    def keys(self) -> KeysView[str]:
        """Return a view of the names, like ``dict.keys``. A repeated header appears only once."""
        return self._read().keys()

    def values(self) -> ValuesView[str]:
        """Return a view of the first value of each header, like ``dict.values``."""
        return self._read().values()

    def items(self) -> ItemsView[str, str]:
        """Return a view of ``(name, first value)`` tuples, like ``dict.items``. Use `pairs` to get all values."""
        return self._read().items()

    def __eq__(self, other: object) -> bool:
        return self._read() == (other._read() if isinstance(other, MessageHeaders) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # the method of a struct would compare identities

    __hash__ = None  # type: ignore[assignment]  # mutable, like every dict

    def __repr__(self) -> str:
        return repr(self._read())

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return dict(self._read()) | dict(other)

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        return dict(other) | dict(self._read())

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]  # like dict
        self.update(other)
        return self

    # These methods change only this object, not the bytes of the message.

    def __setitem__(self, name: str, value: str) -> None:
        self._read()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._read()[name]

    def add(self, name: str, value: str) -> None:
        """Add a value to a header, after the values it already has.

        In contrast, ``headers[name] = value`` replaces all values of the header.
        """
        self._read().add(name, value)

    def update(self, *others: Any, **values: str) -> None:
        """Set headers from mappings or keyword arguments, like ``dict.update``. To keep existing values, use `add`."""
        self._read().update(*others, **values)

    def setdefault(self, name: str, default: str = "") -> str:
        """Return the first value of a header. If the header is missing, set it to ``default`` first."""
        return self._read().setdefault(name, default)

    def pop(self, name: str, *default: T) -> str | T:
        """Remove a header with all its values, and return the first value.

        If the header is missing, return ``default`` if it was passed, otherwise raise ``KeyError``.
        """
        return self._read().pop(name, *default)

    def popitem(self) -> tuple[str, str]:
        """Remove the last header, and return its name and first value. If there are none, raise ``KeyError``."""
        return self._read().popitem()

    def clear(self) -> None:
        """Remove all headers from this mapping. The message itself doesn't change."""
        self._read().clear()

    def __copy__(self) -> Headers:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Headers:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Headers, (self.pairs(),))


MutableMapping.register(MessageHeaders)
