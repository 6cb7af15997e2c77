"""Message headers: the block on the wire, the inline status in its first line, and the headers of a publish.

Names are case-sensitive and kept as they are. Writing is strict: a value that could end its line is refused, never
rewritten. Reading is total: it returns a result for any bytes, because one odd message must not end the connection:

- a block that does not start with ``NATS/1.0`` has neither status nor headers;
- lines end with CR LF, as for the server; a line without a colon, or without a name, is skipped; nothing
  after the first empty line counts;
- spaces and tabs around a value are dropped (ADR-4 lets readers do so, so do not write such values);
- what is not UTF-8 reads as U+FFFD, so the text can always be printed and encoded again.

Source: ADR-4; ADR-43 (Nats-TTL); ADR-22; RFC 7230 §3.2.6 (token); nats-server server/client.go (sliceHeader),
server/stream.go (header names, parseMessageTTL).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from ...errors import ConfigError, InvalidNameError
from .checks import check_count
from .header_names import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    EXPECTED_STREAM,
    MSG_ID,
    ROLLUP,
    TTL,
)
from .names import check_filter_subject, check_stream_name
from .units import seconds_to_ns

__all__ = [
    "Headers",
    "Status",
    "encode_headers",
    "find_header",
    "inline_status",
    "merge_headers",
    "ordinary_block",
    "parse_headers",
    "publish_headers",
    "ttl_header",
]

_VERSION: Final = b"NATS/1.0"
_INLINE = re.compile(rb"NATS/1\.0 ([1-9][0-9]{2})(?: |\r\n|\Z)")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NOT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # control characters except tab
_NS: Final = 1_000_000_000
_MAX_SEQUENCE: Final = 2**64 - 1


class Headers(dict[str, str]):
    """The headers of a message: a dict of name to first value, names case-sensitive as on the wire.

    A header that occurs more than once has its other values in ``get_all``. It equals a plain dict with the
    same first values, can be changed like a dict, and can be pickled.
    """

    __slots__ = ("_repeated",)

    _repeated: dict[str, list[str]]

    def __init__(self, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        """Take a mapping, or (name, value) pairs in which names may repeat."""
        if headers == ():
            pairs: Iterable[tuple[str, str]] = ()
        elif isinstance(headers, Headers):
            pairs = headers.pairs()
        else:
            pairs = headers.items() if isinstance(headers, Mapping) else headers
        self._repeated = {}
        for name, value in pairs:
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Add a value of ``name`` after its other values."""
        if name in self:
            self._repeated.setdefault(name, [self[name]]).append(value)
        else:
            dict.__setitem__(self, name, value)

    def get_all(self, name: str) -> list[str]:
        """All values of ``name`` in order; an empty list if the header is missing."""
        if name not in self:
            return []
        values = self._repeated.get(name, ())
        return list(values) if values and values[0] == self[name] else [self[name]]

    def pairs(self) -> list[tuple[str, str]]:
        """Every header as (name, value), a repeated one as often as it occurs, those of one name together."""
        return [(name, value) for name in self for value in self.get_all(name)]

    def copy(self) -> Headers:
        """A copy that shares nothing."""
        return Headers(self)

    def __setitem__(self, name: str, value: str) -> None:
        self._repeated.pop(name, None)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._repeated.pop(name, None)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return dict.__eq__(self, other) and all(
                self.get_all(name) == other.get_all(name) for name in self
            )
        return dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # mutable, like every dict

    def __reduce__(self) -> tuple[Any, ...]:
        return (Headers, (self.pairs(),))


class Status(msgspec.Struct, frozen=True):
    """An inline status: the first line of a header block is ``NATS/1.0 <code>[ description]``.

    ``code`` is 100 to 999, ``headers`` are those of the same block.
    """

    code: int
    description: str = ""
    headers: Headers = msgspec.field(default_factory=Headers)


def inline_status(block: bytes) -> int:
    """The code of the inline status of a header block, 0 if it has none. Never raises.

    The line is exactly ``NATS/1.0 <three digits>``, and then its end or a space and a description.
    """
    found = _INLINE.match(block)
    return int(found[1]) if found else 0


