"""The offset of log mode: the sequence up to which a stream is read.

Spark stores it as JSON and compares it as text. Without new messages, exactly the same JSON must be returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ...errors import PositionInvalidError

__all__ = ["LogOffset"]


@dataclass(frozen=True, slots=True)
class LogOffset:
    """Position up to which a stream is read, inclusive. A batch covers (start.seq, end.seq].

    Attributes:
        seq: Stream sequence; 0: nothing is read.
        created: When the stream was created, as ``StreamInfo.created.isoformat()``. It identifies the stream if it is
            deleted and recreated under the same name.
        init: This is the start of a new query; nothing was processed yet.
        free: Of an end offset: no message up to this sequence matches, as seen before they expired. 0: unknown.
    """

    seq: int
    created: str
    init: bool = False
    free: int = 0

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {"seq": self.seq, "created": self.created}
        if self.init:
            made["init"] = True
        if self.free:
            made["free"] = self.free
        return made

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> LogOffset:
        """Parse an offset from a checkpoint.

        Raises:
            PositionInvalidError: It is not a valid offset of log mode.
        """
        seq, created = offset.get("seq"), offset.get("created")
        init, free = offset.get("init", False), offset.get("free", 0)
        if (
            not _is_sequence(seq)
            or not isinstance(created, str)
            or not isinstance(init, bool)
            or not _is_sequence(free)
            or not offset.keys() <= {"seq", "created", "init", "free"}
        ):
            raise PositionInvalidError(
                f"the checkpoint has an offset that is none of mode 'log': {str(dict(offset))[:200]}; "
                "was it made in another mode, by another source, or by a newer version?"
            )
        return cls(seq, created, init, free)


def _is_sequence(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
