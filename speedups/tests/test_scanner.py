"""The compiled scanner accepts only frames that the Python reader accepts, and reads them in the same way."""

from __future__ import annotations

import jsclient_speedups
import pytest
from jsclient_speedups import scan

from jsclient._runtime.connection.speedups import chosen
from jsclient._runtime.connection.wire import FrameReader
from jsclient.errors import ProtocolError
from tests.support import wire_streams


def test_it_is_in_use():
    assert chosen().scan is scan
    assert chosen().text == f"compiled (jsclient-speedups {jsclient_speedups.__version__})"


def test_same_calls_as_python_reader(block):
    first, count = block
    read, kinds = wire_streams.compare(scan, first, count)
    assert read >= 2 * count
    if count >= 100:
        assert kinds >= {"sink", "other", "line", "sink error"}


def test_whole_frames_in_runs():
    data = (
        b"MSG a 1 1\r\nx\r\nMSG a 1 r 0\r\n\r\nHMSG b 1 2 3\r\nhhp\r\nMSG a 21 1\r\ny\r\nMSG a 1 1\r\nz\r\n"
    )
    runs = [
        (b"1", [(b"a", b"", b"", b"x"), (b"a", b"r", b"", b""), (b"b", b"", b"hh", b"p")]),
        (b"21", [(b"a", b"", b"", b"y")]),
        (b"1", [(b"a", b"", b"", b"z")]),
    ]
    assert scan(data) == (runs, len(data))
    assert scan(data, 14) == ([(b"1", runs[0][1][1:]), *runs[1:]], len(data))
    assert scan(data, len(data)) == ([], len(data))
    assert scan(b"") == ([], 0)


WHOLE = b"HMSG a.b 17 reply 012 0015\r\nNATS/1.0\r\n\r\nabc\r\n"
FRAME = (b"17", [(b"a.b", b"reply", b"NATS/1.0\r\n\r\n", b"abc")])


@pytest.mark.parametrize("rest", [WHOLE[:cut] for cut in range(len(WHOLE))], ids=len)
def test_stops_before_incomplete_frame(rest):
    assert scan(WHOLE + rest) == ([FRAME], len(WHOLE))


@pytest.mark.parametrize("line", wire_streams.LINES, ids=repr)
def test_stops_before_anything_else(line):
    assert scan(WHOLE + line + WHOLE) == ([FRAME], len(WHOLE))


def changed() -> list[bytes]:
    """Return variants of the frame in which one byte is replaced, removed or doubled."""
    places = range(len(WHOLE))
    return [
        *(WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :] for at in places for byte in range(256)),
        *(WHOLE[:at] + WHOLE[at + 1 :] for at in places),
        *(WHOLE[:at] + WHOLE[at : at + 1] + WHOLE[at:] for at in places),
    ]


def test_every_byte_changed():
    """The scanner reads a frame if and only if the Python reader reads it."""
    read = 0
    for data in changed():
        host = wire_streams.Recorder(None)
        frames = []
        host.on_other = lambda sid, frame, into=frames: into.append((sid, [frame]))
        host.reader.sinks.clear()
        try:
            rest = host.reader._scan(data)
        except ProtocolError:
            rest = None
        runs, end = scan(data)
        assert runs == frames, data
        assert rest in {end, None}, data
        read += bool(frames)
    assert read > 3000


@pytest.mark.parametrize("start", [-1, 5])
def test_offset_outside(start):
    with pytest.raises(ValueError, match="it must be from 0"):
        scan(b"MSG ", start)


@pytest.mark.parametrize(
    "data", [None, "MSG", bytearray(b"MSG"), memoryview(b"MSG")], ids=lambda data: type(data).__name__
)
def test_only_bytes(data):
    with pytest.raises(TypeError):
        scan(data)


def test_reader_without_it_is_pure(monkeypatch):
    monkeypatch.setenv("JSCLIENT_PURE", "1")
    chosen.cache_clear()
    try:
        assert FrameReader(wire_streams.Recorder(None))._compiled is None
    finally:
        monkeypatch.undo()
        chosen.cache_clear()
