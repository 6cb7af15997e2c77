"""Consumer management: the part of `Stream` that creates, changes, finds and deletes consumers. Source: ADR-37."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from .._runtime.calls import check_known
from .._runtime.context import Context
from ..consumers.consumer import Consumer
from ..errors import (
    ApiError,
    ConfigError,
    ConfigMismatchError,
    ConsumerExistsError,
    ConsumerNotFoundError,
)
from ..protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ..protocol.models.drift import OnDrift, changed_consumer, check_on_drift, consumer_drift
from ..protocol.wire.api import next_offset, page_items, page_request
from ..protocol.wire.codec import from_wire, to_wire

__all__ = ["ConsumerManager"]

_RACES = 3  # attempts when another client creates or deletes the consumer at the same time
_NO_CONSUMER_TO_UPDATE = 10149


class ConsumerManager:
    """The methods of `Stream` that manage consumers."""

    _context: Context

    @property
    def name(self) -> str:
        raise NotImplementedError

    async def consumer(self, name: str) -> Consumer:
        """Look up a consumer. Raises `ConsumerNotFoundError`."""
        return Consumer(self._context, await self._consumer_info(name))

    async def _consumer_info(self, name: str) -> ConsumerInfo:
        subject = self._context.api.consumer_info(self.name, name)
        return from_wire(ConsumerInfo, await self._context.call(subject, what="consumer info"))

    async def create_consumer(self, config: ConsumerConfig | None = None, **fields: Any) -> Consumer:
        """Create a consumer: a pull consumer unless ``deliver_subject`` is given.

        Raises:
            ConsumerExistsError: A consumer of this name has a different configuration.
        """
        return Consumer(self._context, await self._make(_config(config, fields), "create"))

    async def update_consumer(self, config: ConsumerConfig | None = None, **fields: Any) -> Consumer:
        """Update a consumer's configuration; fields that are not set return to their defaults.

        Raises:
            ApiError: 10149: the consumer does not exist. 10012 and others: a field cannot be changed.
        """
        wanted = _config(config, fields)
        if wanted.name is None and wanted.durable_name is None:
            raise ConfigError("update_consumer needs a durable_name or a name")
        return Consumer(self._context, await self._make(wanted, "update"))

    async def create_or_update_consumer(
        self, config: ConsumerConfig | None = None, **fields: Any
    ) -> Consumer:
        """Create a consumer, or update the existing one to this configuration."""
        return Consumer(self._context, await self._make(_config(config, fields), None))

    async def ensure_consumer(
        self, config: ConsumerConfig | None = None, *, on_drift: OnDrift = "error", **fields: Any
    ) -> Consumer:
        """Create a consumer, or verify that the existing one matches the fields set in ``config``.

        Any number of processes may call it at the same time: one creates the consumer, the others find it.

        Args:
            on_drift: The action if the consumer differs: "error" raises `ConfigMismatchError`, "update" changes the
                fields that were set and keeps the others, "ignore" accepts the consumer.

        Raises:
            ConfigMismatchError: The consumer differs; or the server accepted only part of the configuration.
            ApiError: The server refuses the configuration or the change. And those of any request.
        """
        wanted = _config(config, fields)
        check_on_drift(on_drift)
        name = wanted.durable_name or wanted.name
        if name is None:
            raise ConfigError("ensure_consumer needs a durable_name or a name")
        for _ in range(_RACES):
            try:
                info = await self._ensure(wanted, name, on_drift)
                break
            except ApiError as error:
                if not isinstance(error, ConsumerExistsError) and error.err_code != _NO_CONSUMER_TO_UPDATE:
                    raise
                # Another client has created or deleted it meanwhile.
        else:
            info = await self._ensure(wanted, name, on_drift)
        if on_drift != "ignore" and (different := consumer_drift(wanted, info.config)):
            raise ConfigMismatchError(self.name, name, different)
        return Consumer(self._context, info)

    async def _ensure(self, wanted: ConsumerConfig, name: str, on_drift: OnDrift) -> ConsumerInfo:
        """One attempt: look it up, then create or update it if necessary."""
        try:
            found = await self._consumer_info(name)
        except ConsumerNotFoundError:
            return await self._make(wanted, "create")
        if on_drift != "update" or not consumer_drift(wanted, found.config):
            return found
        return await self._make(changed_consumer(wanted, found.config), "update")

    async def _make(self, config: ConsumerConfig, action: str | None) -> ConsumerInfo:
        api = self._context.api
        check_known(self._context, config)
        name = config.name or config.durable_name
        if name is None:
            subject = api.consumer_create(self.name)
        else:
            if config.durable_name not in (None, name):
                raise ConfigError(
                    f"name is {name!r}, durable_name {config.durable_name!r}: give one, or the same"
                )
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
        """Iterate over all consumers of the stream, page by page."""
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
