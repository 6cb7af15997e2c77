"""The NATS protocol as a proxy sees it: whole frames with any content.

It never refuses input: a line it cannot read becomes a frame with the op it starts with, and its bytes pass through
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

MAX_LINE = 1 << 20
"""Longer lines without an end are passed on in pieces, because a proxy would otherwise keep them forever."""

# The indexes of subject, sid and reply, by op and number of arguments (sizes are at the end).
_PLACES: dict[tuple[str, int], tuple[str, ...]] = {
    ("PUB", 2): ("subject",),
    ("PUB", 3): ("subject", "reply"),
    ("HPUB", 3): ("subject",),
    ("HPUB", 4): ("subject", "reply"),
    ("MSG", 3): ("subject", "sid"),
    ("MSG", 4): ("subject", "sid", "reply"),
    ("HMSG", 4): ("subject", "sid"),
    ("HMSG", 5): ("subject", "sid", "reply"),
    ("SUB", 2): ("subject", "sid"),
    ("SUB", 3): ("subject", "queue", "sid"),
    ("UNSUB", 1): ("sid",),
    ("UNSUB", 2): ("sid",),
}
_WITH_PAYLOAD = {"PUB", "HPUB", "MSG", "HMSG"}


class Direction(StrEnum):
    TO_SERVER = "to_server"
    TO_CLIENT = "to_client"


TO_SERVER = Direction.TO_SERVER
TO_CLIENT = Direction.TO_CLIENT


@dataclass(slots=True, eq=False)
class Frame:
    """One protocol frame as it arrived, `raw` being its exact bytes."""

    direction: Direction
    op: str
    raw: bytes = b""
    subject: str | None = None
    sid: str | None = None
    reply: str | None = None
    queue: str | None = None
    args: str = ""
    headers: bytes = b""
    payload: bytes = b""
    time: float = 0.0
    """When it arrived, on the monotonic clock."""
    connection: int = 0
    number: int = -1
    """Its place in the recording, over all connections and both directions."""
    fate: str = "passed"
    """`passed`, `dropped`, `held`, `changed`, `cut`, or `injected` by the test."""

    @property
    def status(self) -> str | None:
        """The inline status, such as `409 Consumer Deleted`. None for a message without one."""
        line = self.headers.partition(b"\r\n")[0]
        text = line.removeprefix(b"NATS/1.0").strip()
        return _text(text) if text else None

    def header(self, name: str) -> str | None:
        """The first value of a header, or None."""
        for line in self.headers.split(b"\r\n")[1:]:
            key, colon, value = line.partition(b":")
            if colon and _text(key).lower() == name.lower():
                return _text(value).strip()
        return None

    def but(self, **changes: object) -> Frame:
        """A copy with other fields, encoded again: `frame.but(payload=b"x").raw`."""
        changed: Frame = replace(self, **changes)  # type: ignore[arg-type]
        changed.raw = encode(changed)
        return changed

    def __str__(self) -> str:
        arrow = "->" if self.direction == TO_SERVER else "<-"
        parts = [f"#{self.number} c{self.connection} {arrow} {self.op}"]
        parts += [p for p in (self.subject, self.sid and f"sid={self.sid}") if p]
        if self.reply:
            parts.append(f"reply={self.reply}")
        if self.status:
            parts.append(f"[{self.status}]")
        if self.payload:
            parts.append(repr(self.payload[:60]))
        return " ".join(parts) if self.fate == "passed" else " ".join([*parts, f"({self.fate})"])


@dataclass(slots=True)
class FrameParser:
    """Cut a byte stream into frames. The bytes of all frames together are the bytes fed."""

    direction: Direction
    connection: int = 0
    _held: list[bytes] = field(default_factory=list)
    _size: int = 0
    _need: int = 0

    def feed(self, data: bytes, now: float) -> list[Frame]:
        if self._held:
            self._held.append(data)
            self._size += len(data)
            if self._size < self._need:
                return []
            data = b"".join(self._held)
            self._held.clear()
        frames: list[Frame] = []
        start = 0
        while start < len(data):
            frame, length = self._next(data, start)
            if frame is None:
                remainder = data[start:]
                self._held, self._size, self._need = [remainder], len(remainder), length
                break
            frame.time, frame.connection = now, self.connection
            frames.append(frame)
            start += length
        return frames

    def _next(self, data: bytes, start: int) -> tuple[Frame | None, int]:
        """A frame and its length, or None and how many bytes are needed to continue."""
        end = data.find(b"\r\n", start)
        if end < 0:
            waiting = len(data) - start
            if waiting <= MAX_LINE:
                return None, waiting + 1
            return Frame(self.direction, "", raw=data[start:]), waiting
        line = data[start:end]
        op_bytes, _, remainder = line.lstrip().partition(b" ")
        op = _text(op_bytes).upper()
        args = _text(remainder).split()
        sizes = _sizes(op, args)
        if sizes is None:
            frame = Frame(self.direction, op, raw=data[start : end + 2], args=_text(remainder).strip())
            _place(frame, args)
            return frame, end + 2 - start
        header_size, total = sizes
        body = end + 2
        length = body + total + 2 - start
        if len(data) - start < length:
            return None, length
        frame = Frame(
            self.direction,
            op,
            raw=data[start : start + length],
            args=_text(remainder).strip(),
            headers=data[body : body + header_size],
            payload=data[body + header_size : body + total],
        )
        _place(frame, args)
        return frame, length


def encode(frame: Frame) -> bytes:
    """The wire bytes of a message, publish or subscription with the fields of `frame`."""
    names: list[str | None]
    if frame.op in {"MSG", "HMSG"}:
        names = [frame.subject, frame.sid, frame.reply]
    elif frame.op in {"PUB", "HPUB"}:
        names = [frame.subject, frame.reply]
    elif frame.op == "SUB":
        return _bytes(" ".join(n for n in ("SUB", frame.subject, frame.queue, frame.sid) if n)) + b"\r\n"
    else:
        return _bytes(f"{frame.op} {frame.args}".strip()) + b"\r\n"
    op = frame.op.removeprefix("H")
    sizes = [str(len(frame.headers) + len(frame.payload))]
    if frame.headers:
        op, sizes = "H" + op, [str(len(frame.headers)), *sizes]
    line = " ".join([op, *(n for n in names if n), *sizes])
    return _bytes(line) + b"\r\n" + frame.headers + frame.payload + b"\r\n"


def message(
    subject: str,
    sid: str,
    payload: bytes = b"",
    *,
    reply: str | None = None,
    status: str | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """The bytes of a MSG or HMSG as a server sends it."""
    block = b""
    if status is not None or headers:
        lines = [f"NATS/1.0 {status}" if status else "NATS/1.0"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        block = _bytes("\r\n".join(lines)) + b"\r\n\r\n"
    return encode(
        Frame(TO_CLIENT, "MSG", subject=subject, sid=sid, reply=reply, headers=block, payload=payload)
    )


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a NATS subject matches a pattern with `*` and `>`."""
    expected, actual = pattern.split("."), subject.split(".")
    for index, token in enumerate(expected):
        if token == ">":
            return len(actual) > index
        if index >= len(actual) or token not in ("*", actual[index]):
            return False
    return len(expected) == len(actual)


def _sizes(op: str, args: list[str]) -> tuple[int, int] | None:
    """Header size and total size of a frame with a payload. None for a bare line."""
    if op not in _WITH_PAYLOAD or (op, len(args)) not in _PLACES:
        return None
    numbers = args[-2:] if op.startswith("H") else ["0", args[-1]]
    if not all(n.isascii() and n.isdigit() for n in numbers):
        return None
    header_size, total = int(numbers[0]), int(numbers[1])
    return (header_size, total) if header_size <= total else None


def _place(frame: Frame, args: list[str]) -> None:
    for name, value in zip(_PLACES.get((frame.op, len(args)), ()), args, strict=False):
        setattr(frame, name, value)


def _text(data: bytes) -> str:
    # Hostile subjects are not always UTF-8. Their bytes must survive the way through a proxy.
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
