"""Questions about a publisher that is alive."""

from __future__ import annotations

import pytest

from jsclient.errors import ProtocolError
from jsclient.protocol.epochs.presence import presence_subject, read_presence, write_presence


@pytest.mark.parametrize("verb", ["ask", "take", "alive"])
def test_what_is_written_is_read(verb):
    assert read_presence(write_presence(verb)) == verb


@pytest.mark.parametrize("odd", [b"", b"{}", b'{"v":2,"verb":"ask"}', b'{"v":1,"verb":"\xff"}', b"[" * 9999])
def test_odd_texts_refused(odd):
    with pytest.raises(ProtocolError, match="not a question about a publisher"):
        read_presence(odd)


def test_live_topics_have_a_subject_of_their_own():
    assert presence_subject("a.b", 3) == "a.b.3.publisher"
    assert presence_subject("a.b", 3, live=True) == "a.b.3.live.publisher"
