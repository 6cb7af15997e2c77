"""Handles for streams, which `JetStream.stream` returns. Source: ADR-37, ADR-10, ADR-31."""

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

_RACES = 3  # number of attempts if another client creates or deletes the consumer at the same time

_NO_CONSUMER_TO_UPDATE = 10149


class Stream:
    """A handle for a stream on the server. Created by `JetStream.stream` and `JetStream.create_stream`.

    Use it to manage the stream and its consumers, and to read stored messages by sequence or subject::

        stream = await js.stream("ORDERS")
        message = await stream.get_last_message("orders.new")

    To read all messages of the stream, create a consumer or a subscription.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    def __init__(self, context: Context, info: StreamInfo) -> None:
        self._context = context
        self._info = info

    @property
    def name(self) -> str:
        """Name of the stream. It is unique within the account."""
        return self._info.config.name or ""

    @property
    def config(self) -> StreamConfig:
        """Configuration of the stream, as last reported by the server.

        Other clients may have changed the stream since then. Call `info` to refresh the configuration.
        """
        return self._info.config

    @property
    def cached_info(self) -> StreamInfo:
        """Configuration and state of the stream, as last reported by the server. Call `info` to get current values."""
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
        """Request the current configuration and state of the stream from the server.

        Args:
            subjects_filter: Subjects whose messages are counted in ``state.subjects``. It may contain wildcards. If
                there are very many subjects, use `subjects` instead, which doesn't load all of them at once.
            deleted_details: Whether to list the sequences of deleted messages in ``state.deleted``.
            timeout: How long to wait for the response, in seconds. Defaults to the ``timeout`` passed to `connect`.
                Consider a shorter timeout for health checks.

        Raises:
            StreamNotFoundError: The stream was deleted.
            RequestTimeoutError: The server didn't respond in time.
            PermissionDeniedError: The user isn't allowed to request the state of the stream.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        details = {"deleted_details": True} if deleted_details else {}
        # With a filter, read page by page, because a response contains at most 100,000 subjects.
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
        """Iterate over ``(subject, number of messages)`` tuples of the subjects that match ``filter``.

        ::

            async for subject, count in stream.subjects("orders.>"):
                print(subject, count)

        Each request returns up to 100,000 subjects. If a subject appears or disappears during the iteration, it may be
        missing or returned twice.

        Raises:
            StreamNotFoundError: The stream was deleted.
            RequestTimeoutError: The server didn't respond in time.
        """
        async for info in subject_pages(self._context, self.name, check_filter_subject(filter)):
            for item in (info.state.subjects or {}).items():
                yield item

    async def purge(
        self, *, seq: int | None = None, keep: int | None = None, subject: str | None = None
    ) -> int:
        """Remove messages from the stream. Without arguments, all messages are removed. This can't be undone.

        Args:
            seq: Remove only messages whose stream sequence is lower than ``seq``.
            keep: Number of latest messages to keep. It can't be combined with ``seq``.
            subject: Remove only messages of this subject, which may contain wildcards.

        Returns:
            The number of messages that were removed.

        Raises:
            ConfigError: ``seq`` or ``keep`` is out of range, or both are given. Nothing was removed.
            InvalidNameError: The subject is invalid. Nothing was removed.
            ApiError: The server refused, for example because the stream has ``deny_purge``. Nothing was removed.
            RequestTimeoutError, DisconnectedError: No response arrived. The messages may or may not have been removed.
        """
        if seq is not None and keep is not None:
            raise ConfigError("seq and keep are both given: give one of them")
        for what, value in (("seq", seq), ("keep", keep)):
            if value is not None:
                check_count(what, value, 0, 2**64 - 1)
        if seq is not None and seq <= 1:
            # No message has a lower sequence. Send nothing, because a server would take 0 (and before 2.14, also 1) for
            # a purge of all messages.
            return 0
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
            seq: Stream sequence of the message.
            direct: Whether to read from any replica instead of the leader, which spreads the load. A replica may not
                have the latest messages yet. The stream must have ``allow_direct``.

        Raises:
            MessageNotFoundError: The stream doesn't contain the message.
            ConfigError: ``direct`` is True, but the stream doesn't have ``allow_direct``.
            RequestTimeoutError: The server didn't respond in time.
        """
        return await self._get({"seq": seq}, direct)

    async def get_last_message(self, subject: str, *, direct: bool = False) -> StoredMessage:
        """Return the latest message of a subject, or of all subjects that match a wildcard.

        Raises `MessageNotFoundError` if there is none. For ``direct`` and the other errors, see `get_message`.
        """
        return await self._get({"last_by_subj": check_filter_subject(subject)}, direct)

    async def get_next_message(self, subject: str, seq: int = 1, *, direct: bool = False) -> StoredMessage:
        """Return the first message of a subject whose stream sequence is ``seq`` or higher.

        The subject may contain wildcards. To get the message after the returned one, pass its ``seq`` plus 1. Raises
        `MessageNotFoundError` if there is none. For ``direct`` and the other errors, see `get_message`.
        """
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
        """Iterate over up to ``batch`` stored messages, which are read with a single request.

        Messages are read from any replica, without a consumer or acknowledgements. This requires nats-server 2.11 or
        later, and a stream with ``allow_direct``. To continue after the last message::

            page = stream.get_batch(1000, seq=page.last_seq + 1)

        Args:
            batch: Maximum number of messages.
            seq: Stream sequence to start at. Defaults to the first message of the stream.
            start_time: Start at the first message stored at this time or later, instead of at ``seq``.
            subject: Read only messages of this subject, which may contain wildcards.
            max_bytes: The batch ends with the message at which the total size of subjects, headers and payloads reaches
                this limit. The server has its own limit, which is 64 MiB by default.
            timeout: How long to wait for each message, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            ConfigError: A value is out of range. If the stream doesn't have ``allow_direct``, or if the server is too
                old, the start of the iteration raises the error.

        The iteration raises `RequestTimeoutError` or `DisconnectedError` if messages don't arrive, and `StatusError` if
        the server rejects the request. See ADR-31 for the protocol.
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
        """Iterate over the latest message of each matching subject, in stream order.

        The result is a consistent snapshot, even across several pages. The method requires nats-server 2.11 or later,
        and a stream with ``allow_direct``. If the iteration stopped at ``batch`` or ``max_bytes``, get the next page of
        the same snapshot with::

            page = stream.get_last_messages(subjects, seq=page.last_seq + 1, up_to_seq=page.up_to_seq)

        Args:
            subjects: One or more subjects, which may contain wildcards. Up to 1,024 subjects of the stream may match.
            batch: Maximum number of messages. Unlimited by default.
            seq: Return only messages at or after this stream sequence.
            up_to_seq: Ignore messages after this stream sequence.
            up_to_time: Ignore messages stored at this time or later. Can't be combined with ``up_to_seq``.
            max_bytes: Size limit of a page, as for `get_batch`.
            timeout: How long to wait for each message, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            TooManyResultsError: More than 1,024 subjects match. Raised by the iteration, not by the call.

        May also raise the same errors as `get_batch`.
        """
        body = last_request(
            subjects, batch=batch, seq=seq, up_to_seq=up_to_seq, up_to_time=up_to_time, max_bytes=max_bytes
        )
        return DirectBatch(self._context, self.name, body, timeout=timeout, check=self._check_direct)

    async def _check_direct(self) -> None:
        """Raise `ConfigError` if the stream does not allow direct gets, because the server might not respond then."""
        if not self.config.allow_direct and not (await self.info()).config.allow_direct:
            raise ConfigError(
                f"stream {self.name!r} does not allow direct gets: update it with allow_direct=True"
            )

    async def _get(self, body: dict[str, Any], direct: bool) -> StoredMessage:  # noqa: FBT001  internal
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
        """Delete a message from the stream. All other messages keep their sequences.

        Args:
            seq: Stream sequence of the message.
            secure: Whether to overwrite the message on disk, so that it can't be recovered. This is slower.

        Raises:
            ApiError: The message doesn't exist, or the stream doesn't allow deleting messages.
            RequestTimeoutError, DisconnectedError: No response arrived. The message may or may not have been deleted.
        """
        body: dict[str, Any] = {"seq": seq}
        if not secure:
            body["no_erase"] = True
        await self._context.call(self._context.api.stream_msg_delete(self.name), body, what="delete message")

    # --- consumers ---------------------------------------------------------------------------------------

    @asking
    async def consumer(self, name: str) -> Consumer:
        """Look up a consumer and return a handle for it.

        Raises:
            ConsumerNotFoundError: The consumer doesn't exist. To create it if necessary, use `ensure_consumer`.
            RequestTimeoutError: The server didn't respond in time.
        """
        return Consumer(self._context, await consumer_info(self._context, self.name, name))

    async def create_consumer(
        self, config: ConsumerConfig | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer and return a handle for it.

        ::

            consumer = await stream.create_consumer(durable_name="billing", filter_subject="orders.>")

        The consumer is a pull consumer unless ``deliver_subject`` is given. Without ``name`` and ``durable_name``, the
        server generates a name. If a consumer with the same name and configuration already exists, the call returns a
        handle for that consumer.

        Raises:
            ConfigError: A field is invalid, the server is too old for it, or the filter can't match any message of the
                stream. No consumer was created.
            ConsumerExistsError: A consumer with this name exists and has a different configuration.
            ConsumerLimitError: The stream, account or server can't have more consumers.
            RequestTimeoutError, DisconnectedError: No response arrived. The consumer may or may not have been created.
        """
        return Consumer(self._context, await self._make(_config(config, fields), "create"))

    async def update_consumer(
        self, config: ConsumerConfig | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Replace the configuration of a consumer. Fields that aren't given are reset to their defaults.

        To keep the other fields, use `ensure_consumer` with ``on_drift="update"``.

        Raises:
            ConfigError: Neither ``name`` nor ``durable_name`` is given, or a field is invalid.
            ApiError: The consumer doesn't exist (10149), or a field can't be changed (10012 and others).
        """
        requested = _config(config, fields)
        if requested.name is None and requested.durable_name is None:
            raise ConfigError("update_consumer needs a durable_name or a name")
        return Consumer(self._context, await self._make(requested, "update"))

    async def create_or_update_consumer(
        self, config: ConsumerConfig | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer, or replace the configuration of an existing consumer.

        Fields that aren't given are reset to their defaults. May raise the same errors as `create_consumer` and
        `update_consumer`.
        """
        return Consumer(self._context, await self._make(_config(config, fields), None))

    async def ensure_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        on_drift: OnDrift = "error",
        **fields: Unpack[ConsumerFields],
    ) -> Consumer:
        """Make sure that a consumer exists and has the given configuration, and return a handle for it.

        Use it when an application starts. Several processes may call it at the same time.

        Args:
            config: The configuration, unless you pass ``fields``. Fields not given may differ in an existing consumer.
            on_drift: What to do if an existing consumer has different values. "error" raises `ConfigMismatchError`,
                "update" changes the given fields, and "ignore" accepts the consumer as it is.

        Raises:
            ConfigError: Neither ``name`` nor ``durable_name`` is given, or a field is invalid.
            ConfigMismatchError: The consumer differs, or the server accepted only part of the configuration.
            ApiError: The server rejected the configuration or the change.
            RequestTimeoutError, DisconnectedError: No response arrived. You may call `ensure_consumer` again.
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
                continue  # another client has created or deleted the consumer at the same time
            # Check again after an update, because the response may contain fields that another client has set
            # concurrently.
            if on_drift != "update" or not consumer_drift(requested, info.config):
                break
        else:
            info = await self._ensure(requested, name, on_drift)
        if on_drift != "ignore" and (different := consumer_drift(requested, info.config)):
            raise ConfigMismatchError(self.name, name, different, updated=on_drift == "update")
        return Consumer(self._context, info)

    async def _ensure(self, requested: ConsumerConfig, name: str, on_drift: OnDrift) -> ConsumerInfo:
        """Make one attempt to look up the consumer, and to create or update it if necessary."""
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
            # A single filter becomes part of the API subject, so that permissions can restrict the filter.
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
        """Delete a consumer. Pull requests in flight end with `ConsumerDeletedError`.

        Raises:
            ConsumerNotFoundError: The consumer doesn't exist.
            RequestTimeoutError, DisconnectedError: No response arrived. The consumer may or may not have been deleted.
        """
        await self._context.call(self._context.api.consumer_delete(self.name, name), what="delete consumer")

    @listing
    async def consumers(self) -> AsyncGenerator[ConsumerInfo, None]:
        """Iterate over the configuration and state of all consumers of the stream.

        The consumers are requested page by page, so there may be any number of them. To read from a consumer or to
        manage it, pass its name to `consumer`.
        """
        async for item in pages(self._context, self._context.api.consumer_list(self.name), "consumers"):
            yield from_wire(ConsumerInfo, item)


def _named(error: MessageNotFoundError, stream: str, body: Mapping[str, Any]) -> MessageNotFoundError:
    """Return an error that names the requested message, because the server's error doesn't."""
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
