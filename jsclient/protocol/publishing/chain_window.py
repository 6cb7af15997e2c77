"""A chain of publishes, in which each record is stored directly after its predecessor or not at all.

On a single server, a record expects the id of its predecessor as the last message id, so thousands may be in flight. A
replicated stream must not get such an expectation, because from 2.14 on, a mismatch stops the stream permanently. In
this case, a record expects the sequence of its predecessor, and only one record may be in flight. Otherwise, the record
of a different client could be stored between two records unnoticed.

If a record is refused or not answered, its successors are lost too, and in older clusters their ids remain in use
although no message is stored under them. So a *broken* chain sends no record until the last record of the stream is
known (`last_is`). Records up to that record are stored, and later records are sent again after it, under new ids. If
an earlier attempt is stored after all, the chain breaks again, but no record is ever stored twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...errors import ApiError, JetStreamError, NoRespondersError
from ..models.publish import PubAck
from ..wire.header_names import EXPECTED_LAST_MSG_ID, EXPECTED_LAST_SEQUENCE, MSG_ID
from ..wire.headers import encode_headers, parse_headers
from .in_flight import InFlight, Recovery, TicketT, no_stream, reply_of, unknown
from .publish_window import Failures, PublishWindow, Sends

__all__ = ["ChainWindow"]

_WRONG_LAST_MSG_ID: Final = 10070
# Errors that break the chain: a wrong last id or sequence, or an id in process.
_BREAKS: Final = frozenset({_WRONG_LAST_MSG_ID, 10071, 10158, 10164})
_UNAVAILABLE: Final = 503
# These errors have code 503, but they are permanent: JetStream is not enabled, or the stream is full.
_STAYS: Final = frozenset({10039, 10076, 10077})


@dataclass(slots=True)
class ChainWindow(PublishWindow[TicketT]):
    """The records of a chain that are in flight. Their ids begin with ``name``.

    ``link`` is the predecessor of the next record, a sequence or an id. It is None if the predecessor failed.
    """

    name: str = ""
    link: str | int | None = 0
    # True if a record names its predecessor by ID. Otherwise, it names a sequence, and records are sent one at a time.
    by_id: bool = True
    is_fenced: bool = False  # true once another client has written the last record
    # Number and sequence of the last record of the chain that was found in the stream. Before one was found, 0 and the
    # sequence after which the chain starts.
    _seen: tuple[int, int] = (0, 0)
    _round: int = 0
    _gaps: set[int] = field(default_factory=set)  # numbers of records that were not stored
    _ended: set[int] = field(default_factory=set)  # records that ended without a confirmation
    _link_before: str | int | None = None  # the predecessor of the record that was added last

    def id_of(self, number: int) -> str:
        """Return the id under which a record is sent in this round."""
        return f"{self.name}:{number}:{self._round}" if self._round else f"{self.name}:{number}"

    def link_after(self, number: int, link: str | int) -> str | int:
        """Return the link to a record whose predecessor is ``link``."""
        if self.by_id:
            return self.id_of(number)
        assert isinstance(link, int)
        return link + 1

    def number_of(self, msg_id: str) -> int | None:
        """Return the number of a record of this chain, or None if the id belongs to another client."""
        name, _, suffix = msg_id.partition(":")
        number = suffix.partition(":")[0]
        return int(number) if name == self.name and number.isdecimal() else None

    def skip(self, number: int, link: str | int | None) -> None:
        """Skip a number under which no record was sent, so that the next record gets its predecessor."""
        self._ended.discard(number)
        self._gaps.add(number)
        self.link = link

    def add_publish(self, reply: bytes, entry: InFlight[TicketT]) -> None:
        self._link_before = self.link
        PublishWindow.add_publish(self, reply, entry)

    def unsent(self, reply: bytes) -> None:
        if (entry := self._take(reply)) is not None:
            self.skip(entry.number, self._link_before)

    def remove(self, reply: bytes) -> None:
        if (entry := self._take(reply)) is not None:
            self._ended.add(entry.number)
            self.link = None

    def _settle_refusal(
        self, entry: InFlight[TicketT], recovery: Recovery, error: JetStreamError, now: float
    ) -> JetStreamError | None:
        if isinstance(error, ApiError):
            # Keep the record if the error is transient or breaks the chain, because the repaired chain sends it again.
            passes = error.code == _UNAVAILABLE and error.err_code not in _STAYS
            if not passes and error.err_code not in _BREAKS:
                return unknown(entry) if recovery.unconfirmed else error
            recovery.overtaken = error
        elif not isinstance(error, NoRespondersError):
            return unknown(entry) if recovery.unconfirmed else error
        self._hold(entry, recovery)
        return None

    def _hold(self, entry: InFlight[TicketT], recovery: Recovery) -> None:
        recovery.waits, entry.due, self.is_broken = True, entry.deadline, True

    def _silent(self, entry: InFlight[TicketT]) -> None:
        entry.doubt().silent += 1

    def _over(self, entry: InFlight[TicketT]) -> JetStreamError:
        return self._why(entry, None)

    def _why(self, entry: InFlight[TicketT], error: JetStreamError | None) -> JetStreamError:
        """Return the error of a record that could not be sent again because of ``error``."""
        if not entry.waits or entry.unconfirmed or entry.recovery is None:
            final: JetStreamError = unknown(entry)
            final.__cause__ = error
            return final
        return entry.recovery.overtaken or error or no_stream(entry)

    def _forget_unwanted(self) -> None:
        pass  # keep records whose ticket is done, because their successors still need them

    def disconnected(self) -> Failures[TicketT]:
        self._connected = False
        for entry in self.in_flight.values():
            if not entry.waits:
                entry.doubt()
            self.is_broken = True
        return []

    def _sends(self, now: float) -> Sends[TicketT]:
        for entry in self.in_flight.values():
            if entry.waits and entry.recovery is not None:
                self._hold(entry, entry.recovery)
        return []

    def not_sent(self, entry: InFlight[TicketT]) -> None:
        PublishWindow.not_sent(self, entry)
        self.is_broken = True

    def known(self, given: int) -> int:
        """Return the number of the last record that is known to be stored. ``given`` is the last number in use."""
        uncertain = {entry.number for entry in self.in_flight.values()} | self._ended | self._gaps
        return next(
            (number for number in range(given, self._seen[0], -1) if number not in uncertain), self._seen[0]
        )

    def place_of(self, number: int) -> int:
        """Return the stream sequence of the record ``number``. The sequences of a chain are consecutive."""
        seen, seq = self._seen
        return seq + number - seen - sum(seen < gap <= number for gap in self._gaps)

    def last_is(
        self, number: int, seq: int, stream: str, now: float
    ) -> tuple[Failures[TicketT], Sends[TicketT]]:
        """Continue after record ``number``, which is the last record in the stream and has the sequence ``seq``.

        Return the failures, and the records to send again.
        """
        self.is_broken = False
        self._round += 1
        self._gaps.discard(number)
        before, self._seen = self._gaps, (number, seq)
        self._ended = {ended for ended in self._ended if ended > number}
        # The first record without a confirmation. Later records fail, because they depend on it.
        end = min(self._ended, default=None)
        failures: Failures[TicketT] = []
        sends: Sends[TicketT] = []
        link: str | int = seq
        for reply, entry in list(self.in_flight.items()):
            if entry.number <= number:
                self._take(reply)
                self.stored: int = self.stored + 1
                if not entry.ticket.done():
                    gaps = sum(entry.number < gap < number for gap in before)
                    stored = seq - (number - entry.number - gaps)
                    entry.ticket.set_result(PubAck(stream=stream, seq=stored, duplicate=True))
            elif end is not None and entry.number > end:
                self.remove(reply)
                failures.append((entry, _no_predecessor()))
            elif entry.ticket.done():  # the record was not stored, and the caller no longer needs it
                self._take(reply)
                self._gaps.add(entry.number)
            else:
                sends.append(self._resend(reply, entry, link, now))
                link = self.link_after(entry.number, link)
        self.link = link if end is None else None
        self._gaps = {gap for gap in self._gaps if gap > number}
        self.resent: int = self.resent + len(sends)
        return failures, sends

    def _resend(
        self, reply: bytes, entry: InFlight[TicketT], link: str | int, now: float
    ) -> tuple[bytes, InFlight[TicketT]]:
        """Link a record to its predecessor, under a new id. Return the record to send again, with its reply subject."""
        headers = parse_headers(entry.header)[1]
        headers.pop(EXPECTED_LAST_MSG_ID, None)
        headers.pop(EXPECTED_LAST_SEQUENCE, None)
        headers[MSG_ID] = self.id_of(entry.number)
        headers[EXPECTED_LAST_SEQUENCE if isinstance(link, int) else EXPECTED_LAST_MSG_ID] = str(link)
        entry.header = encode_headers(headers)
        size = len(entry.header) + len(entry.payload)
        self.size: int = self.size + size - entry.size
        entry.size = size
        recovery = entry.recovery = entry.recovery or Recovery(unconfirmed=True)
        # If the record isn't waiting to be sent again, its last attempt hasn't been answered and may still be stored.
        recovery.unconfirmed |= not recovery.waits
        recovery.waits, recovery.overtaken = False, None
        recovery.tries += 1
        entry.due = min(entry.deadline, now + recovery.attempt)
        self.next_check: float = min(self.next_check, entry.due)
        return reply_of(reply, recovery.tries), entry

    def end_chain(self, error: JetStreamError | None) -> Failures[TicketT]:
        """End the chain because of ``error``. None means that another client wrote the last record."""
        self.is_broken: bool = False
        self.is_fenced = error is None
        return self.fail_publishes(lambda entry: self._why(entry, error))


def _no_predecessor() -> ApiError:
    return ApiError.from_fields(400, _WRONG_LAST_MSG_ID, "the preceding record was not stored")
