"""Decisions are stored before they are announced, and are made again after another process has written."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime.tasks import Tasks
from jsclient.buckets.state import StateEntry
from jsclient.errors import DisconnectedError, MaxPayloadError
from jsclient.peers.backend import Stopping
from jsclient.peers.local_backend import MemoryStore
from jsclient.peers.stored_tracker import Machine
from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import Raise, RelationshipState, Send
from jsclient.protocol.peers.rules import Install, Raised, Tick
from jsclient.protocol.peers.tracker import PeerTracker
from tests.support.virtual import settle, virtual

REQUEST = {"wellKnown_Tx": "b.wk", "Id": "fleet"}


class Failing(MemoryStore):
    """``errors``: what the next writes raise. None: the write is carried out. ``late``: it was carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception | None] = []
        self.late = False

    async def update(self, key, value, revision):
        error = self.errors.pop(0) if self.errors else None
        if error is None or self.late:
            revision = await super().update(key, value, revision)
        if error is not None:
            raise error
        return revision


class Owner:
    """A machine, what it gave out, and its tasks."""

    def __init__(self, store: MemoryStore, **options) -> None:
        self.commands: list[Raise | Send] = []
        self.tasks, self.stopping = Tasks(print), Stopping()
        self.tracker = PeerTracker("a", EngineOptions(**options))
        self.machine = Machine(self.tracker, store, self.commands.append, self.tasks, self.stopping)

    async def open(self) -> Owner:
        await self.machine.load()
        await self.machine.do(Install(self.machine.fresh()))
        return self

    async def request(self, **attrs):
        fresh = self.machine.fresh()
        return await self.machine.do(Raised("wrangler", "subscription", REQUEST | attrs, fresh))

    def lists(self):
        return [one["Id"] for one in self.tracker.lists(RelationshipState.OUTBOUND)]

    async def close(self) -> None:
        self.stopping.begin_closing()
        await self.tasks.settle(1.0)


@virtual
async def test_concurrent_write_is_checked_again():
    store = MemoryStore()
    one, other = await Owner(store).open(), await Owner(store).open()
    assert one.tracker.well_known_rx == other.tracker.well_known_rx
    assert await one.request() == []
    (failure,) = await other.request()
    assert failure.type == "duplicate_id_failure"
    assert other.lists() == ["fleet"]
    for owner in (one, other):
        await owner.close()


class Replaced(MemoryStore):
    """``stranger``: a key whose newest message was not written by a peer, as `jsclient.buckets.state` detects it."""

    stranger = ""

    async def entries(self, after=0):
        actual = await super().entries(after)
        return [
            StateEntry(entry.key, None, entry.revision, is_stray=True)
            if entry.key == self.stranger
            else entry
            for entry in actual
        ]


@virtual
@pytest.mark.covers("P10")
async def test_message_of_another_client_removes_nothing():
    """A stranger's message on the key of a relationship, of a channel, of the secret: what is known counts on."""
    store = Replaced()
    owner = await Owner(store).open()
    await owner.request()
    known = owner.tracker.relationships, owner.tracker.well_known_rx, owner.machine.fresh(b"17.1")
    for key in ("relationship.fleet", "channel.wellKnown_Rx", "secret"):
        store._revision += 1
        store._entries[key] = StateEntry(key, b"a stranger's", store._revision)
        store.stranger = key
        assert await owner.machine.catch_up()
        now = owner.tracker.relationships, owner.tracker.well_known_rx, owner.machine.fresh(b"17.1")
        assert now == known, key
    assert not await owner.machine.catch_up(), "each is read once"
    await owner.close()


@virtual
async def test_catches_up_with_another_process():
    """Two processes of one peer: after `catch_up` each has the other's records. The same for a removal."""
    store = MemoryStore()
    one, other = await Owner(store).open(), await Owner(store).open()
    assert not await other.machine.catch_up()
    await one.request()
    assert other.lists() == []
    assert await other.machine.catch_up()
    assert other.lists() == ["fleet"]
    assert [item.id for item in other.commands] == [item.id for item in one.commands], (
        "the same messages, once each"
    )
    await one.machine.do(Raised("wrangler", "outbound_cancellation", {"Id": "fleet"}, one.machine.fresh()))
    assert await other.machine.catch_up()
    assert other.lists() == []
    (failure,) = await other.machine.do(
        Raised("wrangler", "pending_subscription_approval", {"Id": "nobody"}, other.machine.fresh())
    )
    assert failure.type == "no_such_subscription_failure"
    for owner in (one, other):
        await owner.close()


