"""The HTTP interface of Kubernetes, as far as `spark-submit` uses it: it keeps what is created and starts nothing."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from integration.kit.servers.ports import HOST

__all__ = ["KubernetesApi"]


class KubernetesApi:
    """Listens on loopback until `close`.

    Attributes:
        url: For ``--master``.
        created: The objects, in order.
    """

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        created = self.created

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _create(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                created.append(json.loads(body))
                answer = json.loads(body)
                answer["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
                self._answer(201 if self.command == "POST" else 200, answer)

            do_POST = do_PATCH = do_PUT = _create  # noqa: N815  names of http.server

            def do_GET(self) -> None:
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
                self._answer(404, {**status, "reason": "NotFound"})

            def _answer(self, code: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"k8s://http://{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
