"""JetStream usage and limits of an account.

Source: ADR-1; nats-server server/jetstream.go (JetStreamAccountStats).
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from ..wire.codec import Model

__all__ = ["AccountInfo", "AccountLimits", "AccountTier", "ApiStats", "storage_advice"]


class AccountLimits(Model, frozen=True, kw_only=True):
    """Limits of an account or of one of its tiers, as set by the operator of the server.

    -1 means no limit. The two limits on the size of a single stream use 0 for this instead. None means that the server
    doesn't report the limit.

    Attributes:
        max_memory: Maximum number of bytes stored in memory.
        max_storage: Maximum number of bytes stored in files.
        max_streams: Maximum number of streams.
        max_consumers: Maximum number of consumers.
        max_ack_pending: Maximum number of unacknowledged messages per consumer.
        memory_max_stream_bytes: Maximum size of a single memory stream, in bytes.
        storage_max_stream_bytes: Maximum size of a single file stream, in bytes.
        max_bytes_required: Whether each stream must set ``max_bytes``.
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
    """Statistics of an account's JetStream API, counted by the servers since they started. Part of `AccountInfo`.

    Attributes:
        level: API level of the server, which tells what features it has. A server with new features has a higher level.
            0 before nats-server 2.11.
        total: Number of API requests of the account, including those that failed. In a cluster, it is the sum over all
            servers.
        errors: Number of API requests of the account that failed.
        inflight: Number of API requests currently being processed. Always 0 if the server doesn't report it for an
            account, as in nats-server 2.15.
    """

    level: int = 0
    total: int = 0
    errors: int = 0
    inflight: int = 0


class AccountTier(Model, frozen=True, kw_only=True):
    """Usage and limits of one tier of an account.

    An operator can set separate limits for streams with different numbers of replicas. Each set of limits is a tier.

    Attributes:
        memory: Number of bytes stored in memory.
        storage: Number of bytes stored in files.
        reserved_memory: Number of bytes in memory that streams have reserved by ``max_bytes``.
        reserved_storage: Number of bytes in files that streams have reserved by ``max_bytes``.
        streams: Number of streams.
        consumers: Number of consumers.
        limits: Limits of the tier.
    """

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = field(default_factory=AccountLimits)


class AccountInfo(AccountTier, frozen=True, kw_only=True):
    """JetStream usage and limits of an account. Returned by `JetStream.account_info`.

    The fields inherited from `AccountTier` are the totals over all tiers. Compare ``storage`` with
    ``limits.max_storage``, for example, to find out how much space is left.

    Attributes:
        domain: JetStream domain, or None if there is none.
        api: Statistics of the JetStream API.
        tiers: Usage and limits of each tier, by name (``R1``, ``R3``), or None if the account has no tiers.
    """

    envelope: ClassVar[frozenset[str]] = frozenset({"type"})

    domain: str | None = None
    api: ApiStats = field(default_factory=ApiStats)
    tiers: dict[str, AccountTier] | None = None


def storage_advice(account: AccountInfo, *, reserved: int, in_memory: bool) -> str:
    """Return advice for a stream that cannot be stored. It names the limit that was reached and how to raise it.

    Args:
        account: Account information requested after the server rejected the stream.
        reserved: Number of bytes that the stream would reserve by its ``max_bytes``, or 0.
        in_memory: Whether the stream is stored in memory.
    """
    option, storage = ("max_mem", "memory") if in_memory else ("max_file", "files")
    wants = f", and the stream would reserve {reserved:,}" if reserved else ""
    lower = "lower max_bytes of the stream, " if reserved else ""
    for tier in (account, *(account.tiers or {}).values()):
        limit = tier.limits.max_memory if in_memory else tier.limits.max_storage
        used = tier.memory if in_memory else tier.storage
        # The server counts reserved bytes against the limit even if they are unused.
        used = max(used, tier.reserved_memory if in_memory else tier.reserved_storage)
        if limit is not None and 0 < limit < used + max(reserved, 1):
            return (
                f"the limit of the account is {limit:,} bytes in {storage}, of which {used:,} are taken{wants}: "
                f"{lower}purge messages, or raise {option} of the account"
            )
    server = "max_memory_store" if in_memory else "max_file_store"
    return (
        f"the server has not enough bytes left in {storage}{wants}: {lower}purge messages, or raise {server} of its "
        "configuration"
    )
