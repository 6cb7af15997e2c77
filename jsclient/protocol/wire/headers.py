"""Message headers: the block on the wire, the inline status in its first line, and the headers of a publish.

Names are case-sensitive and never changed. Writing is strict: a value that could end its line is refused, never
rewritten. Reading never fails: it returns a result for any bytes, because one malformed message must not end the
connection:

- a block that does not start with ``NATS/1.0`` has neither status nor headers;
- lines end with CR LF, as in the server. A line without a colon or without a name is skipped, and all lines after the
  first empty line are ignored;
- spaces and tabs around a value are removed (ADR-4 lets readers do so, so do not write such values);
- bytes that are not UTF-8 are read as U+FFFD, so that the text can always be printed and encoded again.

Source: ADR-4; ADR-43 (Nats-TTL); ADR-22; RFC 7230 §3.2.6 (token); nats-server server/client.go (sliceHeader),
server/stream.go (header names, parseMessageTTL).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
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
    "linked_block",
    "merge_headers",
    "ordinary_block",
    "parse_headers",
    "publish_headers",
    "ttl_header",
]

_VERSION: Final = b"NATS/1.0"
_EXPECTED: Final = EXPECTED_LAST_SUBJECT_SEQUENCE.encode()
_MSG_ID: Final = MSG_ID.encode()
_INLINE = re.compile(rb"NATS/1\.0 ([1-9][0-9]{2})(?: |\r\n|\Z)")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NOT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # control characters except tab
_NS: Final = 1_000_000_000
_MAX_SEQUENCE: Final = 2**64 - 1


class Headers(dict[str, str]):
    """The headers of a message, as a dict that maps each name to its first value. Names are case-sensitive.

    Use ``get_all`` to get every value of a repeated header. Headers are mutable, can be pickled, and compare equal to a
    plain dict with the same first values.

    Args:
        headers: A mapping, or ``(name, value)`` pairs. Pairs may repeat a name. Empty by default.
    """

    __slots__ = ("_repeated",)

    _repeated: dict[str, list[str]]

    def __init__(self, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        """Copy a mapping, or (name, value) pairs in which names may repeat."""
        if headers == ():
            pairs: Iterable[tuple[str, str]] = ()
        elif (all_pairs := getattr(headers, "pairs", None)) is not None:
            # Both `Headers` and the headers of a message have this method, which keeps repeated names.
            pairs = all_pairs()
        else:
            pairs = headers.items() if isinstance(headers, Mapping) else headers
        self._repeated = {}
        for name, value in pairs:
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Add a value to a header, after the values it already has.

        In contrast, ``headers[name] = value`` replaces all values of the header.
        """
        if name in self:
            self._repeated.setdefault(name, [self[name]]).append(value)
        else:
            dict.__setitem__(self, name, value)

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header in order, or an empty list if the header is missing."""
        if name not in self:
            return []
        values = self._repeated.get(name, ())
        return list(values) if values and values[0] == self[name] else [self[name]]

    def pairs(self) -> list[tuple[str, str]]:
        """Return all headers as a list of ``(name, value)`` tuples. The values of a repeated header are adjacent."""
        return [(name, value) for name in self for value in self.get_all(name)]

    def copy(self) -> Headers:
        """Return an independent copy. Unlike ``dict(headers)``, it contains all values of repeated headers."""
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
    """An inline status. The first line of its header block is ``NATS/1.0 <code>[ description]``.

    ``code`` is 100 to 999, and ``headers`` are the headers of the same block.
    """

    code: int
    description: str = ""
    headers: Headers = msgspec.field(default_factory=Headers)


def inline_status(block: bytes) -> int:
    """Return the code of the inline status of a header block, or 0 if it has none. Never raises.

    The first line must be ``NATS/1.0`` and three digits, which a space and a description may follow.
    """
    match = _INLINE.match(block)
    return int(match[1]) if match else 0


def parse_headers(block: bytes) -> tuple[Status | None, Headers]:
    """Parse a header block and return its inline status, if any, and its headers. Never raises.

    For malformed blocks, see the docstring of this module.
    """
    if block[:8] != _VERSION:
        return None, Headers()
    first, *lines = block.decode(errors="replace").split("\r\n")
    values: dict[str, str] = {}  # a plain dict is filled faster than a subclass
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
    headers._repeated = {}  # noqa: SLF001  same module
    for name, value in repeated or ():
        headers.add(name, value)
    code = 0 if len(first) == 8 else inline_status(block)
    return Status(code, first[12:].strip(" \t"), headers) if code else None, headers


_MAX_KNOWN: Final = 1024  # maximum number of names in `_searched` and in `_checked`
# Maps each name that `find_header` has searched for to the bytes that begin its line.
_searched: dict[str, bytes] = {}


def find_header(block: bytes, name: str) -> str | None:
    """Return the first value of a header, or None if it is missing, without parsing the other headers.

    The value is the same as from `parse_headers`.
    """
    start = _searched.get(name) or _line_start(name)
    if not start:
        return parse_headers(block)[1].get(name)
    # Ignore all bytes after an empty line, which aren't headers. `partition` takes half as long as `find`.
    before, line_start, value = block.partition(b"\r\n\r\n")[0].partition(start)
    if not line_start or before[:8] != _VERSION:
        return None
    return value.partition(b"\r\n")[0].decode("utf-8", "replace").strip(" \t")


def _line_start(name: str) -> bytes:
    """Return the bytes that begin the line of a header, or b"" if its name can only be found by comparing text."""
    if not (isinstance(name, str) and name and name.isascii()) or ":" in name or "\r\n" in name:
        return b""
    start = f"\r\n{name}:".encode()
    if len(_searched) >= _MAX_KNOWN:
        _searched.clear()
    _searched[name] = start
    return start


def encode_headers(headers: Mapping[str, str | Sequence[str]]) -> bytes:
    """Encode headers as a block, from ``NATS/1.0`` to the empty line. ``headers`` is not changed.

    Args:
        headers: Names are RFC 7230 tokens. A value is a str, or a sequence of several for a repeated header. Values
            are sent unchanged, and readers remove spaces and tabs around them.

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
        lines += [f"{name}: {value}" for value in _values(name, _all_values(headers, name))]
    return "\r\n".join([*lines, "", ""]).encode()


