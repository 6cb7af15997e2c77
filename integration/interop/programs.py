"""The programs of clients that are not for Python."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from integration.interop.command_process import CommandProcess

__all__ = ["go_program", "has_go", "node_program"]

_FOLDER = Path(__file__).parent
_GO = "JSCLIENT_TEST_GO"


def node_program() -> CommandProcess:
    """Start the official JavaScript client."""
    node = shutil.which("node")
    assert node, "the tests of interoperability need node: the session 'interop' installs its packages"
    assert (_FOLDER / "node_modules").is_dir(), "run 'npm ci' in integration/interop, as the session does"
    return CommandProcess(node, str(_FOLDER / "client.mjs"))


def has_go() -> bool:
    """Whether `JSCLIENT_TEST_GO` names a program that was built from the folder `go`."""
    return _GO in os.environ


def go_program() -> CommandProcess:
    """Start the official Go client."""
    return CommandProcess(os.environ[_GO])
