"""The names of buckets and keys, and the subjects under which keys are stored. Source: ADR-6, ADR-8, ADR-57."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ...errors import ConfigError, InvalidNameError, ReadOnlyError
from ..models.stream_config import StreamConfig
from ..topics.value_codec import Codec
from ..wire.api import DEFAULT_PREFIX
from ..wire.header_names import MARKER_REASON, MSG_ID, SEQUENCE
from ..wire.names import check_filter_subject, check_publish_subject, subject_matches, subjects_overlap
from .entry import OWN, Operation, operation_of
from .key_codecs import KeyCodec, decoded_key, encoded_filter, encoded_key
from .values import DecodedValue, encoded_value

__all__ = ["KeySpace", "bucket_of", "check_bucket", "check_filters", "check_key", "stream_of"]

_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[-/_=.A-Za-z0-9]+")
_KEYS = re.compile(r"[-/_=.A-Za-z0-9 ]+")  # several keys, divided by spaces
_FILTER = re.compile(r"[-/_=.>*A-Za-z0-9]+")
_STREAM: Final = "KV_"
_INTERNAL: Final = "_kv"  # prefix of keys that are reserved for internal use by clients (ADR-6)


def check_bucket(name: str) -> str:
    """Return the name of a bucket. Raises `InvalidNameError` unless it consists of letters, digits, ``-`` and ``_``."""
    if not isinstance(name, str) or not _BUCKET.fullmatch(name):
        raise InvalidNameError("bucket", name, "a name is letters, digits, '-' and '_', at least one")
    return name


def stream_of(bucket: str) -> str:
    """Return the name of the stream of a bucket."""
    return f"{_STREAM}{check_bucket(bucket)}"


def bucket_of(stream: str) -> str | None:
    """Return the name of the bucket that a stream stores, or None if the stream isn't named like a bucket."""
    name = stream.removeprefix(_STREAM)
    return name if name != stream and _BUCKET.fullmatch(name) else None