_checked: dict[str, str] = {}  # maps each valid name to the text that begins its line


def ordinary_block(headers: dict[str, str | Sequence[str]]) -> bytes | None:
    """Return the block of headers with valid names and printable ASCII values, or None if each must be checked."""
    text = "NATS/1.0\r\n"
    for name, value in headers.items():
        start = _checked.get(name) or _known_name(name)
        if not start or type(value) is not str or not value.isascii() or not value.isprintable():
            return None
        text += f"{start}{value}\r\n"
    return f"{text}\r\n".encode()


def _known_name(name: object) -> str:
    """Check a name, remember it, and return the text that begins its line, or "" if the name is not valid."""
    if type(name) is not str or not _TOKEN.fullmatch(name):
        return ""
    if len(_checked) >= _MAX_KNOWN:
        _checked.clear()
    _checked[name] = start = f"{name}: "
    return start


def linked_block(stream: str, last_subject_seq: int, msg_id: str) -> bytes:
    """Return the header block of a message with an id, an expected stream, and an expected last subject sequence.

    The arguments are not checked.
    """
    return b"%b%b: %d\r\n%b: %b\r\n\r\n" % (
        _stream_line(stream), _EXPECTED, last_subject_seq, _MSG_ID, msg_id.encode()
    )  # fmt: skip


