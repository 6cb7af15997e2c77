"""The commands that publish messages: PUB, or HPUB for a message with headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = [
    "BurstCommands",
    "PublishCommand",
    "PublishLines",
    "burst_commands",
    "large_command",
    "publish_command",
]

PublishCommand: TypeAlias = Callable[[bytes, bytes, int, bytes, bytes], tuple[bytes, bytes]]
"""The type of `publish_command` and of its compiled version."""

BurstCommands: TypeAlias = Callable[[list[bytes], list[bytes], list[bytes], list[bytes]], bytes]
"""The type of a compiled `burst_commands`, which measures the columns itself."""


class PublishLines(dict[int, bytes]):
    """The lines that begin the commands to a subject, by the size of the payload.

    Looking up a line costs half as much as formatting a command.
    """

    CAPACITY = 256

    def __init__(self, subject: bytes) -> None:
        self._subject = subject

    def __missing__(self, size: int) -> bytes:
        if len(self) == self.CAPACITY:
            self.clear()
        line = self[size] = b"PUB %b %d\r\n" % (self._subject, size)
        return line


def publish_command(
    subject: bytes, prefix: bytes, number: int, header: bytes, data: bytes
) -> tuple[bytes, bytes]:
    """Return a reply subject, which is the prefix and the number, and the command that publishes a message."""
    reply = b"%b%d" % (prefix, number)
    if not header:
        return reply, b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)
    size = len(header) + len(data)
    return reply, b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(header), size, header, data)


def large_command(subject: bytes, reply: bytes, header: bytes, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the parts of the command that publishes a large message, so that its payload is not copied."""
    if not header:
        return b"PUB %b %b %d\r\n" % (subject, reply, len(data)), data, b"\r\n"
    size = len(header) + len(data)
    return b"HPUB %b %b %d %d\r\n%b" % (subject, reply, len(header), size, header), data, b"\r\n"


def burst_commands(  # noqa: PLR0917
    subjects: Sequence[bytes],
    replies: Sequence[bytes],
    headers: Sequence[bytes],
    payloads: Sequence[bytes],
    heads: Sequence[int],
    sizes: Sequence[int],
) -> bytes:
    """Return the commands that publish messages. The arguments are columns of the same length, with at least one row.

    Args:
        subjects, replies, headers, payloads: The parts of the messages. A header block may be empty.
        heads: The sizes of the header blocks.
        sizes: The sizes of the header blocks and payloads together.
    """
    with_headers = all(heads)
    if not with_headers and any(heads):
        rows = zip(subjects, replies, heads, sizes, headers, payloads, strict=True)
        return b"".join(
            [
                b"HPUB %b %b %d %d\r\n%b%b\r\n" % row
                if row[2]
                else b"PUB %b %b %d\r\n%b\r\n" % (row[0], row[1], row[3], row[5])
                for row in rows
            ]
        )
    # Joining pieces takes half as long as formatting each command. The first piece of a command starts with the CRLF
    # that ends the previous command.
    verb = b"\r\nHPUB %b " if with_headers else b"\r\nPUB %b "
    begins = {subject: verb % subject for subject in set(subjects)}
    texts = {size: b" %d\r\n" % size for size in set(sizes)}
    width = 6 if with_headers else 4
    pieces = [b""] * (width * len(heads))
    pieces[0::width] = map(begins.__getitem__, subjects)
    pieces[1::width] = replies
    pieces[width - 1 :: width] = payloads
    if with_headers:
        head_texts = {head: b" %d" % head for head in set(heads)}
        pieces[2::width] = map(head_texts.__getitem__, heads)
        pieces[3::width] = map(texts.__getitem__, sizes)
        pieces[4::width] = headers
    else:
        pieces[2::width] = map(texts.__getitem__, sizes)
    pieces[0] = pieces[0][2:]
    pieces.append(b"\r\n")
    return b"".join(pieces)
