"""The reasons why a stream has removed its oldest messages. They were superseded, they expired, or they are lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import DiscardPolicy, RetentionPolicy, StreamConfig

__all__ = ["Removal"]


@dataclass(frozen=True, slots=True)
class Removal:
    """The limits and settings that can remove messages from a stream, with its state.

    Attributes:
        supersedes: Whether the stream removes messages that do not count as lost, because a newer message has the same
            subject, or because they have their own time to live.
        room: How many more messages the stream can store before it removes the oldest, or None without a limit.
        room_bytes: How many more bytes the stream can store before it removes the oldest message, or None.
        largest: The maximum size of a message, or None if the stream has no limit.
        expired_before: Messages stored before this time exceed the stream's maximum age. None without a maximum.
    """

    supersedes: bool = False
    room: int | None = None
    room_bytes: int | None = None
    largest: int | None = None
    expired_before: datetime | None = None

    @classmethod
    def from_info(cls, info: StreamInfo) -> Removal:
        config, state = info.config, info.state
        by_limits = config.retention in (None, RetentionPolicy.LIMITS)  # acks remove no messages
        # A limit for each subject always leaves the newest message. If the stream is empty, something else has removed
        # that message, so don't attribute the removal to the limit.
        compacts = (config.max_msgs_per_subject or 0) > 0 and state.messages > 0
        removes_oldest = config.discard != DiscardPolicy.NEW
        return cls(
            supersedes=by_limits and (compacts or bool(config.allow_msg_ttl)),
            room=_free(config.max_msgs, state.messages) if removes_oldest else None,
            room_bytes=_free(config.max_bytes, state.bytes) if removes_oldest else None,
            largest=config.max_msg_size if (config.max_msg_size or 0) > 0 else None,
            expired_before=_expired_before(config, info.ts),
        )

    def is_harmless(self, since: datetime | None, largest: int) -> bool:
        """Return True if the messages were certainly not removed by a limit of the stream.

        In this case, they were superseded or expired by themselves, and don't count as lost.

        Args:
            since: A time after which all the messages were stored, or None if unknown.
            largest: The maximum size of a message on this server, in bytes.
        """
        if not self.supersedes or self._is_full(largest):
            return False
        return self.expired_before is None or (since is not None and since > self.expired_before)

    def reaches_limit(self, largest: int) -> bool:
        """Return whether a limit of the stream may have removed messages. `is_harmless` describes ``largest``."""
        return self.expired_before is not None or self._is_full(largest)

    def _is_full(self, largest: int) -> bool:
        """Return whether the stream may have removed messages to make room for others."""
        if self.room == 0:
            return True
        return self.room_bytes is not None and self.room_bytes < (self.largest or largest)


def _free(limit: int | None, used: int) -> int | None:
    return max(0, limit - used) if limit is not None and limit > 0 else None


def _expired_before(config: StreamConfig, now: datetime | None) -> datetime | None:
    if not config.max_age:
        return None
    if now is None:  # servers before 2.10 do not report their time, so any message may have expired
        return datetime.max.replace(tzinfo=UTC)
    return now - timedelta(seconds=config.max_age)
