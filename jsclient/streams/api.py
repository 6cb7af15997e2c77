"""Stream management: the part of `JetStream` that creates, changes, finds and deletes streams. Source: ADR-37."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from .._runtime.calls import find_streams
from .._runtime.context import Context
from ..errors import ConfigError, ConfigMismatchError, StreamExistsError, StreamNotFoundError
from ..protocol.models.account import AccountInfo
from ..protocol.models.drift import OnDrift, changed_stream, check_on_drift, stream_mismatches
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import StreamConfig
from ..protocol.wire.api import next_offset, page_items, page_request
from ..protocol.wire.codec import from_wire, to_wire
from ..protocol.wire.names import check_filter_subject

if TYPE_CHECKING:  # handles are imported when one is made: `import jsclient` stays cheap
    from .counter import Counter
    from .stream import Stream

__all__ = ["StreamManager"]

_RACES = 3  # times that a stream is looked for again when somebody else was faster


class StreamManager:
    """What `JetStream` does with streams."""

    _context: Context

    async def account_info(self) -> AccountInfo:
        """What the account uses of JetStream, and may use."""
        answer = await self._context.call(self._context.api.account_info(), what="account info")
        return from_wire(AccountInfo, answer)

    @overload
    async def create_stream(self, name: StreamConfig) -> Stream: ...
    @overload
    async def create_stream(
        self, name: str, subjects: Sequence[str] | None = None, **fields: Any
    ) -> Stream: ...
    async def create_stream(
        self, name: str | StreamConfig, subjects: Sequence[str] | None = None, **fields: Any
    ) -> Stream:
        """Create a stream. Raises `StreamExistsError` if one of this name has another configuration."""
        config = _stream_config(name, subjects, fields)
        return await self._make_stream(
            self._context.api.stream_create(config.name or ""), config, "create stream"
        )

    async def update_stream(
        self, name: str | StreamConfig, subjects: Sequence[str] | None = None, **fields: Any
    ) -> Stream:
        """Give a stream this configuration. Raises `StreamNotFoundError`."""
        config = _stream_config(name, subjects, fields)
        return await self._make_stream(
            self._context.api.stream_update(config.name or ""), config, "update stream"
        )

    async def create_or_update_stream(
        self, name: str | StreamConfig, subjects: Sequence[str] | None = None, **fields: Any
    ) -> Stream:
        """Give a stream this configuration; create it if there is none."""
        config = _stream_config(name, subjects, fields)
        for _ in range(_RACES):
            try:
                return await self.update_stream(config)
            except StreamNotFoundError:
                pass
            try:
                return await self.create_stream(config)
            except StreamExistsError:
                pass  # somebody else was faster
        return await self.update_stream(config)

    async def ensure_stream(
        self,
        name: str | StreamConfig,
        /,
        subjects: Sequence[str] | None = None,
        *,
        on_drift: OnDrift = "error",
        **fields: Any,
    ) -> Stream:
        """Have a stream of this name; where it exists, compare what is given.

        Any number of processes may do so at once: one creates it, the others find it.

        Args:
            on_drift: What to do where it differs: raise `ConfigMismatchError`, "update" it (only the fields that were
                set change, others are kept), or "ignore" it.

        Raises:
            ConfigMismatchError: It differs; or the server took the configuration, but not all of it.
            ApiError: The server refuses the configuration or the change. And those of any request.
        """
        wanted = _stream_config(name, subjects, fields)
        check_on_drift(on_drift)
        for _ in range(_RACES):
            try:
                stream = await self._ensure_stream(wanted, on_drift)
                break
            except (StreamExistsError, StreamNotFoundError):
                pass  # somebody else made it, or removed it, since we looked
        else:
            stream = await self._ensure_stream(wanted, on_drift)
        if on_drift != "ignore" and (different := stream_mismatches(wanted, stream.config)):
            raise ConfigMismatchError(stream.name, "", different)
        return stream

    async def _ensure_stream(self, wanted: StreamConfig, on_drift: OnDrift) -> Stream:
        """Look once; create it if it is not there, change it if that is wished."""
        try:
            stream = await self.stream(wanted.name or "")
        except StreamNotFoundError:
            return await self.create_stream(wanted)
        if on_drift != "update" or not stream_mismatches(wanted, stream.config):
            return stream
        return await self.update_stream(changed_stream(wanted, stream.config))

    async def _make_stream(self, subject: str, config: StreamConfig, what: str) -> Stream:
        return self._stream(await self._context.call(subject, to_wire(config), what=what))

    def _stream(self, info: dict[str, Any]) -> Stream:
        from .stream import Stream

        return Stream(self._context, from_wire(StreamInfo, info))

    async def stream(self, name: str) -> Stream:
        """The stream of this name. Raises `StreamNotFoundError`."""
        return self._stream(await self._context.call(self._context.api.stream_info(name), what="stream info"))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all its messages and consumers. Raises `StreamNotFoundError`."""
        await self._context.call(self._context.api.stream_delete(name), what="delete stream")

    async def streams(self, subject: str | None = None) -> AsyncIterator[StreamInfo]:
        """All streams, or those that hold ``subject``, page by page."""
        offset: int | None = 0
        while offset is not None:
            body = page_request(offset, subject=None if subject is None else check_filter_subject(subject))
            answer = await self._context.call(self._context.api.stream_list(), body, what="list streams")
            items = page_items(answer, "streams")
            for item in items:
                yield from_wire(StreamInfo, item)
            offset = next_offset(answer, offset, len(items))

    async def stream_names(self, subject: str | None = None) -> AsyncIterator[str]:
        """The names of all streams, or of those that hold ``subject``, page by page."""
        offset: int | None = 0
        while offset is not None:
            body = page_request(offset, subject=None if subject is None else check_filter_subject(subject))
            answer = await self._context.call(
                self._context.api.stream_names(), body, what="list stream names"
            )
            items = page_items(answer, "streams")
            for item in items:
                yield str(item)
            offset = next_offset(answer, offset, len(items))

    async def stream_name_by_subject(self, subject: str) -> list[str]:
        """The names of the streams that hold a subject, as `subscribe` looks them up."""
        return await find_streams(self._context, check_filter_subject(subject))

    async def counter(self, stream: str) -> Counter:
        """The counters of a stream that was made with ``allow_msg_counter`` (server 2.12).

        Raises:
            StreamNotFoundError: There is no such stream.
            ConfigError: It does not count. And those of any request.

        Source: ADR-49
        """
        from .counter import open_counter

        return await open_counter(self._context, stream)


def _stream_config(
    name: str | StreamConfig, subjects: Sequence[str] | None, fields: dict[str, Any]
) -> StreamConfig:
    if isinstance(name, StreamConfig):
        if subjects is not None or fields:
            raise ConfigError("give a StreamConfig or fields, not both")
        config = name
    else:
        if subjects is not None and not isinstance(subjects, str):
            subjects = list(subjects)  # a str is no list of subjects: the config refuses it
        config = StreamConfig(name=name, subjects=subjects, **fields)  # type: ignore[arg-type]
    if not config.name:
        raise ConfigError("the stream has no name")
    for subject in config.subjects or ():
        check_filter_subject(subject)
    return config
