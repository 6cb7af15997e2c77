"""Long runs of acks are read with a pattern. `test_frame_runs` compares its frames with those of the general reader."""

from __future__ import annotations

from jsclient._runtime.connection.frame_patterns import PatternReader
from tests.runtime.connection.test_wire import Host, msg


def test_pattern_reads_long_runs(monkeypatch):
    """From the third long run of acks on, one search reads all that comes before other frames."""
    read = []

    def note(reader, *arguments):
        if size := read_frames(reader, *arguments):
            read.append(size)
        return size

    read_frames = PatternReader.read_frames
    monkeypatch.setattr(PatternReader, "read_frames", note)
    host = Host(b"1")
    host.reader._compiled = None
    run = b"".join(msg(b"1", b'{"stream":"S", "seq":%d}' % seq, b"_INBOX.a.%d" % seq) for seq in range(200))
    second = run.index(b"_INBOX.a.1 ") - len(b"MSG ")
    third = run.index(b"_INBOX.a.2 ") - len(b"MSG ")
    host.feed(run, run)
    assert not read
    host.feed(run + msg(b"1", b"a\r\nb") + run[:-1], run[-1:])
    assert read
    assert read[0] in (len(run) - second, len(run) - third)
    assert host.seen[:200] == host.seen[200:400] == host.seen[400:600] == host.seen[601:]
    assert host.seen[600] == (b"1", b"orders.new", b"", b"", b"a\r\nb")


def test_patterns_are_bounded():
    reader = PatternReader({})
    for sid in range(50):
        reader.count_run(b"%d" % sid)
        assert len(reader._patterns) <= reader.CAPACITY
