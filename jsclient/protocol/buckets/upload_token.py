"""The token of an upload that can be resumed, and the stored chunks with which the upload can continue."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

import msgspec

from ...errors import ConfigError

__all__ = ["UploadToken", "has_mark", "mark_of_chunk", "split_stored"]

_DIGEST: Final = 18  # bytes of the digest in the id of a chunk


class UploadToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identifies an upload that can be resumed. Its text is JSON.

    Attributes:
        bucket, name: The bucket and the name of the object.
        nuid: The unique name under which the chunks are stored.
        chunk_size: The size of each chunk except the last, in bytes.
    """

    bucket: str
    name: str
    nuid: str
    chunk_size: int

    @property
    def text(self) -> str:
        """The token as a str, to be stored by the user."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_text(cls, text: str) -> UploadToken:
        """Read a token from its text. Raises `ConfigError` if the text is not a token."""
        try:
            token = msgspec.json.decode(text, type=cls)
        except (TypeError, ValueError):
            token = None
        if token is None or not (token.nuid.isalnum() and token.nuid.isascii()) or token.chunk_size < 1:
            raise ConfigError(f"resume is {text!r:.60}: it must be a text of store.upload_token()")
        return token


def mark_of_chunk(number: int, digest: bytes) -> str:
    """Return the end of a chunk's message id, which identifies the content up to the end of this chunk.

    A later attempt of the upload compares it with its content.

    Args:
        number: The number of the chunk, from 1 on.
        digest: The SHA-256 digest of the content up to the end of this chunk.
    """
    return f":{number}:{urlsafe_b64encode(digest[:_DIGEST]).decode()}"


def has_mark(msg_id: str, mark: str) -> bool:
    """Return whether a message id ends with the mark of a chunk."""
    return msg_id.endswith(mark)


class _Listed(Protocol):
    @property
    def size(self) -> int: ...
    @property
    def msg_id(self) -> str: ...


ChunkT = TypeVar("ChunkT", bound=_Listed)


def split_stored(chunks: Iterable[ChunkT], chunk_size: int) -> tuple[list[ChunkT], list[ChunkT]]:
    """Return the chunks after which an upload can continue, and the remaining chunks.

    The remaining chunks were stored out of order or twice.

    Args:
        chunks: The chunks in the order of the bucket.
        chunk_size: The size of each chunk except the last, in bytes.
    """
    usable, surplus = list[ChunkT](), list[ChunkT]()
    for chunk in chunks:
        is_next = f":{len(usable) + 1}:" in chunk.msg_id and all(
            one.size == chunk_size for one in usable[-1:]
        )
        (usable if is_next and chunk.size <= chunk_size else surplus).append(chunk)
    return usable, surplus
