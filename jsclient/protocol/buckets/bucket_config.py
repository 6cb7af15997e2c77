"""The configuration and the status of a key-value bucket's stream. Source: ADR-8, ADR-48, ADR-57."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypedDict, Unpack

import msgspec

from ...errors import ConfigError, NotABucketError
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
    SubjectTransform,
)
from ..wire.checks import check_count
from .keys import bucket_of, check_bucket, stream_of
from .stream_fields import check_options, seconds_of, shared_fields, user_metadata

__all__ = ["BucketFields", "BucketStatus", "bucket_config", "check_bucket_stream"]

_WINDOW: Final = 120.0  # maximum duplicate window of a bucket, in seconds. It is shorter if the TTL is
_MAX_HISTORY: Final = 64


class BucketFields(TypedDict, total=False):
    """Options of a key-value bucket. Pass them as keyword arguments to `JetStream.create_key_value`::

        kv = await js.create_key_value("sessions", history=5, ttl=3600)

    * ``description``: Human-readable description. Defaults to none.
    * ``history``: Number of values to keep for each key, 1 to 64. Defaults to 1.
    * ``ttl``: How long until a value expires, in seconds. By default, values never expire.
    * ``limit_marker_ttl``: How long the server keeps a marker after a value has expired, in seconds, at least 1.
      Without markers, watches don't notice that a value has expired. The option also allows a TTL for each key.
      Requires nats-server 2.11 or later.
    * ``max_value_size``: Maximum size of a value in bytes. By default, only the server's limit applies.
    * ``max_bytes``: Maximum size of the bucket in bytes. By default, there is no limit.
    * ``compression``: If true, the server compresses its files. Defaults to false.
    * ``mirror``: Name of the bucket to copy, or a `StreamSource`. Changes made here are stored in the original first.
    * ``sources``: Names of buckets from which this one copies all entries, or `StreamSource` objects.
    * ``allow_atomic``: If true, allow transactions. Requires nats-server 2.12 or later.
    * ``extra``: Further fields of the stream's configuration, as a dict.

    The other options are fields of `StreamConfig`.
    """

    description: str | None
    history: int
    ttl: float | timedelta | None
    limit_marker_ttl: float | timedelta | None
    max_value_size: int | None
    max_bytes: int | None
    storage: StorageType | StorageTypeText | None
    num_replicas: int | None
    placement: Placement | None
    republish: RePublish | None
    compression: bool
    metadata: dict[str, str] | None
    mirror: str | StreamSource | None
    sources: list[str | StreamSource] | None
    allow_atomic: bool | None
    extra: dict[str, Any]


def bucket_config(bucket: str, **options: Unpack[BucketFields]) -> StreamConfig:
    """Return the configuration of the stream that stores a bucket.

    Raises:
        InvalidNameError: The name is invalid.
        ConfigError: The value of an option is invalid.
        TypeError: An option does not exist.
    """
    check_options("a key-value bucket", options, BucketFields.__annotations__)
    stream = stream_of(bucket)
    history = check_count("history", options.get("history", 1), 1, _MAX_HISTORY)
    ttl, marker_ttl = options.get("ttl"), options.get("limit_marker_ttl")
    if marker_ttl is not None and seconds_of(marker_ttl) < 1:
        raise ConfigError(f"limit_marker_ttl is {marker_ttl!r:.40}: it must be 1 s or more")
    mirror, sources = options.get("mirror"), options.get("sources")
    fields = shared_fields(options)
    if marker_ttl is not None:
        fields |= {"allow_msg_ttl": True, "subject_delete_marker_ttl": marker_ttl}
    if ttl is not None:
        fields["duplicate_window"] = min(seconds_of(ttl), _WINDOW)
    # Don't set subjects, because a mirror has the subjects of its origin.
    if mirror is not None:
        fields |= {"mirror": _mirror(mirror), "mirror_direct": True}
    else:
        fields |= {"subjects": [f"$KV.{bucket}.>"]}
        if sources:
            fields["sources"] = [_source(source, bucket) for source in sources]
    return StreamConfig(
        name=stream,
        max_msgs_per_subject=history,
        max_msg_size=options.get("max_value_size"),
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
        **fields,
    )


def _mirror(mirror: str | StreamSource) -> StreamSource:
    source = StreamSource(name=mirror) if isinstance(mirror, str) else mirror
    return source.replace(name=_stream_name(source.name or ""))


def _source(source: str | StreamSource, bucket: str) -> StreamSource:
    """Return the source of a bucket. If the user has set no subject transforms, add one for the bucket's subjects."""
    if not isinstance(source, str):
        if source.subject_transforms:
            return source
        name = _stream_name(source.name or "")
        same = source.external is not None and bucket_of(name) == bucket
        changed = source.replace(name=name)
    else:
        name, same, changed = _stream_name(source), False, StreamSource(name=_stream_name(source))
    if same:
        return changed
    transform = SubjectTransform(src=f"$KV.{bucket_of(name)}.>", dest=f"$KV.{bucket}.>")
    return changed.replace(subject_transforms=[transform])


def _stream_name(name: str) -> str:
    return name if bucket_of(name) else stream_of(name)


def check_bucket_stream(info: StreamInfo) -> str:
    """Return the bucket of a stream. Raises `NotABucketError` if the stream isn't a key-value bucket."""
    name = info.config.name
    bucket = bucket_of(name)
    if bucket is None or (info.config.max_msgs_per_subject or 0) < 1:
        raise NotABucketError(name, "its max_msgs_per_subject is not set")
    return check_bucket(bucket)


class BucketStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state and the options of a key-value bucket at the time of the request. Returned by `KeyValue.status`.

    Attributes:
        bucket: Name of the bucket.
        values: Number of entries, including deletions and older values.
        history: Maximum number of entries that are kept for each key.
        ttl: How long until a value expires, in seconds, or 0 if values never expire.
        limit_marker_ttl: How long markers of expired values are kept, in seconds, or 0 if there are no markers.
        size: Size of all entries in bytes.
        is_compressed: Whether the server compresses the files of the bucket.
        metadata: Metadata set by the user.
        config: Configuration of the stream that stores the bucket.
    """

    bucket: str
    values: int
    history: int
    ttl: float
    limit_marker_ttl: float
    size: int
    is_compressed: bool
    metadata: Mapping[str, str]
    config: StreamConfig

    @classmethod
    def of(cls, info: StreamInfo) -> BucketStatus:
        """Create the status from the info of the stream that stores a bucket.

        Raises:
            NotABucketError: The stream isn't a key-value bucket.
        """
        config = info.config
        return cls(
            bucket=check_bucket_stream(info),
            values=info.state.messages,
            history=config.max_msgs_per_subject or 0,
            ttl=config.max_age or 0.0,
            limit_marker_ttl=config.subject_delete_marker_ttl or 0.0,
            size=info.state.bytes,
            is_compressed=config.compression not in (None, StoreCompression.NONE),
            metadata=user_metadata(config),
            config=config,
        )