def parse_headers(block: bytes) -> tuple[Status | None, Headers]:
    """Read a header block: its inline status if it has one, and its headers. Never raises.

    The module's docstring says how malformed blocks are read.
    """
    if block[:8] != _VERSION:
        return None, Headers()
    first, *lines = block.decode(errors="replace").split("\r\n")
    values: dict[str, str] = {}  # filled faster than a subclass of dict
    repeated = None
    for line in lines:
        if not line:
            break
        name, colon, value = line.partition(":")
        if not colon or not name:
            continue
        if name in values:
            repeated = repeated or []
            repeated.append((name, value.strip(" \t")))
        else:
            values[name] = value.strip(" \t")
    headers = Headers.__new__(Headers)
    headers.update(values)
    headers._repeated = {}  # noqa: SLF001  a class of this module
    for name, value in repeated or ():
        headers.add(name, value)
    code = 0 if len(first) == 8 else inline_status(block)
    return Status(code, first[12:].strip(" \t"), headers) if code else None, headers


_MAX_KNOWN: Final = 1024  # names
_searched: dict[str, bytes] = {}  # names that `find_header` looked for, with the bytes that begin their line


def find_header(block: bytes, name: str) -> str | None:
    """The first value of a header, as `parse_headers` reads it, without reading the others; None if it is missing."""
    start = _searched.get(name) or _line_start(name)
    if not start:
        return parse_headers(block)[1].get(name)
    at = block.find(start)
    # An empty line before it ends the headers.
    if at < 0 or block[:8] != _VERSION or block.find(b"\r\n\r\n", 0, at + 2) >= 0:
        return None
    at += len(start)
    end = block.find(b"\r\n", at)
    return block[at : end if end >= 0 else None].decode(errors="replace").strip(" \t")


def _line_start(name: str) -> bytes:
    """The bytes that begin the line of a header; empty if they do not decide, since names are compared as text."""
    if not (isinstance(name, str) and name and name.isascii()) or ":" in name or "\r\n" in name:
        return b""
    start = f"\r\n{name}:".encode()
    if len(_searched) >= _MAX_KNOWN:
        _searched.clear()
    _searched[name] = start
    return start


def encode_headers(headers: Mapping[str, str | Sequence[str]]) -> bytes:
    """The whole block, ``NATS/1.0`` to the empty line. ``headers`` is not changed.

    Args:
        headers: Names are RFC 7230 tokens. Values are a str, or several for a repeated header; they are sent as they
            are, and readers drop spaces and tabs around them.

    Raises:
        InvalidNameError: A name is not a token, or a value is not a str, contains a control character other than tab
            (such as CR, LF or NUL), or cannot be encoded as UTF-8. The error's ``value`` is the header's name, never
            its value, which may be a secret.
    """
    if type(headers) is dict and (block := ordinary_block(headers)) is not None:
        return block
    lines = ["NATS/1.0"]
    for name in headers:
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidNameError(
                "header", name, "a name is letters, digits and !#$%&'*+-.^_`|~, at least one"
            )
        lines += [f"{name}: {value}" for value in _values(name, _given(headers, name))]
    return "\r\n".join([*lines, "", ""]).encode()


_checked: dict[str, str] = {}  # valid names, with the beginning of their line


def ordinary_block(headers: dict[str, str | Sequence[str]]) -> bytes | None:
    """The block of headers whose names are valid and whose values are printable ASCII; None: check them one by one."""
    text = "NATS/1.0\r\n"
    for name, value in headers.items():
        start = _checked.get(name) or _known_name(name)
        if not start or type(value) is not str or not value.isascii() or not value.isprintable():
            return None
        text += f"{start}{value}\r\n"
    return f"{text}\r\n".encode()


def _known_name(name: object) -> str:
    """Check a name and remember it; empty if it is not valid."""
    if type(name) is not str or not _TOKEN.fullmatch(name):
        return ""
    if len(_checked) >= _MAX_KNOWN:
        _checked.clear()
    _checked[name] = start = f"{name}: "
    return start