@lru_cache(maxsize=256)
def _stream_line(stream: str) -> bytes:
    return encode_headers({EXPECTED_STREAM: stream})[:-2]


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
    """Return the user's headers and the headers of a JetStream publish in one new dict, or None if it is empty.

    Args:
        headers: The user's headers. They are not changed.
        msg_id: The message id for de-duplication, not empty.
        expected_stream: The stream that must store the message.
        expected_last_seq: The required last sequence of the stream. 0 means an empty stream.
        expected_last_subject_seq: The required last sequence of the message's subject. 0 means no message yet.
        expected_last_subject_seq_subject: Check the last sequence of this subject instead. Wildcards are allowed.
        expected_last_msg_id: The required message id of the stream's last message.
        ttl: How long the server keeps the message, in seconds, 1 or more, or ``"never"``. The server truncates to full
            seconds, so a fraction is rounded up here. The message then lives at least as long as requested.
        rollup: With ``"sub"`` the message replaces all earlier messages of its subject, with ``"all"`` of the stream.

    Raises:
        ConfigError: A value is out of range, or a header contradicts the argument for it.
    """
    other = expected_last_subject_seq_subject
    if other is not None and expected_last_subject_seq is None:
        raise ConfigError("expected_last_subject_seq_subject needs expected_last_subject_seq; pass both")
    options = {
        MSG_ID: _id("msg_id", msg_id),
        EXPECTED_STREAM: None if expected_stream is None else check_stream_name(expected_stream),
        EXPECTED_LAST_SEQUENCE: _sequence("expected_last_seq", expected_last_seq),
        EXPECTED_LAST_SUBJECT_SEQUENCE: _sequence("expected_last_subject_seq", expected_last_subject_seq),
        EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: None if other is None else check_filter_subject(other),
        EXPECTED_LAST_MSG_ID: _id("expected_last_msg_id", expected_last_msg_id),
        TTL: ttl_header(ttl),
        ROLLUP: _rollup(rollup),
    }
    return merge_headers(headers, options) or None


def merge_headers(
    headers: Mapping[str, str | Sequence[str]] | None, wanted: Mapping[str, str | None]
) -> dict[str, str | Sequence[str]]:
    """Return the user's ``headers`` and the headers of ``wanted`` that are not None in one new dict.

    Raises:
        ConfigError: ``headers`` is not a mapping, or contradicts ``wanted``.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigError(f"headers: a mapping of names to values is needed, not {type(headers).__name__}")
    merged: dict[str, str | Sequence[str]] = {}
    for name in headers or {}:
        merged[name] = _all_values(headers or {}, name)
    for name, value in wanted.items():
        if value is None:
            continue
        if name in merged and merged[name] not in (value, [value]):
            raise ConfigError(f"the header {name} and the argument for it differ; pass only one of them")
        merged[name] = value
    return merged


def _all_values(headers: Mapping[str, str | Sequence[str]], name: str) -> str | Sequence[str]:
    """Return the value or values of a header, including repeated ones if the headers come from a message."""
    if (get_all := getattr(headers, "get_all", None)) is not None:  # `Headers`, or the headers of a message
        values: list[str] = get_all(name)
        return values if len(values) > 1 else values[0]
    return headers[name]


def _values(name: str, value_or_values: object) -> list[str]:
    """Check each value of a header and return the values as a list."""
    values: list[str] = []
    for value in value_or_values if isinstance(value_or_values, list | tuple) else [value_or_values]:
        if not isinstance(value, str):
            raise InvalidNameError("header", name, f"its value must be a str, not {type(value).__name__}")
        if bad := _NOT_IN_VALUE.search(value):
            raise InvalidNameError(
                "header", name, f"its value contains {bad[0]!r}; tab is the only control character allowed"
            )
        try:
            value.encode()  # a str may contain a lone surrogate, for example from os.fsdecode()
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
    """Return a time to live as text for the wire: full seconds, rounded up, or ``never``. None stays None.

    Raises:
        ConfigError: The value is less than a second, or neither a number nor ``"never"``.
    """
    if value is None or value == "never":
        return value  # type: ignore[return-value]
    if isinstance(value, str):
        raise ConfigError(f"{what}: {value!r:.60} is neither a number of seconds nor 'never'")
    return str(-(-seconds_to_ns(value, what=what, minimum=1.0) // _NS))
