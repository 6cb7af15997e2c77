"""What a table needs of the reader: records in between may be missing, lost pushes may not."""

from __future__ import annotations

from jsclient.protocol.topics.links import MissingRule
from jsclient.protocol.topics.position import Extent
from jsclient.protocol.topics.record import Record


def test_newest_only_passes_gaps():
    extent = Extent("S", "I", first_seq=90, last_seq=100)
    late = Record(seq=95, subject="a")
    plain, newest = MissingRule(), MissingRule(newest_only=True)
    assert plain.before(late, 10, extent) == "lost"
    assert newest.before(late, 10, extent) == newest.before(late, 10, None) == "nothing"
    assert plain.at_end(100, 10, extent) == "lost"
    assert newest.at_end(100, 10, extent) == "nothing"
    assert not newest.needs_extent([late], 10)


def test_newest_only_notices_lost_pushes():
    newest = MissingRule(newest_only=True)
    assert newest.run([Record(seq=12, subject="a")], 10, None) == 0, "unknown predecessor"
    assert newest.run([Record(seq=12, previous=11)], 10, None) == 0
    assert newest.run([Record(seq=12, previous=10)], 10, None) == 1
