"""Claims of queue mode: the offset that stores them, and their division, reading and acks. Does no I/O.

A claim is a delivery, with its stream sequence, its consumer sequence, the number of deliveries, and the number of
messages pending after it. Consecutive claims form a run, so 50,000 claims take about 100 bytes of JSON::

    {"b": 7, "runs": [[first stream seq, first consumer seq, count, delivered, pending after the first], ...],
     "ack": "$JS.ACK.ORDERS.spark", "made": "2026-01-31T12:00:00+00:00", "at": 1769860800000}

In a run, both sequences count up and the number of pending messages counts down. That number is exact unless messages
are published in the meantime, and acks do not depend on it. The offset also stores the start of the ack subjects as the
server has sent it, so the claims can be acked with nothing but the offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from ...errors import ConfigError, PositionInvalidError
from ...protocol.models.consumer import AckPolicy, ConsumerInfo
from ...protocol.models.stream_config import RetentionPolicy, StreamConfig

__all__ = [
    "ClaimCollector",
    "ClaimMatch",
    "ClaimMatcher",
    "QueueOffset",
    "Run",
    "Span",
    "ack_form",
    "ack_subjects",
    "check_queue",
    "claimed",
    "covers",
    "effective_ack_wait",
    "share_out",
    "spans",
]

_FIRST_FORM = 9  # tokens of a JSAck in its first form. The second form has 11 or more
_NUMBERS = 5
# Up to this many sequences between two runs are read and dropped, because a second request would cost more.
NEAR = 64
_FEW = 4  # groups of up to this many claims are read one claim at a time
_SINGLES = 512  # maximum number of claims of a span whose claims are read one at a time
_ACK_WAIT = 30.0  # the server's default in seconds


_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Natural = Annotated[int, msgspec.Meta(ge=0)]


class Run(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Consecutive claims, whose stream and consumer sequences both increase by one."""

    stream_seq: _Positive
    consumer_seq: _Positive
    count: _Positive
    delivered: _Natural  # number of deliveries, including this delivery
    pending: _Natural  # messages pending after the first claim

    @property
    def last(self) -> int:
        """The last stream sequence."""
        return self.stream_seq + self.count - 1

    def part(self, start: int, count: int) -> Run:
        """Return ``count`` claims of this run, starting with number ``start``."""
        pending = max(0, self.pending - start)
        return Run(self.stream_seq + start, self.consumer_seq + start, count, self.delivered, pending)


def claimed(runs: Iterable[Run]) -> int:
    """Return the number of claims in these runs."""
    return sum(run.count for run in runs)


def ack_form(reply: str) -> tuple[str, str]:
    """Return the parts of a JSAck before and after its five numbers. All servers so far send an empty second part."""
    tokens = reply.split(".")
    before = 4 if len(tokens) == _FIRST_FORM else 6
    return ".".join(tokens[:before]), "".join(f".{token}" for token in tokens[before + _NUMBERS :])


def ack_subjects(runs: Iterable[Run], form: tuple[str, str]) -> Iterator[bytes]:
    """Yield the JSAck of each claim. Its timestamp, which the server ignores, is 0."""
    before, behind = (part.encode("utf-8", "surrogateescape").replace(b"%", b"%%") for part in form)
    for run in runs:
        shift = run.consumer_seq - run.stream_seq
        line = b"%b.%d.%%d.%%d.0.0%b" % (before, run.delivered, behind)
        for seq in range(run.stream_seq, run.last + 1):
            yield line % (seq, seq + shift)


def covers(runs: Sequence[Run], first: int) -> bool:
    """Return whether every sequence from ``first`` to the last claim is claimed.

    If so, a purge up to the last claim removes only claimed messages.
    """
    ordered = sorted(runs, key=lambda run: run.stream_seq)
    following = first
    for run in ordered:
        if run.stream_seq > following:
            return False
        following = max(following, run.last + 1)
    return bool(ordered)


def share_out(runs: Iterable[Run], parts: int) -> list[tuple[Run, ...]]:
    """Divide claims, in order of stream sequence, into parts whose sizes differ by at most one."""
    ordered = sorted(runs, key=lambda run: run.stream_seq)
    total = claimed(ordered)
    parts = min(parts, total)
    shares: list[tuple[Run, ...]] = []
    number, offset = 0, 0  # index of the current run, and number of its claims that are already in a share
    for part in range(parts):
        size = total * (part + 1) // parts - total * part // parts
        share: list[Run] = []
        while size:
            run = ordered[number]
            taken = min(size, run.count - offset)
            share.append(run.part(offset, taken))
            size, offset = size - taken, offset + taken
            if offset == run.count:
                number, offset = number + 1, 0
        shares.append(tuple(share))
    return shares


