"""Message ids: what makes a row that is written again known to the stream.

Spark writes rows again: a task that failed, a copy of a slow one, an epoch that is replayed after a restart. Each row
must then get the id it had. It is short, for the server keeps every id in memory for the stream's duplicate window::

    <query>.<epoch>.<partition>.<content>[.<n>]     dedup=content
    <query>.<epoch>.<content>[.<n>]                 dedup=content, dedupScope=epoch
    <query>.<epoch>.<partition>.<index>             dedup=index
    the row's msg_id                                dedup=column

The query is 8 bytes of a hash (11 letters), the content 12 (16 letters), numbers are hexadecimal. The query id of Spark
is that of the checkpoint, so that it is the same after a restart.

**Why content.** The rows of a partition come in another order when a shuffle is fetched again. The hash of subject,
headers and payload does not depend on order. Of equal rows the first one has no number, the others are counted, and as
they are equal it does not matter which is which.

**Why the partition is in the id.** When an epoch is replayed, rows can be in other partitions than before: the cluster
or an option was changed, or adaptive execution has put shuffle partitions together in another way. An id with the
partition in it is then new, and the row is stored twice. An id without it does not depend on that; but then equal rows
in two partitions, each the first of its kind there, have one id, and the second is taken for the first one sent again:
a row is lost, in every run and without any fault. No task can tell the two cases apart, as none knows the rows of the
others. Losing is worse than storing twice, and equal rows ("21.5" of a sensor) are more common than epochs that are
replayed in another shape. So the partition is in the id, unless ``dedupScope=epoch`` says that there are no equal rows,
that they may count as one, or that they are always in one partition, as after ``repartition("subject", "data")``. What
is in the partitions of a replay must then be the same rows in any arrangement.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from ...errors import ConfigError

__all__ = ["MAX_ROWS", "ContentIds", "IndexIds", "epoch_prefix", "query_hash"]

MAX_ROWS = 10_000_000
"""Rows of one partition whose contents are remembered: some 100 bytes each."""

_DIGEST = 12  # bytes: 16 letters without padding
_LETTERS = 16
_MAX_SUBJECTS = 100_000  # subjects whose hashes are kept


def query_hash(query: str) -> str:
    """Eleven letters, which may stand in a subject, too."""
    return (
        b2a_base64(blake2b(query.encode(), digest_size=8).digest(), newline=False)[:11]
        .translate(bytes.maketrans(b"+/", b"-_"))
        .decode()
    )


def epoch_prefix(query: str, epoch: int) -> bytes:
    """What the ids of all rows of an epoch start with.

    Args:
        query: The query's id.
        epoch: Its batch id.
    """
    return f"{query_hash(query)}.{epoch:x}.".encode()


class _Hashes(dict[bytes, bytes]):
    """Sixteen bytes for each subject, which the hash of a payload is personalised with: cheaper than hashing both.

    None for no subject: a row's id must not depend on the rows beside it.
    """

    def __init__(self) -> None:
        super().__init__({b"": b""})

    def __missing__(self, subject: bytes) -> bytes:
        if len(self) >= _MAX_SUBJECTS:
            self.clear()
            self[b""] = b""
        self[subject] = found = blake2b(subject, digest_size=16).digest()
        return found


class ContentIds:
    """Ids of the rows of one partition by what is in them. Ask for each row once.

    Attributes:
        prefix: What all of them start with; `tails` gives the rest.
    """

    def __init__(self, epoch: bytes, partition: int | None) -> None:
        self.prefix: bytes = epoch if partition is None else b"%b%x." % (epoch, partition)
        self._subjects = _Hashes()
        self._seen: set[bytes] = set()
        self._again: dict[bytes, int] = {}  # how many more there were
        self._rows = 0

    def tails(
        self,
        subjects: Sequence[bytes] | None,
        blocks: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> list[bytes]:
        """The ids of these rows, without the prefix.

        Args:
            subjects: The rows' own subjects; None: all rows of the write have the same one, which says nothing.
            blocks: The rows' own header blocks; None: there are none.

        Raises:
            ConfigError: The partition has more rows than can be remembered.
        """
        count = len(payloads)
        self._rows += count
        if self._rows > MAX_ROWS:
            raise ConfigError(
                f"the partition has more than {MAX_ROWS} rows, whose contents are remembered to tell equal ones "
                "apart: use more partitions, a column msg_id, or dedup=index"
            )
        of = self._subjects
        if blocks is None and subjects is None:
            digests = [blake2b(data, digest_size=_DIGEST).digest() for data in payloads]
        elif blocks is None:
            assert subjects is not None
            digests = [
                blake2b(data, digest_size=_DIGEST, person=of[subject]).digest()
                for subject, data in zip(subjects, payloads, strict=True)
            ]
        else:
            digests = [
                blake2b(data, digest_size=_DIGEST, person=of[subject]).digest()
                if not block
                # Salted, so that no payload can look like headers and a payload.
                else blake2b(block + data, digest_size=_DIGEST, person=of[subject], salt=b"headers").digest()
                for subject, block, data in zip(subjects or [b""] * count, blocks, payloads, strict=True)
            ]
        text = b2a_base64(b"".join(digests), newline=False)
        tails = [text[at : at + _LETTERS] for at in range(0, len(text), _LETTERS)]
        seen, new = self._seen, set(digests)
        if len(new) == count and seen.isdisjoint(new):
            seen |= new
            return tails
        for row, digest in enumerate(digests):
            if digest in seen:
                self._again[digest] = number = self._again.get(digest, 0) + 1
                tails[row] = b"%b.%x" % (tails[row], number)
            else:
                seen.add(digest)
        return tails


class IndexIds:
    """Ids of the rows of one partition by their places in it: for partitions that always come in the same order."""

    def __init__(self, epoch: bytes, partition: int) -> None:
        self.prefix: bytes = b"%b%x." % (epoch, partition)
        self._next = 0

    def tails(
        self,
        subjects: Iterable[bytes] | None,
        blocks: Iterable[bytes] | None,
        payloads: Sequence[bytes],
    ) -> list[bytes]:
        """The ids of these rows, without the prefix."""
        first = self._next
        self._next += len(payloads)
        return [b"%x" % row for row in range(first, self._next)]
