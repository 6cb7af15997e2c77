"""The description of an object, and its JSON form. Source: ADR-20; the clients for Go, JavaScript, Python and Rust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from ...errors import ConfigError, ObjectInfoError

__all__ = ["ObjectInfo", "ObjectLink", "check_headers", "check_metadata", "encode_info", "read_info"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# These fields aren't part of the JSON. The time and the revision come from the message.
_NOT_STORED: Final = frozenset({"mtime", "revision"})
_KNOWN: Final = frozenset(
    ("name", "description", "headers", "metadata", "options", "bucket", "nuid", "size", "chunks", "digest", "deleted")
)  # fmt: skip


class ObjectLink(msgspec.Struct, frozen=True):
    """The target of a link in an object store. It is the value of `ObjectInfo.link`.

    Attributes:
        bucket: Name of the bucket that contains the target.
        name: Name of the object, or "" if the target is the whole bucket.
    """

    bucket: str
    name: str = ""


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an object or link. Returned by `ObjectStore.info` and by the methods that store objects.

    Attributes:
        bucket: Name of the bucket.
        name: Name of the object or link.
        size: Size of the object in bytes.
        digest: SHA-256 digest of the content, as ``SHA-256=`` followed by base64url, or "" if there is no digest.
        revision: Stream sequence of this description. It increases with each change of any object in the bucket. Pass
            it to `ObjectStore.put` as ``if_match`` to replace the object only if nobody else has changed it.
        modified_ns: Time when this description was stored, as Unix time in nanoseconds. In a description returned by a
            method that writes, it is the time of the local clock.
        description: Human-readable description, or an empty string.
        headers: Headers of the object. Each name maps to a list of values.
        metadata: Metadata set by the user.
        chunks: Number of messages that contain the content.
        max_chunk_size: Size of each chunk except for the last one in bytes, or 0 if it is unknown.
        nuid: Unique name under which the chunks are stored. Empty for a link.
        link: Target of the link, or None if this isn't a link.
        is_deleted: Whether the object has been deleted.
        is_counted: False if the client that stored the description omitted ``size`` and ``chunks``, so these are
            unknown.
        extra: Fields that other clients have stored and this library doesn't know.
    """

    bucket: str
    name: str
    size: int = 0
    digest: str = ""
    revision: int = 0
    modified_ns: int = 0
    description: str = ""
    headers: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    chunks: int = 0
    max_chunk_size: int = 0
    nuid: str = ""
    link: ObjectLink | None = None
    is_deleted: bool = False
    is_counted: bool = True
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def modified(self) -> datetime:
        """Time when this description was stored, in UTC and truncated to microseconds. ``modified_ns`` is exact."""
        return _EPOCH + timedelta(microseconds=self.modified_ns // 1000)

    @property
    def is_link(self) -> bool:
        """Whether this is the description of a link, which has no content of its own."""
        return self.link is not None


def check_headers(headers: Mapping[str, str | Sequence[str]] | None) -> dict[str, list[str]]:
    """Return headers as a mapping from names to lists of values. Raises `ConfigError` if they are invalid."""
    checked: dict[str, list[str]] = {}
    for name, values in _mapping("headers", headers).items():
        texts = [values] if isinstance(values, str) else values
        if (
            not isinstance(name, str)
            or not isinstance(texts, Sequence)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise ConfigError(f"headers has {name!r:.40}: {values!r:.40}: names and values are texts")
        checked[name] = list(texts)
    return checked


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of the user's metadata. Raises `ConfigError` if it is invalid."""
    checked = dict(_mapping("metadata", metadata))
    for name, text in checked.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConfigError(f"metadata has {name!r:.40}: {text!r:.40}: names and values are texts")
    return checked


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {type(value).__name__}: a mapping is needed")
    return value


def encode_info(info: ObjectInfo) -> bytes:
    """Encode a description as JSON. Empty fields are omitted, like other clients do."""
    options: dict[str, Any] = {}
    if info.link is not None:
        options["link"] = {"bucket": info.link.bucket}
        if info.link.name:
            options["link"]["name"] = info.link.name
    if info.max_chunk_size:
        options["max_chunk_size"] = info.max_chunk_size
    rarely: dict[str, Any] = {
        "description": info.description,
        "headers": {name: list(values) for name, values in info.headers.items()},
        "metadata": dict(info.metadata),
        "options": options,
    }
    fields: dict[str, Any] = {**info.extra, "name": info.name}
    fields |= {name: value for name, value in rarely.items() if value}
    fields |= {"bucket": info.bucket, "nuid": info.nuid, "size": info.size, "chunks": info.chunks}
    fields["digest"] = info.digest
    if info.is_deleted:
        fields["deleted"] = True
    return msgspec.json.encode(fields)


def read_info(data: bytes, *, bucket: str, name: str, revision: int, time_ns: int) -> ObjectInfo:
    """Decode a description. Fields that are missing, null or of the wrong type get their defaults.

    Args:
        data: The description as JSON.
        bucket, name: The bucket and the name according to the subject, used if the description doesn't contain them.
        revision, time_ns: Sequence and time of the message that contains the description.

    Raises:
        ObjectInfoError: The data is not a JSON object.
    """
    try:
        fields = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ObjectInfoError(bucket, name, f"it is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ObjectInfoError(bucket, name, "it is no JSON object")
    options = fields.get("options")
    options = options if isinstance(options, dict) else {}
    # Don't take a missing size for zero. An object of zero bytes is complete without any chunks, but if the size is
    # missing, the number of chunks to expect is unknown.
    size, chunks = _number(fields.get("size")), _number(fields.get("chunks"))
    return ObjectInfo(
        bucket=bucket,
        name=_text(fields.get("name")) or name,
        size=size or 0,
        digest=_text(fields.get("digest")),
        revision=revision,
        modified_ns=time_ns,
        description=_text(fields.get("description")),
        headers=_headers(fields.get("headers")),
        metadata={key: text for key, text in _items(fields.get("metadata")) if isinstance(text, str)},
        chunks=chunks or 0,
        max_chunk_size=_number(options.get("max_chunk_size")) or 0,
        nuid=_text(fields.get("nuid")),
        link=_link(options.get("link")),
        is_deleted=fields.get("deleted") is True,
        is_counted=size is not None and chunks is not None,
        extra={key: value for key, value in fields.items() if key not in _KNOWN | _NOT_STORED},
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _headers(value: Any) -> dict[str, list[str]]:
    headers = {}
    for name, values in _items(value):
        texts = values if isinstance(values, list) else [values]
        headers[name] = [text for text in texts if isinstance(text, str)]
    return headers


def _link(value: Any) -> ObjectLink | None:
    bucket = _text(value.get("bucket")) if isinstance(value, dict) else ""
    return ObjectLink(bucket, _text(value.get("name"))) if bucket else None
