"""The bytes of a WebSocket: the opening request, its answer, and frames in pieces of any size."""

from __future__ import annotations

import random
from urllib.parse import urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ProtocolError
from jsclient.protocol.connection.handshake import HandshakeError
from jsclient.protocol.connection.websocket import (
    HttpAnswer,
    WebSocketFrames,
    accept_key,
    check_opened,
    closing_frame,
    frame,
    opening_request,
    pong,
)

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def of_server(payload: bytes, code: int = 2, *, final: bool = True) -> bytes:
    """A frame without a mask."""
    size = len(payload)
    length = (
        bytes([size])
        if size < 126
        else b"\x7e" + size.to_bytes(2)
        if size < 65536
        else b"\x7f" + size.to_bytes(8)
    )
    return bytes([code | (0x80 if final else 0)]) + length + payload


def unmasked(data: bytes) -> bytes:
    """The payload of a frame of the client."""
    size = data[1] & 0x7F
    start = 2 + {126: 2, 127: 8}.get(size, 0)
    mask, body = data[start : start + 4], data[start + 4 :]
    assert data[1] & 0x80
    assert len(body) == (size if start == 2 else int.from_bytes(data[2:start]))
    return bytes(byte ^ mask[at % 4] for at, byte in enumerate(body))


def test_key_of_the_standard():
    """RFC 6455, section 1.3."""
    assert accept_key(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_path_is_percent_encoded():
    request = opening_request(urlparse("ws://host/пут ь?a=b%20c"), KEY, [])
    assert request.startswith(b"GET /%D0%BF%D1%83%D1%82%20%D1%8C?a=b%20c HTTP/1.1\r\n")


@pytest.mark.parametrize("size", [0, 1, 3, 4, 125, 126, 4095, 4096, 4097, 65535, 65536, 70_001])
def test_frame_of_client_is_masked(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    data = frame(payload, b"\x01\x02\x03\xff")
    assert data[0] == 0x82
    assert unmasked(data) == payload


def test_control_frames_of_client():
    assert unmasked(pong(b"abc", b"mask")) == b"abc"
    assert pong(b"", b"mask")[0] == 0x8A
    assert closing_frame(b"mask")[0] == 0x88
    assert unmasked(closing_frame(b"mask")) == (1000).to_bytes(2)


@given(st.lists(st.tuples(st.binary(max_size=300), st.sampled_from([2, 9, 10])), max_size=8), st.randoms())
def test_payloads_do_not_depend_on_the_pieces(sent: list[tuple[bytes, int]], rng: random.Random) -> None:
    sent = [(payload[:125] if code > 8 else payload, code) for payload, code in sent]
    data, begun = b"", False
    for payload, code in sent:
        final = code > 8 or rng.random() < 0.5
        data += of_server(payload, 0 if code == 2 and begun else code, final=final)
        begun = begun if code > 8 else not final
    frames, got, pings = WebSocketFrames(), b"", []
    while data:
        count = rng.randint(1, 40)
        got += frames.receive(data[:count])
        data = data[count:]
        if frames.ping is not None:
            pings.append(frames.ping)
            frames.ping = None
    assert got == b"".join(payload for payload, code in sent if code < 8)
    expected = [payload for payload, code in sent if code == 9]
    # Of several pings in one piece only the last has to be answered.
    assert [ping for ping in expected if ping in pings] or not expected
    assert len(pings) <= len(expected)


def test_huge_frame_is_passed_on_as_it_arrives():
    frames = WebSocketFrames()
    assert frames.receive(b"\x82\x7f" + (2**62).to_bytes(8) + b"abc") == b"abc"
    assert frames.receive(b"x" * 1000) == b"x" * 1000
    assert frames._head == b""


def test_bytes_after_the_close_are_ignored():
    frames = WebSocketFrames()
    assert frames.receive(of_server(b"a") + of_server(b"\x03\xe8", 8) + of_server(b"b")) == b"a"
    assert frames.closed


@pytest.mark.parametrize(
    "data",
    [
        of_server(b"x", 1),
        of_server(b"x", 3),
        of_server(b"x" * 126, 9),
        of_server(b"x", 9, final=False),
        b"\xc2\x01x",
        b"\x82\x81mask-",
        of_server(b"x", 0),
        of_server(b"x", 0, final=False),
        b"\x82\x7f" + (2**63).to_bytes(8),
    ],
    ids=[
        "text",
        "unknown",
        "long ping",
        "half a ping",
        "extension",
        "masked",
        "end without a beginning",
        "middle without a beginning",
        "size of 64 bits",
    ],
)
def test_malformed_frame(data: bytes) -> None:
    """The payloads before it are returned, and the bytes after it are ignored."""
    for before in (of_server(b"ab"), of_server(b"a", final=False) + of_server(b"b", 0)):
        for count in range(1, len(before + data) + 1):
            frames, sent = WebSocketFrames(), before + data + of_server(b"c")
            got = b"".join(frames.receive(sent[at : at + count]) for at in range(0, len(sent), count))
            assert got == b"ab"
            assert isinstance(frames.error, ProtocolError)
            assert "WebSocket" in str(frames.error)


@pytest.mark.parametrize("code", [1, 2, 3])
def test_frame_within_a_fragmented_message(code: int) -> None:
    """Control frames may stand there. Source: RFC 6455, section 5.4."""
    frames = WebSocketFrames()
    message = (of_server(b"a", final=False), of_server(b"x", 9), of_server(b"b", 0, final=False))
    assert frames.receive(b"".join(message)) == b"ab"
    assert frames.error is None
    assert frames.receive(of_server(b"c", code)) == b""
    assert isinstance(frames.error, ProtocolError)


def test_message_follows_a_fragmented_message():
    frames = WebSocketFrames()
    message = of_server(b"a", final=False) + of_server(b"b", 0)
    assert frames.receive(message + of_server(b"c") + message) == b"abcab"
    assert frames.error is None


@pytest.mark.parametrize(
    ("url", "first", "host"),
    [
        ("ws://u:p@a:80", "GET / HTTP/1.1", "a"),
        ("wss://a:443/x?y=1#z", "GET /x?y=1 HTTP/1.1", "a"),
        ("wss://a:80?y", "GET /?y HTTP/1.1", "a:80"),
        ("ws://[::1]:8080/", "GET / HTTP/1.1", "[::1]:8080"),
    ],
)
def test_opening_request(url: str, first: str, host: str) -> None:
    lines = opening_request(urlparse(url), KEY, [("A", "b"), ("A", "\u00e4")]).decode("latin-1").split("\r\n")
    assert lines[:4] == [first, f"Host: {host}", "A: b", "A: \u00e4"]
    assert lines[-3:] == [f"Sec-WebSocket-Key: {KEY}", "", ""]


def test_host_may_be_given():
    request = opening_request(urlparse("ws://a:80"), KEY, [("host", "b")]).decode()
    assert request.lower().count("host: ") == 1
    assert "host: b\r\n" in request


def answered(data: bytes, scheme: str = "ws") -> HttpAnswer:
    answer = HttpAnswer.cut_from(bytearray(data), scheme)
    assert answer is not None
    return answer


OPENED = (
    f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nSEC-WebSocket-Accept: {accept_key(KEY)}\r\n"
)


def test_answer_is_cut_from_what_follows():
    received = bytearray()
    for byte in f"{OPENED}\r\n".encode():
        assert HttpAnswer.cut_from(received, "ws") is None
        received.append(byte)
    received += b"rest"
    answer = HttpAnswer.cut_from(received, "ws")
    assert answer is not None
    check_opened(answer, KEY, "ws")
    assert received == b"rest"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("HTTP/1.1 200 OK\r\n", "HTTP status 200$"),
        ("HTTP/1.0 400 Bad Request\r\n", "use wss://"),
        ("HTTP/1.1 401\r\n", "check ws_connection_headers"),
        ("HTTP/1.1 307 x\r\nLocation: ws://b\r\n", "redirects"),
        ("HTTP/1.1 101 x\r\nUpgrade: h2c\r\n", "another request"),
        (OPENED.replace("=", ""), "another request"),
        (f"{OPENED}Sec-WebSocket-Extensions: permessage-deflate\r\n", "extension"),
    ],
)
def test_answer_that_opens_no_websocket(answer: str, says: str) -> None:
    with pytest.raises(HandshakeError, match=says):
        check_opened(answered(f"{answer}\r\n".encode()), KEY, "ws")


@pytest.mark.parametrize(
    ("data", "scheme", "says"),
    [
        (b"INFO {}\r\n", "ws", "use nats://"),
        (b"INFO {}\r\n", "wss", "use tls://"),
        (b"SSH-2.0", "ws", "does not speak HTTP"),
        (b"HTTP/2 200\r\n\r\n", "ws", "does not speak HTTP"),
        (b"HTTP/1.1 20\r\n\r\n", "ws", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 65536, "ws", "does not speak HTTP"),
    ],
)
def test_what_is_no_answer(data: bytes, scheme: str, says: str) -> None:
    with pytest.raises(HandshakeError, match=says):
        HttpAnswer.cut_from(bytearray(data), scheme)
