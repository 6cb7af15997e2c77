"""A stream as a handle: `JetStream.stream`. Source: ADR-37, ADR-10, ADR-31."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

from ._runtime.context import Context
from .consumer import Consumer
from .errors import ConfigError, ConfigMismatchError, ConsumerNotFoundError
from .protocol.api import next_offset, page_items, page_request
from .protocol.codec import from_wire, to_wire
from .protocol.models.consumer import ConsumerConfig, ConsumerInfo, user_set
from .protocol.models.message import StoredMessage, read_stored_message
from .protocol.models.mismatch import config_mismatches
from .protocol.models.stream import StreamInfo
from .protocol.models.stream_config import StreamConfig
from .protocol.names import check_filter_subject

__all__ = ["Stream"]

OnDrift = Literal["error", "update", "ignore"]


class Stream:
    """A stream that exists on the server. Made by `JetStream.stream` and `JetStream.create_stream`."""

    def __init__(self, context: Context, info: StreamInfo) -> None:
        self._context = context
        self._info = info

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.config.name or ""

    @property
    def config(self) -> StreamConfig:
        """Its configuration as last seen; `info` asks the server."""
        return self._info.config

    @property
    def cached_info(self) -> StreamInfo:
        """What was last seen of it; `info` asks the server."""
        return self._info

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    async def info(self, *, subjects_filter: str | None = None, deleted_details: bool = False) -> StreamInfo:
        """Ask the server for its present state.

        Args:
            subjects_filter: Count messages by subject for these subjects (``state.subjects``).
            deleted_details: List the deleted sequences (``state.deleted``).

        Raises:
            StreamNotFoundError: It is gone. And those of any request.
        """
        body: dict[str, Any] = {}
        if subjects_filter is not None:
            body["subjects_filter"] = check_filter_subject(subjects_filter)
        if deleted_details:
            body["deleted_details"] = True
        answer = await self._context.call(
            self._context.api.stream_info(self.name), body or None, what="stream info"
        )
        self._info = from_wire(StreamInfo, answer)
        return self._info

    # --- messages ------------------------------------------------------------------------------------------

    async def purge(
        self, *, seq: int | None = None, keep: int | None = None, subject: str | None = None
    ) -> int:
        """Remove messages; how many were removed.

        Args:
            seq: Only those below this sequence. keep: All but the newest so many; not with ``seq``.
            subject: Only those of this subject; wildcards allowed.
        """
        if seq is not None and keep is not None:
            raise ConfigError("seq and keep are both given: give one of them")
        for what, value in (("seq", seq), ("keep", keep)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64
            ):
                raise ConfigError(f"{what} is {value!r:.60}: it must be a whole number of 0 or more")
        if seq is not None and seq <= 1:
            return 0  # nothing is below it; servers take 0, and before 2.14 also 1, for "everything"
        body: dict[str, Any] = {k: v for k, v in (("seq", seq), ("keep", keep)) if v is not None}
        if subject is not None:
            body["filter"] = check_filter_subject(subject)
        answer = await self._context.call(
            self._context.api.stream_purge(self.name), body or None, what="purge"
        )
        return int(answer.get("purged", 0))

    async def get_message(self, seq: int) -> StoredMessage:
        """The message with this stream sequence. Raises `MessageNotFoundError`."""
        return await self._get({"seq": seq})

    async def get_last_message(self, subject: str) -> StoredMessage:
        """The newest message of a subject. Raises `MessageNotFoundError`."""
        return await self._get({"last_by_subj": check_filter_subject(subject)})

    async def _get(self, body: dict[str, Any]) -> StoredMessage:
        answer = await self._context.call(
            self._context.api.stream_msg_get(self.name), body, what="get message"
        )
        return read_stored_message(answer)

    async def delete_message(self, seq: int, *, secure: bool = False) -> None:
        """Delete one message; ``secure`` overwrites it on disk. Raises `ApiError` if there is none."""
        body: dict[str, Any] = {"seq": seq}
        if not secure:
            body["no_erase"] = True
        await self._context.call(self._context.api.stream_msg_delete(self.name), body, what="delete message")

    # --- consumers -----------------------------------------------------------------------------------------

    async def consumer(self, name: str) -> Consumer:
        """The consumer of this name. Raises `ConsumerNotFoundError`."""
        return Consumer(self._context, await self._consumer_info(name))

    async def _consumer_info(self, name: str) -> ConsumerInfo:
        subject = self._context.api.consumer_info(self.name, name)
        return from_wire(ConsumerInfo, await self._context.call(subject, what="consumer info"))

    async def create_consumer(self, config: ConsumerConfig | None = None, **fields: Any) -> Consumer:
        """Create a consumer: a pull consumer unless ``deliver_subject`` is given.

        Raises:
            ConsumerExistsError: One of this name exists with another configuration.
        """
        return Consumer(self._context, await self._make(_config(config, fields), "create"))

    async def update_consumer(self, config: ConsumerConfig | None = None, **fields: Any) -> Consumer:
        """Change an existing consumer. Raises `ApiError` (10149) if there is none."""
        return Consumer(self._context, await self._make(_config(config, fields), "update"))

    async def create_or_update_consumer(
        self, config: ConsumerConfig | None = None, **fields: Any
    ) -> Consumer:
        """Create a consumer, or change the one there is to this configuration."""
        return Consumer(self._context, await self._make(_config(config, fields), None))

    async def ensure_consumer(
        self, config: ConsumerConfig | None = None, *, on_drift: OnDrift = "error", **fields: Any
    ) -> Consumer:
        """Have a consumer of this name; where it exists, compare what ``config`` sets.

        Args:
            on_drift: What to do where it differs: raise `ConfigMismatchError`, "update" it (only the fields that were
                set change, others are kept), or "ignore" it.
        """
        wanted = _config(config, fields)
        name = wanted.durable_name or wanted.name
        if name is None:
            raise ConfigError("ensure_consumer needs a durable_name or a name")
        try:
            found = await self._consumer_info(name)
        except ConsumerNotFoundError:
            return Consumer(self._context, await self._make(wanted, "create"))
        different = config_mismatches(wanted, found.config)
        if not different or on_drift == "ignore":
            return Consumer(self._context, found)
        if on_drift != "update":
            raise ConfigMismatchError(self.name, name, different)
        changes = {field: value for field, value in user_set(wanted).items() if field not in wanted.extra}
        changed = found.config.replace(**changes, extra=found.config.extra | wanted.extra)
        return Consumer(self._context, await self._make(changed, "update"))

    async def _make(self, config: ConsumerConfig, action: str | None) -> ConsumerInfo:
        api = self._context.api
        name = config.name or config.durable_name
        if name is None:
            subject = api.consumer_create(self.name)
        else:
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

    async def consumers(self) -> AsyncIterator[ConsumerInfo]:
        """All consumers of the stream, page by page."""
        offset: int | None = 0
        while offset is not None:
            answer = await self._context.call(
                self._context.api.consumer_list(self.name), page_request(offset), what="list consumers"
            )
            items = page_items(answer, "consumers")
            for item in items:
                yield from_wire(ConsumerInfo, item)
            offset = next_offset(answer, offset, len(items))


def _config(config: ConsumerConfig | None, fields: dict[str, Any]) -> ConsumerConfig:
    if config is None:
        return ConsumerConfig(**fields)
    return config.replace(**fields) if fields else config
