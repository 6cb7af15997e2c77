"""A peer: its handlers, its relationships, what it sends and asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, overload

from ..errors import ConfigError
from ..protocol.peers.channel import Policy, check_eci, query_subject
from ..protocol.peers.commands import Raised, Refusal
from ..protocol.peers.options import accept_roles
from ..protocol.peers.outbox import Attrs
from ..protocol.peers.relationship import State
from ..protocol.peers.tracker import event_on
from .channel import HasChannels
from .errors import PeerError
from .handlers import Handler, QueryHandler, RaisedEvent
from .payloads import pack, read_answer, read_attrs

__all__ = ["Peer"]

H = TypeVar("H", bound=Handler)
Q = TypeVar("Q", bound=QueryHandler)
Rule = Callable[[Attrs], bool]


class Peer(HasChannels):
    """A peer, who has channels and relationships. Made by `Engine.peer`.

    The words for attributes are those of the picos, seen from this side: ``Rx`` is the own channel of a relationship
    and ``Tx`` that of the other side, ``Rx_role`` the own role and ``Tx_role`` that of the other side, ``Tx_host`` the
    URL of its NATS system (None: this one), and ``Id`` is the same on both sides.

    What is asked for is done when the call returns: it is stored, and the other side is told, sooner or later and
    whatever crashes, in the order of events. Handlers may see an event again after a crash.
    """

    _rules: tuple[Rule, ...] = ()

    def __repr__(self) -> str:
        return f"<Peer {self.name!r} {len(self.established())} established>"

    @property
    def name(self) -> str:
        """Its name: the first token of its channels."""
        return self._tracker.name

    @property
    def refused(self) -> Counter[Refusal]:
        """How many events and queries were refused so far, and why."""
        return self._intake.refused

    # --- what it hears ---------------------------------------------------------------------------------------

    @overload
    def on(self, event: str) -> Callable[[H], H]: ...

    @overload
    def on(self, event: str, handler: H) -> H: ...

    def on(self, event: str, handler: H | None = None) -> H | Callable[[H], H]:
        """Have events handled: ``@peer.on("wrangler:subscription_added")``, or ``peer.on(event, handler)``.

        A handler is called with the `RaisedEvent`; it is a coroutine function, or a plain one that does not block. It
        is called in the order in which handlers were given, one after the other for each event. Events that no handler
        is for are done with. Where a handler raises, the event is told again, to all of them, ``max_deliver`` times in
        all, then `EventGivenUp` is told.

        Give handlers right after `Engine.peer`, before the next ``await``, or as its ``handlers``: events may wait.

        Args:
            event: ``domain:type``, with ``*`` for any domain or any type.
            handler: The function; without it a decorator is returned.

        Raises:
            ConfigError: ``event`` is no such thing.
        """
        if handler is None:

            def register(function: H) -> H:
                self._handlers.add(event, function)
                return function

            return register
        self._handlers.add(event, handler)
        return handler

    async def wait_for(self, event: str, timeout: float | None = 5.0, **attrs: Any) -> RaisedEvent:
        """The first event of this name that no `wait_for` has returned yet, of the last 100, or the next one.

        Args:
            event: ``domain:type``, with ``*`` for any.
            timeout: Seconds; None: for ever.
            attrs: Only an event whose attributes have these values.

        Raises:
            RequestTimeoutError: None came. ClosedError: The peer was closed.
        Cancelled: nothing is lost.
        """
        return await self._handlers.wait_for(event, timeout, attrs)

    def answers(self, rid: str, name: str) -> Callable[[Q], Q]:
        """Have a query answered: ``@peer.answers("door", "state")``.

        The function is called with the query's arguments by name, and returns what can be JSON, or a coroutine of it.
        Who may ask is the channels' matter; who asked it learns where it has a parameter ``relationship``: that is the
        relationship, as `established` has it, or None. Where it raises, the asker learns that it failed, and no more.

        Raises:
            ConfigError: The names are no tokens, or ``rid`` is ``subscription``, whose queries are the peer's own.
        """

        def register(function: Q) -> Q:
            self._answers.add(rid, name, function)
            return function

        return register

    def auto_accept(self, rule: Rule | None = None, **wanted: str | Collection[str] | None) -> None:
        """Approve requests at once where a rule says so; those that none approves wait for `approve` or `reject`.

        Args:
            rule: Is called with the request's attributes, as this side sees them.
            wanted: In place of it: these attributes must have these values, or one of several values.

        Raises:
            ConfigError: Neither or both are given.
        """
        if (rule is None) is not bool(wanted):
            raise ConfigError("give a rule, or attributes, for example auto_accept(Rx_role='thing')")
        self._rules += (rule if rule is not None else accept_roles(**wanted),)
        self._tracker.accepts = lambda attrs: any(one(attrs) for one in self._rules)

    # --- relationships ---------------------------------------------------------------------------------------

    async def raise_event(
        self,
        event: str,
        attrs: Mapping[str, Any] | None = None,
        /,
        *,
        policy: Policy | None = None,
        **more: Any,
    ) -> None:
        """Raise an event in this peer: one by which it asks something of itself, or one of its own for its handlers.

        Args:
            event: ``domain:type``. ``wrangler:subscription``, ``wrangler:pending_subscription_approval``,
                ``wrangler:inbound_rejection``, ``wrangler:outbound_cancellation``,
                ``wrangler:subscription_cancellation`` and ``wrangler:send_event_on_subs`` ask; see `request`,
                `approve`, `reject`, `revoke`, `cancel` and `send`.
            attrs: Its attributes; ``more`` are added to them.
            policy: What the other side may send on the channel that this makes or approves; by default all but what
                would ask something of this peer.

        Raises:
            PeerError: It cannot be done; an event tells that to the handlers too.
            ConfigError: ``event`` is none, the attributes are not JSON or too large, the peer has not the capability,
                or the policy lets through too little.
            JetStreamError: It was not stored, or that is not known; asking again does no harm.
            Exception: What a handler of an event of the peer's own raised.
        """
        await self._raise(event, {**(attrs or {}), **more}, policy)

    async def _raise(self, event: str, attrs: Mapping[str, Any], policy: Policy | None = None) -> str:
        """Returns the name that a relationship gets that has none."""
        self._check_open()
        domain, colon, type_ = event.partition(":")
        if not colon:
            raise ConfigError(f"the event {event!r:.60} is not of the form 'domain:type'")
        data = read_attrs(attrs, self._backend.options.max_event_size)
        fresh = self._machine.fresh()
        await self._perform(await self._machine.do(Raised(domain, type_, data, fresh, policy)))
        return fresh.id

    async def request(self, wellKnown_Tx: str, *, policy: Policy | None = None, **attrs: Any) -> str:
        """Ask another peer for a relationship. Returns its ``Id``.

        Args:
            wellKnown_Tx: The other peer's ``wellKnown_Rx``, or another channel of it that lets requests pass.
            policy: What the other side may send and ask; by default all but what would ask something of this peer.
            attrs: ``Id``, ``Rx_role``, ``Tx_role``, ``Tx_host``, ``name``, ``channel_type``, each as it is seen here;
                and whatever else the other side is to see.

        Raises as `raise_event`.
        """
        own = await self._raise("wrangler:subscription", {**attrs, "wellKnown_Tx": wellKnown_Tx}, policy)
        return own if attrs.get("Id") is None else str(attrs["Id"])

    async def approve(self, Id: str | None = None, *, policy: Policy | None = None, **attrs: Any) -> None:
        """Approve a request that was made here. The relationship is established, on this side at once.

        One that was rejected, revoked or ended stays so, and that is no error: `established` says what holds.

        Args:
            Id: Which one; or give ``Rx`` or ``Tx`` in ``attrs``. An event's attributes can be passed as they are.
            policy: What the other side may send and ask.
            attrs: What else the other side is to see: where the feed begins, for instance.

        Raises as `raise_event`.
        """
        await self._raise("wrangler:pending_subscription_approval", _with_id(Id, attrs), policy)

    async def reject(self, Id: str | None = None, **attrs: Any) -> None:
        """Reject a request that was made here; as `approve`."""
        await self._raise("wrangler:inbound_rejection", _with_id(Id, attrs))

    async def revoke(self, Id: str | None = None, **attrs: Any) -> None:
        """Take back a request that this peer made; as `approve`. One that was approved meanwhile ends all the same."""
        await self._raise("wrangler:outbound_cancellation", _with_id(Id, attrs))

    async def cancel(self, Id: str | None = None, **attrs: Any) -> None:
        """End a relationship, established or pending; as `approve`. Either side may."""
        await self._raise("wrangler:subscription_cancellation", _with_id(Id, attrs))

    def established(self, key: str | None = None, value: object = None) -> list[Attrs]:
        """The relationships that are established, with all that is known of them; with ``key`` those where it has this
        value: ``peer.established("Tx_role", "thing")``."""
        return self._tracker.lists(State.ESTABLISHED, key, value)

    def inbound(self, key: str | None = None, value: object = None) -> list[Attrs]:
        """The requests that wait here; as `established`."""
        return self._tracker.lists(State.INBOUND, key, value)

    def outbound(self, key: str | None = None, value: object = None) -> list[Attrs]:
        """The requests that this peer made and that wait at others; as `established`."""
        return self._tracker.lists(State.OUTBOUND, key, value)

    # --- sending and asking ----------------------------------------------------------------------------------

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
        """Send an event on relationships: the one with this ``Id``, all with this role there, all with this role here.

        What fits several of them is sent to once. When it returns the event is stored where the other side is.

        Returns: how many it was sent to.

        Raises:
            PeerError: There is none to send it to, or ``domain`` or ``type`` is none.
            HostNotAllowedError, ConnectError: Of a relationship with a peer elsewhere. And those of any publish;
                An ``ExceptionGroup`` of them where it was to be sent to several.
            ConfigError: The attributes are not JSON, or too large.
        """
        self._check_open()
        limit = self._backend.options.max_event_size
        asked = {
            "domain": domain,
            "type": type,
            "attrs": read_attrs(attrs or {}, limit),
            "Id": Id,
            "Tx_role": Tx_role,
            "Rx_role": Rx_role,
        }
        raised = Raised("wrangler", "send_event_on_subs", asked, self._machine.fresh())
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
        """Send one event. When it returns the event is stored where the other side is.

        Args:
            to: An ECI; the Id of an established relationship, or the relationship itself, as `established` has it.
            domain, type, attrs: What to send.
            host: The NATS system of an ECI; of a relationship its ``Tx_host`` is used.
            msg_id: The same for one that is sent again, so that it is stored once.

        Raises as `send`.
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
        """Ask another peer. ``to`` and ``host`` as in `event_send`; the other side must be there.

        Raises:
            QueryRefusedError: The channel's policy, or nobody there answers this query, or it failed.
            NoRespondersError: The peer is not there. RequestTimeoutError: It did not answer in ``timeout`` seconds.
            HostNotAllowedError, ConnectError, PermissionDeniedError: The other system may not be asked, or cannot.
        """
        self._check_open()
        where = self._where(to, host)
        subject = query_subject(check_eci(where["Tx"]), rid, name, self._backend.options.prefix)
        return read_answer(await self._backend.ask(subject, pack(args or {}), where.get("Tx_host"), timeout))

    def _where(self, to: str | Mapping[str, Any], host: str | None) -> Mapping[str, Any]:
        if not isinstance(to, str):
            return to
        if "." in to:  # an Id has none
            return {"Tx": to, "Tx_host": host}
        found = self._tracker.established(to)
        if found is None:
            raise PeerError(
                "wrangler:no_such_subscription_failure", f"there is no established relationship {to!r:.60}"
            )
        return found


def _with_id(id: str | None, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    return attrs if id is None else {**attrs, "Id": id}
