"""The works with jsclient and jsclient-speedups."""

from __future__ import annotations

import jsclient_speedups

from benchmarks.clients.on_jsclient import WORKS

__all__ = ["VERSION", "WORKS"]

VERSION = jsclient_speedups.__version__
