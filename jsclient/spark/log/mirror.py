"""A consumer that shows the progress of a query in log mode to NATS tools."""

from __future__ import annotations

import logging

from ...consumers.pull.consumer import Consumer
from ...errors import ApiError, ConfigError, ConfigMismatchError, ConsumerNotFoundError, JetStreamError
from ...protocol.models.consumer import AckPolicy, ConsumerConfig, DeliverPolicy
from ...protocol.wire.checks import is_at_least
from ...streams.stream import Stream
from ...tables.lookup import Lookup
from ...tables.offsets import StreamFacts

__all__ = ["Mirror"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_OWNER = "jsclient_spark_query"  # key in the consumer's metadata, whose value is `LogOffset.owner`
_RESET_SERVER = (2, 14)  # the first server version that can reset a consumer


class Mirror:
    """A durable consumer that shows the progress of one query to NATS tools. It is never pulled from.

    After each batch, the consumer is reset to the first unprocessed message, so that its pending messages are the
    query's lag. On an interest stream it also retains the messages that the query has not processed. This needs
    nats-server 2.14.
    """

    def __init__(self, lookup: Lookup, name: str, subjects: tuple[str, ...]) -> None:
        self._lookup = lookup
        self._subjects = subjects
        self._config = ConsumerConfig(
            durable_name=name,
            description="Progress of a Spark query; it is not pulled from",
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            filter_subjects=list(subjects) or None,
        )
        self._name = name
        self._consumer: Consumer | None = None
        self._created = False
        self._owner: str | None = None  # the query that has claimed the consumer, see `claim`
        self._shown: int | None = None  # sequence to which the consumer was reset last

    def ensure(self, facts: StreamFacts) -> None:
        """Create the consumer, or check an existing consumer. Raises `ConfigError` if it cannot show the progress."""
        if not is_at_least(self._lookup.js.server_version, _RESET_SERVER):
            raise ConfigError(
                f"option 'consumer' in mode 'log' shows the progress, which needs nats-server 2.14; "
                f"{self._lookup.js.server_version} is connected: leave the option out"
            )
        if facts.work_queue:
            raise ConfigError(
                f"option 'consumer' in mode 'log' shows the progress, but stream {facts.name!r} is a work queue, whose "
                "messages would stay for ever: leave it out, or use 'mode' = 'queue'"
            )
        self._consumer, self._created = self._lookup.run(self._ensured)

    async def _ensured(self, stream: Stream) -> tuple[Consumer, bool]:
        try:
            existing = await stream.consumer(self._name)
        except ConsumerNotFoundError:
            try:
                return await stream.create_consumer(self._config), True
            except ApiError as error:
                raise ConfigError(f"option 'consumer': {self._name!r} cannot be made: {error}") from error
        expected = self._config.replace(description=None, metadata=None)
        if existing.cached_info.is_push or sorted(existing.config.filters) != sorted(self._subjects):
            raise self._wrong("it must be a pull consumer with the filters of option 'subjects'")
        try:
            return await stream.ensure_consumer(expected.replace(filter_subjects=None)), False
        except ConfigMismatchError as error:
            raise self._wrong(str(error)) from error

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"option 'consumer' is {self._name!r}, a consumer that cannot show the progress: {why}; give another name, "
            "which is then made"
        )

    def claim(self, owner: str) -> None:
        """Claim the consumer for a query. Raises `ConfigError` if another query has claimed it.

        ``owner`` is the name of the query. For a query without a name yet, pass "" to only check the consumer.
        """
        if self._owner != owner:
            self._lookup.run(lambda stream: self._claimed(stream, owner))
            self._owner = owner

    async def _claimed(self, stream: Stream, owner: str) -> None:
        if owner:
            self._config = self._config.replace(metadata={_OWNER: owner})
        try:
            config = (await stream.consumer(self._name)).config
        except ConsumerNotFoundError:
            return  # the consumer was deleted in the meantime, and `done` will create it again
        current_owner = (config.metadata or {}).get(_OWNER)
        if current_owner not in (None, owner):
            raise ConfigError(
                f"option 'consumer' is {self._name!r}, which shows the progress of another query, or of another "
                "checkpoint of this one; with two, an interest stream removes messages that the slower one needs: "
                f"give each query its own. If the other one is gone, remove {_OWNER!r} from the metadata of the "
                "consumer, or delete the consumer"
            )
        if owner and current_owner is None:
            metadata = {**(config.metadata or {}), _OWNER: owner}
            self._consumer = await stream.update_consumer(config.replace(metadata=metadata))

    def begin_query(self, seq: int) -> None:
        """Show that a new query starts after ``seq``, if `ensure` has created the consumer.

        A consumer that existed before is not reset yet, because it may retain messages.
        """
        if self._created:
            self.done(seq)

    def done(self, seq: int) -> None:
        """Show that the query has processed all messages up to ``seq``.

        A failed request is logged, and the next call repairs it. Raises `ConfigError` if the consumer was deleted and
        cannot be created again.
        """
        if seq == self._shown:
            return
        try:
            self._lookup.run(lambda stream: self._reset(stream, seq + 1))
        except ConfigError:
            raise
        except JetStreamError as error:
            log.warning("consumer %r does not show the progress at sequence %s: %s", self._name, seq, error)
        else:
            self._shown = seq

    async def _reset(self, stream: Stream, seq: int) -> None:
        if self._consumer is None:
            self._consumer = (await self._ensured(stream))[0]
        try:
            await self._consumer.reset(seq)
        except ConsumerNotFoundError:
            self._consumer = None  # the consumer was deleted in the meantime
            self._consumer = (await self._ensured(stream))[0]
            await self._consumer.reset(seq)
