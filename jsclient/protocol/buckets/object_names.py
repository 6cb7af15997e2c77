"""The names of object stores and objects, and the subjects of their messages. Source: ADR-6, ADR-20."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from ...errors import ConfigError, InvalidNameError
from ..models.stream_config import StreamConfig
from ..wire.names import MAX_SUBJECT_BYTES
from .keys import check_bucket

__all__ = ["ObjectSpace", "check_object_name", "nuid_of", "object_bucket_of", "object_stream_of"]

_STREAM: Final = "OBJ_"
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NUID_LENGTH: Final = 22


def object_stream_of(bucket: str) -> str:
    """Return the name of the stream of an object store. Raises `InvalidNameError` if the bucket's name is invalid."""
    return f"{_STREAM}{check_bucket(bucket)}"


def object_bucket_of(stream: str) -> str | None:
    """Return the name of the bucket that a stream stores, or None if it isn't named like an object store."""
    name = stream.removeprefix(_STREAM)
    try:
        return check_bucket(name) if name != stream else None
    except InvalidNameError:
        return None


def check_object_name(name: str) -> str:
    """Return the name of an object. Raises `InvalidNameError` if it is empty or not valid text."""
    if not isinstance(name, str):
        raise InvalidNameError("object", name, f"a str is needed, not {type(name).__name__}")
    if not name:
        raise InvalidNameError("object", name, "it is empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidNameError("object", name, "it cannot be encoded as UTF-8") from None
    return name


def nuid_of(number: int) -> str:
    """Return a unique name for the chunks of an object. It has 22 letters and digits, and encodes a random number."""
    digits = []
    for _ in range(_NUID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


class ObjectSpace(msgspec.Struct, frozen=True):
    """The subjects of the messages in an object store.

    They don't depend on an API prefix or a domain, because the server maps only the subjects of its API.

    Attributes:
        bucket: Name of the bucket.
        start: Prefix of the subjects.
        is_copy: Whether the bucket is a mirror. A mirror has the subjects of its origin, and is read-only.
    """

    bucket: str
    start: str
    is_copy: bool = False

    @classmethod
    def of(cls, bucket: str, config: StreamConfig | None) -> ObjectSpace:
        """Create the object space of a bucket from the configuration of its stream."""
        mirror = None if config is None else config.mirror
        origin = bucket if mirror is None else object_bucket_of(mirror.name or "") or bucket
        return cls(bucket, f"$O.{origin}.", mirror is not None)

    @property
    def infos(self) -> str:
        """Subject filter that matches the descriptions of all objects."""
        return f"{self.start}M.>"

    def info_subject(self, name: str) -> str:
        """Return the subject of an object's description. Raises `InvalidNameError` if the name is invalid."""
        token = urlsafe_b64encode(check_object_name(name).encode()).decode()
        subject = f"{self.start}M.{token}"
        if len(subject) > MAX_SUBJECT_BYTES:
            raise InvalidNameError(
                "object", name, "it is so long that its subject does not fit a control line"
            )
        return subject

    def chunk_subject(self, nuid: str) -> str:
        """Return the subject of the chunks of an object."""
        return f"{self.start}C.{nuid}"

    def name_of(self, subject: str) -> str:
        """Return the name of the object whose description has this subject, or "" if it isn't such a subject."""
        token = subject.removeprefix(f"{self.start}M.")
        try:
            return urlsafe_b64decode(token.encode()).decode() if token != subject else ""
        except (binascii.Error, ValueError):
            return ""

    def check_writable(self) -> None:
        """Raise `ConfigError` if the bucket is a mirror."""
        if self.is_copy:
            raise ConfigError(f"bucket {self.bucket!r} is a mirror and can only be read: write to its origin")
