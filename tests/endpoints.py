"""An HTTP endpoint on this machine, for tests: what it answers is what the test says."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: A status and a body; a function writes the whole answer by itself.
Answer = tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]


class Endpoint:
    """``faults``: the next answers; ``always``: all others.

    ``asked``: paths and credentials of the requests, ``bodies``: what was posted.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.faults: list[Answer] = []
        self.always: Answer | None = None
        self.asked: list[tuple[str, str | None]] = []
        self.bodies: list[bytes] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sent = self.headers.get("Authorization")
                basic = sent is not None and sent.startswith("Basic ")
                endpoint.asked.append((self.path, base64.b64decode(sent[6:]).decode() if sent and basic else sent))
                answer = endpoint.faults.pop(0) if endpoint.faults else endpoint.always or endpoint.answer(self.path)
                if callable(answer):
                    answer(self)
                    return
                status, body = answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def do_POST(self) -> None:
                endpoint.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up in these tests
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.host = f"{host}:{self.server.server_port}"
        self.url = f"http://{self.host}"

    def answer(self, path: str) -> Answer:
        """Where neither ``faults`` nor ``always`` says it."""
        return 404, {"error": f"nothing at {path}"}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
