"""Numbers that the caller gave, and a server that is too old for what it would overlook."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.wire.checks import check_count, check_seconds, check_server


def test_count():
    assert check_count("batch", 1) == 1
    assert check_count("retries", 0, least=0) == 0
    assert check_count("batch", 5, most=5) == 5


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_count_refuses(value):
    with pytest.raises(ConfigError, match=r"^batch is .*: it must be an integer >= 1$"):
        check_count("batch", value)


def test_count_has_a_bound():
    for value in (0, 1001):
        with pytest.raises(ConfigError, match=f"batch is {value}: it must be an integer from 1 to 1,000"):
            check_count("batch", value, most=1000)
    with pytest.raises(ConfigError, match="partition is 1: it must be an integer from 0 to 0"):
        check_count("partition", 1, 0, 0)


def test_seconds():
    assert check_seconds("timeout", 1) == 1
    assert check_seconds("timeout", 0.5) == 0.5


@pytest.mark.parametrize("value", [0, -1.0, True, "1", None, float("nan"), float("inf")])
def test_seconds_refuses(value):
    with pytest.raises(
        ConfigError, match=r"^timeout is .*: (it must be over 0|a number of seconds is needed)$"
    ):
        check_seconds("timeout", value)


@pytest.mark.parametrize(
    "version", ["2.12.0", "2.12.8", "2.14.0-RC.1", "2.100.0", "3.0.0", "v2.12.1", "", "dev", "git-1a2b", "2"]
)
def test_server_knows_or_does_not_say(version):
    check_server(version, (2, 12), "ttl")


@pytest.mark.parametrize("version", ["2.11.9", "2.9.0", "1.99.0", "v2.2.0", "2.11.0-dev"])
def test_a_server_that_is_too_old(version):
    with pytest.raises(ConfigError, match=r"^ttl needs nats-server 2\.12; .*" + version):
        check_server(version, (2, 12), "ttl")
