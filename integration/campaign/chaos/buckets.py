"""Buckets in the chaos: keys, transactions and a lock, and objects. Recounted from the messages of their streams."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from typing import Any

from integration.campaign.chaos.judge import everything
from integration.campaign.chaos.patterns import Pattern
from integration.campaign.chaos.publishers import LIMIT
from integration.campaign.report import Outcome
from integration.kit.judge.oracle import Oracle
from jsclient.errors import JetStreamError

KEYS, NAMES = 20, 4
TTL = 4.0
LOCK = "lock"  # which may expire between the recount and the judgement, so it is left out


class KeyValues(Pattern):
    """A client changes keys. Another one watches them and has a cache, and both take turns with a lock."""

    kind = "key-value"
    bucket = "chaos"

    async def open(self) -> None:
        options = {"num_replicas": self.replicas, "allow_atomic": True, "limit_marker_ttl": 60.0}
        self.kv = await self.here.ensure_key_value(self.bucket, **options)
        self.seen: dict[str, tuple[int, str]] = {}
        self.cached: dict[str, tuple[int, str]] = {}
        self.falls: list[tuple[int, int]] = []
        self.counted, self.uncounted = 0, 0
        self.acked: dict[str, str] = {}  # what the last acked change of a key has stored, "" for a deletion
        self.unknown: dict[str, set[str]] = defaultdict(set)
        self.tokens: set[int] = set()
        self.stored: dict[str, tuple[int, str]] = {}
        self.order: list[int] = []

    async def produce(self) -> None:
        key = f"k.{self.number % KEYS}"
        value = "" if self.number % 7 == 0 else str(self.number)
        if await self.call(self.kv.put(key, value.encode()) if value else self.kv.delete(key)):
            self.acked[key] = value
        else:
            # A stalled connection may deliver it later, even after the next change of the key was acked.
            self.unknown[key].add(value)
        # The rarer calls are spread over the rounds, so that faults meet each of them.
        if self.number % 3 == 0:
            adding = self.kv.update_with("count", lambda value: b"%d" % (int(value or 0) + 1))
            result = await self.calls.within(3 * LIMIT, "update_with", adding)
            if isinstance(result, int):
                self.counted += 1
            else:
                self.uncounted += 1
        if self.number % 5 == 0:
            await self.calls.within(3 * LIMIT, "transaction", self._both())
        if self.number % 10 == 0:
            for js in (self.here, self.there):
                await self.calls.within(3 * LIMIT, "lock", self._locked(js))

    async def _both(self) -> None:
        async with self.kv.transaction() as tx:
            tx.put("t.a", b"%d" % self.number)
            tx.put("t.b", b"%d" % self.number)

    async def _locked(self, js: Any) -> None:
        kv = await js.key_value(self.bucket)
        async with kv.lock(LOCK, ttl=TTL, timeout=2 * TTL) as lock:
            await lock.put(f"under.{lock.token}", b"x")
            self.tokens.add(lock.token)

    async def read(self) -> None:
        kv = await self.there.key_value(self.bucket)
        async with kv.cache() as cache:
            following = asyncio.create_task(self._watch(kv))
            try:
                while not following.done():
                    entries = {key: (one.revision, one.value.decode()) for key, one in cache.items()}
                    entries.pop(LOCK, None)
                    self.cached = entries
                    await asyncio.sleep(0.3)
                await following
            finally:
                following.cancel()

    async def _watch(self, kv: Any) -> None:
        before = 0
        self.seen.clear()
        async with kv.watch() as watch:
            async for entry in watch:
                if entry.revision <= before:
                    self.falls.append((before, entry.revision))
                before = entry.revision
                if entry.is_deleted or entry.key == LOCK:
                    self.seen.pop(entry.key, None)
                else:
                    self.seen[entry.key] = (entry.revision, entry.value.decode())

    def has_all(self) -> bool:
        return bool(self.stored) and self.seen == self.cached == self.stored

    async def recount(self, oracle: Oracle) -> None:
        start = f"$KV.{self.bucket}."
        messages = await everything(oracle, f"KV_{self.bucket}")
        self.stored = {}
        for message in messages:
            key = message.subject.removeprefix(start)
            if message.payload and key != LOCK:
                self.stored[key] = (message.seq, message.payload)
            else:
                self.stored.pop(key, None)
        subjects = [message.subject for message in messages if message.subject.startswith(f"{start}under.")]
        self.order = [int(subject.rpartition(".")[2]) for subject in subjects]

    def judge(self, outcome: Outcome) -> None:
        outcome.ran = self.figures() | {"locks": len(self.tokens), "counted": self.counted}
        outcome.check(
            "the watch has what is stored", self.seen == self.stored, differ(self.seen, self.stored)
        )
        outcome.check(
            "the cache has what is stored", self.cached == self.stored, differ(self.cached, self.stored)
        )
        outcome.none_of("revisions of a watch fall: 0", self.falls)
        count = int(self.stored.get("count", (0, "0"))[1])
        exact = self.counted <= count <= self.counted + self.uncounted
        outcome.check("each update is counted once", exact, (self.counted, count, self.uncounted))
        halves = [self.stored.get(key, (0, ""))[1] for key in ("t.a", "t.b")]
        outcome.check("no half of a transaction", halves[0] == halves[1], halves)
        outcome.none_of("writes under an older lock: 0", [(a, b) for a, b in pairwise(self.order) if b < a])
        outcome.none_of("acked under a lock and lost: 0", sorted(self.tokens - set(self.order)))
        lost = [
            (key, found, value)
            for key, value in self.acked.items()
            if (found := self.stored.get(key, (0, ""))[1]) not in {value, *self.unknown[key]}
        ]
        outcome.none_of("acked and lost: 0", lost)
        outcome.check("something was sent during the faults", len(self.sent) > 5, len(self.sent))
        self.calls.judge(outcome)


class Objects(Pattern):
    """A client stores objects of a few names again and again. Another one reads them."""

    kind = "objects"
    bucket = "chaos"

    async def open(self) -> None:
        self.store = await self.here.ensure_object_store(self.bucket, num_replicas=self.replicas)
        self.newest: dict[str, int] = {}
        self.torn: list[str] = []
        self.damaged: list[str] = []
        self.orphans = 0
        self.stored: dict[str, int] = {}

    async def produce(self) -> None:
        name = f"o.{self.number % NAMES}"
        if await self.call(self.store.put(name, content(self.number), chunk_size=20_000), 3 * LIMIT):
            self.newest[name] = self.number
        await asyncio.sleep(0.1)

    async def read(self) -> None:
        store = await self.there.object_store(self.bucket)
        while True:
            for number in range(NAMES):
                with suppress(JetStreamError):  # not stored yet, replaced meanwhile, or nobody leads
                    data = await store.get(f"o.{number}")
                    found = int(data.partition(b" ")[0])
                    self.got.append(found)
                    if data != content(found):
                        self.torn.append(f"o.{number}: {found}")
            await asyncio.sleep(0.2)

    def has_all(self) -> bool:
        return bool(self.got)

    async def recount(self, oracle: Oracle) -> None:
        chunks, infos = defaultdict[str, list[str]](list), []
        for message in await everything(oracle, f"OBJ_{self.bucket}"):
            kind, name = message.subject.split(".")[2:4]
            if kind == "C":
                chunks[name].append(message.payload)
            else:
                infos.append(json.loads(message.payload))
        self.damaged.clear()
        # What remains in `chunks` after this loop belongs to no description.
        for info in infos:
            data = "".join(chunks.pop(info["nuid"], [])).encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
            if info["digest"] != f"SHA-256={digest}" or info["size"] != len(data):
                self.damaged.append(f"{info['name']}: {len(data)} of {info['size']} bytes")
            self.stored[info["name"]] = int(data.partition(b" ")[0] or 0)
        twice = [name for name, count in Counter(info["name"] for info in infos).items() if count > 1]
        self.damaged += [f"{name}: two descriptions" for name in twice]
        self.orphans = len(chunks)

    def judge(self, outcome: Outcome) -> None:
        outcome.ran = self.figures() | {"orphans": self.orphans}
        outcome.none_of("stored objects with another digest than their description: 0", self.damaged)
        outcome.none_of("read in part or mixed: 0", self.torn)
        lost = [name for name, number in self.newest.items() if self.stored.get(name, 0) < number]
        outcome.none_of("acked and replaced by an older object: 0", lost)
        # A put whose outcome is unknown keeps its chunks, because its description may be stored.
        few = self.orphans <= len(self.maybe)
        outcome.check("chunks without an object: of failed puts only", few, (self.orphans, len(self.maybe)))
        outcome.check("something was sent during the faults", len(self.sent) > 5, len(self.sent))
        self.calls.judge(outcome)


def content(number: int) -> bytes:
    """What is stored at this number: text that begins with it, of one chunk to eight."""
    return b"%d " % number * (500 + number * 977 % 25_000)


def differ(one: dict[str, Any], other: dict[str, Any]) -> str:
    keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    return str([(key, one.get(key), other.get(key)) for key in sorted(keys)[:3]])
