"""A publisher of chained records: each follows its predecessor, even after elections and restarts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .._runtime.context import Context
from .._runtime.retry import Retry
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
from ..protocol.wire.header_names import MSG_ID
from ..publishing.limits import MAX_BYTES
from ..publishing.publisher import Publisher
from ..publishing.unretrieved import PublishFuture
from ..streams.stream import Stream

__all__ = ["ChainPublisher"]

_LONGEST_LOOK: Final = 8.0  # seconds
_STALE: Final = 20  # looks, PAUSE apart, that find fewer records than were acked


class ChainPublisher:
    """Publishes records to a stream that contains nothing else, each directly after its predecessor.

    To a replicated stream it sends one record at a time, see `jsclient.protocol.publishing.chain_window`. After any
    failure of a record it looks up the last record of the stream, and continues after that.

    Attributes:
        publisher: The publisher of the records.
    """

    def __init__(
        self, context: Context, stream: Stream, *, after: int, max_in_flight: int, timeout: float | None
    ) -> None:
        """``after`` is the sequence of the stream's last message."""
        is_replicated = (stream.config.num_replicas or 1) > 1
        self._chain = ChainWindow[PublishFuture](
            secrets.token_hex(11),
            context.answered,
            name=secrets.token_hex(8),
            link=after,
            by_id=not is_replicated,
            _seen=(0, after),
        )
        self.publisher: Publisher = Publisher(
            context,
            max_in_flight=1 if is_replicated else max_in_flight,
            max_bytes=MAX_BYTES,
            timeout=timeout,
            room_timeout=None,
            resend=True,
            window=self._chain,
            after_event=self._mind,
        )
        self._acks = self.publisher.acks
        self._timeout = context.timeout if timeout is None else timeout
        self._context, self._connection, self._loop = context, context.connection, self._acks.loop
        self._stream = stream
        self._after_seq = after
        self._last = 0  # number of the last record sent
        self._in_turn = asyncio.Lock()
        self._mending: asyncio.Task[None] | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether another client has published to the stream."""
        return self._chain.is_fenced

    def may_follow(self, seq: int, msg_id: str | None) -> bool:
        """Whether the next record may follow the record of this sequence and id."""
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
        """Publish a record after its predecessor, see `Publisher.publish`.

        ``check`` is called when it is its turn, and may raise an error. Cancelled: nothing was sent, or the record is
        left out.

        Raises:
            ProducerFencedError, ClosedError: A preceding record failed, so that it cannot follow.
        """
        chain = self._chain
        async with self._in_turn:  # a call that is cancelled while it waits for room must leave no gap
            await self._room(subject, len(data))
            check()
            if chain.link is None:
                if chain.is_fenced:
                    raise ProducerFencedError(subject)
                raise ClosedError(
                    "a record of this chain failed: no record can follow; open another publisher"
                )
            link, msg_id = chain.link, chain.id_of(self._acks.number + 1)
            future = await self.publisher.publish(
                subject,
                data,
                headers=headers,
                msg_id=msg_id,
                expected_last_seq=link if isinstance(link, int) else None,
                expected_last_msg_id=link if isinstance(link, str) else None,
            )
            self._last = self._acks.number
            if chain.link == link:
                chain.link = chain.after(self._last, link)
            elif chain.link is not None:
                # Mended while this call waited: the record was sent with an old link, so nothing may follow it.
                chain.is_broken = True
                self._mind()
        return future

    async def _room(self, subject: str, size: int) -> None:
        """Wait until the chain is intact and has room, or has ended.

        `Publisher.publish` must not wait for room instead, because meanwhile the predecessor may get another id.
        """
        chain, admission, changed = self._chain, self._acks.admission, self._acks.changed
        deadline = self._loop.time() + self._timeout
        while chain.link is not None and not admission.closed:
            if not chain.is_broken and admission.has_room(1, size):
                return
            if not chain.is_broken or chain.in_flight:  # each publish in flight ends at its deadline
                await changed.wait()
            elif not await changed.wait_until(deadline) and self._loop.time() >= deadline:
                text = f"publish to {subject!r}: the last record of the stream is unknown; nothing was sent"
                raise RequestTimeoutError(text, self._timeout)

    def _mind(self) -> None:
        """Start to mend a broken chain; stop at the end."""
        if self._acks.is_ended:
            if self._mending is not None:
                self._mending.cancel()
        elif self._chain.is_broken and self._mending is None:
            self._mending = self._context.tasks.start(self._mend(), "chain of records")
            self._acks.after()

    async def _mend(self) -> None:
        chain, acks = self._chain, self._acks
        try:
            while chain.is_broken and not acks.is_ended:
                await asyncio.sleep(PAUSE)  # for the answers of the others, and by ADR-22
                await self._mend_once()
        except JetStreamError as error:
            acks.fail(chain.end(error))
        except Exception as error:  # noqa: BLE001  a defect, which must end the publishes
            failed = ProtocolError(f"a chain could not be mended: {type(error).__name__}: {error}")
            failed.__cause__ = error
            acks.fail(chain.end(failed))
        finally:
            self._mending = None
            acks.after()
            self._mind()

    async def _mend_once(self) -> None:
        chain, tries, stale, patience = self._chain, Retry(), 0, ATTEMPT
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
                self._acks.fail(chain.end(None))
                return
            if found[0] >= chain.known(self._acks.number):
                failures, sends = chain.last_is(*found, self._stream.name, self._loop.time())
                self._acks.send_again(sends)
                self._acks.fail(failures)
                return
            # The new leader has not caught up, or an ack arrived after the look.
            stale += 1
            if stale >= _STALE:
                raise ProtocolError(f"stream {self._stream.name!r} has lost acked records")
            await asyncio.sleep(PAUSE)

    async def _look_within(self, seconds: float) -> tuple[int, int] | None:
        """`_look`; a request that reached a leader just before it died is not answered."""
        try:
            async with asyncio.timeout(seconds):
                return await self._look()
        except TimeoutError:
            raise RequestTimeoutError("look for the last record of a chain", seconds) from None

    async def _look(self) -> tuple[int, int] | None:
        """The number and the sequence of the last record of the stream; None: it is another client's."""
        chain = self._chain
        seq = (await self._stream.info()).state.last_seq
        if seq == self._after_seq:
            return 0, seq
        try:
            last = await self._stream.get_message(seq)
        except MessageNotFoundError:
            # It has expired, or was removed. Accept it if it is the last record known to be stored.
            known = chain.known(self._acks.number)
            if known and chain.place_of(known) == seq:
                return known, seq
            raise
        number = chain.number_of(last.headers.get(MSG_ID, ""))
        return None if number is None else (number, seq)

    async def close(self) -> None:
        """See `Publisher.close`."""
        await self.publisher.close()
