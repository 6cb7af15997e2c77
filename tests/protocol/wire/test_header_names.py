"""The names of headers, in the spelling of the server's source, which compares them exactly."""

from __future__ import annotations

import pytest

from jsclient.protocol.wire import header_names
from jsclient.protocol.wire.headers import encode_headers, parse_headers

NAMES = {name: value for name, value in vars(header_names).items() if name.isupper()}


def test_each_name_stands_once():
    assert len(NAMES) > 35
    assert len({*NAMES.values()}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_name_is_that_of_the_constant(name):
    """``MSG_ID`` is ``Nats-Msg-Id``. The server writes TTL in capitals, and UpTo as one word."""
    words = name.title().replace("Ttl", "TTL").replace("Up_To", "UpTo").split("_")
    assert NAMES[name] == "-".join(["Nats", *words])


@pytest.mark.parametrize("value", NAMES.values())
def test_name_is_written_and_read(value):
    assert parse_headers(encode_headers({value: "1"}))[1] == {value: "1"}
