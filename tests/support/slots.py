"""What the compiled `Slots` does, in Python: for tests of windows without it, and to compare it with."""

from __future__ import annotations

import re

from tests.support.acks import ORDINARY

FIRST_CAPACITY, MAX_CAPACITY = 64, 65536


class Slots:
    """See `jsclient.protocol.publishing.slot_window.Slots`."""

    def __init__(self, ticket, loop, decode, done_error, attempt, largest) -> None:
        self.ticket, self.loop, self.decode, self.done_error = ticket, loop, decode, done_error
        self.attempt, self.largest = attempt, largest
        self.others, self.publishes = {}, {}  # by number, the fields of an `InFlight`
        self.number = self.size = self.small = self.resumes = 0
        self.next_check = 0.0
        self.capacity = 0
        self._prefix = b""

    def connect(self, others, max_count, watch, outbox, sooner, check_size, too_much) -> None:
        self.outbox = outbox
        self.others, self.max_count, self.watch = others, max_count, watch
        self.sooner, self.check_size, self.too_much = sooner, check_size, too_much

    def __len__(self) -> int:
        return len(self.publishes) + len(self.others)

    @property
    def prefix(self) -> bytes:
        return self._prefix

    @prefix.setter
    def prefix(self, prefix: bytes) -> None:
        if self.publishes:
            raise ValueError("publishes with another prefix are in flight")
        self._prefix = prefix

    @property
    def oldest(self) -> int:
        return min(self.publishes, default=0)

    def rest(self, count) -> None:
        self.resumes = self.number + count

    def publish(self, subject, header, data, now, timeout, repeatable, admitted):
        size = len(header) + len(data)
        if size > self.small and not admitted:
            self.check_size(size)
        if self.size + size > self.watch and not admitted and self.too_much(self.size + size):
            return None
        if size > self.largest or self.number < self.resumes:
            return None
        if not admitted and len(self) >= self.max_count:
            return None
        future = self.ticket(loop=self.loop)
        if not self.reserve():
            return None
        self.number += 1
        self.size += size
        reply = b"%b%d" % (self._prefix, self.number)
        if header:
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(header), size, header, data)
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, size, data)
        self.outbox.commands.append(command)
        self.outbox.size += len(command)
        deadline = now + timeout
        due = min(deadline, now + self.attempt) if repeatable else deadline
        number = self.number
        self.publishes[number] = (future, subject, header, data, size, number, deadline, due, repeatable)
        if due < self.next_check:
            self.sooner(due)
        return future

    def reserve(self) -> bool:
        """Whether the array has room, or grows: not because of a few that are much older."""
        span = self.number + 2 - (self.oldest or self.number + 1)
        if span > self.capacity:
            if len(self.publishes) * 2 < self.capacity or self.capacity == MAX_CAPACITY:
                return False
            larger = self.capacity * 2 or FIRST_CAPACITY
            if span > larger:
                return False
            self.capacity = larger
        return True

    def take(self, frames, start, answered) -> tuple[int, int]:
        stop, numbers = start, []
        while 0 <= stop < len(frames):
            reply, _, _, payload = frames[stop]
            digits = reply[len(self._prefix) :]
            number = int(digits) if re.fullmatch(rb"[1-9][0-9]{0,18}", digits) else 0
            known = reply.startswith(self._prefix) and number in self.publishes and number not in numbers
            if not known or not ORDINARY.fullmatch(payload):
                break
            numbers.append(number)
            stop += 1
        for frame, number in zip(frames[start:stop], numbers, strict=True):
            future, subject, _, _, size, *_ = self.publishes.pop(number)
            self.size -= size
            answered[subject] = None
            [ack] = self.decode(b"[%b]" % frame[3])
            if not future.done():
                future.set_result(ack)
        if not self.publishes and self.capacity > 1024:
            self.capacity = 0
        return stop, len(numbers)

    def drain(self):
        drained = [(b"%b%d" % (self._prefix, number), *fields) for number, fields in self.publishes.items()]
        self.publishes.clear()
        self.capacity = 0
        return drained
