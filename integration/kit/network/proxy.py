"""A TCP proxy between client and server: it records the wire and does it harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from integration.kit.judge.waiting import eventually
from integration.kit.network.links import Conditions, Link, reset
from integration.kit.network.match import MESSAGE_OPS, PUBLISH_OPS, Predicate
from integration.kit.network.recording import Recording
from integration.kit.network.rules import CutRule, DropRule, HoldRule, RewriteRule, Rule
from integration.kit.network.wire import TO_CLIENT, TO_SERVER, Direction, Frame, message, subject_matches
from integration.kit.servers.ports import HOST, listening_socket

_R = TypeVar("_R", bound=Rule)


class Proxy(Recording):
    """A loopback port that leads to `upstream`, a port or URL of a server.

    With `frames` off it pumps bytes: fast, fit for TLS, without recording and frame rules. With `record` off it reads
    frames for its rules but keeps none. Faults apply to all connections, including later connections, unless they say
    otherwise.
    """

    def __init__(self, upstream: int | str, *, frames: bool = True, record: bool = True) -> None:
        super().__init__(enabled=frames and record)
        self._upstream = _address(upstream)
        self._with_frames = frames
        self._rules: list[Rule] = []
        self._conditions = {direction: Conditions() for direction in Direction}
        self._server: asyncio.Server | None = None
        self._dials: set[asyncio.Task[None]] = set()
        self.port = 0
        self.links: list[Link] = []
        """Every connection ever made, oldest first; `link.cut()` and so on act on one."""
        self.refused = 0
        """Connections that could not be led on because the server took none."""

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        for task in self._dials:
            task.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        for link in self.links:
            await link.abort()

    # Connections

    @property
    def open_links(self) -> list[Link]:
        return [link for link in self.links if link.open]

    @property
    def link(self) -> Link:
        """The newest open connection."""
        links = self.open_links
        assert links, "no connection is open through the proxy"
        return links[-1]

    async def wait_links(self, count: int, timeout: float = 30.0) -> None:
        """Return once `count` connections were made in all: 2 after one reconnect."""
        await eventually(
            lambda: len(self.links) >= count and self.links[-1].open,
            timeout,
            f"{count} connections through the proxy",
        )

    def refuse(self) -> None:
        """Refuse new connections. Those that stand stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def accept(self) -> None:
        """Take new connections (again), on the same port."""
        if self._server is None:
            sock = listening_socket(self.port)
            self.port = int(sock.getsockname()[1])
            self._server = await asyncio.get_running_loop().create_server(self._welcome, sock=sock)

    # Faults of the network

    def cut(self) -> None:
        """Reset (RST) all open connections."""
        for link in self.open_links:
            link.cut()

    def close(self) -> None:
        """End all open connections with FIN."""
        for link in self.open_links:
            link.close()

    def half_open(self) -> None:
        """Open connections end for the server. Their clients do not notice, and reach no server."""
        for link in self.open_links:
            link.half_open()

    def stall(self, direction: Direction | None = None) -> None:
        """Pass nothing, lose nothing: TCP stays open and its buffers fill."""
        for conditions in self._both(direction):
            conditions.flowing.clear()
        self._update_reading()

    def unstall(self, direction: Direction | None = None) -> None:
        for conditions in self._both(direction):
            conditions.flowing.set()
        self._update_reading()

    def blackhole(self, direction: Direction | None = None) -> None:
        """Swallow what is sent, FIN and RST too."""
        for conditions in self._both(direction):
            conditions.lossy = True

    def heal(self) -> None:
        """End stall, blackhole, delay and rate.

        A connection that lost bytes stays silent for ever, as TCP cannot skip. New ones work.
        """
        for conditions in self._conditions.values():
            conditions.lossy, conditions.delay, conditions.rate = False, 0.0, None
            conditions.flowing.set()
        self._update_reading()

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Hand everything over this much later. The throughput stays."""
        for conditions in self._both(direction):
            conditions.delay = seconds

    def rate(self, bytes_per_s: float | None, direction: Direction | None = None) -> None:
        """Pass at most this much. None for no limit."""
        for conditions in self._both(direction):
            conditions.rate = bytes_per_s
        self._update_reading()

    def corrupt(self, pieces: int = 1, direction: Direction = TO_CLIENT) -> None:
        """Change one byte in each of the next pieces of data, whatever connection they belong to."""
        self._conditions[direction].flips += pieces

    def break_off(self, links: int = 1, direction: Direction = TO_CLIENT) -> None:
        """End the next connections that carry data after half of a piece, which is seldom the end of a frame."""
        self._conditions[direction].breaks += links

    # Faults of frames: the first rule that takes a frame decides

    def drop_frames(self, predicate: Predicate, count: int | None = None) -> Rule:
        """Drop frames that fit, the first `count` or all."""
        return self._arm(DropRule(predicate, count))

    def duplicate_frames(self, predicate: Predicate, count: int | None = None) -> Rule:
        return self._arm(RewriteRule(predicate, count, lambda frame: frame.raw * 2))

    def modify_frames(
        self, predicate: Predicate, make: Callable[[Frame], bytes], count: int | None = None
    ) -> Rule:
        """Pass on `make(frame)` instead, for example `frame.but(payload=b"x").raw`."""
        return self._arm(RewriteRule(predicate, count, make))

    def hold_frames(self, predicate: Predicate, count: int | None = None) -> HoldRule:
        """Keep frames back until `release()`. Others overtake them."""
        return self._arm(HoldRule(predicate, count))

    def cut_inside_frame(
        self,
        direction: Direction = TO_CLIENT,
        after_bytes: int | None = None,
        predicate: Predicate | None = None,
    ) -> Rule:
        """End the connection inside the next frame with a payload.

        The receiver gets `after_bytes` of headers and payload, half of them by default.
        """
        ops = PUBLISH_OPS if direction == TO_SERVER else MESSAGE_OPS

        def inside(frame: Frame) -> bool:
            fits = frame.direction == direction and frame.op in ops and len(frame.payload) > 1
            return fits and (predicate is None or predicate(frame))

        return self._arm(CutRule(inside, after_bytes))

    def inject(self, data: bytes, link: Link | None = None) -> None:
        """Send bytes to a client as if from the server, between two frames."""
        self._need_frames()
        link = link or self.link
        assert link.pipes[TO_CLIENT].write(data), "the connection no longer reaches its client"
        self.record(Frame(TO_CLIENT, "", raw=data, connection=link.number, fate="injected"))

    def inject_message(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str | None = None,
        status: str | None = None,
        headers: dict[str, str] | None = None,
        link: Link | None = None,
    ) -> None:
        """Send a message to each subscriber of `subject`, such as a status on a deliver inbox."""
        for candidate in [link] if link else reversed(self.open_links):
            for sid, sub in candidate.subs.items():
                if sub.subject and subject_matches(sub.subject, subject):
                    data = message(subject, sid, payload, reply=reply, status=status, headers=headers)
                    return self.inject(data, candidate)
        raise AssertionError(f"no client is subscribed to {subject}")

    # Inside

    def _welcome(self) -> asyncio.Protocol:
        on_frames = self._on_frames if self._with_frames else None
        link = Link(len(self.links), self._conditions, on_frames)
        self.links.append(link)
        task = asyncio.create_task(self._dial(link), name=f"proxy-dial-{link.number}")
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)
        return link.client

    async def _dial(self, link: Link) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: link.server, *self._upstream)
        except OSError:
            self.refused += 1
            reset(link.client.transport)
        if link.client.gone.is_set():
            reset(link.server.transport)

    def _on_frames(self, frames: list[Frame], link: Link) -> bytes:
        passing: list[bytes] = []
        for frame in frames:
            pipe = link.pipes[frame.direction]
            if pipe.dead:
                frame.fate = "dropped"
                self.record(frame)
                continue
            # Rules ask for the subject of a sid, so the subscriptions are tracked.
            if frame.op == "SUB" and frame.sid:
                link.subs[frame.sid] = frame
            elif frame.op == "UNSUB" and frame.args == frame.sid:
                link.subs.pop(frame.args, None)
            rule = next((rule for rule in self._rules if rule.takes(frame)), None)
            self.record(frame)
            passing.append(frame.raw if rule is None else rule.act(frame, link))
            if rule is not None and rule.ends_link:
                pipe.write(b"".join(passing))
                passing.clear()
                link.end_after_sending(frame.direction)
        return b"".join(passing)

    def _arm(self, rule: _R) -> _R:
        self._need_frames()
        self._rules.append(rule)
        return rule

    def _need_frames(self) -> None:
        if not self._with_frames:
            raise RuntimeError("this proxy was made with frames=False: it only pumps bytes")

    def _both(self, direction: Direction | None) -> list[Conditions]:
        return [c for d, c in self._conditions.items() if direction is None or d == direction]

    def _update_reading(self) -> None:
        for link in self.links:
            for pipe in link.pipes.values():
                pipe.update_reading()


def _address(upstream: int | str) -> tuple[str, int]:
    if isinstance(upstream, int):
        return HOST, upstream
    parts = urlsplit(upstream if "://" in upstream else f"nats://{upstream}")
    return parts.hostname or HOST, parts.port or 4222