@virtual
async def test_both_processes_make_secret():
    """The create race: the second process takes the secret of the first."""

    class RacedStore(MemoryStore):
        async def update(self, key, value, revision):
            if key == "secret" and not self._entries:
                await super().update(key, b"the other's", 0)
            return await super().update(key, value, revision)

    store = RacedStore()
    owner, later = await Owner(store).open(), await Owner(store).open()
    assert (await store.get("secret")).value == b"the other's"
    assert owner.machine.fresh(b"17.1") == later.machine.fresh(b"17.1")
    for one in (owner, later):
        await one.close()


@pytest.mark.parametrize("late", [True, False])
@virtual
async def test_unknown_outcome_is_read_back(late):
    store = Failing()
    owner = await Owner(store).open()
    store.errors, store.late = [DisconnectedError("gone")], late
    with pytest.raises(DisconnectedError):
        await owner.request()
    await settle()
    assert owner.lists() == (["fleet"] if late else [])
    assert bool(owner.commands) is late  # the announcement is not forgotten
    await owner.close()


@virtual
async def test_cancelled_caller_is_atomic():
    class Slow(MemoryStore):
        async def update(self, key, value, revision):
            revision = await super().update(key, value, revision)
            await asyncio.sleep(5.0 if key.startswith("relationship") else 0.0)
            return revision

    owner = await Owner(Slow()).open()
    task = asyncio.create_task(owner.request())
    await asyncio.sleep(1.0)
    assert owner.lists() == []
    task.cancel()
    await settle()
    assert task.cancelled()
    assert owner.lists() == ["fleet"]
    await owner.close()


@virtual
async def test_outbox_empty_written_when_can_be():
    store = Failing()
    owner = await Owner(store).open()
    await owner.request()
    store.errors = [DisconnectedError("gone")] * 5
    while len(owner.commands) > 1 or isinstance(owner.commands[0], Send):
        await owner.machine.done(owner.commands.pop(0))
    await owner.machine.done(owner.commands.pop())
    task = asyncio.create_task(owner.machine.done(owner.commands.pop()))
    await asyncio.sleep(1.0)
    assert owner.tracker.relationships[0].outbox
    await asyncio.sleep(10.0)
    assert task.done()
    assert not owner.tracker.relationships[0].outbox
    await owner.close()


@virtual
async def test_too_large_is_reported_without_reading_back():
    store = Failing()
    owner = await Owner(store).open()
    store.errors = [MaxPayloadError(2, 1)]
    with pytest.raises(MaxPayloadError):
        await owner.request()
    assert owner.lists() == []
    await owner.close()


@virtual
async def test_message_names_are_stable():
    store = MemoryStore()
    one, other = await Owner(store).open(), await Owner(store).open()
    stranger = await Owner(MemoryStore()).open()
    first = one.machine.fresh(b"17.1")
    assert first == one.machine.fresh(b"17.1") == other.machine.fresh(b"17.1")
    names = {
        name
        for fresh in (first, one.machine.fresh(b"17.2"), stranger.machine.fresh(b"17.1"), one.machine.fresh())
        for name in (fresh.id, fresh.channel)
    }
    assert len(names) == 8
    for owner in (one, other, stranger):
        await owner.close()


@virtual
async def test_what_is_over_is_forgotten(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("jsclient.peers.stored_tracker.time.time", lambda: now[0])
    store = MemoryStore()
    owner = await Owner(store, remember=60.0, max_age=30.0).open()
    await owner.request()
    await owner.machine.do(
        Raised("wrangler", "outbound_cancellation", {"Id": "fleet"}, owner.machine.fresh())
    )
    while owner.commands:
        await owner.machine.done(owner.commands.pop(0))
    await owner.machine.do(Tick())
    assert len(await store.entries()) == 3
    now[0] += 61
    await owner.machine.do(Tick())
    assert {entry.key for entry in await store.entries()} == {"secret", "channel.wellKnown_Rx"}
    await owner.close()
