"""A client that is not for Python, in a process that serves all tests: `client.mjs`, and the program in `go`.

The process reads a JSON command a line, and writes a JSON answer a line.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import threading
from typing import Any, Self


class CommandError(Exception):
    """What the client raised. ``code`` is its code, such as a code of the server."""

    def __init__(self, text: str, code: Any) -> None:
        super().__init__(text)
        self.code = code


def encoded(data: bytes) -> str:
    """Bytes as a command has them."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    """Bytes of an answer."""
    return base64.b64decode(text)


class CommandProcess:
    """Runs commands one after the other: `await process.call("kv_get", name=..., key=...)`."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
        """Run a command, and return its result. Raises `CommandError` for what the client raised."""
        answer = await asyncio.to_thread(self._ask, json.dumps({"command": command, **options}))
        if "error" in answer:
            raise CommandError(answer["error"], answer["code"])
        return answer["result"]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"{self._command[0]} ended with {self._process.poll()}"
        return json.loads(answer)
