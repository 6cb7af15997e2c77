"""The official JavaScript client, in one process of node that serves all tests: `client.mjs`."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

_FOLDER = Path(__file__).parent


class NodeError(Exception):
    """What the JavaScript client raised. ``code`` is its code, such as a code of the server."""

    def __init__(self, text: str, code: Any) -> None:
        super().__init__(text)
        self.code = code


def encoded(data: bytes) -> str:
    """Bytes as a command has them."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    """Bytes of an answer."""
    return base64.b64decode(text)


class NodeProcess:
    """Runs commands one after the other: `await node.call("kv_get", name=..., key=...)`."""

    def __init__(self) -> None:
        node = shutil.which("node")
        assert node, "the tests of interoperability need node: the session 'interop' installs its packages"
        assert (_FOLDER / "node_modules").is_dir(), "run 'npm ci' in integration/interop, as the session does"
        self._process = subprocess.Popen(
            [node, str(_FOLDER / "client.mjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    async def call(self, command: str, **options: Any) -> Any:
        """Run a command, and return its result. Raises `NodeError` for what the client raised."""
        answer = await asyncio.to_thread(self._ask, json.dumps({"command": command, **options}))
        if "error" in answer:
            raise NodeError(answer["error"], answer["code"])
        return answer["result"]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"node ended with {self._process.poll()}"
        return json.loads(answer)
