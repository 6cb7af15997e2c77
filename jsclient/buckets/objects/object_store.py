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

_ACK: Final = 30.0  # seconds until a chunk must be acked, unless the user's timeout is longer


class ObjectStore(WithBucketRights):
    """A bucket of objects of any size. Created by `JetStream.object_store` and `JetStream.create_object_store`.

    It has no state that must be closed.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    def __init__(self, context: Context, space: ObjectSpace, info: StreamInfo | None) -> None:
        self._context = context
        self._site = ObjectSite(context, space, info)
        self._descriptions = ObjectDescriptions(self._site)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._site.bucket

    @property
    def stream(self) -> str:
        """The name of the store's stream."""
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
        """Store an object and return its description. It replaces an existing object of the same name.

        The call needs the same memory for an object of any size. Readers get the previous object until the whole new
        object is stored. If the call fails, the server keeps no part of the new object.

        Args:
            name: The name, any text that is not empty.
            data: Bytes, an asynchronous or plain iterable of bytes, or a binary file, which is read in a thread.
            chunk_size: Bytes of a message, by default 128 KiB.
            headers, metadata, description: Texts to store with the object.
            size: The size of the content, if known. It is checked, and passed to ``progress``.
            progress: A plain function, called with the number of bytes stored so far, and the size or None. An
                exception is reported as the event `HandlerFailed` and does not end the transfer.
            if_match: The revision that the object must have.
            if_none_match: Store the object only if no object has this name.
            timeout: Seconds until the server must have acked a chunk, 30 by default.
            resume: The text of `upload_token`. The same ``data`` from its beginning goes on behind the chunks that an
                earlier attempt with this text has stored. If the call fails, the server keeps the chunks.

        Raises:
            SourceChangedError: ``data`` differs from the content that an earlier attempt has stored.
            ObjectChangedError: The object does not have the revision ``if_match``.
            ObjectExistsError: An object has this name, and ``if_none_match`` is given.
            BucketFullError, BucketSealedError: The bucket is full or sealed.
            BucketNotFoundError: The bucket does not exist.
            InvalidNameError, ConfigError: An argument is not valid. Nothing was sent.
            RequestTimeoutError, DisconnectedError: A chunk was not acked, or it is unknown whether the object is
                stored.

        Also raises the errors of any API request, and the exceptions of ``data``.

        Cancelled: the whole object is stored if its description had already been sent. Otherwise its chunks are
        removed, or kept with ``resume``.
        """
        # All arguments are checked before anything is sent, so that nothing has to be removed.
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
        """Return a text with which the upload of an object can be resumed, for `put` and `put_file`. Sends nothing.

        Save it, and pass it as ``resume`` to the first and to each further attempt, from one process at a time. When an
        attempt was killed, the next one reads its ``data`` again, and sends what the bucket does not have. When all was
        stored, it returns the description of the object. `gc` removes the chunks of an upload that is not resumed.

        Args:
            name: The name of the object.
            chunk_size: Bytes of a message, by default 128 KiB.

        Raises:
            InvalidNameError, ConfigError: An argument is not valid.
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
        """Store a file as an object. See `put` for the options and errors. Also raises ``OSError``."""
        with Path(path).open("rb") as file:  # noqa: ASYNC230  opening a file does not wait
            return await self.put(name, file, **{"size": os.fstat(file.fileno()).st_size, **options})

    async def delete(self, name: str) -> None:
        """Delete an object. Does nothing if it is deleted already.

        Raises:
            ObjectNotFoundError: The bucket has no object or deletion with this name.
            BucketSealedError: The bucket is sealed and cannot be changed.

        May also raise any error of an API request.
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
        """Change the texts that are stored with an object, and return its description. None keeps a text.

        Raises:
            ObjectNotFoundError: The object does not exist.
            ConfigError: An argument is not valid. Nothing was sent.

        May also raise any error of an API request.
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
        """Rename an object, and return its description. Its content does not change. Links to it break.

        Raises:
            ObjectNotFoundError: The object ``old`` does not exist.
            ObjectExistsError: The object ``new`` exists.
            ObjectChangedError: The object was replaced meanwhile, and keeps its name.

        May also raise any error of an API request.
        """
        return await rename_object(self._site, old, new)

    async def add_link(self, name: str, target: ObjectInfo | str) -> ObjectInfo:
        """Store a link to an object, and return its description. `get` and `open` of the link read the object.

        Args:
            name: The name of the link.
            target: The name of an object of this bucket, or the description of an object of any bucket.

        Raises:
            ObjectNotFoundError: The target does not exist.
            ObjectExistsError: An object that is not a link has this name.
            LinkError: The target is itself a link.

        May also raise any error of an API request.
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
        """Store a link to a whole bucket, and return its description. `ObjectInfo.link` names the bucket.

        Raises the errors of `add_link`.
        """
        if isinstance(bucket, ObjectStore):
            bucket = bucket.bucket
        return await self._link(name, ObjectLink(ObjectSpace.of(check_bucket(bucket), None).bucket))

    async def _link(self, name: str, link: ObjectLink) -> ObjectInfo:
        def linked(current: ObjectInfo | None) -> ObjectInfo:
            if current is not None and not current.is_deleted and not current.is_link:
                raise ObjectExistsError(self.bucket, name, current.revision)
            # It has no chunks, but Go and nats-py refuse a description without a nuid before they look for a link.
            return ObjectInfo(bucket=self.bucket, name=name, link=link, nuid=new_nuid())

        self._site.space.check_writable()
        _, after = await self._site.change(name, linked)
        assert after is not None
        return after

    # --- reading -----------------------------------------------------------------------------------------

    async def get(self, name: str, *, progress: Progress | None = None) -> bytes:
        """Return the whole content of an object. Use `open` to read it piece by piece.

        Args:
            name: The name. A link is followed.
            progress: A plain function, called with the number of bytes read so far, and the size.

        Raises:
            ObjectNotFoundError: The object does not exist.
            ObjectChangedError: The object was replaced or deleted while it was read.
            DigestMismatchError, ObjectIncompleteError: The content in the bucket is damaged or incomplete.
            LinkError: The name is a link whose target is not an object.

        May also raise any error of an API request.
        """
        async with self.open(name, progress=progress) as reader:
            return await reader.read()

    def open(self, name: str, *, progress: Progress | None = None) -> ObjectReader:
        """Read an object piece by piece, or from any position: ``async with store.open(name) as file``.

        The memory that it needs does not depend on the size of the object. See `get` for the arguments and errors.
        Opening the reader raises the errors that concern the description.
        """
        self._site.space.info_subject(name)
        check_progress(progress)
        return ObjectReader(self._context, partial(find_object, self._site, name), progress=progress)

    async def get_file(
        self, name: str, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> ObjectInfo:
        """Write an object to a file, and return its description.

        The file is written under another name beside ``path`` and then renamed, so ``path`` is always complete.

        See `get` for the arguments and errors. Also raises ``OSError``.
        """
        async with self.open(name, progress=progress) as reader:
            return await write_file(reader, Path(path))

    async def info(self, name: str, *, deleted: bool = False) -> ObjectInfo:
        """Return the description of an object or link. With ``deleted``, a deleted object has a description too.

        Raises:
            ObjectNotFoundError: The object does not exist.
            ObjectInfoError: The description is not valid.

        May also raise any error of an API request.
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
        """Iterate over the descriptions of all objects and links, in the order of their changes.

        Args:
            prefix: Return only names that start with this prefix. All descriptions are transferred, because the server
                stores names in encoded form.
            deleted: Also return the descriptions of deleted objects.

        May raise any error of an API request.
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
        """Read the descriptions of all objects, and then each change: ``async with store.watch() as watch``.

        An invalid description is skipped, and reported as the event `RecordSkipped`.

        Args:
            names: Read only the descriptions of these objects.
            include_history: Read all descriptions that the bucket has, not only the newest of each object.
            updates_only: Skip the existing descriptions, and read only changes from now on.
            ignore_deletes: Do not return the descriptions of deleted objects.
            after: Read all descriptions after this revision.

        Raises:
            InvalidNameError: A name is not valid.
            ConfigError: More than one of ``include_history``, ``updates_only`` and ``after`` is given.

        Opening the watch raises `BucketNotFoundError` and any error of an API request.
        """
        policy = policy_of(include_history=include_history, updates_only=updates_only, after=after)
        reader = self._descriptions.reader(names, policy, after)
        return ObjectWatch(SharedReader(reader), ignore_deletes=ignore_deletes)

    # --- the bucket --------------------------------------------------------------------------------------

    async def status(self) -> ObjectStoreStatus:
        """Request the state of the bucket.

        Raises:
            BucketNotFoundError: The bucket was deleted.

        May also raise any error of an API request.
        """
        return ObjectStoreStatus.of(await self._site.state())

    async def check(self, *, digests: bool = False) -> ObjectStoreReport:
        """Find objects that cannot be read, and chunks that belong to no object. Changes nothing.

        The headers of all chunks are read, and compared with the descriptions. What other clients store, replace or
        delete meanwhile is not reported, but an upload that is going on has chunks without a description.

        Args:
            digests: Also read the content of all objects, and verify their digests.

        Raises:
            BucketNotFoundError: The bucket was deleted.

        May also raise any error of an API request.
        """
        return await check_objects(self._site, digests=digests)

    async def gc(self, *, older_than: float) -> RemovedGarbage:
        """Remove the chunks that belong to no object, and the descriptions of deleted objects. Return what was removed.

        Chunks remain when a program is killed during an upload, and when other clients store objects of one name at the
        same time. Only what is older than ``older_than`` by the clock of the server is removed, so uploads that go on
        are safe if they store a chunk more often than this. An upload of jsclient that pauses for longer, and whose
        chunks were removed meanwhile, raises an error. Chunks stay if other clients store messages without a pause: the
        next call removes them.

        Args:
            older_than: Seconds since the newest chunk of an upload was stored, or since an object was deleted. At least
                60. Some hours are a good choice, and more than the longest pause of your uploads is needed.

        Raises:
            ConfigError: ``older_than`` is too small, or the bucket is a mirror. Nothing was removed.
            ObjectInfoError: A description is not valid, so it is unknown which chunks belong to its object. Delete
                or replace the object first.
            BucketSealedError: The bucket is sealed.

        May also raise any error of an API request.

        Cancelled: what was removed up to then stays removed. The next call goes on.
        """
        check_age(older_than)
        await self._site.check_unambiguous()
        return await remove_garbage(self._site, older_than)

    async def seal(self) -> None:
        """Forbid all further changes of the bucket permanently. It can still be read, and deleted as a whole.

        May raise any error of an API request.
        """
        config = (await self._site.state()).config.replace(sealed=True)
        await self._site.update(to_wire(config))
