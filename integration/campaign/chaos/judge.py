"""The judge: it reads the streams with raw requests over a connection of nats-py."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

import nats.errors

from integration.kit.judge.oracle import Oracle, OracleError

PATIENCE = 60.0  # seconds for a cluster to be whole again
PAGE = 20.0


@dataclass(frozen=True)
class Message:
    """A stored message."""

    seq: int
    subject: str
    payload: str


async def everything(oracle: Oracle, stream: str) -> list[Message]:
    """All messages of a stream, in order, as a separate consumer delivers them. Counted against the stream's state.

    Raises:
        AssertionError: The stream's state speaks of other messages.
    """
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            return await _once(oracle, stream)
        except (OracleError, nats.errors.Error, TimeoutError, AssertionError):
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.5)  # a leader is still to be elected


async def _once(oracle: Oracle, stream: str) -> list[Message]:
    info = await oracle.api(f"STREAM.INFO.{stream}")
    behind = [one for one in info["cluster"].get("replicas") or [] if not one["current"] or one.get("lag")]
    assert not behind, f"{stream}: replicas lag, and the judge's consumer may read one of them: {behind}"
    state = info["state"]
    inbox = oracle.nc.new_inbox()
    results: list[Message] = []
    async with oracle.listen(inbox) as seen:
        name = f"judge{secrets.token_hex(4)}"
        config = {"ack_policy": "none", "deliver_subject": inbox, "mem_storage": True, "num_replicas": 1}
        created = await oracle.api(
            f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": {**config, "name": name}}
        )
        count = created["num_pending"] + created["delivered"]["consumer_seq"]
        try:
            async with asyncio.timeout(PAGE):
                while len(seen) < count:
                    await asyncio.sleep(0.05)
        finally:
            await oracle.delete_consumer(stream, name)
        for message in seen:
            seq = int(message.reply.split(".")[-4])
            results.append(Message(seq, message.subject, message.data.decode()))
    assert len(results) == state["messages"], (
        f"{stream}: {len(results)} were delivered, {state['messages']} are stored"
    )
    assert [one.seq for one in results] == sorted(one.seq for one in results)
    return results


class Stored:
    """What lies in a stream, by the subject it came under."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.seqs = [one.seq for one in messages]
        self.payloads: dict[str, list[str]] = defaultdict(list)
        for one in messages:
            self.payloads[one.subject].append(one.payload)

    def missing(self, subject: str, acked: list[str]) -> list[str]:
        """Of what was acked, what is not there."""
        there = set(self.payloads[subject])
        return [one for one in acked if one not in there]

    def doubled(self, subject: str) -> list[str]:
        return [one for one, count in Counter(self.payloads[subject]).items() if count > 1]

    def out_of_order(self, subject: str, among: set[str]) -> list[tuple[str, str]]:
        """Neighbours whose numbers fall, of some of them."""
        numbers = [one for one in self.payloads[subject] if one in among]
        return [(a, b) for a, b in pairwise(numbers) if int(a) >= int(b)]
