"""The other side of the works with core messages: it publishes what a run subscribes to, and answers its requests.

It runs in a process of its own during a run, so it takes no CPU time from the measured process. It publishes no faster
than the run reads, because the server would otherwise drop a slow reader: the run asks for more after each `CREDIT`
messages.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.job import Job, job_of, payload
from benchmarks.wire import Wire

__all__ = ["BEGIN", "CREDIT", "ECHO", "MORE", "partner"]

BEGIN = "bench.begin"  # the payload is the number of messages to publish to the subject of the job
MORE = "bench.more"  # publish `CREDIT` further messages
ECHO = "bench.echo"  # answer
CREDIT = 5_000

_MESSAGE = re.compile(rb"MSG (\S+) \d (?:(\S+) )?(\d+)\r\n")
_ANSWER = b"PUB %b 2\r\nok\r\n"


@contextmanager
def partner(job: Job) -> Iterator[None]:
    """Let a process take the other side meanwhile."""
    command = [sys.executable, "-m", "benchmarks.partner", json.dumps(job.as_dict())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()  # the process is ready
            yield
        finally:
            process.terminate()


class _Partner:
    """Answers on one connection."""

    def __init__(self, wire: Wire, job: Job) -> None:
        self._wire = wire
        data = payload(job)
        self._message = b"PUB %b %d\r\n%b\r\n" % (job.subject.encode(), len(data), data)
        self._remaining = 0

    def run(self) -> None:
        """Answer until the process is ended."""
        for sid, name in enumerate((BEGIN, MORE, ECHO), 1):
            self._wire.send(b"SUB %b %d\r\n" % (name.encode(), sid))
        self._wire.send(b"PING\r\n")
        data = b""
        while b"PONG\r\n" not in data:
            data += self._wire.read()
        print("ready", flush=True)
        data = b""
        while True:
            data = self._answer(data + self._wire.read())

    def _answer(self, data: bytes) -> bytes:
        """Answer the complete messages. Return the bytes of the incomplete one."""
        end, out = 0, []
        for match in _MESSAGE.finditer(data):
            stop = match.end() + int(match[3]) + 2
            if stop > len(data):
                break  # the rest of this message arrives with the next read
            subject, reply = match[1].decode(), match[2]
            if subject == ECHO:
                out.append(_ANSWER % reply)
            elif subject == BEGIN:
                self._remaining = int(data[match.end() : stop])
                out += [self._publish(), self._publish()]
            else:
                out.append(self._publish())
            end = stop
        if out:
            self._wire.send(b"".join(out))
        # The server ends a connection that does not answer its pings.
        if data.startswith(b"PING\r\n", end):
            self._wire.send(b"PONG\r\n")
            end += len(b"PING\r\n")
        return data[end:]

    def _publish(self) -> bytes:
        count = min(CREDIT, self._remaining)
        self._remaining -= count
        return self._message * count


if __name__ == "__main__":
    _job = job_of(sys.argv[1])
    with Wire.of(_job) as _wire:
        _Partner(_wire, _job).run()
