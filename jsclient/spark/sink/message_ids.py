"""Message ids, by which a stream recognizes rows that are written again.

Spark writes rows again when it retries a failed task, runs a speculative copy of a slow task, or replays an epoch after
a restart. A row must then get the same id as before. Ids are short because the server keeps every id in memory for the
stream's duplicate window::

    <query>.<epoch>.<partition>.<content>[.<n>]     dedup=content
    <query>.<epoch>.<content>[.<n>]                 dedup=content, dedupScope=epoch
    <stream>.<created>.<sequence>.<subject>         dedup=source
    the row's msg_id                                dedup=column

``query`` is a hash of 8 bytes (11 characters), ``content`` a hash of 12 bytes (16 characters), ``subject`` a hash of 6
bytes (8 characters). Numbers are hexadecimal, except the numbers of a source. Spark stores the query id in the
checkpoint, so it survives a restart.

An id identifies the row and its destination. If a batch is written twice to different subjects, the rows of one write
are therefore never taken for repetitions of the other. `publish_batch` numbers several writes of a batch to the same
subjects.

``stream``, ``created`` (in microseconds) and ``sequence`` identify the message of the source that a row was made from.
They do not depend on the query, the epoch or the partition, so rows are recognized even after a checkpoint was restored
or replaced. Two rows that were made from one message and have the same subject get the same id, so only one of them
would be stored. A task refuses them if it receives both rows. If two tasks receive them, the commit of the write
refuses them, see `own_sequences`.

Ids of a column are published unchanged, so that other clients know them. Rows that share an id are stored as one
message if they are equal, and are an error otherwise, see `column_ids` and `shared_rows`.

**Why ids are made from content.** The order of rows in a partition may change when a shuffle is fetched again. The hash
of subject, headers and payload does not depend on the order. Among equal rows, the first has no number and the others
are numbered. Since they are equal, their order does not matter.

**Why the id contains the partition.** A replay of an epoch may distribute rows over partitions differently, because the
cluster or an option has changed, or because adaptive execution has coalesced shuffle partitions differently. An id with
the partition then changes, so the server does not recognize the row. An id without the partition stays the same.
However, equal rows in two partitions, each the first of its kind, would then share one id, and the server would discard
the second row as a duplicate. That loses a row in every run, without any failure. No task can distinguish the two
cases, because it does not know the rows of other tasks. So a replay compares the rows of all tasks with the stored
rows, see `moved_rows`. With ``dedupScope=epoch``, the id does not contain the partition, and no comparison is needed.
This is correct if no rows are equal, if equal rows may count as one, or if equal rows are always in the same partition,
as after ``repartition("subject", "data")``.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from hashlib import blake2b
from operator import add
from struct import Struct

from ...errors import ConfigError

__all__ = ["MAX_ROWS", "ContentIds", "SourceIds", "epoch_prefix", "query_hash"]

MAX_ROWS = 10_000_000
"""Maximum number of rows per partition whose hashes are remembered, at about 100 bytes each."""

_DIGEST = 12  # bytes of a hash, which are 16 base64 characters without padding
_SHORT_DIGEST = 6  # bytes of a hash, which are 8 base64 characters
_TAIL = Struct("16s")
_MAX_SUBJECTS = 50_000  # maximum number of cached subjects, at about 500 bytes each


def query_hash(query: str) -> str:
    """Hash a query id to 11 characters, which are also legal in a subject."""
    return (
        b2a_base64(blake2b(query.encode(), digest_size=8).digest(), newline=False)[:11]
        .translate(bytes.maketrans(b"+/", b"-_"))
        .decode()
    )


def epoch_prefix(query: str, epoch: int) -> bytes:
    """Return the prefix of the ids of all rows of an epoch.

    Args:
        query: The query's id.
        epoch: The batch id.
    """
    return f"{query_hash(query)}.{epoch:x}.".encode()


class _Starts(dict[bytes, "blake2b"]):
    """Cache of a started hash for each subject, because a copy of it is cheaper than a new hash.

    The subject personalizes the hash.
    """

    def __init__(self, salt: bytes = b"") -> None:
        super().__init__()
        self._salt = salt

    def __missing__(self, subject: bytes) -> blake2b:
        if len(self) >= _MAX_SUBJECTS:
            self.clear()
        person = blake2b(subject, digest_size=16).digest()
        self[subject] = start = blake2b(digest_size=_DIGEST, person=person, salt=self._salt)
        return start


class ContentIds:
    """Content-based ids for the rows of one partition. Equal rows are counted, so pass each row once.

    Attributes:
        prefix: The common prefix of the ids. `tails` returns the remainder of each id.
    """

    def __init__(self, epoch: bytes, partition: int | None) -> None:
        self.prefix: bytes = epoch if partition is None else b"%b%x." % (epoch, partition)
        self._starts = _Starts()
        # Without a salt, a bare payload that looks like a header block and a payload would get the same hash as a row
        # with these headers, and would be dropped as a duplicate.
        self._with_headers = _Starts(b"headers")
        self._seen: set[bytes] = set()
        self._again: dict[bytes, int] = {}  # number of repetitions by digest
        self._rows = 0

    def tails(
        self,
        subjects: Sequence[bytes],
        blocks: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> list[bytes]:
        """Return the ids of these rows, without the prefix.

        Args:
            subjects: The subjects that the rows are published to.
            blocks: The rows' header blocks, or None if no row has headers.
            payloads: The rows' payloads.

        Raises:
            ConfigError: The partition has more than `MAX_ROWS` rows.
        """
        count = len(payloads)
        self._rows += count
        if self._rows > MAX_ROWS:
            raise ConfigError(
                f"the partition has more than {MAX_ROWS} rows, whose contents are remembered to tell equal ones "
                "apart: use more partitions, or a column msg_id"
            )
        starts = self._starts
        digests: list[bytes] = []
        add = digests.append
        if blocks is None:
            for subject, data in zip(subjects, payloads, strict=True):
                hash_ = starts[subject].copy()
                hash_.update(data)
                add(hash_.digest())
        else:
            for subject, block, data in zip(subjects, blocks, payloads, strict=True):
                hash_ = (self._with_headers if block else starts)[subject].copy()
                hash_.update(block + data)
                add(hash_.digest())
        text = b2a_base64(b"".join(digests), newline=False)
        tails = [tail for (tail,) in _TAIL.iter_unpack(text)]
        seen = self._seen
        if seen.isdisjoint(digests):
            known = len(seen)
            seen.update(digests)
            if len(seen) == known + count:
                return tails
            seen.difference_update(digests)  # some of these rows are equal, so add them one by one
        for row, digest in enumerate(digests):
            if digest in seen:
                self._again[digest] = number = self._again.get(digest, 0) + 1
                tails[row] = b"%b.%x" % (tails[row], number)
            else:
                seen.add(digest)
        return tails


class SourceIds(dict[bytes, bytes]):
    """Ids that identify the messages from which rows were made. The end of an id is cached for each subject.

    Args:
        write: Number of the write among the writes of its batch to the same destination.
    """

    def __init__(self, write: int = 0) -> None:
        super().__init__()
        self._salt = b"%d" % write if write else b""

    def __missing__(self, subject: bytes) -> bytes:
        if len(self) >= _MAX_SUBJECTS:
            self.clear()
        digest = blake2b(subject, digest_size=_SHORT_DIGEST, salt=self._salt).digest()
        self[subject] = end = b"." + b2a_base64(digest, newline=False)
        return end

    def ids(self, subjects: Sequence[bytes], messages: Sequence[bytes]) -> list[bytes]:
        """Return the ids of rows with these subjects, made from these messages (``stream.created.sequence``)."""
        return list(map(add, messages, map(self.__getitem__, subjects)))

    def ids_of_one_stream(
        self, subjects: Sequence[bytes], stream: bytes, created: int, sequences: Sequence[int]
    ) -> list[bytes]:
        """Return the same ids for rows that are all made from messages of one stream."""
        begin = b"%b.%d." % (stream, created)
        if len(set(subjects)) > 1:
            return [
                b"%b%d%b" % (begin, *row)
                for row in zip(sequences, map(self.__getitem__, subjects), strict=True)
            ]
        # Formatting numbers into a fixed text takes a quarter of the time of joining columns.
        form = begin.replace(b"%", b"%%") + b"%d" + (self[subjects[0]] if subjects else b"")
        return [form % sequence for sequence in sequences]
