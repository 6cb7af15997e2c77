"""docs/howto/from-nats-py.md: both sides of a pair print the same, and the table has names that exist.

`integration/docs/test_pages.py` executes the page on a real server and compares what it prints.
"""

from __future__ import annotations

import re

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.client import JetStreamContext

import jsclient
from integration.docs.test_pages import ROOT, python_of

PAGE = "docs/howto/from-nats-py.md"
TEXT = (ROOT / PAGE).read_text()
THEIRS = {"js": JetStreamContext, "nc": Client, "sub": Subscription, "msg": Msg}
OURS = {
    "js": jsclient.JetStream,
    "stream": jsclient.Stream,
    "consumer": jsclient.Consumer,
    "publisher": jsclient.Publisher,
    "sub": jsclient.Subscription,
    "msg": jsclient.Message,
    "metadata": jsclient.Metadata,
}
ROWS = re.findall(r"^\| `((?:js|nc|sub|msg)\.[\w.]+)` \| (.*) \|$", TEXT, re.MULTILINE)


def test_pairs_print_the_same() -> None:
    blocks = [(code.partition("\n")[0], printed) for code, printed in python_of(PAGE)]
    pairs = [block for block in blocks if block[0] in {"# nats-py", "# jsclient"}]
    assert len(pairs) >= 22
    assert all(printed is not None for _, printed in pairs)
    for theirs, ours in zip(pairs[::2], pairs[1::2], strict=True):
        assert (theirs[0], ours[0]) == ("# nats-py", "# jsclient")
        assert theirs[1] == ours[1]


@pytest.mark.parametrize(("theirs", "ours"), ROWS, ids=[row[0] for row in ROWS])
def test_names_of_table_exist(theirs: str, ours: str) -> None:
    owner, name = theirs.split(".")[:2]
    assert hasattr(THEIRS[owner], name)
    named = re.findall(r"\b(js|stream|consumer|publisher|sub|msg|metadata)\.(\w+)", ours)
    assert named or "async for msg in sub" in ours
    assert [name for owner, name in named if not hasattr(OURS[owner], name)] == []


def test_table_is_there() -> None:
    assert len(ROWS) >= 20