def check_key(key: str) -> str:
    """Return ``key`` if it is valid. Otherwise raise `InvalidNameError`.

    A valid key consists of letters, digits and ``-/_=.``. It has no empty tokens, and doesn't begin with ``_kv``.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key) or _has_empty_token(key):
        raise InvalidNameError("key", key, _why(key, "-/_=."))
    if key.startswith(_INTERNAL):
        raise InvalidNameError(
            "key", key, f"keys that begin with {_INTERNAL!r} are for internal use: validate=False allows them"
        )
    return key


def check_filters(filters: Iterable[str]) -> list[str]:
    """Check key filters and return them. If there are none, return ``>``, which matches all keys.

    A token of a filter may be ``*``, and the last token ``>``. A filter that is included in another filter is
    omitted, because the server refuses overlapping filters.

    Raises:
        InvalidNameError: A filter is invalid.
        ConfigError: Two filters overlap, and neither of them includes the other.
    """
    filters = list(filters)
    if _are_plain_keys(filters):  # the usual case: plain keys can be checked at once, and never overlap
        return list(dict.fromkeys(filters))
    checked: list[str] = []
    for pattern in filters:
        if type(pattern) is str and _KEY.fullmatch(pattern) and not _has_empty_token(pattern):
            checked.append(pattern)  # a plain key, so there are no wildcards to check
            continue
        if not isinstance(pattern, str) or not _FILTER.fullmatch(pattern):
            raise InvalidNameError("filter", pattern, _why(pattern, "-/_=., * and >"))
        check_filter_subject(pattern)
        if bad := [
            token for token in pattern.split(".") if len(token) > 1 and ("*" in token or ">" in token)
        ]:
            raise InvalidNameError("filter", pattern, f"the wildcard in {bad[0]!r} is not a token by itself")
        checked.append(pattern)
    # Plain keys can't overlap, so it suffices to compare each filter with the filters that have wildcards.
    wildcards = [pattern for pattern in dict.fromkeys(checked) if "*" in pattern or ">" in pattern]
    widest = [
        pattern
        for pattern in dict.fromkeys(checked)
        if not any(other != pattern and subject_matches(other, pattern) for other in wildcards)
    ]
    remaining = [pattern for pattern in wildcards if pattern in widest]
    for number, pattern in enumerate(remaining):
        for other in remaining[:number]:
            if subjects_overlap(pattern, other):
                raise ConfigError(
                    f"the filters {other!r} and {pattern!r} match some of the same keys: give one of them"
                )
    return widest or [">"]


def _are_plain_keys(filters: list[str]) -> bool:
    """Return whether there is at least one filter, and all of them are keys without wildcards."""
    try:
        text = " ".join(filters)
    except TypeError:  # a filter isn't a str
        return False
    return (
        _KEYS.fullmatch(text) is not None
        and text.count(" ") == len(filters) - 1
        and ".." not in f".{text.replace(' ', '.')}."  # no key is empty or has an empty token
    )


def _has_empty_token(key: str) -> bool:
    """Return whether a key begins or ends with a dot, or has two dots in a row. The key must not be empty."""
    return key[0] == "." or key[-1] == "." or ".." in key


def _why(key: object, allowed: str) -> str:
    if not isinstance(key, str):
        return f"a str is needed, not {type(key).__name__}"
    if not key:
        return "it is empty"
    if _has_empty_token(key):
        return "it has an empty token: a dot at an end, or two in a row"
    return f"allowed are letters, digits and {allowed}"


class KeySpace(msgspec.Struct, frozen=True):
    """Maps the keys of a bucket to subjects, and encodes its keys and values.

    Attributes:
        bucket: Name of the bucket.
        reads: Prefix of the subjects in the stream.
        writes: Prefix of the subjects to publish to, or "" if the handle is read-only.
        validates: Whether keys must be valid for every client.
        codec: Codec for values, or None if values are bytes.
        key_codec: Codec for keys, or None.
        own: If true, ignore values that weren't written by a handle with ``own``.
    """

    bucket: str
    reads: str
    writes: str
    validates: bool = True
    codec: Codec[Any] | None = None
    key_codec: KeyCodec | None = None
    own: bool = False

    @classmethod
    def of(
        cls,
        bucket: str,
        config: StreamConfig | None,
        prefix: str,
        *,
        validates: bool,
        writable: bool = True,
        codec: Codec[Any] | None = None,
        key_codec: KeyCodec | None = None,
        own: bool = False,
    ) -> KeySpace:
        """Create the key space of a bucket from the configuration of its stream and the API prefix.

        A mirror contains the subjects of its origin. Keys are therefore written to the origin (ADR-57).
        """
        origin, api = bucket, prefix
        mirror = None if config is None else config.mirror
        if mirror is not None:
            origin = bucket_of(mirror.name or "") or bucket
            if mirror.external is not None and mirror.external.api:
                api = mirror.external.api
        start = f"$KV.{origin}."
        # With another API prefix, messages are published through the API of the bucket's account or domain, like
        # nats.go does (useJSPfx).
        writes = start if api == DEFAULT_PREFIX else f"{api}.{start}"
        return cls(bucket, start, writes if writable else "", validates, codec, key_codec, own)

    def stored(self, key: str) -> str:
        """Encode a key. Raises `InvalidNameError` if the result is not a valid key."""
        if self.key_codec is not None:
            key = encoded_key(self.key_codec, key)
        if self.validates:
            return check_key(key)
        check_publish_subject(self.reads + key if isinstance(key, str) else key)
        return key

    def checked(self, key: str) -> str:
        """Return ``key`` unchanged if it is valid. Otherwise raise `InvalidNameError`."""
        self.stored(key)
        return key

    def subject(self, key: str) -> str:
        """Return the subject of a key in the stream. Raises `InvalidNameError` if the key is invalid."""
        return self.reads + self.stored(key)

    def target(self, key: str) -> str:
        """Return the subject to publish a value of this key to.

        Raises `InvalidNameError` if the key is invalid, and `ReadOnlyError` if the handle is read-only.
        """
        self.check_writable()
        return self.writes + self.stored(key)

    def check_writable(self) -> None:
        """Raise `ReadOnlyError` if the handle is read-only."""
        if not self.writes:
            raise ReadOnlyError(self.bucket)

    def filters(self, filters: Iterable[str]) -> list[str]:
        """Encode filters so that they match stored keys. May raise any error of `check_filters`."""
        if (codec := self.key_codec) is not None:
            filters = [encoded_filter(codec, pattern) for pattern in filters]
        return check_filters(filters)

    def subjects(self, filters: Iterable[str]) -> list[str]:
        """Return the subject filters for key filters. Raises the errors of `check_filters`."""
        return [self.reads + pattern for pattern in self.filters(filters)]

    def key(self, subject: str) -> str:
        """Return the key that is stored under a subject."""
        stored = subject[len(self.reads) :]
        return stored if self.key_codec is None else decoded_key(self.key_codec, stored)

    def encoded(self, key: str, value: Any) -> Any:
        """Encode a value, or return it unchanged if there is no codec. Raises `ConfigError` if the encoding fails."""
        return value if self.codec is None else encoded_value(self.codec, key, value)

    @property
    def decoding(self) -> DecodedValue | None:
        """A new decoder for the value of one entry, or None if values are bytes."""
        return None if self.codec is None else DecodedValue(self.codec)

    def is_stray(self, headers: Mapping[str, str]) -> bool:
        """Return whether a message with these headers is stray, so that a handle with ``own`` must ignore it.

        Handles with ``own`` mark their values with a message id or a header. If the reply to a direct get was stored
        under a key, it may contain copies of both, but also a sequence header. The server's own markers are not stray.
        """
        if not self.own:
            return False
        return SEQUENCE in headers or not any(name in headers for name in (MSG_ID, OWN, MARKER_REASON))

    def operation(self, headers: Mapping[str, str]) -> Operation:
        """Return the operation of a message with these headers. A stray message is treated as a deletion."""
        return "DEL" if self.is_stray(headers) else operation_of(headers)