def publish_headers(
    headers: Mapping[str, str | Sequence[str]] | None = None,
    *,
    msg_id: str | None = None,
    expected_stream: str | None = None,
    expected_last_seq: int | None = None,
    expected_last_subject_seq: int | None = None,
    expected_last_subject_seq_subject: str | None = None,
    expected_last_msg_id: str | None = None,
    ttl: float | timedelta | str | None = None,
    rollup: str | None = None,
) -> dict[str, str | Sequence[str]] | None:
    """The user's headers and those of a JetStream publish in one new dict; None if it would be empty.

    Args:
        headers: The user's own; not changed.
        msg_id: For de-duplication, not empty.
        expected_stream: The stream that must store the message.
        expected_last_seq: The stream's last sequence must be this one; 0 means an empty stream.
        expected_last_subject_seq: The last sequence of the message's subject must be this one; 0: no message yet.
        expected_last_subject_seq_subject: Check the last sequence of this subject instead; wildcards are allowed.
        expected_last_msg_id: The message id of the stream's last message must be this one.
        ttl: Seconds after which the server removes the message, 1 or more, or ``"never"``. The server
            truncates to full seconds, so a fraction is rounded up: a message lives at least as long as requested.
        rollup: ``"sub"``: the message replaces all earlier ones of its subject; ``"all"``: of the stream.

    Raises:
        ConfigError: A value is out of range, or a header contradicts the argument for it.
    """
    other = expected_last_subject_seq_subject
    if other is not None and expected_last_subject_seq is None:
        raise ConfigError("expected_last_subject_seq_subject needs expected_last_subject_seq; pass both")
    wanted = {
        MSG_ID: _id("msg_id", msg_id),
        EXPECTED_STREAM: None if expected_stream is None else check_stream_name(expected_stream),
        EXPECTED_LAST_SEQUENCE: _sequence("expected_last_seq", expected_last_seq),
        EXPECTED_LAST_SUBJECT_SEQUENCE: _sequence("expected_last_subject_seq", expected_last_subject_seq),
        EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: None if other is None else check_filter_subject(other),
        EXPECTED_LAST_MSG_ID: _id("expected_last_msg_id", expected_last_msg_id),
        TTL: ttl_header(ttl),
        ROLLUP: _rollup(rollup),
    }
    return merge_headers(headers, wanted) or None


def merge_headers(
    headers: Mapping[str, str | Sequence[str]] | None, wanted: Mapping[str, str | None]
) -> dict[str, str | Sequence[str]]:
    """The user's ``headers`` and those of ``wanted`` that are not None, in one new dict.

    Raises:
        ConfigError: ``headers`` is not a mapping, or contradicts ``wanted``.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigError(f"headers: a mapping of names to values is needed, not {type(headers).__name__}")
    merged: dict[str, str | Sequence[str]] = {}
    for name in headers or {}:
        merged[name] = _given(headers or {}, name)
    for name, value in wanted.items():
        if value is None:
            continue
        if name in merged and merged[name] not in (value, [value]):
            raise ConfigError(f"the header {name} and the argument for it differ; pass only one of them")
        merged[name] = value
    return merged


def _given(headers: Mapping[str, str | Sequence[str]], name: str) -> str | Sequence[str]:
    """The value or values of a header as given; all of them if the headers were read from a message."""
    if isinstance(headers, Headers):
        values = headers.get_all(name)
        return values if len(values) > 1 else values[0]
    return headers[name]


def _values(name: str, given: object) -> list[str]:
    """The values of one header, each checked."""
    values: list[str] = []
    for value in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(value, str):
            raise InvalidNameError("header", name, f"its value must be a str, not {type(value).__name__}")
        if bad := _NOT_IN_VALUE.search(value):
            raise InvalidNameError(
                "header", name, f"its value contains {bad[0]!r}; tab is the only control character allowed"
            )
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidNameError(
                "header", name, "its value contains a lone surrogate, which UTF-8 cannot encode"
            ) from None
        values.append(value)
    return values


def _id(what: str, value: str | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what}: a non-empty str is needed")
    return _values(what, value)[0]


def _sequence(what: str, value: int | None) -> str | None:
    if value is None:
        return None
    return str(check_count(what, value, 0, _MAX_SEQUENCE))


def _rollup(value: str | None) -> str | None:
    if value is not None and value not in ("sub", "all"):
        raise ConfigError(f"rollup: {value!r:.60} is neither 'sub' nor 'all'")
    return value


def ttl_header(value: float | timedelta | str | None, what: str = "ttl") -> str | None:
    """A time to live for the wire: full seconds, rounded up, or ``never``; None stays None.

    Raises:
        ConfigError: It is less than a second, or neither a number nor ``"never"``.
    """
    if value is None or value == "never":
        return value  # type: ignore[return-value]
    if isinstance(value, str):
        raise ConfigError(f"{what}: {value!r:.60} is neither a number of seconds nor 'never'")
    return str(-(-seconds_to_ns(value, what=what, minimum=1.0) // _NS))
