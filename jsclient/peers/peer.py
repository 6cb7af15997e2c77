"""A peer, with its handlers and relationships, and the events and queries that it sends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

from .._runtime.retry import PATIENT, Retry
from .._runtime.tasks import Tasks
from ..errors import ClosedError, ConfigError, JetStreamError, RequestTimeoutError
from ..protocol.peers.channel import Channel, Policy, check_eci, query_subject
from ..protocol.peers.options import accept_roles
from ..protocol.peers.relationship import Attrs, Raise, RelationshipState, Send
from ..protocol.peers.rules import (
    CloseChannel,
    Command,
    Install,
    OpenChannel,
    Raised,
    Refusal,
    RemovePeer,
    Tick,
)
from ..protocol.peers.tracker import PeerTracker, event_on
from .backend import Attendance, Backend, Stopping, pack, read_answer, read_attrs, with_id
from .dispatch import Dispatcher, OutboxSender, publish_all
from .errors import PeerError
from .handlers import Answers, Handler, HandlerError, Handlers, QueryHandler, RaisedEvent, check_rule
from .keys import ChannelKeys
from .stored_tracker import Machine

__all__ = ["Peer"]

_EXPIRY_CHECK: Final = 60.0  # seconds between two checks for expired records
_GRACE: Final = 5.0  # seconds that handlers have when a peer is closed

H = TypeVar("H", bound=Handler)
Q = TypeVar("Q", bound=QueryHandler)
Rule = Callable[[Attrs], bool]


class Peer:
    """A party that sends events and queries to other peers, over relationships. Created by `Engine.peer`.

    A relationship connects two channels, one of each side. In its attributes, ``Rx`` is the channel on which this side
    receives, and ``Tx`` is the channel of the other side. ``Rx_role`` and ``Tx_role`` are the roles of the two sides.
    ``Tx_host`` is the URL of the other side's NATS system, or None for this one. Both sides use the same ``Id``.

    When a method returns, its effect has been stored. The other side eventually receives all events in order, even if
    processes crash. After a crash, handlers may receive an event a second time.
    """

    def __init__(self, backend: Backend, name: str, *, capability: bool) -> None:
        self._backend = backend
        self._capability = capability
        self._tasks = Tasks(backend.report_error)
        self._stopping = Stopping()
        self._handlers = Handlers()
        self._answers = Answers(self._handlers.threads)
        self._tracker = PeerTracker(name, backend.options)
        self._outbox = OutboxSender(
            name,
            backend,
            self._tasks,
            self._stopping,
            notify=self._call_handlers,
            done=lambda item: self._machine.done(item),  # noqa: PLW0108  self._machine is assigned below
        )
        store, start = backend.store(name), self._outbox.start_item
        self._machine = Machine(self._tracker, store, start, self._tasks, self._stopping)
        self._incoming = Dispatcher(name, backend, self._machine, self._answers, self._call_handlers)
        self._attendance: Attendance | None = None
        self._rules: tuple[Rule, ...] = ()

    def __repr__(self) -> str:
        return f"<Peer {self.name!r} {len(self.established())} established>"

    @property
    def name(self) -> str:
        """Name of the peer. The ECIs of its channels start with it."""
        return self._tracker.name

    @property
    def refused(self) -> Counter[Refusal]:
        """The number of events and queries refused since this process opened the peer, by reason."""
        return self._incoming.refused

    @property
    def is_closed(self) -> bool:
        """Whether the peer was closed or removed."""
        return self._stopping.begun

    @property
    def keys(self) -> ChannelKeys:
        """The keys of the established relationships, for signing and encrypting data that isn't sent as an event."""
        return self._machine.keys

    @overload
    def on(self, event: str) -> Callable[[H], H]: ...
    @overload
    def on(self, event: str, handler: H) -> H: ...
    def on(self, event: str, handler: H | None = None) -> H | Callable[[H], H]:
        """Register an event handler: ``@peer.on("wrangler:subscription_added")`` or ``peer.on(event, handler)``.

        The handler is called with a `RaisedEvent`. A coroutine function runs on the event loop, and a plain function
        runs in a thread. The handlers of an event are called one after another, in the order of their registration. If
        a handler raises an exception, all handlers of the event are called again later, up to ``max_deliver`` times.
        After that, `EventGivenUp` is reported. An event without a handler counts as handled.

        Since stored events may be waiting, register handlers before the next ``await``, or pass them to `Engine.peer`.

        Args:
            event: The event as ``domain:type``. Use ``*`` for any domain or any type.
            handler: The function to register. If it is omitted, a decorator is returned.

        Raises:
            ConfigError: ``event`` is malformed, or the handler can't be called with one argument.
        """
        if handler is None:
            return lambda function: self.on(event, function)
        self._handlers.add_handler(event, handler)
        return handler

    async def wait_for(self, event: str, timeout: float | None = 5.0, **attrs: Any) -> RaisedEvent:
        """Wait for a matching event and return it. Each event is returned by only one call.

        The last 100 events are kept for this method, even if they were handled. Cancelling the call loses no event.

        Args:
            event: The event as ``domain:type``. Use ``*`` for any domain or any type.
            timeout: How long to wait, in seconds. With None, wait indefinitely.
            attrs: Attributes of the event and the values that they must have.

        Raises:
            RequestTimeoutError: No matching event arrived within ``timeout`` seconds.
            ClosedError: The peer was closed.
        """
        return await self._handlers.wait_for(event, timeout, attrs)

    def answers(self, rid: str, name: str) -> Callable[[Q], Q]:
        """Register the function that answers a query: ``@peer.answers("door", "state")``.

        The function is called with the arguments of the query as keyword arguments, and returns a JSON value. A
        coroutine function runs on the event loop, and plain functions run in up to 8 threads for each peer. The
        policies of the channels decide who may send the query. If the function has a parameter ``relationship``, it
        receives the relationship of the sender in the form of `established`, or None. If the function raises an
        exception, the sender only learns that the query failed, and the event `PeerHandlerFailed` reports it.

        Raises:
            ConfigError: A name isn't a token, or ``rid`` is ``subscription``, a name reserved for the peer itself.
        """

        def register(function: Q) -> Q:
            self._answers.add_answer(rid, name, function)
            return function

        return register

    def auto_accept(self, rule: Rule | None = None, **attributes: str | Collection[str] | None) -> None:
        """Approve future relationship requests that match this or an earlier rule. Others need `approve` or `reject`.

        Args:
            rule: A plain function that takes the attributes of a request and returns whether to approve it. The rule
                is called on the event loop. ``Rx_role`` is this peer's role, and ``Tx_role`` is the sender's role.
            attributes: Instead of a rule, values that the attributes of a request must have. See `accept_roles`.

        Raises:
            ConfigError: Neither or both of a rule and attributes were given, or the rule is a coroutine function.
        """
        if (rule is None) is not bool(attributes):
            raise ConfigError("give a rule, or attributes, for example auto_accept(Rx_role='thing')")
        if rule is not None:
            check_rule(rule)
        self._rules += (rule if rule is not None else accept_roles(**attributes),)
        self._tracker.accepts = lambda attrs: any(rule(attrs) for rule in self._rules)

    async def raise_event(
        self,
        event: str,
        attrs: Mapping[str, Any] | None = None,
        /,
        *,
        policy: Policy | None = None,
        **more: Any,
    ) -> None:
        """Raise an event in this peer: a request to the peer itself, or an application event for its handlers.

        Args:
            event: The event as ``domain:type``. These requests do the same as `request`, `approve`, `reject`, `revoke`,
                `cancel` and `send`: ``wrangler:subscription``, ``wrangler:pending_subscription_approval``,
                ``wrangler:inbound_rejection``, ``wrangler:outbound_cancellation``,
                ``wrangler:subscription_cancellation`` and ``wrangler:send_event_on_subs``.
            attrs: The attributes of the event. ``more`` is added to them.
            policy: The policy of the new channel. By default, it accepts everything except requests to this peer.

        Raises:
            PeerError: The peer can't carry out the request. Its handlers also receive the failure as an event.
            ConfigError: ``event``, the attributes or the policy are invalid, or the peer can't have relationships.
            JetStreamError: The event wasn't stored, or the outcome is unknown. It is safe to repeat the call.
            Exception: A handler of an application event raised this exception.
        """
        await self._raise(event, {**(attrs or {}), **more}, policy)

    async def _raise(self, event: str, attrs: Mapping[str, Any], policy: Policy | None = None) -> str:
        """Raise an event. Return an ``Id`` for the relationship, if the event creates one without naming it."""
        self._check_open()
        domain, colon, type_ = event.partition(":")
        if not colon:
            raise ConfigError(f"the event {event!r:.60} is not of the form 'domain:type'")
        data = read_attrs(attrs, self._backend.options.max_event_size)
        fresh = self._machine.fresh(event=event)
        await self._perform(await self._machine.do(Raised(domain, type_, data, fresh, policy)))
        return fresh.id

    async def request(self, wellKnown_Tx: str, *, policy: Policy | None = None, **attrs: Any) -> str:
        """Ask another peer to approve a relationship. Return its ``Id``, without waiting for the decision.

        Args:
            wellKnown_Tx: The ``wellKnown_Rx`` of the other peer, or any of its channels that accepts requests.
            policy: The events and queries that the other side may send. Defaults to all but requests to this peer.
            attrs: ``Id``, ``Rx_role``, ``Tx_role``, ``Tx_host``, ``name``, ``channel_type``, or your own attributes.

        May raise any error of `raise_event`.
        """
        own = await self._raise("wrangler:subscription", {**attrs, "wellKnown_Tx": wellKnown_Tx}, policy)
        return own if attrs.get("Id") is None else str(attrs["Id"])

    async def approve(self, Id: str | None = None, *, policy: Policy | None = None, **attrs: Any) -> None:
        """Approve a request from another peer. This establishes the relationship on this side.

        If the request was rejected or revoked in the meantime, the call has no effect. Check `established`.

        Args:
            Id: The relationship. It can be omitted if ``attrs`` contains ``Rx`` or ``Tx``, as in an event's attributes.
            policy: The events and queries that the other side may send. Defaults to all but requests to this peer.
            attrs: Further attributes to send to the other side, such as the start of a feed.

        May raise any error of `raise_event`.
        """
        await self._raise("wrangler:pending_subscription_approval", with_id(Id, attrs), policy)

    async def reject(self, Id: str | None = None, **attrs: Any) -> None:
        """Reject a request from another peer. See `approve` for the arguments and errors."""
        await self._raise("wrangler:inbound_rejection", with_id(Id, attrs))

    async def revoke(self, Id: str | None = None, **attrs: Any) -> None:
        """Withdraw a request that this peer has sent, or end the relationship if it was approved. See `approve`."""
        await self._raise("wrangler:outbound_cancellation", with_id(Id, attrs))

    async def cancel(self, Id: str | None = None, **attrs: Any) -> None:
        """End a relationship that is established or pending. Either side may do this. See `approve`."""
        await self._raise("wrangler:subscription_cancellation", with_id(Id, attrs))

    def established(self, key: str | None = None, value: object = None) -> list[Attrs]:
        """Return the attributes of all established relationships, or only of those whose ``key`` equals ``value``."""
        return self._tracker.lists(RelationshipState.ESTABLISHED, key, value)

    def inbound(self, key: str | None = None, value: object = None) -> list[Attrs]:
        """Return requests from other peers that this peer hasn't decided yet. Filter them as in `established`."""
        return self._tracker.lists(RelationshipState.INBOUND, key, value)

    def outbound(self, key: str | None = None, value: object = None) -> list[Attrs]:
        """Return this peer's requests that the other sides haven't decided yet. Filter them as in `established`."""
        return self._tracker.lists(RelationshipState.OUTBOUND, key, value)

    async def wellKnown_Rx(self) -> str:
        """Return the ECI to which other peers send relationship requests. Raises `ConfigError` if there is none."""
        eci = self._tracker.well_known_rx
        if eci is None:
            raise ConfigError(f"the peer {self._tracker.name!r} has not the capability to have relationships")
        return eci

    async def new_channel(self, tags: Sequence[str] = (), policy: Policy | None = None) -> Channel:
        """Create a channel, and return it. May raise any error that publishing can raise.

        Args:
            tags: Names by which you can find the channel later (see `channels`).
            policy: The events and queries that the channel accepts from anyone who knows its ECI. By default, none.
        """
        self._check_open()
        if isinstance(tags, str):
            raise ConfigError("tags is a str, needs a list")
        fresh = self._machine.fresh()
        await self._machine.do(OpenChannel(tuple(tags), policy or Policy(), fresh))
        return next(one for one in self.channels() if one.eci.endswith(f".{fresh.channel}"))

    async def remove_channel(self, eci: str) -> None:
        """Remove a channel. Raises `ConfigError` if it wasn't created with `new_channel`."""
        self._check_open()
        await self._machine.do(CloseChannel(eci))

    def channels(self) -> list[Channel]:
        """Return all channels: the well-known channel, those created with `new_channel`, and those of relationships."""
        prefix, own = self._backend.options.prefix, self._tracker.own_channels
        tags = {one.eci: one.tags for one in own}
        return [
            Channel(eci, tags.get(eci, ("subscription",)), policy, prefix)
            for eci, policy in self._tracker.channels
        ]

    async def send(
        self,
        domain: str,
        type: str,
        attrs: Mapping[str, Any] | None = None,
        *,
        Id: str | None = None,
        Tx_role: str | None = None,
        Rx_role: str | None = None,
    ) -> int:
        """Send an event on each relationship with this ``Id`` or one of these roles. Return the number of events.

        When the call returns, each recipient's NATS system has stored the event once, even if several arguments match.
        If several relationships match and some of them fail, the errors are raised together in an ``ExceptionGroup``.
        The other recipients have then stored the event.

        Raises:
            PeerError: No relationship matches, for example if neither ``Id`` nor a role is given. Or a name is invalid.
            HostNotAllowedError: The NATS system of the other side isn't allowed.
            ConnectError: The NATS system of the other side can't be reached.
            ConfigError: The attributes aren't JSON, or are too large.
        """
        self._check_open()
        limit = self._backend.options.max_event_size
        request = {
            "domain": domain,
            "type": type,
            "attrs": read_attrs(attrs or {}, limit),
            "Id": Id,
            "Tx_role": Tx_role,
            "Rx_role": Rx_role,
        }
        raised = Raised("wrangler", "send_event_on_subs", request, self._machine.fresh())
        return await self._perform(await self._machine.do(raised))

    async def event_send(
        self,
        to: str | Mapping[str, Any],
        domain: str,
        type: str,
        attrs: Mapping[str, Any] | None = None,
        *,
        host: str | None = None,
        msg_id: str | None = None,
    ) -> None:
        """Send an event to a single peer, and wait until it is stored. May raise any error that `send` raises.

        Args:
            to: A channel identifier (ECI), or an established relationship, or its ``Id``. See `established`.
            domain: Domain of the event, such as ``"order"``.
            type: Type of the event, such as ``"created"``.
            attrs: Attributes of the event, such as ``{"id": 7}``. Defaults to none.
            host: URL of the recipient's NATS system, if ``to`` is an ECI. Defaults to this system.
            msg_id: Id for deduplication. If you retry a call with the same id, the event is stored only once.
        """
        self._check_open()
        data = read_attrs(attrs or {}, self._backend.options.max_event_size)
        send = event_on(self._where(to, host), domain, type, data, msg_id or self._machine.fresh().id)
        await self._backend.publish(send)

    async def query(
        self,
        to: str | Mapping[str, Any],
        rid: str,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        host: str | None = None,
        timeout: float = 5.0,
    ) -> Any:
        """Query a running peer, and return the answer of the function that the peer has registered with `answers`.

        Args:
            to: ECI of a channel of the peer, an established relationship with the peer, or the ``Id`` of one.
            host: URL of the peer's NATS system, if ``to`` is an ECI. Defaults to this system.
            rid: ID of the set of queries to which the query belongs, such as ``"door"``.
            name: Name of the query, such as ``"state"``.
            args: Arguments of the query, which the function receives as keyword arguments. Defaults to none.

        Raises:
            QueryRefusedError: The policy of the channel denies the query, or the peer couldn't answer it.
            NoRespondersError: The peer isn't running.
            RequestTimeoutError: The peer didn't answer within ``timeout`` seconds.
            HostNotAllowedError: The NATS system of the peer isn't allowed.
            ConnectError: The NATS system of the peer can't be reached.
            PermissionDeniedError: The NATS system of the peer doesn't allow the query.
        """
        self._check_open()
        where = self._where(to, host)
        subject = query_subject(check_eci(where["Tx"]), rid, name, self._backend.options.prefix)
        return read_answer(await self._backend.ask(subject, pack(args or {}), where.get("Tx_host"), timeout))

    def _where(self, to: str | Mapping[str, Any], host: str | None) -> Mapping[str, Any]:
        if not isinstance(to, str):
            return to
        if "." in to:  # an Id contains no dot, so this is a channel
            return {"Tx": to, "Tx_host": host}
        relationship = self._tracker.established(to)
        if relationship is None:
            failure = "wrangler:no_such_subscription_failure"
            raise PeerError(failure, f"no relationship {to!r:.60} is established")
        return relationship

    async def open(self) -> None:
        """Load the stored state, and start to receive events. Waits up to 30 s for a server. For internal use."""
        try:
            self._attendance = await Retry(PATIENT).run(self._attend)
        except BaseException:
            await self.close()
            raise
        self._outbox.begin_sending()
        self._attendance.begin_delivery()
        self._tasks.start(self._forget_expired(), f"forget what is over for peer {self._tracker.name}")

    async def _attend(self) -> Attendance:
        await self._machine.load()
        if self._capability:
            await self._machine.do(Install(self._machine.fresh()))
        return await self._backend.attend(self._tracker.name, self._incoming.handle, self._incoming.answer)

    def stop(self) -> None:
        """Start closing the peer, but don't wait. For internal use, so that an engine can close its peers together."""
        self._stopping.begin_closing()
        if self._attendance is not None:
            self._attendance.stop_delivery(_GRACE)

    async def close(self) -> None:
        """Stop receiving. Relationships remain, and new events wait in the stream until the peer is opened again.

        Handlers that are still running after 5 seconds are cancelled. Their events are redelivered.
        """
        self.stop()
        attendance, self._attendance = self._attendance, None
        if attendance is not None:
            await attendance.close(_GRACE)
        await self._tasks.settle(_GRACE)
        self._handlers.close()

    async def retire(self, timeout: float) -> None:
        """End all relationships, and delete the stored state. For internal use by `Engine.remove`."""
        deadline = asyncio.get_running_loop().time() + timeout
        await self._end_all(deadline, timeout)
        attendance, self._attendance = self._attendance, None
        if attendance is not None:
            await attendance.close(_GRACE)
        await self._end_all(deadline, timeout)  # also end relationships that were requested in the meantime
        await self.close()
        await self._backend.forget_peer(self._tracker.name)
        await self._backend.store(self._tracker.name).purge()

    async def _end_all(self, deadline: float, timeout: float) -> None:
        await self._machine.do(RemovePeer())
        while any(record.outbox for record in self._tracker.relationships):
            if not await self._machine.changed.wait_until(deadline):
                raise RequestTimeoutError(
                    f"removing peer {self._tracker.name!r}: some relationships could not inform the other side yet",
                    timeout,
                )

    async def _forget_expired(self) -> None:
        while await self._stopping.pause(min(_EXPIRY_CHECK, self._backend.options.remember / 4)):
            deadline = self._tracker.deadline
            if deadline is not None and deadline <= time.time():
                try:
                    await self._machine.do(Tick())
                except JetStreamError as error:
                    self._backend.report_error(error)

    def _check_open(self) -> None:
        if self._stopping.begun:
            raise ClosedError(f"the peer {self._tracker.name!r} is closed")

    async def _call_handlers(self, item: Raise, attempt: int = 1) -> None:
        """Call the handlers with an event. Raises `HandlerError` if a handler fails or can't be called."""
        related = None if item.eci is None else self._tracker.established(item.eci)
        event = RaisedEvent(item.domain, item.type, item.attrs, item.eci, related, item.error)
        if attempt == 1:
            self._handlers.note(event)
        await self._handlers.run_handlers(event)

    async def _perform(self, commands: Sequence[Command]) -> int:
        """Carry out the commands, and return the number of events sent. Raises `PeerError` and other errors."""
        failure: PeerError | None = None
        # Run handlers before sending. If a handler raises, nothing was sent, and the caller can repeat the call.
        for command in commands:
            if isinstance(command, Raise):
                try:
                    await self._call_handlers(command)
                except HandlerError as error:
                    raise error.__cause__ or error from None
                if command.error:
                    failure = PeerError(f"{command.domain}:{command.type}", command.error)
        if failure is not None:
            raise failure
        sends = [command for command in commands if isinstance(command, Send)]
        await publish_all(self._backend, sends)
        return len(sends)
