"""JetStream usage and limits of an account.

Source: ADR-1; nats-server server/jetstream.go (JetStreamAccountStats).
"""

from __future__ import annotations

from typing import ClassVar

from ..wire.codec import Model

__all__ = ["AccountInfo", "AccountLimits", "AccountTier", "ApiStats", "storage_advice"]


class AccountLimits(Model, frozen=True, kw_only=True):
    """Limits of an account or one of its tiers; -1 (0 for the bytes of one stream): unlimited.

    Attributes:
        max_memory: Bytes in memory.
        max_storage: Bytes in files.
        max_streams: Streams.
        max_consumers: Consumers.
        max_ack_pending: Messages of one consumer that are not acknowledged.
        memory_max_stream_bytes: Bytes of one stream in memory.
        storage_max_stream_bytes: Bytes of one stream in files.
        max_bytes_required: Streams must have ``max_bytes``.
    """

    max_memory: int | None = None
    max_storage: int | None = None
    max_streams: int | None = None
    max_consumers: int | None = None
    max_ack_pending: int | None = None
    memory_max_stream_bytes: int | None = None
    storage_max_stream_bytes: int | None = None
    max_bytes_required: bool = False


class ApiStats(Model, frozen=True, kw_only=True):
    """The JetStream API of an account: the level that the server offers (0 before 2.11), requests, errors."""

    level: int = 0
    total: int = 0
    errors: int = 0
    inflight: int = 0


class AccountTier(Model, frozen=True, kw_only=True):
    """Usage (bytes, streams, consumers) and limits of a tier."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = AccountLimits()


class AccountInfo(AccountTier, frozen=True, kw_only=True):
    """The account: totals over its tiers, its domain, the API, and each tier by name (``R1``, ``R3``)."""

    envelope: ClassVar[frozenset[str]] = frozenset({"type"})

    domain: str | None = None
    api: ApiStats = ApiStats()
    tiers: dict[str, AccountTier] | None = None


def storage_advice(account: AccountInfo, *, reserved: int, in_memory: bool) -> str:
    """What to do where no storage is left for a stream: whose limit it is, and its name in the configuration.

    Args:
        account: As the server answered after the refusal.
        reserved: Bytes that the stream would reserve, by its ``max_bytes``; 0: none.
        in_memory: Whether the stream is stored in memory.
    """
    option, place = ("max_mem", "memory") if in_memory else ("max_file", "files")
    wants = f", and the stream would reserve {reserved:,}" if reserved else ""
    lower = "lower max_bytes of the stream, " if reserved else ""
    for tier in (account, *(account.tiers or {}).values()):
        limit = tier.limits.max_memory if in_memory else tier.limits.max_storage
        used = tier.memory if in_memory else tier.storage
        used = max(used, tier.reserved_memory if in_memory else tier.reserved_storage)
        if limit is not None and 0 < limit < used + max(reserved, 1):
            return (
                f"the limit of the account is {limit:,} bytes in {place}, of which {used:,} are taken{wants}: "
                f"{lower}purge messages, or raise {option} of the account"
            )
    server = "max_memory_store" if in_memory else "max_file_store"
    return (
        f"the server has not enough bytes left in {place}{wants}: {lower}purge messages, or raise {server} of its "
        "configuration"
    )
