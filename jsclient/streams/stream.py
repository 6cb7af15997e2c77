"""A stream as a handle: `JetStream.stream`. Source: ADR-37, ADR-10, ADR-31."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from .._runtime.calls import check_known, consumer_info, pages, subject_pages, warn_of_units
from .._runtime.context import Context
from .._runtime.handle import asking, listing, no_pickle
from .._runtime.matching import check_match
from ..consumers.pull.consumer import Consumer
from ..errors import (
    ApiError,
    ConfigError,
    ConfigMismatchError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    MessageNotFoundError,
)
from ..protocol.models.consumer import ConsumerConfig, ConsumerFields, ConsumerInfo
from ..protocol.models.drift import OnDrift, changed_consumer, check_on_drift, consumer_drift
from ..protocol.models.message import StoredMessage, read_stored_message
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import StreamConfig
from ..protocol.streams.direct_get import batch_request, last_request
from ..protocol.wire.checks import check_count, check_seconds
from ..protocol.wire.codec import from_wire, made, to_wire
from ..protocol.wire.names import check_filter_subject
from ..protocol.wire.nats_py import no_attribute
from .direct_get import DirectBatch, get_directly

__all__ = ["Stream"]

_RACES = 3  # attempts when another client creates or deletes the consumer at the same time

_NO_CONSUMER_TO_UPDATE = 10149


class Stream:
    """A stream that exists on the server. Created by `JetStream.stream` and `JetStream.create_stream`."""

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    def __init__(self, context: Context, info: StreamInfo) -> None:
        self._context = context
        self._info = info

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._info.config.name or ""

    @property
    def config(self) -> StreamConfig:
        """The configuration as the server last reported it. `info` updates it."""
        return self._info.config

    @property
    def cached_info(self) -> StreamInfo:
        """The information as the server last reported it. `info` updates it."""
        return self._info

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    async def info(
        self,
        *,
        subjects_filter: str | None = None,
        deleted_details: bool = False,
        timeout: float | None = None,
    ) -> StreamInfo:
        """Request the current configuration and state.

        Args:
            subjects_filter: Count messages per subject for these subjects (``state.subjects``), without a limit. For
                very many subjects use `subjects`, which iterates page by page.
            deleted_details: List the deleted sequences (``state.deleted``).
            timeout: Seconds, for a health check for instance. The default is the timeout of `connect`.

        Raises:
            StreamNotFoundError: The stream was deleted.
            RequestTimeoutError: The server did not answer within the timeout.

        Also raises the errors of any API request.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        details = {"deleted_details": True} if deleted_details else {}
        # A server returns at most 100,000 subjects per request, so only a request for subjects needs pages.
        if subjects_filter is None:
            answer = await self._context.call(
                self._context.api.stream_info(self.name), details or None, timeout=timeout, what="stream info"
            )
            self._info = from_wire(StreamInfo, answer)
            return self._info
        info, counts = self._info, dict[str, int]()
        async for info in subject_pages(
            self._context, self.name, check_filter_subject(subjects_filter), timeout=timeout, **details
        ):
            counts.update(info.state.subjects or {})
        self._info = info.replace(state=info.state.replace(subjects=counts))
        return self._info

    @listing
    async def subjects(self, filter: str = ">") -> AsyncGenerator[tuple[str, int], None]:
        """Iterate over the subjects that match ``filter``, with their message counts.

        Each request returns a page of 100,000 subjects. A subject that appears or disappears during the iteration may
        be missing or may be reported twice.

        Raises:
            StreamNotFoundError: The stream was deleted.

        Also raises the errors of any API request.
        """
        async for info in subject_pages(self._context, self.name, check_filter_subject(filter)):
            for item in (info.state.subjects or {}).items():
                yield item

    async def purge(
        self, *, seq: int | None = None, keep: int | None = None, subject: str | None = None
    ) -> int:
        """Remove messages and return how many were removed. Without arguments, remove all messages.

        Args:
            seq: Remove only messages below this sequence.
            keep: Remove all but the newest ``keep`` messages. Cannot be combined with ``seq``.
            subject: Remove only messages of this subject. Wildcards are allowed.
        """
        if seq is not None and keep is not None:
            raise ConfigError("seq and keep are both given: give one of them")
        for what, value in (("seq", seq), ("keep", keep)):
            if value is not None:
                check_count(what, value, 0, 2**64 - 1)
        if seq is not None and seq <= 1:
            return 0  # every sequence is above it, but servers read 0 as "all", and before 2.14 also 1
        body: dict[str, Any] = {k: v for k, v in (("seq", seq), ("keep", keep)) if v is not None}
        if subject is not None:
            body["filter"] = check_filter_subject(subject)
        answer = await self._context.call(
            self._context.api.stream_purge(self.name), body or None, what="purge"
        )
        return int(answer.get("purged", 0))

    async def get_message(self, seq: int, *, direct: bool = False) -> StoredMessage:
        """Return the message with this stream sequence.

        Args:
            direct: Read from any replica instead of the leader, to spread the load (stream with ``allow_direct``). A
                replica may not have the newest messages yet.

        Raises:
            MessageNotFoundError: The message does not exist.
            ConfigError: ``direct`` for a stream that does not allow it.
        """
        return await self._get({"seq": seq}, direct)

    async def get_last_message(self, subject: str, *, direct: bool = False) -> StoredMessage:
        """Return the newest message of a subject, which may have wildcards. See `get_message`."""
        return await self._get({"last_by_subj": check_filter_subject(subject)}, direct)

    async def get_next_message(self, subject: str, seq: int = 1, *, direct: bool = False) -> StoredMessage:
        """Return the first message of a subject at or after this stream sequence. See `get_message`."""
        return await self._get({"seq": seq, "next_by_subj": check_filter_subject(subject)}, direct)

    def get_batch(
        self,
        batch: int,
        *,
        seq: int | None = None,
        start_time: datetime | str | None = None,
        subject: str | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> DirectBatch:
        """Read up to ``batch`` stored messages with one request, for ``async for`` (server 2.11, ``allow_direct``).

        They are read from any replica, without a consumer and without acks. To continue after the last message::

            page = stream.get_batch(1000, seq=page.last_seq + 1)

        Args:
            batch: The maximum number of messages.
            seq: Start at this stream sequence. By default the batch starts at the first message.
            start_time: Start at the first message stored at this time or later, instead of ``seq``.
            subject: Read only messages of this subject. Wildcards are allowed.
            max_bytes: End with the message that reaches this sum of subjects, headers and payloads. The server has
                its own limit, 64 MiB by default.
            timeout: Seconds to wait for each message. The default is the timeout of `connect`.

        Raises:
            ConfigError: A value is out of range. The iteration raises it when it starts if the stream does not allow
                direct gets, or if the server is too old.

        The iteration raises `RequestTimeoutError` or `DisconnectedError` if messages do not arrive, and `StatusError`
        if the server refuses the request.

        Source: ADR-31
        """
        body = batch_request(batch, seq=seq, start_time=start_time, subject=subject, max_bytes=max_bytes)
        return DirectBatch(self._context, self.name, body, timeout=timeout, check=self._check_direct)

    def get_last_messages(
        self,
        subjects: str | Sequence[str],
        *,
        batch: int | None = None,
        seq: int | None = None,
        up_to_seq: int | None = None,
        up_to_time: datetime | str | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> DirectBatch:
        """Read the newest message of each matching subject, for ``async for`` (server 2.11, ``allow_direct``).

        They are in stream order, as of one point in time. If ``batch`` or ``max_bytes`` ended the read, continue with::

            page = stream.get_last_messages(subjects, seq=page.last_seq + 1, up_to_seq=page.up_to_seq)

        Args:
            subjects: One or more subjects, which may have wildcards. At most 1,024 subjects of the stream may match.
            batch: The maximum number of messages.
            seq: Return only messages at or after this stream sequence.
            up_to_seq: Ignore messages after this sequence.
            up_to_time: Ignore messages stored at this time or later.
            max_bytes, timeout: See `get_batch`.

        Raises:
            TooManyResultsError: Too many subjects match. The iteration raises it.

        Also raises the errors of `get_batch`.
        """
        body = last_request(
            subjects, batch=batch, seq=seq, up_to_seq=up_to_seq, up_to_time=up_to_time, max_bytes=max_bytes
        )
        return DirectBatch(self._context, self.name, body, timeout=timeout, check=self._check_direct)

    async def _check_direct(self) -> None:
        """Raise `ConfigError` for a stream without direct gets: older servers would not answer the request."""
        if not self.config.allow_direct and not (await self.info()).config.allow_direct:
            raise ConfigError(
                f"stream {self.name!r} does not allow direct gets: update it with allow_direct=True"
            )

    async def _get(self, body: dict[str, Any], direct: bool) -> StoredMessage:  # noqa: FBT001  private
        try:
            if direct:
                await self._check_direct()
                return await get_directly(self._context, self.name, body)
            answer = await self._context.call(
                self._context.api.stream_msg_get(self.name), body, what="get message"
            )
        except MessageNotFoundError as error:
            raise _named(error, self.name, body) from None
        return read_stored_message(answer)

    async def delete_message(self, seq: int, *, secure: bool = False) -> None:
        """Delete a message. ``secure`` overwrites it on disk. Raises `ApiError` if it does not exist."""
        body: dict[str, Any] = {"seq": seq}
        if not secure:
            body["no_erase"] = True
        await self._context.call(self._context.api.stream_msg_delete(self.name), body, what="delete message")

    # --- consumers ---------------------------------------------------------------------------------------

    @asking
    async def consumer(self, name: str) -> Consumer:
        """Look up a consumer. Raises `ConsumerNotFoundError`."""
        return Consumer(self._context, await consumer_info(self._context, self.name, name))

    async def create_consumer(
        self, config: ConsumerConfig | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer: a pull consumer unless ``deliver_subject`` is given.

        Raises:
            ConfigError: A field is not valid, the server is too old for it, or the filter can match no message of the
                stream. No consumer was created.
            ConsumerExistsError: A consumer of this name has a different configuration.
        """
        return Consumer(self._context, await self._make(_config(config, fields), "create"))

    async def update_consumer(
        self, config: ConsumerConfig | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Update a consumer's configuration. Fields that are not set return to their defaults.

        Raises:
            ApiError: The consumer does not exist (10149), or a field cannot be changed (10012 and others).
        """
        requested = _config(config, fields)
        if requested.name is None and requested.durable_name is None:
            raise ConfigError("update_consumer needs a durable_name or a name")
        return Consumer(self._context, await self._make(requested, "update"))

    async def create_or_update_consumer(
        self, config: ConsumerConfig | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer, or update the existing one to this configuration."""
        return Consumer(self._context, await self._make(_config(config, fields), None))

    async def ensure_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        on_drift: OnDrift = "error",
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """Create a consumer, or verify that the existing one matches the fields set in ``config``.

        Any number of processes may call it at the same time: one creates the consumer, the others find it.

        Args:
            on_drift: The action if the consumer differs: "error" raises `ConfigMismatchError`, "update" changes the
                fields that were set and keeps the others, "ignore" accepts the consumer.

        Raises:
            ConfigMismatchError: The consumer differs, or the server accepted only part of the configuration.
            ApiError: The server refuses the configuration or the change.

        Also raises the errors of any API request.
        """
        requested = _config(config, fields)
        check_known(self._context, requested)
        check_on_drift(on_drift)
        name = requested.durable_name or requested.name
        if name is None:
            raise ConfigError("ensure_consumer needs a durable_name or a name")
        for _ in range(_RACES):
            try:
                info = await self._ensure(requested, name, on_drift)
            except ApiError as error:
                if not isinstance(error, ConsumerExistsError) and error.err_code != _NO_CONSUMER_TO_UPDATE:
                    raise
                continue  # another client has created or deleted the consumer meanwhile
            # After an update, the answer may contain fields that another client set at the same moment.
            if on_drift != "update" or not consumer_drift(requested, info.config):
                break
        else:
            info = await self._ensure(requested, name, on_drift)
        if on_drift != "ignore" and (different := consumer_drift(requested, info.config)):
            raise ConfigMismatchError(self.name, name, different, updated=on_drift == "update")
        return Consumer(self._context, info)

    async def _ensure(self, requested: ConsumerConfig, name: str, on_drift: OnDrift) -> ConsumerInfo:
        """Look the consumer up once, then create or update it if necessary."""
        try:
            info = await consumer_info(self._context, self.name, name)
        except ConsumerNotFoundError:
            return await self._make(requested, "create")
        if on_drift != "update" or not consumer_drift(requested, info.config):
            return info
        return await self._make(changed_consumer(requested, info.config), "update")

    async def _make(self, config: ConsumerConfig, action: str | None) -> ConsumerInfo:
        api = self._context.api
        check_known(self._context, config)
        warn_of_units(self.name, config)
        if action != "update":
            await check_match(self._context, self.name, config.filters, self.config)
        name = config.name or config.durable_name
        if name is None:
            subject = api.consumer_create(self.name)
        else:
            if config.durable_name not in (None, name):
                raise ConfigError(
                    f"name is {name!r}, durable_name {config.durable_name!r}: give one, or the same"
                )
            # A single filter is part of the API subject, where the server's permissions can restrict it.
            single = config.filter_subject if not config.filter_subjects else None
            subject = api.consumer_create_named(self.name, name, single or "")
        body: dict[str, Any] = {"stream_name": self.name, "config": to_wire(config)}
        if name is not None:
            body["config"]["name"] = name
            if action is not None:
                body["action"] = action
        return from_wire(
            ConsumerInfo, await self._context.call(subject, body, what=f"{action or 'make'} consumer")
        )

    async def delete_consumer(self, name: str) -> None:
        """Delete a consumer. Raises `ConsumerNotFoundError`."""
        await self._context.call(self._context.api.consumer_delete(self.name, name), what="delete consumer")

    @listing
    async def consumers(self) -> AsyncGenerator[ConsumerInfo, None]:
        """Iterate over all consumers of the stream, page by page."""
        async for item in pages(self._context, self._context.api.consumer_list(self.name), "consumers"):
            yield from_wire(ConsumerInfo, item)


def _named(error: MessageNotFoundError, stream: str, body: Mapping[str, Any]) -> MessageNotFoundError:
    """Return the same error, with a description of the message that was requested."""
    subject = body.get("last_by_subj") or body.get("next_by_subj")
    which = f"on subject {subject!r}" if subject else f"with sequence {body['seq']}"
    if subject and "seq" in body:
        which += f" from sequence {body['seq']} on"
    advice = "it was deleted or has expired, or was never stored: `Stream.info` says which sequences the stream holds"
    if subject:
        advice = (
            "check the subject (`Stream.subjects` counts its messages), or they were deleted or have expired"
        )
    return MessageNotFoundError(
        error.code, error.err_code, f"no message found {which}", stream, advice=advice
    )


def _config(config: ConsumerConfig | None, fields: Mapping[str, Any]) -> ConsumerConfig:
    if config is not None and not isinstance(config, ConsumerConfig):
        hint = f"; for a durable consumer of that name, give durable_name={config!r:.60}"
        raise ConfigError(
            f"config is {config!r:.60}: a ConsumerConfig or fields are needed{hint * isinstance(config, str)}"
        )
    if config is None:
        return made(ConsumerConfig, **fields)
    return config.replace(**fields) if fields else config