class ClaimCollector:
    """Collector of deliveries, which combines them into runs.

    Attributes:
        count: Number of deliveries.
        last_pending: Messages pending after the last delivery.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.last_pending: int = 0
        self._runs: list[list[int]] = []  # the fields of each `Run`
        # The fields of a delivery that would continue the last run.
        self._next_stream_seq = self._next_consumer_seq = self._delivered = 0
        self._again = False  # true if a message may have been added twice

    @property
    def run_count(self) -> int:
        """The number of runs."""
        return len(self._runs)

    def runs(self) -> list[Run]:
        """Return the runs of all deliveries."""
        return [Run(*run) for run in self._runs]

    def add_delivery(self, stream_seq: int, consumer_seq: int, delivered: int, pending: int) -> None:
        """Add a delivery."""
        self.count += 1
        self.last_pending = pending
        if (
            stream_seq == self._next_stream_seq
            and consumer_seq == self._next_consumer_seq
            and delivered == self._delivered
        ):
            self._runs[-1][2] += 1
        else:
            self._runs.append([stream_seq, consumer_seq, 1, delivered, pending])
            self._delivered = delivered
            # A stream sequence that goes back means a redelivery too, because a killed server forgets deliveries and
            # then repeats them as if for the first time.
            self._again = self._again or delivered > 1 or stream_seq < self._next_stream_seq
        self._next_stream_seq, self._next_consumer_seq = stream_seq + 1, consumer_seq + 1

    def finish(self) -> tuple[Run, ...]:
        """Return the runs of all claims. For a message that was delivered several times, the last delivery counts."""
        runs = tuple(self.runs())
        if not self._again:
            return runs
        newest: dict[int, Run] = {}
        for run in runs:
            for number in range(run.count):
                claim = run.part(number, 1)
                newest.pop(claim.stream_seq, None)
                newest[claim.stream_seq] = claim
        # If every message was delivered only once, no claim is outdated.
        if len(newest) == self.count:
            return runs
        last_claims = ClaimCollector()
        for claim in newest.values():
            last_claims.add_delivery(claim.stream_seq, claim.consumer_seq, claim.delivered, claim.pending)
        return tuple(last_claims.runs())


class QueueOffset(msgspec.Struct, frozen=True, rename={"batch": "b"}, forbid_unknown_fields=True):
    """The claims of one batch. The batch between two offsets consists of the claims of the second offset."""

    batch: _Natural  # number of the batch, or 0 before the first claim
    runs: tuple[Run, ...]
    ack: str = ""  # the part of the ack subjects before the numbers
    behind: str = ""  # the part of the ack subjects after the numbers
    # ``ConsumerInfo.created.isoformat()`` of the consumer. A recreated consumer doesn't know the claims of its
    # predecessor, so claims with a different time are void.
    made: str = ""
    at: _Natural = 0  # the time of the claims, in milliseconds since 1970
    # The number of tasks that share the claims, or 0 if unknown. It is stored so that a replay divides the claims among
    # the same number of tasks, even if the options have changed since.
    parts: _Natural = 0

    @property
    def form(self) -> tuple[str, str]:
        """The parts of the ack subjects, see `ack_form`."""
        return self.ack, self.behind

    @property
    def last_consumer_seq(self) -> int:
        """The highest consumer sequence, or 0 without claims."""
        return max((run.consumer_seq + run.count - 1 for run in self.runs), default=0)

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "b": self.batch,
            "runs": [[*msgspec.structs.astuple(run)] for run in self.runs],
        }
        if self.runs:
            fields |= {"ack": self.ack, "made": self.made, "at": self.at}
            if self.behind:
                fields["behind"] = self.behind
            if self.parts:
                fields["parts"] = self.parts
        return fields

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> QueueOffset:
        """Parse an offset from a checkpoint. Raises `PositionInvalidError` if it is not valid in queue mode."""
        try:
            read = msgspec.convert(dict(offset), cls)
            # Acks are published to these subjects, so refuse anything but JSAck subjects.
            form = read.ack + read.behind
            if read.runs and (not form.startswith("$JS.ACK.") or any(map(str.isspace, form))):
                raise msgspec.ValidationError("'ack' is not a JSAck")
        except (msgspec.ValidationError, UnicodeError) as error:
            raise PositionInvalidError(
                f"the checkpoint has an offset that is not valid in mode 'queue' ({error}): {str(dict(offset))[:200]}; "
                "was it made in another mode, by another source, or by a newer version?"
            ) from None
        return read


@dataclass(frozen=True, slots=True)
class Span:
    """Claims that are read together, in order of stream sequence.

    If the claims are scattered, ``singly`` is True, and each message takes a request. Otherwise batch requests cover
    the span from the first claim to the last.
    """

    runs: tuple[Run, ...]
    singly: bool = False


def spans(runs: Sequence[Run], *, by_filter: bool, batches: bool = True) -> list[Span]:
    """Group claims into spans.

    Args:
        runs: The claims, in order of stream sequence.
        by_filter: Whether requests contain the filter of the consumer, so that the server does not send other messages
            between two claims.
        batches: Whether the server supports batch direct gets.
    """
    if not batches:
        return _singles(runs)
    if by_filter:
        return [Span(tuple(runs))] if runs else []
    groups: list[list[Run]] = []
    for run in runs:
        if groups and run.stream_seq - groups[-1][-1].last <= NEAR:
            groups[-1].append(run)
        else:
            groups.append([run])
    result: list[Span] = []
    scattered: list[Run] = []
    for group in groups:
        # A group with this few claims isn't worth a range request. Set its claims aside, to request each of them
        # separately later.
        if claimed(group) <= _FEW:
            scattered += group
            continue
        result += _singles(scattered)
        scattered = []
        result.append(Span(tuple(group)))
    return result + _singles(scattered)


def _singles(runs: Sequence[Run]) -> list[Span]:
    parts: list[list[Run]] = []
    free = 0
    for run in runs:
        start = 0
        while start < run.count:
            if not free:
                parts.append([])
                free = _SINGLES
            count = min(free, run.count - start)
            parts[-1].append(run.part(start, count))
            start, free = start + count, free - count
    return [Span(tuple(part), singly=True) for part in parts]


@dataclass(slots=True)
class ClaimMatch:
    """Claims whose messages exist, as parallel lists."""

    indexes: list[int]  # indexes of the messages
    consumer_seqs: list[int]
    delivered: list[int]
    pending: list[int]


class ClaimMatcher:
    """Matcher of the messages of a span with its claims, in order.

    Attributes:
        remaining: Number of claims that are not yet matched or missing.
        missing: Claims without a message.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._number = 0  # index of the current run
        self._offset = 0  # number of claims of this run that are matched or missing
        self.remaining: int = claimed(runs)
        self.missing: list[Run] = []

    @property
    def next_seq(self) -> int:
        """The stream sequence of the next claim."""
        return self._runs[self._number].stream_seq + self._offset

    def match_messages(self, seqs: Iterable[int]) -> ClaimMatch:
        """Match messages, given by ascending stream sequences.

        Claims before and between the messages are recorded as missing.
        """
        matched = ClaimMatch([], [], [], [])
        for index, seq in enumerate(seqs):
            self.passed(seq - 1)
            if not self.remaining:
                break
            run = self._runs[self._number]
            if seq < run.stream_seq:
                continue  # the message is not claimed, or another client has claimed it
            matched.indexes.append(index)
            matched.consumer_seqs.append(run.consumer_seq + self._offset)
            matched.delivered.append(run.delivered)
            matched.pending.append(max(0, run.pending - self._offset))
            self._step(1)
        return matched

    def passed(self, seq: int) -> None:
        """Record the remaining claims up to this sequence as missing."""
        while self.remaining:
            run = self._runs[self._number]
            if run.stream_seq + self._offset > seq:
                return
            count = min(run.last, seq) - run.stream_seq - self._offset + 1
            self.missing.append(run.part(self._offset, count))
            self._step(count)

    def _step(self, count: int) -> None:
        self.remaining -= count
        self._offset += count
        if self._offset == self._runs[self._number].count:
            self._number, self._offset = self._number + 1, 0


