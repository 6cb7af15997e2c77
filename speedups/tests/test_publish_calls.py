"""The Python functions that a publish and its ack call with compiled slots."""

from __future__ import annotations

import asyncio
import sys

from tests.publishing.kit import ack_all, add_outbox
from tests.support.fake import connected


def calls_of(work, count: int) -> float:
    """Return the number of Python function calls of ``work``, divided by ``count``."""
    calls = 0

    def note(frame, event, argument) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls / count


def test_python_calls_of_publishes_and_acks():
    """A publish calls only `send` and asyncio's `get_debug`. An ack calls nothing, and a burst of acks only little."""

    async def main() -> None:
        async with connected() as (js, connection):
            add_outbox(connection)
            publisher = js.publisher(max_in_flight=4000)
            await publisher.publish("a", b"x" * 16)
            futures = []

            def publish() -> None:
                futures.extend([publisher.send("a", b"x" * 16) for _ in range(300)])

            assert calls_of(publish, 300) < 2.1
            connection.outbox.flush()
            [inbox] = connection.inboxes
            frames = [
                (sent.reply.encode(), b"", b"", b'{"stream":"S", "seq":%d}' % number)
                for number, sent in enumerate(connection.sent, 1)
                if not sent.subject.startswith("$JS.")
            ]
            assert calls_of(lambda: inbox.sink(frames), 300) < 0.2
            assert [future.result().seq for future in futures] == list(range(2, 302))
            ack_all(connection)
            await publisher.close()

    asyncio.run(main())
