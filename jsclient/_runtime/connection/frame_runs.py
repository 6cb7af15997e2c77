"""Reads runs of frames of one subscription, which are most of the byte stream of a connection."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Mapping
from itertools import repeat

from ...protocol.wire.frames import Frame

__all__ = ["PatternReader", "RunReader"]

_STEPS = 8  # number of frames at the start of a run that are read one by one
# Maximum number of bytes of a payload in a run that is split, because splitting copies the payload twice.
_SMALL = 1024
_LONG_RUN = 128  # compiling a pattern pays off if runs have at least this many frames
# Initial number of bytes to split at once. The number is doubled while all pieces are frames of the same run. It is
# reset when the run ends, because the pieces after the run were split in vain.
_WINDOW = 4096
_MAX_WINDOW = 64 * 1024


class Lengths(dict[bytes, int]):
    """The numbers in message lines, by their text. A lookup costs less than a conversion."""

    CAPACITY = 4096

    def __missing__(self, text: bytes) -> int:
        if len(text) > 8 or not text.isdigit():
            return sys.maxsize  # beyond any buffer, so that the line is left to `FrameReader`
        if len(self) == self.CAPACITY:
            self.clear()
        length = self[text] = int(text)
        return length


class PatternReader:
    """Reads frames of one subscription that have different subjects, no headers and no reply, such as acks.

    Each subscription needs a pattern with its own sid. Compiling a pattern takes as long as reading hundreds of frames,
    so it is compiled after the second long run.
    """

    CAPACITY = 16  # maximum number of subscriptions

    def __init__(self, lengths: Mapping[bytes, int]) -> None:
        self._lengths = lengths
        # Maps the sid of a subscription to its pattern, or to None after the first long run.
        self._patterns: dict[bytes, re.Pattern[bytes] | None] = {}

    def count_run(self, sid: bytes) -> None:
        """Record that a run of at least `_LONG_RUN` frames was read. Compile the pattern at the second one."""
        patterns = self._patterns
        if sid not in patterns:
            if len(patterns) == self.CAPACITY:
                patterns.clear()
            patterns[sid] = None
        elif patterns[sid] is None:
            # The last alternative matches everything from the first byte that isn't part of a frame. Without it,
            # `findall` would skip that input and match later frames.
            text = rb"MSG ([^ \r]+) %b (\d{1,8})\r\n([^\r]{0,%d})\r\n|(.).*"
            patterns[sid] = re.compile(text % (re.escape(sid), _SMALL), re.DOTALL)

    def read_frames(self, data: bytes, pos: int, sid: bytes, batch: list[Frame]) -> int:
        """Add the frames from ``pos`` on to ``batch``. Return their size in bytes, or 0 if no pattern exists yet.

        Reading stops before a payload that contains CR or does not have the announced length.
        """
        pattern = self._patterns.get(sid)
        if pattern is None or not data.startswith(b"\r\n", pos - 2):
            return 0
        matches = pattern.findall(data, pos)
        if matches and matches[-1][3]:
            matches.pop()
        lengths = self._lengths
        frames = [
            (to, b"", b"", payload) for to, text, payload, _ in matches if lengths[text] == len(payload)
        ]
        if len(frames) < len(matches):
            stop = [lengths[text] == len(payload) for _, text, payload, _ in matches].index(False)
            del frames[stop:], matches[stop:]
        batch += frames
        same = len(b"MSG   \r\n\r\n") + len(sid)
        return same * len(matches) + sum(
            [len(to) + len(text) + len(payload) for to, text, payload, _ in matches]
        )


class RunReader:
    """Reads frames whose lines have the same form as the line of the frame before. See `FrameReader`."""

    def __init__(self) -> None:
        self.lengths = Lengths()
        self.patterns = PatternReader(self.lengths)
        self._window = _WINDOW  # number of bytes to split next

    def read_run(self, data: bytes, pos: int, line: list[bytes], batch: list[Frame]) -> int:
        """Read the complete frames whose lines have the form of ``line``. Return the offset after the last frame.

        This is the faster way for most of the stream. It stops before any other input, including malformed frames, and
        leaves that to `FrameReader`. A long run of small frames is unpacked if all frames have the same size, and is
        otherwise split at the text with which their lines begin, if they have one subject. If the subjects differ and
        the frames have no reply, as with acks, a pattern reads the run.
        """
        is_plain = len(line) == 4
        if is_plain:
            pos += self.patterns.read_frames(data, pos, line[2], batch)
        pos += self._frames_like(data, pos - 2, pos - 2 + self._window, line, batch)
        # The window grows while it contains nothing but frames of one run. If it has grown, the next frames probably
        # form such a run as well, so read only one of them before trying to read the whole run.
        steps = _STEPS if self._window == _WINDOW else 1
        pos, ended = self._step_on(data, pos, line, batch, steps)
        if not ended and self.lengths[line[-1]] <= _SMALL:
            pos = self._split_on(data, pos, line, batch)
            if batch[-1][0] != line[1]:
                pos = self._unpack_on(data, pos, line, batch)
        if not ended:
            pos, _ = self._step_on(data, pos, line, batch, len(data))
        if is_plain and len(batch) >= _LONG_RUN and batch[-1][0] != line[1]:
            self.patterns.count_run(line[2])
        return pos

    def _step_on(
        self, data: bytes, pos: int, line: list[bytes], batch: list[Frame], most: int
    ) -> tuple[int, bool]:
        """Read at most ``most`` frames for `read_run`. Return the offset after them, and whether the run has ended.

        A line is cut together with the CR LF before it, so that a comparison of its first word shows that the payload
        before it had the announced length.
        """
        count, verb, sid = len(line), b"\r\n" + line[0], line[2]
        headers = line[0] == b"HMSG"
        replied = count == (6 if headers else 5)
        lengths, find = self.lengths, data.find
        start, last = pos, len(data) - 2  # a payload must end here or before, with its CR LF
        ended = True
        for _ in repeat(None, most):
            end = find(b"\r", pos)
            if end < 0:
                break
            args = data[pos - 2 : end].split(b" ")
            if len(args) != count or args[0] != verb or args[2] != sid:
                break
            middle = body = end + 2
            after = body + lengths[args[-1]]
            if headers:
                if len(args[-2]) > len(args[-1]):
                    break
                middle += lengths[args[-2]]
            if not middle <= after <= last or data[end + 1] != 10:
                break
            reply = args[3] if replied else b""
            batch.append((args[1], reply, data[body:middle], data[middle:after]))
            start, pos = pos, after + 2
        else:
            ended = False
        if data[pos - 2 : pos] != b"\r\n":
            batch.pop()
            return start, True
        return pos, ended

    def _split_on(self, data: bytes, pos: int, line: list[bytes], batch: list[Frame]) -> int:
        """Read frames whose lines begin like ``line``, for `read_run`. Return the offset after the last frame.

        If `_frames_like` can't read the next frames, one call finds where all these lines begin, and so cuts the data
        into pieces. A piece is a frame if its payload has the announced length.
        """
        begin = b"\r\n" + b" ".join(line[:3]) + b" "
        while data.startswith(begin, pos - 2):
            stop = pos - 2 + self._window
            if size := self._frames_like(data, pos - 2, stop, line, batch):
                pos += size
                if stop >= len(data):
                    break
                self._window = min(self._window * 2, _MAX_WINDOW)
                continue
            _, *pieces = data[pos - 2 : stop].split(begin)
            pieces.pop()  # it may be incomplete, or followed by other input
            frames = self._frames_of(pieces, line)
            batch += frames
            pos += sum(map(len, pieces[: len(frames)])) + len(begin) * len(frames)
            if len(frames) < len(pieces):
                self._window = _WINDOW
                break
            if stop >= len(data) or not frames:
                break
            self._window = min(self._window * 2, _MAX_WINDOW)
        return pos

    def _unpack_on(self, data: bytes, pos: int, line: list[bytes], batch: list[Frame]) -> int:
        """Read frames with different subjects and one size, for `read_run`. Return the offset after the last frame."""
        stop = pos - 2
        while stop < len(data):
            stop = pos - 2 + self._window
            size = self._frames_of_one_size(data, pos - 2, stop, line, batch)
            if not size:
                self._window = _WINDOW
                break
            pos += size
            self._window = min(self._window * 2, _MAX_WINDOW)
        return pos

    @staticmethod
    def _frames_of_one_size(data: bytes, pos: int, stop: int, line: list[bytes], batch: list[Frame]) -> int:
        """Like `_frames_like`, but the subjects may differ, though not in length.

        The keys of a bucket, for example, often have one length.
        """
        subject, reply, head, body = batch[-1]
        verb, sid, total = b"\r\n%b " % line[0], b" %b " % line[2], len(head) + len(body)
        tail = b"%d %d\r\n" % (len(head), total) if line[0] == b"HMSG" else b"%d\r\n" % total
        if reply:
            tail = b" " + tail
        form = f"{len(verb)}s{len(subject)}s{len(sid)}s{len(reply)}s{len(tail)}s{len(head)}s{len(body)}s"
        size, before_sid = struct.calcsize(form), len(verb) + len(subject)
        count = (min(stop, len(data) - 2) - pos) // size
        after = pos + count * size
        if count < 2 or not data.startswith(b"\r\n", after):
            return 0
        # Check some lines first, as in `_frames_like`.
        for row in (count - 1, 1, min(4, count - 1), count // 3, count // 2):
            start = pos + row * size
            if not data.startswith(verb, start) or not data.startswith(sid, start + before_sid):
                return 0
        rows = struct.iter_unpack(form, memoryview(data)[pos:after])
        verbs, subjects, sids, replies, tails, heads, bodies = zip(*rows, strict=True)
        if verbs.count(verb) < count or sids.count(sid) < count or tails.count(tail) < count:
            return 0
        names = b"".join(subjects + replies)
        if b" " in names or b"\r" in names:
            return 0
        batch += zip(subjects, replies, heads, bodies, strict=True)
        return count * size

    @staticmethod
    def _frames_like(data: bytes, pos: int, stop: int, line: list[bytes], batch: list[Frame]) -> int:
        """Read the frames up to ``stop`` if they all have the form and the size of the last frame of ``batch``.

        Adds the frames to ``batch``. Returns their size in bytes, or 0 if they differ. ``pos`` is the offset of the
        CR LF before the first line. Messages of a stream often have one size for a long time, and their fields are then
        unpacked in one call.
        """
        _, reply, head, body = batch[-1]
        begin = b"\r\n" + b" ".join(line[:3]) + b" "
        total = len(head) + len(body)
        tail = b"%d %d\r\n" % (len(head), total) if line[0] == b"HMSG" else b"%d\r\n" % total
        if reply:
            tail = b" " + tail
        size = len(begin) + len(reply) + len(tail) + total
        count = (min(stop, len(data) - 2) - pos) // size
        after = pos + count * size
        if count < 2 or not data.startswith(begin, pos) or not data.startswith(b"\r\n", after):
            return 0
        # A frame of a different size would have shifted all lines after it, so check the last line first. Then check
        # some earlier lines as well. Frames of different subscriptions may have the same size, and unpacking all frames
        # only to discard them would take long.
        for row in (count - 1, 1, min(4, count - 1), count // 3, count // 2):
            if not data.startswith(begin, pos + row * size):
                return 0
        form = f"{len(begin)}s{len(reply)}s{len(tail)}s{len(head)}s{len(body)}s"
        rows = struct.iter_unpack(form, memoryview(data)[pos:after])
        begins, replies, tails, heads, bodies = zip(*rows, strict=True)
        text = b"".join(replies)
        if begins.count(begin) < count or tails.count(tail) < count or b" " in text or b"\r" in text:
            return 0
        batch += zip(repeat(line[1]), replies, heads, bodies)
        return count * size

    def _frames_of(self, pieces: list[bytes], line: list[bytes]) -> list[Frame]:
        """Return the frames of pieces that follow the sid of ``line``, up to the first piece that is not a frame."""
        subject, headers = line[1], line[0] == b"HMSG"
        texts = line[-2:] if headers else line[-1:]
        space = b" " if len(line) - len(texts) == 4 else b""  # the space after a reply
        head, size = self.lengths[texts[0]] if headers else 0, self.lengths[texts[-1]]
        tail = space + b" ".join(texts) + b"\r\n"
        frames: list[Frame] = []
        for piece in pieces:
            reply, found, body = piece.partition(tail)
            if len(body) != size or not found:  # the lengths differ from those of the frame before
                frames += self._frames_of_any_length(pieces[len(frames) :], subject, space, headers=headers)
                break
            frames.append((subject, reply, body[:head], body[head:]) if head else (subject, reply, b"", body))
        # A payload may itself contain a line with these lengths. The text before the lengths is then not a reply
        # subject, and the frames were split in the wrong place, so discard all of them.
        replies = b"".join([frame[1] for frame in frames])
        if b" " in replies or b"\r" in replies or (replies and not space):
            return []
        return frames

    def _frames_of_any_length(
        self, pieces: list[bytes], subject: bytes, space: bytes, *, headers: bool
    ) -> list[Frame]:
        """Return the frames of pieces like `_frames_of`, but read the lengths of each of them."""
        lengths, head = self.lengths, 0
        frames: list[Frame] = []
        for piece in pieces:
            reply, _, remainder = piece.partition(space) if space else (b"", b"", piece)
            text, found, body = remainder.partition(b"\r\n")
            if headers:
                first, _, text = text.partition(b" ")
                head = lengths[first]
                if len(first) > len(text) or head > len(body):
                    break
            if lengths[text] != len(body) or not found:
                break
            frames.append((subject, reply, body[:head], body[head:]) if head else (subject, reply, b"", body))
        return frames