def check_queue(stream: StreamConfig, consumer: ConsumerInfo, ack_on: str) -> None:
    """Raise `ConfigError` if queue mode cannot read this stream with this consumer."""
    config, name = consumer.config, consumer.name
    where = f"option 'consumer': {name!r} of stream {stream.name!r}"
    if consumer.is_push:
        raise ConfigError(f"{where} is a push consumer: queue mode needs one without deliver_subject")
    if config.ack_policy not in (None, AckPolicy.EXPLICIT):
        raise ConfigError(
            f"{where} has the ack policy {str(config.ack_policy)!r}: queue mode acks each message, "
            "it needs ack_policy='explicit'"
        )
    if not consumer.is_durable:
        raise ConfigError(
            f"{where} is not durable, so it would be deleted while the query is stopped: "
            "create it with durable_name"
        )
    if config.priority_groups:
        raise ConfigError(
            f"{where} has priority groups, which queue mode does not ask for: use another consumer"
        )
    if not stream.allow_direct:
        raise ConfigError(
            f"option 'stream': {stream.name!r} does not allow direct gets, by which executors read claimed messages: "
            "update it with allow_direct=True"
        )
    if ack_on == "purge":
        if stream.retention != RetentionPolicy.WORKQUEUE:
            raise ConfigError(
                f"option 'ackOn' is 'purge', but stream {stream.name!r} is not a work queue, so others may still "
                "need the messages that are purged: use 'batch'"
            )
        if config.filters:
            raise ConfigError(
                f"option 'ackOn' is 'purge', but {where.partition(': ')[2]} has a filter, so that the stream is not "
                "its own: use 'batch'"
            )


def effective_ack_wait(consumer: ConsumerInfo) -> float:
    """Return the shortest time in seconds after which the server may redeliver an unacked message."""
    config = consumer.config
    return min([*(wait for wait in config.backoff or () if wait), config.ack_wait or _ACK_WAIT])
