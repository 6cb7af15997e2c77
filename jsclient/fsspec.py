"""Object stores as an fsspec file system: ``nats://bucket/name``, for pandas, pyarrow, Polars and other libraries.

Install the extra ``fsspec``, which also registers the protocol ``nats``::

    pandas.read_parquet("nats://reports/2026.parquet", storage_options={"servers": "nats://demo.nats.io"})
"""

from __future__ import annotations

import asyncio
import errno
import io
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fsspec.asyn import sync, sync_wrapper
from fsspec.callbacks import NoOpCallback
from fsspec.utils import stringify_path

from .client import JetStream, connect
from .errors import BucketNotFoundError, ConfigError, InvalidNameError, ObjectExistsError, ObjectNotFoundError
from .protocol.buckets.object_info import ObjectInfo

if TYPE_CHECKING:
    from .buckets.objects.object_store import ObjectStore

    # Base classes for type checkers, because fsspec has no type annotations.
    class _Untyped:
        def __init__(self, *args: Any, **options: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    class AsyncFileSystem(_Untyped):
        async def _find(self, *args: Any, **options: Any) -> Any: ...
        def open(self, *args: Any, **options: Any) -> Any: ...
        def mv(self, *args: Any, **options: Any) -> Any: ...

    class AbstractBufferedFile(_Untyped):
        def close(self) -> None: ...

else:
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractBufferedFile

__all__ = ["NatsFileSystem"]

_SILENT: Final = NoOpCallback()
_AHEAD: Final = 2  # maximum number of written blocks that wait to be sent


class NatsFileSystem(AsyncFileSystem):
    """A file system for reading and writing objects: ``nats://bucket/name``. Buckets are the top-level directories.

    If the name of an object contains slashes, the object appears in subdirectories. A subdirectory exists as long as it
    contains objects. A written file appears when it is closed. If an exception leaves its ``with`` block, the file
    isn't stored at all.

    fsspec caches an instance for each set of arguments. Its connection stays open until `close` is called or the
    program ends.
    """

    protocol: ClassVar[str] = "nats"
    root_marker = ""

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        connect_options: Any = None,
        **options: Any,
    ) -> None:
        """Create a file system. It connects on first use.

        Args:
            servers: One or more server URLs. See `jsclient.connect`.
            connect_options: Further arguments of `jsclient.connect`, as a dict.
            options: Arguments of fsspec's ``AsyncFileSystem``.
        """
        super().__init__(**options)
        self._servers, self._connect_options = servers, dict(connect_options or {})
        self._connecting: asyncio.Lock | None = None
        self._js: JetStream | None = None
        self._stores: dict[str, ObjectStore] = {}

    # --- the connection ----------------------------------------------------------------------------------

    async def _connected(self) -> JetStream:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._js is None or self._js.is_closed:
                self._js, self._stores = await connect(self._servers, **self._connect_options), {}
                if not self.asynchronous:
                    weakref.finalize(self, _close_quietly, self.loop, self._js)
        return self._js

    async def _close(self) -> None:
        js, self._js = self._js, None
        if js is not None:
            await js.close()

    close: Callable[[], None] = sync_wrapper(_close)

    async def _bucket(self, bucket: str) -> ObjectStore:
        js = await self._connected()
        if (store := self._stores.get(bucket)) is None:
            store = self._stores[bucket] = await js.object_store(bucket)
        return store

    async def _object(self, path: str) -> tuple[ObjectStore, str]:
        bucket, name = self._parts(path)
        if not name:
            raise IsADirectoryError(errno.EISDIR, "this is a bucket", path)
        return await self._bucket(bucket), name

    def _parts(self, path: str) -> tuple[str, str]:
        bucket, _, name = self._strip_protocol(path).partition("/")
        return bucket, name

    # --- listing -----------------------------------------------------------------------------------------

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        bucket, name = self._parts(path)
        if not bucket:
            return _directory("")
        with _as_files(path):
            store = await self._bucket(bucket)
            if not name:
                await store.status()
                return _directory(bucket)
            try:
                async with store.open(name) as file:  # follows links, but doesn't read the content
                    return _file(path, file.info)
            except ObjectNotFoundError:
                async for _info in store.list(f"{name}/"):
                    return _directory(path)
                raise

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        bucket, name = self._parts(path)
        entries = dict[str, dict[str, Any]]()
        if not bucket:
            js = await self._connected()
            entries = {one: _directory(one) async for one in js.object_store_names()}
        else:
            start = f"{name}/" if name else ""
            for info in await self._objects(bucket, start):
                first, slash, _rest = info.name[len(start) :].partition("/")
                full = f"{bucket}/{start}{first}"
                # Object stores have no directories. The part before the next slash is shown as one.
                if not slash:
                    entries[full] = await self._info(full) if info.is_link else _file(full, info)
                elif full not in entries:
                    entries[full] = _directory(full)
            if name and not entries:
                entries[path] = await self._info(path)
        listed = [entries[full] for full in sorted(entries)]
        return listed if detail else [entry["name"] for entry in listed]

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **options: Any,
    ) -> Any:
        bucket, name = self._parts(path)
        if maxdepth is not None or withdirs or not bucket or options.get("prefix"):
            return await super()._find(path, maxdepth, withdirs, **options)
        # List all descriptions at once, instead of once for each directory.
        entries = {
            f"{bucket}/{info.name}": _file(f"{bucket}/{info.name}", info)
            for info in await self._objects(bucket, f"{name}/" if name else "")
        }
        if name and not entries:
            try:
                entry = await self._info(path)
            except FileNotFoundError:
                return {} if options.get("detail") else []
            entries = {entry["name"]: entry}
        entries = dict(sorted(entries.items()))
        return entries if options.get("detail") else list(entries)

    async def _objects(self, bucket: str, start: str) -> list[ObjectInfo]:
        """Return the descriptions of objects whose names begin with ``start``, except for links to whole buckets."""
        with _as_files(bucket):
            store = await self._bucket(bucket)
            infos = [info async for info in store.list(start)]
        return [info for info in infos if info.link is None or info.link.name]

    # --- reading and writing -----------------------------------------------------------------------------

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with _as_files(path):
            store, name = await self._object(path)
            async with store.open(name) as file:
                size = file.info.size
                first, last = _position(start, 0, size), _position(end, size, size)
                if first == 0 and last == size:
                    return await file.read()
                return await _read_range(file, asyncio.Lock(), first, last)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        await self._write_file(path, value, if_none_match=mode == "create", **options)

    async def _write_file(self, path: str, data: Any, **options: Any) -> None:
        with _as_files(path):
            store, name = await self._object(path)
            await store.put(name, data, **options)

    async def _put_file(
        self,
        lpath: str,
        rpath: str,
        mode: str = "overwrite",
        callback: Any = _SILENT,
        **_: Any,
    ) -> None:
        with _as_files(rpath):
            store, name = await self._object(rpath)
            await store.put_file(
                name, lpath, if_none_match=mode == "create", progress=partial(_report, callback)
            )

    async def _get_file(self, rpath: str, lpath: str, callback: Any = _SILENT, **_: Any) -> None:
        with _as_files(rpath):
            if await self._isdir(rpath):
                return
            store, name = await self._object(rpath)
            await store.get_file(name, lpath, progress=partial(_report, callback))

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        with _as_files(path1):
            if await self._isdir(path1):
                return
            store, name = await self._object(path1)
            async with store.open(name) as file:
                await self._write_file(path2, file, size=file.info.size)

    async def _rm_file(self, path: str, **_: Any) -> None:
        with _as_files(path):
            store, name = await self._object(path)
            # fsspec expects FileNotFoundError for a deleted object, which `ObjectStore.delete` doesn't report.
            await store.info(name)
            await store.delete(name)

    async def _rm(self, path: Any, recursive: bool = False, batch_size: int | None = None, **_: Any) -> None:
        paths = [path] if isinstance(path, str) else path
        for one in await self._expand_path(paths, recursive=recursive):
            if recursive and await self._isdir(one):
                continue
            await self._rm_file(one)

    async def _mv_file(self, path1: str, path2: str) -> None:
        """Rename an object, or copy it to another bucket and delete the original. An existing target is replaced."""
        (bucket, name), (target, new) = self._parts(path1), self._parts(path2)
        if bucket != target or not new:
            await self._cp_file(path1, path2)
            await self._rm_file(path1)
            return
        with _as_files(path1):
            store, _ = await self._object(path1)
            try:
                await store.rename(name, new)
            except ObjectExistsError:
                await store.info(name)
                await store.delete(new)
                await store.rename(name, new)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, **options: Any) -> None:
        """Move a file or directory.

        A single file is renamed without copying if it stays in its bucket. Anything else is copied, and the original is
        deleted.
        """
        if isinstance(path1, str) and isinstance(path2, str) and not recursive and self.isfile(path1):
            if path2.endswith("/") or self.isdir(path2):
                path2 = f"{path2.rstrip('/')}/{self._parts(path1)[1].rpartition('/')[2]}"
            sync(self.loop, self._mv_file, path1, path2)
            return
        super().mv(path1, path2, recursive=recursive, **options)

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Create the bucket of a path if it doesn't exist. Directories in a bucket need not be created."""
        bucket, name = self._parts(path)
        with _as_files(path):
            try:
                await self._bucket(bucket)
            except BucketNotFoundError:
                if name and not create_parents:
                    raise
                await (await self._connected()).create_object_store(bucket)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        await self._mkdir(path)

    def open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if "b" in mode:
            return super().open(path, mode, *args, **options)
        names = ("encoding", "errors", "newline")
        text = {name: options.pop(name) for name in names if name in options}
        return _TextFile(self.open(path, mode.replace("t", "") + "b", *args, **options), **text)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> _File:
        if mode not in {"rb", "wb", "xb"}:
            raise ValueError(
                f"mode is {mode!r}: an object is read with 'rb', or written as a whole with 'wb' or 'xb'"
            )
        return _File(self, path, mode, block_size=block_size or "default", **options)


