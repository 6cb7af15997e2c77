"""The configuration and the status of an object store's stream. Source: ADR-20."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict, Unpack

import msgspec

from ...errors import NotABucketError
from ..models.stream import StreamInfo
from ..models.stream_config import (
    DiscardPolicy,
    Placement,
    RePublish,
    StorageType,
    StorageTypeText,
    StoreCompression,
    StreamConfig,
    StreamSource,
)
from .object_names import object_bucket_of, object_stream_of
from .stream_fields import check_options, shared_fields, user_metadata

__all__ = ["ObjectStoreFields", "ObjectStoreStatus", "check_object_stream", "object_config"]


class ObjectStoreFields(TypedDict, total=False):
    """Options of an object store. Pass them as keyword arguments to `JetStream.create_object_store`::

        store = await js.create_object_store("uploads", ttl=86400, max_bytes=10**9)

    * ``description``: Human-readable description. Defaults to none.
    * ``ttl``: How long until an object expires, in seconds. By default, objects never expire.
    * ``max_bytes``: Maximum size of the store in bytes. By default, there is no limit.
    * ``compression``: If true, the server compresses its files. Defaults to false.
    * ``mirror``: Name of the object store to copy, or a `StreamSource`. The copy is read-only.
    * ``extra``: Further fields of the stream's configuration, as a dict.

    The other options are fields of `StreamConfig`.
    """

    description: str | None
    ttl: float | timedelta | None
    max_bytes: int | None
    storage: StorageType | StorageTypeText | None
    num_replicas: int | None
    placement: Placement | None
    republish: RePublish | None
    compression: bool
    metadata: dict[str, str] | None
    mirror: str | StreamSource | None
    allow_atomic: bool | None
    extra: dict[str, Any]


def object_config(bucket: str, **options: Unpack[ObjectStoreFields]) -> StreamConfig:
    """Return the configuration of the stream that stores an object store.

    Raises:
        InvalidNameError: The name is invalid.
        ConfigError: The value of an option is invalid.
        TypeError: An option does not exist.
    """
    check_options("an object store", options, ObjectStoreFields.__annotations__)
    stream, fields = object_stream_of(bucket), shared_fields(options)
    if (mirror := options.get("mirror")) is not None:
        source = StreamSource(name=mirror) if isinstance(mirror, str) else mirror
        name = source.name or ""
        origin = name if object_bucket_of(name) else object_stream_of(name)
        fields |= {"mirror": source.replace(name=origin), "mirror_direct": True}
    else:
        fields["subjects"] = [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"]
    return StreamConfig(
        name=stream, discard=DiscardPolicy.NEW, allow_rollup_hdrs=True, allow_direct=True, **fields
    )


def check_object_stream(info: StreamInfo) -> str:
    """Return the bucket of a stream. Raises `NotABucketError` if the stream isn't an object store."""
    config = info.config
    bucket = object_bucket_of(config.name)
    if bucket is None or (config.mirror is None and f"$O.{bucket}.M.>" not in (config.subjects or ())):
        raise NotABucketError(config.name, f"it has no subject $O.{bucket}.M.>")
    return bucket


class ObjectStoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state and the options of an object store at the time of the request. Returned by `ObjectStore.status`.

    Attributes:
        bucket: Name of the object store.
        description: Human-readable description, or an empty string.
        ttl: How long until an object expires, in seconds, or 0 if objects never expire.
        storage: ``"file"`` or ``"memory"``, where the server stores the objects.
        num_replicas: Number of servers that store each object.
        is_sealed: True if the store was sealed and can no longer be changed.
        size: Size of all objects and their descriptions in bytes.
        is_compressed: Whether the server compresses the files of the store.
        metadata: Metadata set by the user.
        config: Configuration of the stream that stores the objects.
    """

    bucket: str
    description: str
    ttl: float
    storage: str
    num_replicas: int
    is_sealed: bool
    size: int
    is_compressed: bool
    metadata: Mapping[str, str]
    config: StreamConfig

    @classmethod
    def of(cls, info: StreamInfo) -> ObjectStoreStatus:
        """Create the status from the info of the stream that stores the objects.

        Raises:
            NotABucketError: The stream isn't an object store.
        """
        config = info.config
        return cls(
            bucket=check_object_stream(info),
            description=config.description or "",
            ttl=config.max_age or 0.0,
            storage=str(config.storage or StorageType.FILE),
            num_replicas=config.num_replicas or 1,
            is_sealed=bool(config.sealed),
            size=info.state.bytes,
            is_compressed=config.compression not in (None, StoreCompression.NONE),
            metadata=user_metadata(config),
            config=config,
        )
