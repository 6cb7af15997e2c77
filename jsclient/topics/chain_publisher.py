"""A publisher of linked records: each names its predecessor, across elections and restarts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .._runtime.context import Context
from .._runtime.nats.connection import Lifecycle
from .._runtime.retry import Tries
from ..errors import (
    ClosedError,
    JetStreamError,
    MessageNotFoundError,
    ProducerFencedError,
    ProtocolError,
    RequestTimeoutError,
)
from ..protocol.models.publish import PubAck
from ..protocol.publishing.chain_window import ChainWindow
from ..protocol.publishing.in_flight import ATTEMPT, PAUSE
from ..protocol.wire.frames import Frame
from ..protocol.wire.header_names import MSG_ID
from ..publishing.admission import Entry
from ..publishing.limits import MAX_BYTES
from ..publishing.publisher import Publisher
from ..streams.stream import Stream

__all__ = ["ChainPublisher"]

_LONGEST_LOOK: Final = 8.0  # seconds
_STALE: Final = 20  # requests, PAUSE apart, that find fewer records than were acked


class ChainPublisher(Publisher):
    """Publishes to a stream without other publishers; ``after`` is the sequence of its last message.

    On a replicated stream one record is in flight at a time; see `jsclient.protocol.publishing.chain_window`.

    After any failure it requests the last stored record, and continues after that one.
    """

    __slots__ = ("_after_seq", "_chain", "_in_turn", "_last", "_mending", "_stream")

    def __init__(
        self, context: Context, stream: Stream, *, after: int, max_in_flight: int, timeout: float | None
    ) -> None:
        is_replicated = (stream.config.num_replicas or 1) > 1
        super().__init__(
            context,
            max_in_flight=1 if is_replicated else max_in_flight,
            max_bytes=MAX_BYTES,
            timeout=timeout,
            room_timeout=None,
            resend=True,
        )
        never = self._window.never_an_id
        self._window = self._chain = ChainWindow[asyncio.Future[PubAck]](
            never,
            context.answered,
            name=secrets.token_hex(8),
            link=after,
            by_id=not is_replicated,
            _seen=(0, after),
        )
        self._stream = stream
        self._after_seq = after
        self._last = 0  # number of the last record sent
        self._in_turn = asyncio.Lock()
        self._mending: asyncio.Task[None] | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether another client has published."""
        return self._chain.is_fenced

    def may_follow(self, seq: int, msg_id: str | None) -> bool:
        """Whether the next record follows the record with this sequence and id."""
        if not self._last:
            return seq <= self._after_seq
        return msg_id is not None and self._chain.number_of(msg_id) == self._last

    async def append(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str | Sequence[str]] | None,
        check: Callable[[], None],
    ) -> asyncio.Future[PubAck]:
        """As `Publisher.publish`, linked to the record before. Cancelled: nothing was sent, or the record is skipped.

        ``check`` is called when its turn has come; its errors are raised.

        Raises:
            ProducerFencedError, ClosedError: An earlier record failed.
        """
        chain = self._chain
        deadline = self._loop.time() + self._timeout
        async with self._in_turn:  # a call cancelled while it waits for room must leave no gap
            # Not in `publish`: the id of the predecessor may change meanwhile. Records in flight end in time.
            while chain.link is not None and not self._closed:
                if not chain.is_broken and self._has_room(1, len(data)):
                    break
                if not chain.is_broken or chain.in_flight:
                    await self._changed.wait()
                elif not await self._changed.wait_until(deadline) and self._loop.time() >= deadline:
                    text = f"publish to {subject!r}: the last record could not be requested; nothing was sent"
                    raise RequestTimeoutError(text, self._timeout)
            check()
            if chain.link is None:
                if chain.is_fenced:
                    raise ProducerFencedError(subject)
                raise ClosedError(
                    "a record of this chain failed: no record can follow; open another publisher"
                )
            link, msg_id = chain.link, chain.id_of(self._number + 1)
            future = await self.publish(
                subject,
                data,
                headers=headers,
                msg_id=msg_id,
                expected_last_seq=link if isinstance(link, int) else None,
                expected_last_msg_id=link if isinstance(link, str) else None,
            )
            self._last = self._number
            if chain.link == link:
                chain.link = chain.after(self._number, link)
            elif chain.link is not None:
                # Repaired while this one waited: it was sent with an old link, and no record may follow it.
                chain.is_broken = True
                self._mind()
        return future

    def _is_ready(self) -> bool:
        return not self._chain.is_broken and super()._is_ready()

    def _fits(self, count: int, size: int) -> bool:
        return not self._chain.is_broken and super()._fits(count, size)

    def _receive(self, frames: list[Frame]) -> None:
        super()._receive(frames)
        self._mind()

    def _tick(self) -> None:
        super()._tick()
        self._mind()

    def _lifecycle(self, what: Lifecycle) -> None:
        super()._lifecycle(what)
        self._mind()

    async def _send_slowly(self, key: bytes, entry: Entry) -> asyncio.Future[PubAck]:
        link = self._chain.link
        try:
            return await super()._send_slowly(key, entry)
        except JetStreamError:
            self._chain.skip(entry.number, link)
            raise

    def _mind(self) -> None:
        """Start the repair of a broken chain. No record is sent before it is repaired."""
        if self._chain.is_broken and self._mending is None and not self._ended:
            self._mending = self._context.tasks.start(self._mend(), "chain of records")
            self._after()

    async def _mend(self) -> None:
        chain = self._chain
        try:
            while chain.is_broken and not self._ended:
                await asyncio.sleep(PAUSE)  # for the answers of other records; also required by ADR-22
                await self._mend_once()
        except JetStreamError as error:
            self._fail(chain.end(error))
        except Exception as error:  # noqa: BLE001  a defect; publishers must not wait forever
            failed = ProtocolError(f"the chain could not be repaired: {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._fail(chain.end(failed))
        finally:
            self._mending = None
            self._after()
            self._mind()

    async def _mend_once(self) -> None:
        chain, tries, stale, patience = self._chain, Tries(), 0, ATTEMPT
        while chain.is_broken:
            try:
                await self._connection.wait_connected(None)
                found = await self._look_within(patience)
            except JetStreamError as error:
                if isinstance(error, RequestTimeoutError):
                    patience = min(2 * patience, _LONGEST_LOOK)
                if not await tries.again(error):
                    raise
                continue
            if found is None:
                self._fail(chain.end(None))
                return
            if found[0] >= chain.known(self._number):
                failures, sends = chain.last_is(*found, self._stream.name, self._loop.time())
                self._send_again(sends)
                self._fail(failures)
                return
            # The new leader may have to catch up, or an ack arrived after the request.
            stale += 1
            if stale >= _STALE:
                raise ProtocolError(
                    f"stream {self._stream.name!r} has lost records that it acked: open another publisher"
                )
            await asyncio.sleep(PAUSE)

    async def _look_within(self, seconds: float) -> tuple[int, int] | None:
        """`_look` with a time limit: a request to a leader that died is not answered."""
        try:
            async with asyncio.timeout(seconds):
                return await self._look()
        except TimeoutError:
            raise RequestTimeoutError("look for the last record of a chain", seconds) from None

    async def _look(self) -> tuple[int, int] | None:
        """The last stored record, as its number in this chain and its sequence; None: another client published it."""
        chain = self._chain
        seq = (await self._stream.info()).state.last_seq
        if seq == self._after_seq:
            return 0, seq
        try:
            last = await self._stream.get_message(seq)
        except MessageNotFoundError:
            # It expired or was removed: was it the last record known to be stored?
            known = chain.known(self._number)
            if known and chain.place_of(known) == seq:
                return known, seq
            raise
        number = chain.number_of(last.headers.get(MSG_ID, ""))
        return None if number is None else (number, seq)

    async def _end(self) -> None:
        await super()._end()
        if self._mending is not None:
            self._mending.cancel()
