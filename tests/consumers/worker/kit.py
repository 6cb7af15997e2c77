"""Workers on a fake connection: handlers, and what was acked."""

from __future__ import annotations

import asyncio

from jsclient import (
    ConsumerConfig,
)
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.virtual import settle

ACK, NAK, ALIVE, TERM = b"+ACK", b"-NAK", b"+WPI", b"+TERM"


def now() -> float:
    return asyncio.get_running_loop().time()


def nak(delay: float) -> bytes:
    return b'-NAK {"delay": %d}' % round(delay * 1e9)


def seqs(connection, kind: bytes) -> list[int]:
    """The stream sequences of the messages that were answered so, in order."""
    return [
        int(sent.subject.split(".")[5]) for sent in connection.to("$JS.ACK.") if sent.payload.startswith(kind)
    ]


class Handler:
    """A handler that records its messages. It ends, with the given outcome, when the test allows it."""

    def __init__(self, *, waits: bool = True) -> None:
        self.seen: list[int] = []
        self.running: dict[int, asyncio.Future[None]] = {}
        self.most = 0
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.waits = waits

    async def __call__(self, message) -> None:
        seq = message.metadata.stream_seq
        self.seen.append(seq)
        future = self.running[seq] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.running))
        try:
            if self.waits:
                await future
            self.ended.append(seq)
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self.cancelled.append(seq)
            raise
        finally:
            del self.running[seq]

    def end(self, *numbers: int, error: BaseException | None = None) -> None:
        for number in numbers:
            future = self.running[number]
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class working:  # noqa: N801  reads as: async with working(handler) as work
    """A worker on a push subscription, unless ``pull``. Stopped at the end."""

    def __init__(
        self, handler, *, config: ConsumerConfig | None = None, pull: bool = False, **options
    ) -> None:
        self.handler, self.config, self.pull, self.options = handler, config, pull, options

    async def __aenter__(self):
        self._fake = connected()
        self.js, self.connection = await self._fake.__aenter__()
        subscribe = self.js.pull_subscribe if self.pull else self.js.subscribe
        config = self.config or ConsumerConfig(ack_wait=30.0)
        self.sub = await subscribe("orders.new", config=config.replace(name="worker"))
        self.worker = self.sub.run(self.handler, **self.options)
        await settle()
        return self

    async def __aexit__(self, *_):
        self.worker.stop(0)
        await asyncio.wait({self.worker.task})
        await self._fake.__aexit__(None, None, None)

    async def deliver(self, *frames) -> None:
        where = self.connection.pulls()[-1].reply if self.pull else self.sub.subject
        self.connection.deliver(where, list(frames))
        await settle()

    @property
    def acked(self) -> list[int]:
        return seqs(self.connection, ACK)


class Stored:
    """The stream that takes dead letters: stores, refuses, or does not answer."""

    def __init__(self, work_or_connection) -> None:
        self.connection = getattr(work_or_connection, "connection", work_or_connection)
        self.mode = "store"
        self._answer = self.connection.api.answer
        self.connection.api.answer = self.answer

    def answer(self, request):
        if not request.subject.startswith("dead"):
            return self._answer(request)
        if self.mode == "store":
            return {"stream": "DEAD", "seq": 1}
        if self.mode == "refuse":
            return {"error": Refusal(10077, 400, "maximum messages exceeded")._asdict()}
        return SILENCE

    @property
    def letters(self):
        return self.connection.to("dead")
