"""A server that is too old for what it would overlook."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.wire.version import check_server


@pytest.mark.parametrize(
    "version", ["2.12.0", "2.12.8", "2.14.0-RC.1", "2.100.0", "3.0.0", "v2.12.1", "", "dev", "git-1a2b", "2"]
)
def test_server_knows_or_does_not_say(version):
    check_server(version, (2, 12), "ttl")


@pytest.mark.parametrize("version", ["2.11.9", "2.9.0", "1.99.0", "v2.2.0", "2.11.0-dev"])
def test_a_server_that_is_too_old(version):
    with pytest.raises(ConfigError, match=r"^ttl needs nats-server 2\.12; .*" + version):
        check_server(version, (2, 12), "ttl")
