"""Publishes each of which is stored directly behind the one before it, or not at all.

On one server a record expects the id of the one before it as the last one there, so thousands may be under way. A
replicated stream takes no such thing: from 2.14 on it breaks for good where that does not hold. There a record expects
the sequence of the one before it, and only one may be under way (else somebody else's could come between, unseen).

Where a record is refused, or not answered, those behind it are lost too, and in older clusters their ids stay taken
though nothing is stored under them. So a chain that is *broken* sends nothing until somebody has looked which record is
the last one there (`last_is`): those up to it are stored, and the others go out again behind it, under new ids. An
earlier try that is stored after all breaks the chain once more, and nothing else: a record is never there twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...errors import ApiError, JetStreamError, NoRespondersError
from ..models.publish import PubAck
from ..wire.headers import EXPECTED_LAST_MSG_ID, EXPECTED_LAST_SEQUENCE, MSG_ID, encode_headers, parse_headers
from .in_flight import InFlight, TicketT, Trouble, no_stream, reply_of, unknown
from .publish_window import Failures, PublishWindow, Sends

__all__ = ["ChainWindow"]

_WRONG_LAST_MSG_ID: Final = 10070
_BREAKS: Final = frozenset(
    {_WRONG_LAST_MSG_ID, 10071, 10158, 10164}
)  # wrong last id or sequence, id in process
_UNAVAILABLE: Final = 503
_STAYS: Final = frozenset(
    {10039, 10076, 10077}
)  # 503 too, but it does not pass: not enabled, and the stream is full


@dataclass(slots=True)
class ChainWindow(PublishWindow[TicketT]):
    """The records of a chain that are under way; ``name`` is what its ids begin with.

    ``link`` is what the next one is to follow: a sequence or an id. None: that is over, and was not stored.
    """

    name: str = ""
    link: str | int | None = 0
    by_id: bool = True  # else by sequence, one at a time
    is_broken: bool = False
    is_fenced: bool = False  # somebody else's record is the last one there
    _seen: tuple[int, int] = (
        0,
        0,
    )  # the last record that somebody saw, or that was there before: number, sequence
    _round: int = 0
    _holes: set[int] = field(default_factory=set)  # numbers under which nothing was stored
    _ended: set[int] = field(default_factory=set)  # those that are over without being known to be stored

    def id_of(self, number: int) -> str:
        """The id under which the record of this number is sent now."""
        return f"{self.name}:{number}:{self._round}" if self._round else f"{self.name}:{number}"

    def after(self, number: int, link: str | int) -> str | int:
        """What is to follow the record of this number, which follows ``link``."""
        if self.by_id:
            return self.id_of(number)
        assert isinstance(link, int)
        return link + 1

    def number_of(self, msg_id: str) -> int | None:
        """Which record of this chain it is; None: somebody else's."""
        name, _, rest = msg_id.partition(":")
        number = rest.partition(":")[0]
        return int(number) if name == self.name and number.isdecimal() else None

    def skip(self, number: int, link: str | int | None) -> None:
        """Nothing was sent under this number, so the next one follows what it was to follow."""
        self._ended.discard(number)
        self._holes.add(number)
        self.link = link

    def remove(self, reply: bytes) -> None:
        if (entry := self._take(reply)) is not None:
            self._ended.add(entry.number)
            self.link = None

    # --- what breaks it: each of these is called by `PublishWindow` ------------------------------------------

    def _refused(
        self, entry: InFlight[TicketT], trouble: Trouble, error: JetStreamError, now: float
    ) -> JetStreamError | None:
        if isinstance(error, ApiError):
            passes = error.code == _UNAVAILABLE and error.err_code not in _STAYS
            if not passes and error.err_code not in _BREAKS:
                return unknown(entry) if trouble.in_doubt else error
            trouble.overtaken = error
        elif not isinstance(error, NoRespondersError):
            return unknown(entry) if trouble.in_doubt else error
        self._hold(entry, trouble)
        return None

    def _hold(self, entry: InFlight[TicketT], trouble: Trouble) -> None:
        trouble.waits, entry.due, self.is_broken = True, entry.deadline, True

    def _silent(self, entry: InFlight[TicketT]) -> None:
        entry.doubt().silent += 1

    def _over(self, entry: InFlight[TicketT]) -> JetStreamError:
        return self._why(entry, None)

    def _why(self, entry: InFlight[TicketT], error: JetStreamError | None) -> JetStreamError:
        """What a record ends with that could not be sent again, for this error."""
        if not entry.waits or entry.in_doubt or entry.trouble is None:
            final: JetStreamError = unknown(entry)
            final.__cause__ = error
            return final
        return entry.trouble.overtaken or error or no_stream(entry)

    def _forget_unwanted(self) -> None:
        pass  # what follows hangs on it, whoever waits

    def disconnected(self) -> Failures[TicketT]:
        self._connected = False
        for entry in self.in_flight.values():
            if not entry.waits:
                entry.doubt()
            self.is_broken = True
        return []

    def _sends(self, now: float) -> Sends[TicketT]:
        for entry in self.in_flight.values():
            if entry.waits and entry.trouble is not None:
                self._hold(entry, entry.trouble)
        return []

    def not_sent(self, entry: InFlight[TicketT]) -> None:
        PublishWindow.not_sent(self, entry)
        self.is_broken = True

    # --- and what mends it -----------------------------------------------------------------------------------

    def known(self, given: int) -> int:
        """The number of the last record that is known to be stored, where numbers up to ``given`` were given out."""
        open_ones = {entry.number for entry in self.in_flight.values()} | self._ended | self._holes
        return next(
            (number for number in range(given, self._seen[0], -1) if number not in open_ones), self._seen[0]
        )

    def place_of(self, number: int) -> int:
        """The sequence of that record: each lies behind the one before it."""
        seen, seq = self._seen
        return seq + number - seen - sum(seen < hole <= number for hole in self._holes)

    def last_is(
        self, number: int, seq: int, stream: str, now: float
    ) -> tuple[Failures[TicketT], Sends[TicketT]]:
        """Somebody looked: the record of this number is the last one there, as ``seq``. What failed, what to send."""
        self.is_broken = False
        self._round += 1
        self._holes.discard(number)
        before, self._seen = self._holes, (number, seq)
        self._ended = {ended for ended in self._ended if ended > number}
        end = min(self._ended, default=None)  # what is behind it has no predecessor
        failures: Failures[TicketT] = []
        sends: Sends[TicketT] = []
        link: str | int = seq
        for reply, entry in list(self.in_flight.items()):
            if entry.number <= number:
                self._take(reply)
                self.stored += 1
                if not entry.ticket.done():
                    holes = sum(entry.number < hole < number for hole in before)
                    place = seq - (number - entry.number - holes)
                    entry.ticket.set_result(PubAck(stream=stream, seq=place, duplicate=True))
            elif end is not None and entry.number > end:
                self.remove(reply)
                failures.append((entry, _no_predecessor()))
            elif entry.ticket.done():  # nobody wants it, and it is not there
                self._take(reply)
                self._holes.add(entry.number)
            else:
                sends.append(self._anew(reply, entry, link, now))
                link = self.after(entry.number, link)
        self.link = link if end is None else None
        self._holes = {hole for hole in self._holes if hole > number}
        self.resent += len(sends)
        return failures, sends

    def _anew(
        self, reply: bytes, entry: InFlight[TicketT], link: str | int, now: float
    ) -> tuple[bytes, InFlight[TicketT]]:
        """It goes behind this one, under a new id."""
        headers = parse_headers(entry.header)[1]
        headers.pop(EXPECTED_LAST_MSG_ID, None)
        headers.pop(EXPECTED_LAST_SEQUENCE, None)
        headers[MSG_ID] = self.id_of(entry.number)
        headers[EXPECTED_LAST_SEQUENCE if isinstance(link, int) else EXPECTED_LAST_MSG_ID] = str(link)
        entry.header = encode_headers(headers)
        size = len(entry.header) + len(entry.payload)
        self.size += size - entry.size
        entry.size = size
        trouble = entry.trouble = entry.trouble or Trouble(in_doubt=True)
        trouble.in_doubt |= not trouble.waits  # its last try was not answered yet
        trouble.waits, trouble.overtaken = False, None
        trouble.tries += 1
        entry.due = min(entry.deadline, now + trouble.attempt)
        self.look_at = min(self.look_at, entry.due)
        return reply_of(reply, trouble.tries), entry

    def end(self, error: JetStreamError | None) -> Failures[TicketT]:
        """It cannot be mended: somebody else's record is the last one (None), or for this error."""
        self.is_broken, self.is_fenced = False, error is None
        return self.fail(lambda entry: self._why(entry, error))


def _no_predecessor() -> ApiError:
    return ApiError.from_fields(400, _WRONG_LAST_MSG_ID, "the record before it was not stored")