class _File(AbstractBufferedFile):
    """A file that is open for reading or writing. A written file is uploaded block by block, as one object."""

    def __init__(self, fs: NatsFileSystem, path: str, mode: str, **options: Any) -> None:
        self._reader: Any = None
        self._upload: _Upload | None = None
        # Serializes reads, because caches of fsspec read in several threads, and the reader has only one position.
        self._turn = asyncio.Lock()
        if mode == "rb":
            self._reader, self._info = sync(fs.loop, _open_reader, fs, path)
            options["size"] = self._info["size"]
        else:
            with _as_files(path):
                sync(fs.loop, fs._object, path)  # report a missing bucket now, not when the file is closed
        super().__init__(fs, path, mode, **options)

    @property
    def details(self) -> Any:
        return self._info

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(sync(self.fs.loop, _read_range, self._reader, self._turn, start, end))

    def _initiate_upload(self) -> None:
        self._upload = sync(self.fs.loop, _begin_upload, self.fs, self.path, self.mode == "xb")

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._upload is not None
        sync(self.fs.loop, self._upload.send, self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Store the written file. In a transaction, fsspec calls this method at the end, after the file was closed."""
        assert self._upload is not None
        sync(self.fs.loop, self._upload.finish_upload)

    def discard(self) -> None:
        """Discard the written data, so that nothing is stored."""
        if self._upload is not None:
            sync(self.fs.loop, self._upload.cancel_upload)
        self.closed = True

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None and self.mode != "rb":
            self.discard()
        else:
            self.close()

    def close(self) -> None:
        try:
            super().close()
        finally:
            reader, self._reader = self._reader, None
            if reader is not None:
                sync(self.fs.loop, reader.close)

    def __del__(self) -> None:
        # Don't wait for the result. This may run in the event loop's own thread, where waiting would deadlock.
        reader, upload = self.__dict__.get("_reader"), self.__dict__.get("_upload")
        if self.closed or not self.fs.loop.is_running():
            return
        if reader is not None:
            asyncio.run_coroutine_threadsafe(reader.close(), self.fs.loop)
        if self.mode != "rb":
            warnings.warn(f"{self.path!r} was not closed, so it is not stored", ResourceWarning, stacklevel=2)
        if upload is not None:
            asyncio.run_coroutine_threadsafe(upload.cancel_upload(), self.fs.loop)
        self.closed = True


class _TextFile(io.TextIOWrapper):
    """A file in text mode. If an exception leaves its ``with`` block, nothing is stored."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None and isinstance(self.buffer, _File) and self.buffer.mode != "rb":
            self.buffer.discard()
        self.close()


class _Upload:
    """An upload that receives its content block by block. It has no reference to the file, which can be collected."""

    def __init__(self, fs: NatsFileSystem, path: str, *, is_new: bool) -> None:
        self._blocks: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        self._putting = asyncio.ensure_future(fs._write_file(path, self._contents(), if_none_match=is_new))

    async def _contents(self) -> AsyncIterator[bytes]:
        while (block := await self._blocks.get()) is not None:
            yield block

    async def send(self, block: bytes | None) -> None:
        """Pass a block to the upload. Raises the error of the upload if it has failed."""
        passing = asyncio.ensure_future(self._blocks.put(block))
        await asyncio.wait({passing, self._putting}, return_when=asyncio.FIRST_COMPLETED)
        if self._putting.done():
            passing.cancel()
            await self._putting

    async def finish_upload(self) -> None:
        """Wait until the object is stored. Raises the errors of `ObjectStore.put`."""
        await self.send(None)
        await self._putting

    async def cancel_upload(self) -> None:
        """Cancel the upload, so that nothing is stored."""
        self._putting.cancel()
        await asyncio.wait({self._putting})


async def _begin_upload(fs: NatsFileSystem, path: str, is_new: bool) -> _Upload:
    return _Upload(fs, path, is_new=is_new)


async def _open_reader(fs: NatsFileSystem, path: str) -> tuple[Any, dict[str, Any]]:
    with _as_files(path):
        store, name = await fs._object(path)
        reader = await store.open(name).__aenter__()
    return reader, _file(fs._strip_protocol(path), reader.info)


async def _read_range(file: Any, turn: asyncio.Lock, start: int, end: int) -> bytes:
    """Return the bytes from ``start`` to ``end``, or to the end of the object. Only one thread reads at a time."""
    async with turn:
        file.seek(start)
        parts, remaining = list[bytes](), end - start
        while remaining > 0 and (part := await file.read(remaining)):
            parts.append(part)
            remaining -= len(part)
    return b"".join(parts)


def _position(value: int | None, default: int, size: int) -> int:
    """Resolve a position like in a slice, where negative numbers count from the end."""
    if value is None:
        return default
    return max(size + value, 0) if value < 0 else min(value, size)


def _file(path: str, info: ObjectInfo) -> dict[str, Any]:
    return {
        "name": path,
        "type": "file",
        "size": info.size if info.is_counted else None,
        "mtime": info.modified,
        "digest": info.digest,
        "revision": info.revision,
    }


def _directory(path: str) -> dict[str, Any]:
    return {"name": path, "type": "directory", "size": 0}


def _report(callback: Any, done: int, total: int | None) -> None:
    if total is not None and callback.size != total:
        callback.set_size(total)
    callback.absolute_update(done)


@contextmanager
def _as_files(path: object) -> Iterator[None]:
    """Convert errors of object stores to the errors that programs expect from files, such as ``FileNotFoundError``."""
    path = stringify_path(path)
    try:
        yield
    except (ObjectNotFoundError, BucketNotFoundError) as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except ObjectExistsError as error:
        raise FileExistsError(errno.EEXIST, str(error), path) from error
    except InvalidNameError as error:
        raise ConfigError(f"{path!r:.80}: {error}") from error


def _close_quietly(loop: asyncio.AbstractEventLoop, js: JetStream) -> None:
    """Close the connection of a file system that was garbage collected, if its event loop is still running."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(js.close(), loop)
