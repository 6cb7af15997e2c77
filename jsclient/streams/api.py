"""`JetStream` methods that manage streams. Source: ADR-37."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from .._runtime.calls import check_known_to_stream, find_streams, pages
from .._runtime.context import Context
from .._runtime.handle import asking, listing
from ..errors import (
    ApiError,
    ConfigError,
    ConfigMismatchError,
    JetStreamError,
    StreamExistsError,
    StreamNotFoundError,
    differences,
)
from ..protocol.models.account import AccountInfo
from ..protocol.models.drift import OnDrift, changed_stream, check_on_drift, stream_mismatches
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import StreamConfig
from ..protocol.wire.api import STREAM_NAME_IN_USE, STREAM_SUBJECT_OVERLAP
from ..protocol.wire.codec import from_wire, made, to_wire
from ..protocol.wire.names import check_filter_subject

if TYPE_CHECKING:  # imported inside the methods, to keep `import jsclient` fast
    from ..protocol.models.stream_config import StreamFields
    from .counter import Counter
    from .stream import Stream

__all__ = ["StreamManager"]

_log = logging.getLogger("jsclient.stream")

_RACES = 3  # number of attempts if another client creates or deletes the stream at the same time


class StreamManager:
    """Base class of `JetStream` that provides the methods for managing streams."""

    _context: Context

    async def account_info(self) -> AccountInfo:
        """Return the account's JetStream usage and limits.

        Raises:
            ApiError: JetStream is disabled for the account (10039), or the server refused the request.
            NoRespondersError: JetStream is disabled on the server.
            RequestTimeoutError: The server didn't respond in time.
        """
        answer = await self._context.call(self._context.api.account_info(), what="account info")
        return from_wire(AccountInfo, answer)

    @overload
    async def create_stream(self, name: StreamConfig) -> Stream: ...
    @overload
    async def create_stream(
        self, name: str, subjects: Sequence[str] | None = None, **fields: Unpack[StreamFields]
    ) -> Stream: ...
    async def create_stream(
        self, name: str | StreamConfig, subjects: Sequence[str] | None = None, **fields: Unpack[StreamFields]
    ) -> Stream:
        """Create a stream and return a handle for it.

        ::

            stream = await js.create_stream("ORDERS", subjects=["orders.>"], max_age=86_400)

        If a stream with the same name and configuration already exists, the call returns a handle for that stream.

        Args:
            name: Name of the stream, or a complete configuration.
            subjects: Subjects of the messages to store. They may contain wildcards. Defaults to the name of the stream.
            fields: Further fields of the `StreamConfig`.

        Raises:
            ConfigError: An argument is invalid, or the server is too old for a field. Nothing was sent.
            StreamExistsError: A stream with this name exists and has a different configuration.
            ApiError: The server rejected the configuration, for example because a different stream has one of the
                subjects (10065).
            RequestTimeoutError, DisconnectedError: No response arrived. The stream may or may not have been created.
        """
        config = _stream_config(name, subjects, fields)
        check_known_to_stream(self._context, config)
        stream = await self._make_stream(
            self._context.api.stream_create(config.name or ""), config, "create stream"
        )
        if not (config.subjects or config.mirror or config.sources):
            _log.warning(
                "stream %r was created without subjects, so it stores the subject %r alone: give subjects=[...]",
                stream.name,
                stream.name,
            )
        return stream

    async def update_stream(
        self, name: str | StreamConfig, subjects: Sequence[str] | None = None, **fields: Unpack[StreamFields]
    ) -> Stream:
        """Replace the configuration of a stream. Fields that aren't given are reset to their defaults.

        To keep the other fields, use `ensure_stream` with ``on_drift="update"``. `create_stream` describes the
        arguments.

        Raises:
            StreamNotFoundError: The stream doesn't exist.
            ConfigError: An argument is invalid, or the server is too old for a field. Nothing was sent.
            ApiError: The server rejected the configuration, for example because a field can't be changed.
            RequestTimeoutError, DisconnectedError: No response arrived. The stream may or may not have been updated.
        """
        config = _stream_config(name, subjects, fields)
        check_known_to_stream(self._context, config)
        return await self._update_stream(config)

    async def _update_stream(self, config: StreamConfig) -> Stream:
        return await self._make_stream(
            self._context.api.stream_update(config.name or ""), config, "update stream"
        )

    async def create_or_update_stream(
        self, name: str | StreamConfig, subjects: Sequence[str] | None = None, **fields: Unpack[StreamFields]
    ) -> Stream:
        """Create a stream, or replace the configuration of an existing stream.

        Fields that aren't given are reset to their defaults. `create_stream` describes the arguments. Raises the same
        errors as `create_stream` and `update_stream`.
        """
        config = _stream_config(name, subjects, fields)
        for _ in range(_RACES):
            try:
                return await self.update_stream(config)
            except StreamNotFoundError:
                pass
            try:
                return await self.create_stream(config)
            except StreamExistsError:
                pass  # another client has created the stream since the attempt to update it
        return await self.update_stream(config)

    async def ensure_stream(
        self,
        name: str | StreamConfig,
        subjects: Sequence[str] | None = None,
        *,
        on_drift: OnDrift = "error",
        **fields: Unpack[StreamFields],
    ) -> Stream:
        """Make sure that a stream exists and has the given configuration, and return a handle for it.

        Use it when an application starts. Several processes may call it at the same time.

        Args:
            name: Name of the stream, or its whole configuration.
            subjects: Subjects that the stream stores. See `create_stream`.
            fields: Fields of `StreamConfig`. An existing stream may have any value in a field that isn't given.
            on_drift: What to do if an existing stream has different values. "error" raises `ConfigMismatchError`,
                "update" changes the given fields, and "ignore" accepts the stream as it is.

        Raises:
            ConfigError: An argument is invalid, or the server is too old for a field. Nothing was sent.
            ConfigMismatchError: The stream differs, or the server accepted only part of the configuration.
            ApiError: The server rejected the configuration or the change.
            RequestTimeoutError, DisconnectedError: No response arrived. You may call `ensure_stream` again.
        """
        config = _stream_config(name, subjects, fields)
        check_on_drift(on_drift)
        check_known_to_stream(self._context, config)
        for _ in range(_RACES):
            try:
                stream = await self._ensure_stream(config, on_drift)
            except (StreamExistsError, StreamNotFoundError):
                continue  # another client has created or deleted the stream at the same time
            # Check again after an update, because the response may contain fields that another client has set
            # concurrently.
            if on_drift != "update" or not stream_mismatches(config, stream.config):
                break
        else:
            stream = await self._ensure_stream(config, on_drift)
        if on_drift != "ignore" and (different := stream_mismatches(config, stream.config)):
            raise ConfigMismatchError(stream.name, "", different, updated=on_drift == "update")
        return stream

    async def _ensure_stream(self, config: StreamConfig, on_drift: OnDrift) -> Stream:
        """Make one attempt to look up the stream, and to create or update it if necessary."""
        try:
            stream = await self.stream(config.name or "")
        except StreamNotFoundError:
            return await self.create_stream(config)
        if on_drift != "update" or not stream_mismatches(config, stream.config):
            return stream
        return await self._update_stream(changed_stream(config, stream.config))

    async def _make_stream(self, subject: str, config: StreamConfig, what: str) -> Stream:
        try:
            return self._stream(await self._context.call(subject, to_wire(config), what=what))
        except ApiError as error:
            if error.err_code not in {STREAM_NAME_IN_USE, STREAM_SUBJECT_OVERLAP}:
                raise
            refusal = error
        raise refusal.with_advice(await self._advice(refusal, config)) from None

    async def _advice(self, refusal: ApiError, config: StreamConfig) -> str:
        """Explain which existing stream conflicts with ``config``, by its name or by its subjects.

        Return "" if the existing streams can't be looked up.
        """
        try:
            if refusal.err_code == STREAM_NAME_IN_USE:
                different = stream_mismatches(config, (await self.stream(config.name or "")).config)
                shown = differences(different)
                return f'{shown}; ensure_stream(on_drift="update") changes it' if shown else ""
            overlaps = [
                f"{subject!r} is in stream {name!r}"
                for subject in config.subjects or ()
                for name in await find_streams(self._context, subject)
                if name != config.name
            ]
            return ", ".join(overlaps)
        except JetStreamError:
            return ""  # the caller raises the original error, with or without advice

    def _stream(self, info: dict[str, Any]) -> Stream:
        from .stream import Stream

        return Stream(self._context, from_wire(StreamInfo, info))

    @asking
    async def stream(self, name: str) -> Stream:
        """Look up a stream and return a handle for it.

        Raises:
            StreamNotFoundError: The stream doesn't exist. To create it if necessary, use `ensure_stream`.
            RequestTimeoutError: The server didn't respond in time.
            PermissionDeniedError: The user isn't allowed to request the state of the stream.
        """
        return self._stream(await self._context.call(self._context.api.stream_info(name), what="stream info"))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all of its messages and consumers. This can't be undone.

        Raises:
            StreamNotFoundError: The stream doesn't exist.
            RequestTimeoutError, DisconnectedError: No response arrived. The stream may or may not have been deleted.
        """
        await self._context.call(self._context.api.stream_delete(name), what="delete stream")

    @listing
    async def streams(self, subject: str | None = None) -> AsyncGenerator[StreamInfo, None]:
        """Iterate over the configuration and state of all streams, or of the streams that have ``subject``.

        ::

            async for info in js.streams():
                print(info.name, info.state.messages)

        The streams are requested page by page. ``subject`` may contain wildcards.

        Raises:
            InvalidNameError: The subject is invalid.
            RequestTimeoutError: The server didn't respond in time.
        """
        checked = None if subject is None else check_filter_subject(subject)
        async for item in pages(self._context, self._context.api.stream_list(), "streams", subject=checked):
            yield from_wire(StreamInfo, item)

    @listing
    async def stream_names(self, subject: str | None = None) -> AsyncGenerator[str, None]:
        """Iterate over the names of all streams, or of the streams that have ``subject``.

        The names are requested page by page, which takes less time than requesting the state with `streams`.
        ``subject`` may contain wildcards.

        Raises:
            InvalidNameError: The subject is invalid.
            RequestTimeoutError: The server didn't respond in time.
        """
        checked = None if subject is None else check_filter_subject(subject)
        async for item in pages(self._context, self._context.api.stream_names(), "streams", subject=checked):
            yield str(item)

    async def stream_name_by_subject(self, subject: str) -> list[str]:
        """Return the names of the streams that have a subject. Usually, there is only one.

        `subscribe` uses this method to find the stream of a subject.

        Raises:
            InvalidNameError: The subject is invalid.
            RequestTimeoutError: The server didn't respond in time.
        """
        return await find_streams(self._context, check_filter_subject(subject))

    @asking
    async def counter(self, stream: str) -> Counter:
        """Return a handle for the counters of a stream.

        Counters require nats-server 2.12 or later, and a stream with ``allow_msg_counter``. See ADR-49 for the
        protocol.

        Raises:
            StreamNotFoundError: The stream doesn't exist.
            ConfigError: The stream doesn't have ``allow_msg_counter``.
            RequestTimeoutError: The server didn't respond in time.
        """
        from .counter import Counter

        return Counter(self._context, (await self.stream(stream)).cached_info)


def _stream_config(
    name: str | StreamConfig, subjects: Sequence[str] | None, fields: Mapping[str, Any]
) -> StreamConfig:
    if isinstance(name, StreamConfig):
        if subjects is not None or fields:
            raise ConfigError("give a StreamConfig or fields, not both")
        config = name
    else:
        if subjects is not None and not isinstance(subjects, str):
            subjects = list(subjects)  # a single str stays as it is, and the config rejects it
        config = made(StreamConfig, name=name, subjects=subjects, **fields)
    if not config.name:
        raise ConfigError("the stream has no name")
    for subject in config.subjects or ():
        check_filter_subject(subject)
    return config
