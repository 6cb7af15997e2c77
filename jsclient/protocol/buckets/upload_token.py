"""The token of a resumable upload, and the selection of stored chunks after which the upload can continue."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

import msgspec

from ...errors import ConfigError

__all__ = ["UploadToken", "has_mark", "mark_of_chunk", "split_stored"]

_DIGEST: Final = 18  # number of bytes of the digest that the message id of a chunk contains


class UploadToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identifies a resumable upload. The text form is JSON.

    Attributes:
        bucket, name: The bucket and the name of the object.
        nuid: Unique name under which the chunks are stored.
        chunk_size: Size of each chunk except for the last one, in bytes.
    """

    bucket: str
    name: str
    nuid: str
    chunk_size: int

    @property
    def text(self) -> str:
        """The token as text, which the user can save."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_text(cls, text: str) -> UploadToken:
        """Parse the text form of a token. Raises `ConfigError` if the text is not a token."""
        try:
            token = msgspec.json.decode(text, type=cls)
        except (TypeError, ValueError):
            token = None
        if token is None or not (token.nuid.isalnum() and token.nuid.isascii()) or token.chunk_size < 1:
            raise ConfigError(f"resume is {text!r:.60}: it must be a text of store.upload_token()")
        return token


def mark_of_chunk(number: int, digest: bytes) -> str:
    """Return the suffix of a chunk's message id, which identifies the content up to the end of the chunk.

    When the upload is resumed, the suffix is compared with the content to be uploaded.

    Args:
        number: Number of the chunk, starting at 1.
        digest: SHA-256 digest of the content up to the end of the chunk.
    """
    return f":{number}:{urlsafe_b64encode(digest[:_DIGEST]).decode()}"


def has_mark(msg_id: str, mark: str) -> bool:
    """Return whether a message id ends with this suffix of a chunk."""
    return msg_id.endswith(mark)


class _Listed(Protocol):
    @property
    def size(self) -> int: ...
    @property
    def msg_id(self) -> str: ...


ChunkT = TypeVar("ChunkT", bound=_Listed)


def split_stored(chunks: Iterable[ChunkT], chunk_size: int) -> tuple[list[ChunkT], list[ChunkT]]:
    """Return the chunks after which an upload can continue, and the superfluous chunks.

    Superfluous chunks were stored twice or out of order.

    Args:
        chunks: The chunks in the order in which the bucket contains them.
        chunk_size: Size of each chunk except for the last one, in bytes.
    """
    usable, surplus = list[ChunkT](), list[ChunkT]()
    for chunk in chunks:
        is_next = f":{len(usable) + 1}:" in chunk.msg_id and all(
            one.size == chunk_size for one in usable[-1:]
        )
        (usable if is_next and chunk.size <= chunk_size else surplus).append(chunk)
    return usable, surplus
