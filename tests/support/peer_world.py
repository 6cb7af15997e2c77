"""Peers with a store and an inbox each, and a network that delivers when it likes: no server, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import (
    Attrs,
    Fresh,
    Raise,
    Relationship,
    RelationshipState,
    Send,
    read_value,
    write_value,
)
from jsclient.protocol.peers.rules import (
    Answer,
    Command,
    Done,
    Install,
    PeerEvent,
    Queried,
    Raised,
    Received,
    Redeliver,
    Refuse,
    Stored,
    StoreValue,
)
from jsclient.protocol.peers.tracker import PeerTracker

__all__ = ["Message", "Node", "World"]


@dataclass(frozen=True)
class Message:
    """A stored event: its number in the stream, and what was sent."""

    seq: int
    send: Send


@dataclass
class Node:
    """A peer's process and what survives it: ``store`` has bytes and revision by key."""

    world: World
    name: str
    options: EngineOptions = field(default_factory=EngineOptions)
    accepts: Callable[[Attrs], bool] | None = None
    store: dict[str, tuple[bytes | None, int]] = field(default_factory=dict)
    todo: list[Send | Raise] = field(default_factory=list)  # of outboxes, to be carried out
    raised: list[Raise] = field(default_factory=list)
    refused: list[Refuse] = field(default_factory=list)
    retried: list[Redeliver] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    handlers: dict[str, Callable[[Raise], None]] = field(default_factory=dict)
    revision: int = 0
    tracker: PeerTracker = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The process dies and another process starts with the same store."""
        self.todo = []
        self.tracker = PeerTracker(self.name, self.options, self.accepts)
        for key, (data, revision) in self.store.items():
            if data is not None:
                self.queue(self.tell(Stored(key, read_value(key, data), revision)))

    def install(self) -> Node:
        self.do(Install(self.world.fresh()))
        return self

    # --- the runtime -------------------------------------------------------------------------------------

    def tell(self, event: PeerEvent) -> list[Command]:
        return self.tracker.handle(event, self.world.now)

    def do(self, event: PeerEvent) -> list[Command]:
        """Have an event handled. The commands that it puts into an outbox wait in ``todo``."""
        while True:
            commands = self.tell(event)
            if all(self.carry_out(command) for command in commands):
                return commands

    def carry_out(self, command: Command) -> bool:
        match command:
            case StoreValue():
                return self.write(command)
            case Send():
                self.world.send(command)
            case Raise():
                self.raise_(command)
            case Refuse():
                self.refused.append(command)
            case Redeliver():
                self.retried.append(command)
            case _:
                self.answers.append(command.value if isinstance(command, Answer) else command)
        return True

    def write(self, command: StoreValue) -> bool:
        before, revision = self.store.get(command.key, (None, 0))
        if (0 if before is None else revision) == command.revision:
            self.revision += 1
            data = None if command.value is None else write_value(command.value)
            self.store[command.key] = data, self.revision
            self.queue(self.tell(Stored(command.key, command.value, self.revision)))
            return True
        value = None if before is None else read_value(command.key, before)
        self.queue(self.tell(Stored(command.key, value, revision)))
        return False

    def queue(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, StoreValue):
                self.write(command)
            else:
                assert isinstance(command, Send | Raise)
                self.todo.append(command)

    def step(self, index: int = 0) -> None:
        """Carry out one of what waits."""
        item = self.todo.pop(index % len(self.todo))
        self.carry_out(item)
        self.queue(self.tell(Done(item.key, item.id)))

    def raise_(self, item: Raise) -> None:
        self.raised.append(item)
        if (handler := self.handlers.get(item.type)) is not None:
            handler(item)

    # --- what a user does --------------------------------------------------------------------------------

    def ask(self, type: str, fresh: Fresh | None = None, /, policy=None, **attrs) -> None:
        self.do(Raised("wrangler", type, attrs, fresh or self.world.fresh(), policy))

    def receive(self, eci: str, type: str, attrs: Attrs, domain: str = "wrangler") -> None:
        self.do(Received(eci, domain, type, attrs, self.world.fresh()))

    def query(self, eci: str, name: str, rid: str = "subscription", **args) -> object:
        (answer,) = self.tell(Queried(eci, rid, name, args))
        return answer.value if isinstance(answer, Answer) else answer

    @property
    def wk(self) -> str:
        assert self.tracker.well_known_rx is not None
        return self.tracker.well_known_rx

    @property
    def types(self) -> list[str]:
        """The errors that were raised, in order."""
        return [one.type for one in self.raised]

    def list(self, state: str, *args) -> list[Attrs]:
        return self.tracker.lists(RelationshipState(state), *args)

    def record(self, id: str) -> Relationship | None:
        return next((one for one in self.tracker.relationships if one.id == id), None)

    def live(self, id: str) -> Relationship | None:
        record = self.record(id)
        return record if record is not None and record.live else None


@dataclass
class World:
    """The peers that exist, and their calls in flight."""

    now: float = 1_800_000_000.0
    nodes: dict[str, Node] = field(default_factory=dict)
    network: list[Message] = field(default_factory=list)
    sent: list[Send] = field(default_factory=list)
    count: int = 0

    def fresh(self) -> Fresh:
        self.count += 1
        return Fresh(f"id{self.count}", f"ch{self.count}", f"vk{self.count}", f"pk{self.count}")

    def node(self, name: str, **kwargs) -> Node:
        self.nodes[name] = Node(self, name, **kwargs)
        return self.nodes[name].install()

    def send(self, command: Send) -> None:
        self.sent.append(command)
        self.network.append(Message(len(self.sent), command))

    def deliver(self, index: int = 0, *, again: bool = False) -> None:
        """One message arrives. ``again``: and stays, to arrive once more."""
        message = self.network[index % len(self.network)]
        if not again:
            self.network.remove(message)
        send = message.send
        node = self.nodes[send.eci.partition(".")[0]]
        count = len(node.retried)
        # A message delivered again comes with the same chance.
        fresh = Fresh(f"m{message.seq}", f"mc{message.seq}", f"mv{message.seq}", f"mp{message.seq}")
        node.do(Received(send.eci, send.domain, send.type, send.attrs, fresh))
        if len(node.retried) > count and not again:
            self.network.append(message)

    def settle(self) -> None:
        """All that waits is carried out and delivered."""
        for _ in range(10_000):
            busy = [node for node in self.nodes.values() if node.todo]
            if busy:
                busy[0].step()
            elif self.network:
                self.deliver()
            else:
                return
        raise AssertionError("it does not come to rest")
