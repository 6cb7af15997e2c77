"""The handle of an object store: `JetStream.object_store`. Source: ADR-20."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..._runtime.context import Context
from ..._runtime.handle import listing, no_pickle
from ...errors import (
    BucketFullError,
    ConfigError,
    LinkError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from ...protocol.buckets.keys import check_bucket
from ...protocol.buckets.object_config import ObjectStoreStatus
from ...protocol.buckets.object_info import ObjectInfo, ObjectLink, check_headers, check_metadata
from ...protocol.buckets.object_names import ObjectSpace
from ...protocol.buckets.object_report import ObjectStoreReport, RemovedGarbage
from ...protocol.buckets.rights import BucketRights
from ...protocol.buckets.upload_token import UploadToken
from ...protocol.models.consumer import DeliverPolicy
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.checks import check_count, check_seconds
from ...protocol.wire.codec import to_wire
from ...protocol.wire.nats_py import no_attribute
from ..following.reader import SharedReader
from ..reading import policy_of
from ..rights import WithBucketRights
from .checking import check_objects
from .descriptions import ObjectDescriptions
from .files import write_file
from .garbage import check_age, remove_garbage
from .links import find_object
from .reader import ObjectReader
from .renaming import rename_object
from .site import ObjectSite
from .source import BinaryFile, check_source, size_of
from .storing import PutCondition, chunk_size_for, new_nuid, store_object
from .upload import Progress, check_progress
from .watch import ObjectWatch

__all__ = ["ObjectStore"]

_ACK: Final = 30.0  # seconds to wait for the ack of a chunk, unless the timeout of `connect` is longer


class ObjectStore(WithBucketRights):
    """A bucket that stores objects of any size, such as files. Returned by `JetStream.object_store`.

    The object holds no resources, so you don't need to close it.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown names
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    def __init__(self, context: Context, space: ObjectSpace, info: StreamInfo | None) -> None:
        self._context = context
        self._site = ObjectSite(context, space, info)
        self._descriptions = ObjectDescriptions(self._site)

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self._site.bucket

    @property
    def stream(self) -> str:
        """Name of the stream that stores the bucket."""
        return self._site.stream

    def __repr__(self) -> str:
        return f"<ObjectStore {self.bucket}>"

    def _rights(self) -> BucketRights:
        return self._site.rights

    # --- writing -----------------------------------------------------------------------------------------

    async def put(
        self,
        name: str,
        data: bytes | bytearray | memoryview | AsyncIterable[bytes] | Iterable[bytes] | BinaryFile,
        *,
        chunk_size: int | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
        description: str = "",
        size: int | None = None,
        progress: Progress | None = None,
        if_match: int | None = None,
        if_none_match: bool = False,
        timeout: float | None = None,
        resume: str | None = None,
    ) -> ObjectInfo:
        """Store an object and return its description. An existing object of the same name is replaced.

        Memory use doesn't depend on the size of the object. Readers get the previous object until the new object is
        completely stored. If the call fails, no part of the new object remains in the bucket.

        Args:
            name: Name of the object. Any non-empty text is allowed.
            data: The content: bytes, an iterable or asynchronous iterable of bytes, or a binary file. Files are read in
                a thread.
            chunk_size: Size of each message in bytes. Defaults to 128 KiB.
            headers: Headers to store with the object.
            metadata: Metadata to store with the object, as a mapping from names to strings.
            description: Human-readable description of the object.
            size: Size of the content, if known. It is verified, and passed to ``progress``.
            progress: A plain function to call with the number of bytes stored so far, and ``size`` or None. If the
                function raises an exception, a `HandlerFailed` event reports it and the upload continues.
            if_match: Replace the object only if it has this revision.
            if_none_match: If true, store the object only if no object of this name exists.
            timeout: How long to wait for the ack of each chunk, in seconds. Defaults to 30.
            resume: A token from `upload_token`. Pass the same ``data`` from its beginning. Chunks that an earlier
                attempt has stored aren't sent again. If the call fails, the stored chunks are kept for the next one.

        Raises:
            SourceChangedError: ``data`` differs from the content that an earlier attempt has stored.
            ObjectChangedError: The object doesn't have the revision ``if_match``.
            ObjectExistsError: ``if_none_match`` is true, and an object of this name exists.
            BucketFullError: The bucket is full.
            BucketSealedError: The bucket is sealed.
            BucketNotFoundError: The bucket doesn't exist.
            InvalidNameError: The name is invalid. Nothing was sent.
            ConfigError: An option is invalid, or the content doesn't have the given ``size``.
            RequestTimeoutError, DisconnectedError: A chunk wasn't acked, or the reply to the last message was lost. In
                the second case, the object may or may not be stored.

        May also raise any request error, and any exception that reading ``data`` raises.

        If the call is cancelled after the description has been sent, the object is stored. Otherwise the chunks are
        removed, or kept if ``resume`` is given.
        """
        # Check all arguments before anything is sent, so that nothing has to be removed afterwards.
        self._site.space.info_subject(name)
        check_source(data)
        known = size_of(data)
        if size is None:
            size = known
        elif check_count("size", size, 0) != known and known is not None:
            raise ConfigError(f"size is {size:,}, and the content has {known:,} bytes")
        if not isinstance(description, str):
            raise ConfigError(f"description is {type(description).__name__}: a str is needed")
        check_progress(progress)
        token = None if resume is None else self._token(resume, name, chunk_size)
        info = ObjectInfo(
            bucket=self.bucket,
            name=name,
            description=description,
            headers=check_headers(headers),
            metadata=check_metadata(metadata),
            max_chunk_size=chunk_size_for(self._site, chunk_size if token is None else token.chunk_size),
        )
        seconds = max(_ACK, self._context.timeout) if timeout is None else check_seconds("timeout", timeout)
        condition = PutCondition.of(if_match, if_none_match)
        await self._site.check_unambiguous()
        return await store_object(
            self._site,
            info,
            data,
            condition=condition,
            timeout=seconds,
            progress=progress,
            size=size,
            token=token,
        )

    def upload_token(self, name: str, *, chunk_size: int | None = None) -> str:
        """Return a token that makes the upload of an object resumable. No request is sent.

        Save the token, and pass it to `put` or `put_file` as ``resume``, on the first attempt as well. If the process
        is killed, the next attempt reads ``data`` from the start, but sends only what the bucket lacks. If the object
        is already stored, the call returns its description. Only one process may use the token at a time. The chunks of
        an upload that is never resumed remain until `gc` removes them.

        Args:
            name: Name of the object.
            chunk_size: Size of each message in bytes. Defaults to 128 KiB.

        Raises:
            InvalidNameError: The name is invalid.
            ConfigError: The chunk size is invalid.
        """
        self._site.space.info_subject(name)
        return UploadToken(self.bucket, name, new_nuid(), chunk_size_for(self._site, chunk_size)).text

    def _token(self, text: str, name: str, chunk_size: int | None) -> UploadToken:
        token = UploadToken.of_text(text)
        if (token.bucket, token.name) != (self.bucket, name):
            raise ConfigError(f"resume is for object {token.name!r} of bucket {token.bucket!r}")
        if chunk_size not in (None, token.chunk_size):
            raise ConfigError(f"chunk_size is {chunk_size}, and that of resume is {token.chunk_size}")
        return token

    async def put_file(self, name: str, path: str | os.PathLike[str], **options: Any) -> ObjectInfo:
        """Store a file as an object, and return the object's description.

        ``options`` are the keyword arguments of `put`, such as ``chunk_size`` or ``resume``. Raises the same errors as
        `put`, and ``OSError`` if the file can't be read.
        """
        with Path(path).open("rb") as file:  # noqa: ASYNC230  opening a file does not wait
            return await self.put(name, file, **{"size": os.fstat(file.fileno()).st_size, **options})

    async def delete(self, name: str) -> None:
        """Delete an object, or a link but not its target. Does nothing if it has already been deleted.

        Raises:
            ObjectNotFoundError: No object of this name has ever existed, or its deletion has been removed.
            BucketSealedError: The bucket is sealed, so it can't be changed.

        May also raise any request error.
        """

        def deleted(current: ObjectInfo | None) -> ObjectInfo | None:
            if current is None:
                raise ObjectNotFoundError(self.bucket, name)
            if current.is_deleted:
                return None
            return msgspec.structs.replace(
                current, is_deleted=True, size=0, chunks=0, digest="", is_counted=True
            )

        self._site.space.check_writable()
        try:
            before, _ = await self._site.change(name, deleted, replacing=True)
        except BucketFullError:  # the bucket has no capacity for the description until the chunks are removed
            full = await self._site.current(name, replacing=True)
            await self._site.remove_chunks("" if full is None or full.is_deleted else full.nuid)
            before, _ = await self._site.change(name, deleted, replacing=True)
        if before is not None and not before.is_deleted:
            await self._site.remove_chunks(before.nuid)

    async def update_info(
        self,
        name: str,
        *,
        description: str | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Change the description, headers or metadata of an object, and return its new `ObjectInfo`.

        Fields whose argument is None don't change. The content isn't transferred.

        Raises:
            ObjectNotFoundError: The object doesn't exist.
            ConfigError: An argument is invalid. Nothing was sent.

        May also raise any request error.
        """
        changes: dict[str, Any] = {}
        if description is not None:
            changes["description"] = description
        if headers is not None:
            changes["headers"] = check_headers(headers)
        if metadata is not None:
            changes["metadata"] = check_metadata(metadata)

        def changed(current: ObjectInfo | None) -> ObjectInfo:
            return msgspec.structs.replace(self._existing(name, current), **changes)

        self._site.space.check_writable()
        _, after = await self._site.change(name, changed)
        assert after is not None
        return after

    async def rename(self, old: str, new: str) -> ObjectInfo:
        """Rename an object, and return its description. The content isn't copied. Links to the old name break.

        Raises:
            ObjectNotFoundError: The object ``old`` doesn't exist.
            ObjectExistsError: An object named ``new`` already exists.
            ObjectChangedError: Another client replaced the object during the call. The object keeps its name.

        May also raise any request error.
        """
        return await rename_object(self._site, old, new)

    async def add_link(self, name: str, target: ObjectInfo | str) -> ObjectInfo:
        """Create a link, a second name for an object, and return the link's description. `get` and `open` follow links.

        Args:
            name: Name of the link. An existing link of this name is replaced.
            target: Name of an object in this bucket, or the description of an object in any bucket.

        Raises:
            ObjectNotFoundError: The target doesn't exist.
            ObjectExistsError: An object that isn't a link already has the name of the link.
            LinkError: The target is itself a link.

        May also raise any request error.
        """
        if isinstance(target, str):
            target = await self.info(target)
        elif not isinstance(target, ObjectInfo):
            raise ConfigError(f"target is {type(target).__name__}: an ObjectInfo or a name is needed")
        if target.is_deleted:
            raise ObjectNotFoundError(target.bucket, target.name, target)
        if target.is_link:
            raise LinkError(target.bucket, target.name, "it is a link itself: link to its target")
        return await self._link(name, ObjectLink(target.bucket, target.name))

    async def add_bucket_link(self, name: str, bucket: ObjectStore | str) -> ObjectInfo:
        """Store a link named ``name`` to a whole bucket. In the returned `ObjectInfo`, ``link`` names the bucket.

        May raise `ObjectExistsError` if an object that isn't a link already has this name, or any request error.
        """
        if isinstance(bucket, ObjectStore):
            bucket = bucket.bucket
        return await self._link(name, ObjectLink(ObjectSpace.of(check_bucket(bucket), None).bucket))

    async def _link(self, name: str, link: ObjectLink) -> ObjectInfo:
        def linked(current: ObjectInfo | None) -> ObjectInfo:
            if current is not None and not current.is_deleted and not current.is_link:
                raise ObjectExistsError(self.bucket, name, current.revision)
            # A link has no chunks, but the clients for Go and Python refuse any description without a nuid.
            return ObjectInfo(bucket=self.bucket, name=name, link=link, nuid=new_nuid())

        self._site.space.check_writable()
        _, after = await self._site.change(name, linked)
        assert after is not None
        return after

    # --- reading -----------------------------------------------------------------------------------------

    async def get(self, name: str, *, progress: Progress | None = None) -> bytes:
        """Return the whole content of an object. Use `open` to read it piece by piece.

        Args:
            name: Name of the object, or of a link to it.
            progress: A plain function to call with the number of bytes read so far, and the size of the object.

        Raises:
            ObjectNotFoundError: The object doesn't exist.
            ObjectChangedError: The object was replaced or deleted while it was being read. Read it again.
            DigestMismatchError: The stored content is damaged.
            ObjectIncompleteError: Parts of the stored content are missing.
            LinkError: The name is a link that doesn't lead to an object.

        May also raise any request error.
        """
        async with self.open(name, progress=progress) as reader:
            return await reader.read()

    def open(self, name: str, *, progress: Progress | None = None) -> ObjectReader:
        """Read an object piece by piece, or from any position: ``async with store.open(name) as file``.

        Memory use doesn't depend on the size of the object. The arguments and errors are the same as for `get`. Opening
        the reader raises, for example, `ObjectNotFoundError`, and reading raises the errors that concern the content.
        """
        self._site.space.info_subject(name)
        check_progress(progress)
        return ObjectReader(self._context, partial(find_object, self._site, name), progress=progress)

    async def get_file(
        self, name: str, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> ObjectInfo:
        """Write an object to a file, and return its description.

        The content is written to a temporary file in the same directory, which is then renamed. If the call fails or is
        cancelled, the temporary file is removed, and a file that already exists at ``path`` doesn't change.

        The other arguments are the same as for `get`. Raises the same errors, and ``OSError`` if the file can't be
        written.
        """
        async with self.open(name, progress=progress) as reader:
            return await write_file(reader, Path(path))

    async def info(self, name: str, *, deleted: bool = False) -> ObjectInfo:
        """Return the description of an object or link. Links aren't followed.

        Args:
            name: Name of the object or link.
            deleted: If true, return the description of a deleted object too, instead of raising `ObjectNotFoundError`.

        Raises:
            ObjectNotFoundError: The object doesn't exist.
            ObjectInfoError: The description is invalid.

        May also raise any request error.
        """
        current = await self._site.current(name)
        if deleted and current is not None:
            return current
        return self._existing(name, current)

    def _existing(self, name: str, current: ObjectInfo | None) -> ObjectInfo:
        if current is None or current.is_deleted:
            raise ObjectNotFoundError(self.bucket, name, current)
        return current

    @listing
    async def list(self, prefix: str = "", *, deleted: bool = False) -> AsyncGenerator[ObjectInfo, None]:
        """Iterate over the descriptions of all objects and links, in the order of their last changes.

        Args:
            prefix: Return only descriptions whose names start with this prefix. All descriptions are still transferred,
                because the server can't filter by prefix.
            deleted: If true, also return the descriptions of deleted objects.

        May raise any request error.
        """
        async for info in self._descriptions.reader((), DeliverPolicy.LAST_PER_SUBJECT, None).initial():
            if info.name.startswith(prefix) and (deleted or not info.is_deleted):
                yield info

    def watch(
        self,
        *names: str,
        include_history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        after: int | None = None,
    ) -> ObjectWatch:
        """Return a watch that yields the description of every object, then every change. Open it with ``async with``.

        Args:
            names: Yield only the descriptions of these objects. Defaults to all objects.
            include_history: Yield all stored descriptions of each object first, instead of only the latest one.
            updates_only: Skip the existing descriptions, and yield only later changes.
            ignore_deletes: Don't yield the descriptions of deleted objects.
            after: Yield every stored description with a revision greater than this, even if it isn't the latest one.

        Raises:
            InvalidNameError: A name is invalid.
            ConfigError: More than one of ``include_history``, ``updates_only`` and ``after`` is given.

        Opening the watch may raise `BucketNotFoundError` or any other request error. The watch skips invalid
        descriptions, and reports them with the event `RecordSkipped`.
        """
        policy = policy_of(include_history=include_history, updates_only=updates_only, after=after)
        reader = self._descriptions.reader(names, policy, after)
        return ObjectWatch(SharedReader(reader), ignore_deletes=ignore_deletes)

    # --- the bucket --------------------------------------------------------------------------------------

    async def status(self) -> ObjectStoreStatus:
        """Request the status of the bucket, such as its size and its options, from the server.

        Raises `BucketNotFoundError` if the bucket was deleted, or any other request error.
        """
        return ObjectStoreStatus.of(await self._site.state())

    async def check(self, *, digests: bool = False) -> ObjectStoreReport:
        """Find objects that can't be read, and chunks that belong to no object. The bucket isn't changed.

        The headers of all chunks are read and compared with the descriptions. Objects that other clients store, replace
        or delete during the check aren't reported as broken. The chunks of an upload in progress are reported as
        orphans, however, because the description is stored last.

        Args:
            digests: If true, also read the content of all objects, and verify their digests.

        Raises:
            BucketNotFoundError: The bucket was deleted.

        May also raise any other request error.
        """
        return await check_objects(self._site, digests=digests)

    async def gc(self, *, older_than: float) -> RemovedGarbage:
        """Remove chunks that belong to no object, and descriptions of deleted objects. Return what was removed.

        Such chunks remain if a program is killed during an upload, or if several clients store an object of the same
        name at the same time. An upload in progress is safe if it stores a chunk at least every ``older_than`` seconds.
        If an upload with jsclient pauses for longer and loses its chunks, the upload raises an error. If clients store
        messages without a pause, some chunks may not be removed until a later call.

        Args:
            older_than: Minimum age in seconds, at least 60, by the server's clock. The age of an upload is counted from
                its latest chunk. Choose more than the longest pause of your uploads, for example some hours.

        Raises:
            ConfigError: ``older_than`` is too small, or the bucket is a mirror. Nothing was removed.
            ObjectInfoError: A description is invalid, so it is unknown which chunks belong to its object. Delete or
                replace the object first.
            BucketSealedError: The bucket is sealed.

        May also raise any request error. If the call is cancelled, the next one continues.
        """
        check_age(older_than)
        await self._site.check_unambiguous()
        return await remove_garbage(self._site, older_than)

    async def seal(self) -> None:
        """Make the bucket read-only permanently. You can still read objects, and delete the whole bucket.

        May raise any request error.
        """
        config = (await self._site.state()).config.replace(sealed=True)
        await self._site.update(to_wire(config))
