"""The part of `JetStream` that creates, changes, finds and deletes buckets. Source: ADR-8, ADR-20."""

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
    """The methods of `JetStream` for key-value buckets and object stores."""

    @asking
    async def create_key_value(
        self,
        bucket: str,
        *,
        codec: Codec[ValueT] | None = None,
        key_codec: KeyCodec | None = None,
        **options: Unpack[BucketFields],
    ) -> KeyValue[ValueT]:
        """Create a key-value bucket, or return the existing bucket if it has the same configuration.

        Args:
            bucket: The name: letters, digits, ``-`` and ``_``.
            codec: Encodes and decodes values, such as ``JsonCodec(Settings)``. Without a codec, values are bytes.
            key_codec: Encodes and decodes keys, such as `Base64Keys` for keys with any character.
            options: See `jsclient.buckets.BucketFields`, such as ``history=5`` and ``ttl=3600``.

        Raises:
            BucketExistsError: A bucket of this name has another configuration.
            InvalidNameError, ConfigError: An argument is not valid. Nothing was sent.

        May also raise any error of an API request.
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
        """Change the configuration of a bucket. Options that are not given return to their defaults.

        See `create_key_value` for the arguments and errors. Also raises `BucketNotFoundError` if the bucket does not
        exist.
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
        """Change the configuration of a bucket, or create it. See `create_key_value` for the arguments and errors."""
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
        """Create a bucket, or verify that the existing one has the given options.

        Any number of processes may call it at the same time: one creates the bucket, the others find it.

        Args:
            bucket: The name.
            on_drift: The action if the bucket differs: "error" raises `ConfigMismatchError`, "update" changes the
                options that differ, "ignore" accepts the bucket.
            codec, key_codec, options: See `create_key_value`.

        Raises:
            ConfigMismatchError: The bucket differs.
            InvalidNameError, ConfigError: An argument is not valid. Nothing was sent.

        May also raise any error of an API request.
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
        """Return an existing key-value bucket.

        Args:
            bucket: The name.
            check: Look the bucket up. With False no request is sent, for users who may only get and put.
            validate: Refuse keys that other clients would refuse, and keys that begin with ``_kv``. False allows any
                token of a subject.
            writable: False returns a handle that only reads: any method that writes raises `ReadOnlyError`.
            own: Count only values that such a handle has written. A message of another client, such as an answer that a
                user had stored under a key, is not a value: it is passed over, and reported as the event
                `RecordSkipped`.
            codec, key_codec: See `create_key_value`. The bucket does not know its codecs, so give them each time.

        Raises:
            BucketNotFoundError: The bucket does not exist.
            NotABucketError: The stream with this name is not a bucket.
            InvalidNameError, ConfigError: The name or a codec is not valid.

        May also raise any error of an API request.
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
        """Delete a bucket with all its values. Raises `BucketNotFoundError`."""
        from ..protocol.buckets.keys import stream_of

        try:
            await self.delete_stream(stream_of(bucket))
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_key_value") from None

    @listing
    async def key_value_names(self) -> AsyncGenerator[str, None]:
        """Iterate over the names of all key-value buckets, mirrors included, page by page."""
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
            bucket: The name: letters, digits, ``-`` and ``_``.
            options: See `jsclient.buckets.ObjectStoreFields`, such as ``max_bytes=10**9`` and ``ttl=3600``.

        Raises:
            BucketExistsError: An object store of this name has another configuration.
            InvalidNameError, ConfigError: An argument is not valid. Nothing was sent.

        May also raise any error of an API request.
        """
        from ..protocol.buckets.object_config import object_config

        try:
            stream = await self.create_stream(object_config(bucket, **options))
        except StreamExistsError as error:
            raise _exists(error, "ensure_object_store") from None
        return self._object_store(bucket, stream.cached_info)

    @asking
    async def update_object_store(self, bucket: str, **options: Unpack[ObjectStoreFields]) -> ObjectStore:
        """Change the configuration of an object store. Options that are not given return to their defaults.

        See `create_object_store` for the arguments and errors. Also raises `BucketNotFoundError` if it does not exist.
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
        """Change the configuration of an object store, or create it. See `create_object_store`."""
        from ..protocol.buckets.object_config import object_config

        stream = await self.create_or_update_stream(object_config(bucket, **options))
        return self._object_store(bucket, stream.cached_info)

    @asking
    async def ensure_object_store(
        self, bucket: str, *, on_drift: OnDrift = "error", **options: Unpack[ObjectStoreFields]
    ) -> ObjectStore:
        """Create an object store, or verify that the existing one has the given options.

        Takes the options of `create_object_store`. See `ensure_key_value` for the other arguments and the errors.
        """
        from ..protocol.buckets.object_config import object_config

        stream = await self.ensure_stream(object_config(bucket, **options), on_drift=on_drift)
        self._warn_near_limit(stream.cached_info)
        return self._object_store(bucket, stream.cached_info)

    @asking
    async def object_store(self, bucket: str, *, check: bool = True) -> ObjectStore:
        """Return an existing object store.

        Args:
            bucket: The name.
            check: Look the store up. With False no request is sent, for users who may not request the state of streams.

        Raises:
            BucketNotFoundError: The object store does not exist.
            NotABucketError: The stream with this name is not an object store.
            InvalidNameError: The name is not valid.

        May also raise any error of an API request.
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
        """Delete an object store with all its objects. Raises `BucketNotFoundError`."""
        from ..protocol.buckets.object_names import object_stream_of

        try:
            await self.delete_stream(object_stream_of(bucket))
        except StreamNotFoundError as error:
            raise _no_bucket(error, "create_object_store") from None

    @listing
    async def object_store_names(self) -> AsyncGenerator[str, None]:
        """Iterate over the names of all object stores, mirrors included, page by page."""
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
