"""The methods of `JetStream` that create, change, find and delete buckets. Source: ADR-8, ADR-20."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Unpack

from .._runtime.handle import asking, listing
from ..errors import BucketExistsError, BucketNotFoundError, StreamExistsError, StreamNotFoundError
from ..protocol.events import ConsumersNearLimit
from ..protocol.models.drift import OnDrift
from ..streams.api import StreamManager

if TYPE_CHECKING:  # imported when a bucket is first used: `import jsclient` stays fast
    from ..protocol.buckets.bucket_config import BucketFields
    from ..protocol.buckets.entry import ValueT
    from ..protocol.buckets.key_codecs import KeyCodec
    from ..protocol.buckets.object_config import ObjectStoreFields
    from ..protocol.models.stream import StreamInfo
    from ..protocol.topics.value_codec import Codec
    from .key_value.key_value import KeyValue
    from .objects.object_store import ObjectStore

__all__ = ["Buckets"]


class Buckets(StreamManager):
    """Base class of `JetStream` that provides the methods for key-value buckets and object stores."""

    @asking
    async def create_key_value(
        self,
        bucket: str,
        *,
        codec: Codec[ValueT] | None = None,
        key_codec: KeyCodec | None = None,
        **options: Unpack[BucketFields],
    ) -> KeyValue[ValueT]:
        """Create a key-value bucket, or return the existing bucket if it has the same configuration::

            kv = await js.create_key_value("settings", history=5)
            await kv.put("theme", b"dark")

        Args:
            bucket: Name of the bucket: letters, digits, ``-`` and ``_``.
            codec: Encodes and decodes values, for example ``JsonCodec(Settings)``. By default, values are bytes.
            key_codec: Encodes and decodes keys. For example, `Base64Keys` allows keys with any characters. By default,
                keys are stored as they are.
            options: The configuration, for example ``history=5`` or ``ttl=3600``. See `jsclient.buckets.BucketFields`.

        Raises:
            BucketExistsError: A bucket of this name exists with a different configuration.
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option or a codec is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.bucket_config import bucket_config

        config = bucket_config(bucket, **options)
        _check_codecs(codec, key_codec)
        try:
            stream = await self.create_stream(config)
        except StreamExistsError as error:
            raise _exists(error, "ensure_key_value") from None
        self._warn_near_limit(stream.cached_info)
        return self._key_value(bucket, stream.cached_info, codec, key_codec)

    @asking
    async def update_key_value(
        self,
        bucket: str,
        *,
        codec: Codec[ValueT] | None = None,
        key_codec: KeyCodec | None = None,
        **options: Unpack[BucketFields],
    ) -> KeyValue[ValueT]:
        """Change the configuration of a bucket. Options that you omit are reset to their defaults.

        The arguments are the same as for `create_key_value`.

        Raises:
            BucketNotFoundError: The bucket doesn't exist.
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option or a codec is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.bucket_config import bucket_config

        _check_codecs(codec, key_codec)
        try:
            stream = await self.update_stream(bucket_config(bucket, **options))
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_key_value") from None
        return self._key_value(bucket, stream.cached_info, codec, key_codec)

    @asking
    async def create_or_update_key_value(
        self,
        bucket: str,
        *,
        codec: Codec[ValueT] | None = None,
        key_codec: KeyCodec | None = None,
        **options: Unpack[BucketFields],
    ) -> KeyValue[ValueT]:
        """Change the configuration of a bucket, or create the bucket if it doesn't exist.

        Options that you omit are reset to their defaults. The arguments are the same as for `create_key_value`.

        Raises:
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option or a codec is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.bucket_config import bucket_config

        _check_codecs(codec, key_codec)
        stream = await self.create_or_update_stream(bucket_config(bucket, **options))
        return self._key_value(bucket, stream.cached_info, codec, key_codec)

    @asking
    async def ensure_key_value(
        self,
        bucket: str,
        *,
        on_drift: OnDrift = "error",
        codec: Codec[ValueT] | None = None,
        key_codec: KeyCodec | None = None,
        **options: Unpack[BucketFields],
    ) -> KeyValue[ValueT]:
        """Create a bucket, or verify that an existing bucket has the given options.

        Any number of processes may call this method at the same time, for example at startup. One process creates the
        bucket, and the other processes find it.

        Args:
            bucket: Name of the bucket.
            on_drift: What to do if the existing bucket has different options. "error" (the default) raises
                `ConfigMismatchError`, "update" changes the options that differ, and "ignore" accepts the bucket.
            codec: Encodes and decodes values. By default, values are bytes and are stored as they are.
            key_codec: Encodes and decodes keys. By default, keys are stored as they are.
            options: The configuration, for example ``history=5`` or ``ttl=3600``. See `jsclient.buckets.BucketFields`.

        Raises:
            ConfigMismatchError: The existing bucket has different options.
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option or a codec is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.bucket_config import bucket_config

        _check_codecs(codec, key_codec)
        stream = await self.ensure_stream(bucket_config(bucket, **options), on_drift=on_drift)
        self._warn_near_limit(stream.cached_info)
        return self._key_value(bucket, stream.cached_info, codec, key_codec)

    @asking
    async def key_value(
        self,
        bucket: str,
        *,
        check: bool = True,
        validate: bool = True,
        writable: bool = True,
        own: bool = False,
        codec: Codec[ValueT] | None = None,
        key_codec: KeyCodec | None = None,
    ) -> KeyValue[ValueT]:
        """Return a handle for an existing key-value bucket.

        Args:
            bucket: Name of the bucket.
            check: If true, verify that the bucket exists. Pass False to send no request, for example because the user
                is only allowed to get and put values.
            validate: If true, refuse keys that other clients would refuse, and keys that begin with ``_kv``. If false,
                a key may consist of any tokens that are valid in a subject.
            writable: Pass False to get a read-only handle. All of its methods that write raise `ReadOnlyError`.
            own: If true, accept only values that were written through a handle with ``own=True``. Messages that other
                clients stored under a key are skipped, and reported with the event `RecordSkipped`. For example, anyone
                who may send requests can name the subject of a key as the reply subject, and so have the reply stored.
            codec: Encodes and decodes values. The codec isn't stored in the bucket, so pass the same codec as to
                `create_key_value`.
            key_codec: Encodes and decodes keys. It isn't stored in the bucket either.

        Raises:
            BucketNotFoundError: The bucket doesn't exist.
            NotABucketError: The stream of this name isn't a key-value bucket.
            InvalidNameError: The name is invalid.
            ConfigError: A codec is invalid.

        May also raise any other request error.
        """
        from ..protocol.buckets.bucket_config import check_bucket_stream
        from ..protocol.buckets.keys import stream_of

        _check_codecs(codec, key_codec)
        if not check:
            return self._key_value(
                bucket, None, codec, key_codec, validate=validate, writable=writable, own=own
            )
        try:
            info = (await self.stream(stream_of(bucket))).cached_info
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_key_value") from None
        check_bucket_stream(info)
        return self._key_value(bucket, info, codec, key_codec, validate=validate, writable=writable, own=own)

    def _warn_near_limit(self, info: StreamInfo) -> None:
        """Report that the stream of a bucket has almost as many consumers as it may have."""
        from ..protocol.models.consumer_limit import near_consumer_limit

        context, count = self._context, info.state.consumer_count
        if limit := near_consumer_limit(info, context.connection.server_version):
            context.emit(ConsumersNearLimit(stream=info.name, consumers=count, limit=limit))

    async def delete_key_value(self, bucket: str) -> None:
        """Delete a bucket and all its values.

        Raises:
            BucketNotFoundError: The bucket doesn't exist.

        May also raise any other request error.
        """
        from ..protocol.buckets.keys import stream_of

        try:
            await self.delete_stream(stream_of(bucket))
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_key_value") from None

    @listing
    async def key_value_names(self) -> AsyncGenerator[str, None]:
        """Iterate over the names of all key-value buckets, including mirrors. The names are requested page by page."""
        from ..protocol.buckets.keys import bucket_of

        async for stream in self.stream_names():
            if (bucket := bucket_of(stream)) is not None:
                yield bucket

    def _key_value(
        self,
        bucket: str,
        info: StreamInfo | None,
        codec: Codec[ValueT] | None,
        key_codec: KeyCodec | None,
        *,
        validate: bool = True,
        writable: bool = True,
        own: bool = False,
    ) -> KeyValue[ValueT]:
        from ..protocol.buckets.keys import KeySpace, stream_of
        from .key_value.key_value import KeyValue

        config = None if info is None else info.config
        prefix = self._context.api.prefix
        keys = KeySpace.of(
            bucket,
            config,
            prefix,
            validates=validate,
            writable=writable,
            codec=codec,
            key_codec=key_codec,
            own=own,
        )
        return KeyValue(self._context, stream_of(bucket), keys, info)

    @asking
    async def create_object_store(self, bucket: str, **options: Unpack[ObjectStoreFields]) -> ObjectStore:
        """Create an object store, or return the existing store if it has the same configuration.

        Args:
            bucket: Name of the store: letters, digits, ``-`` and ``_``.
            options: The configuration, for example ``max_bytes=10**9`` or ``ttl=3600``. See
                `jsclient.buckets.ObjectStoreFields`.

        Raises:
            BucketExistsError: An object store of this name exists with a different configuration.
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.object_config import object_config

        try:
            stream = await self.create_stream(object_config(bucket, **options))
        except StreamExistsError as error:
            raise _exists(error, "ensure_object_store") from None
        return self._object_store(bucket, stream.cached_info)

    @asking
    async def update_object_store(self, bucket: str, **options: Unpack[ObjectStoreFields]) -> ObjectStore:
        """Change the configuration of an object store. Options that you omit are reset to their defaults.

        The arguments are the same as for `create_object_store`.

        Raises:
            BucketNotFoundError: The object store doesn't exist.
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.object_config import object_config

        try:
            stream = await self.update_stream(object_config(bucket, **options))
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_object_store") from None
        return self._object_store(bucket, stream.cached_info)

    @asking
    async def create_or_update_object_store(
        self, bucket: str, **options: Unpack[ObjectStoreFields]
    ) -> ObjectStore:
        """Change the configuration of an object store, or create the store if it doesn't exist.

        Options that you omit are reset to their defaults. The arguments are the same as for `create_object_store`.

        Raises:
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.object_config import object_config

        stream = await self.create_or_update_stream(object_config(bucket, **options))
        return self._object_store(bucket, stream.cached_info)

    @asking
    async def ensure_object_store(
        self, bucket: str, *, on_drift: OnDrift = "error", **options: Unpack[ObjectStoreFields]
    ) -> ObjectStore:
        """Create an object store, or verify that an existing store has the given options.

        Any number of processes may call this method at the same time, for example at startup. One process creates the
        store, and the other processes find it.

        Args:
            bucket: Name of the store.
            on_drift: What to do if the existing store has different options. "error" (the default) raises
                `ConfigMismatchError`, "update" changes the options that differ, and "ignore" accepts the store.
            options: The configuration, for example ``ttl=3600``. See `jsclient.buckets.ObjectStoreFields`.

        Raises:
            ConfigMismatchError: The existing store has different options.
            InvalidNameError: The name is invalid. No request was sent.
            ConfigError: An option is invalid. No request was sent.

        May also raise any request error.
        """
        from ..protocol.buckets.object_config import object_config

        stream = await self.ensure_stream(object_config(bucket, **options), on_drift=on_drift)
        self._warn_near_limit(stream.cached_info)
        return self._object_store(bucket, stream.cached_info)

    @asking
    async def object_store(self, bucket: str, *, check: bool = True) -> ObjectStore:
        """Return a handle for an existing object store.

        Args:
            bucket: Name of the object store.
            check: If true, verify that the store exists. Pass False to send no request, for example because the user
                isn't allowed to request the state of streams.

        Raises:
            BucketNotFoundError: The object store doesn't exist.
            NotABucketError: The stream of this name isn't an object store.
            InvalidNameError: The name is invalid.

        May also raise any other request error.
        """
        from ..protocol.buckets.object_config import check_object_stream
        from ..protocol.buckets.object_names import object_stream_of

        if not check:
            return self._object_store(bucket, None)
        try:
            info = (await self.stream(object_stream_of(bucket))).cached_info
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_object_store") from None
        check_object_stream(info)
        return self._object_store(bucket, info)

    async def delete_object_store(self, bucket: str) -> None:
        """Delete an object store and all its objects.

        Raises:
            BucketNotFoundError: The object store doesn't exist.

        May also raise any other request error.
        """
        from ..protocol.buckets.object_names import object_stream_of

        try:
            await self.delete_stream(object_stream_of(bucket))
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_object_store") from None

    @listing
    async def object_store_names(self) -> AsyncGenerator[str, None]:
        """Iterate over the names of all object stores, including mirrors. The names are requested page by page."""
        from ..protocol.buckets.object_names import object_bucket_of

        async for stream in self.stream_names():
            if (bucket := object_bucket_of(stream)) is not None:
                yield bucket

    def _object_store(self, bucket: str, info: StreamInfo | None) -> ObjectStore:
        from ..protocol.buckets.keys import check_bucket
        from ..protocol.buckets.object_names import ObjectSpace
        from .objects.object_store import ObjectStore

        space = ObjectSpace.of(check_bucket(bucket), None if info is None else info.config)
        return ObjectStore(self._context, space, info)


def _exists(error: StreamExistsError, ensure: str) -> BucketExistsError:
    advice = error.advice.replace("ensure_stream(", f"{ensure}(")
    return BucketExistsError(
        error.code, error.err_code, error.description, error.stream, error.consumer, advice
    )


def _no_bucket(error: StreamNotFoundError, create: str) -> BucketNotFoundError:
    from .bucket_handle import no_bucket

    return no_bucket(error, create)


def _check_codecs(codec: object, key_codec: object) -> None:
    from ..protocol.buckets.values import check_codec

    check_codec("codec", codec, ("encode", "decode"))
    check_codec("key_codec", key_codec, ("encode", "decode", "encode_filter"))
