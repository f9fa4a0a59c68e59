"""A schema registry over HTTP, for tests: what it answers is what the test says."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: A status and a body; a function writes the whole answer by itself.
Answer = tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]
NOT_FOUND: Answer = (404, {"error_code": 40403, "message": "Schema not found"})


class Registry:
    """Knows ``schemas`` by id from 1 on, and the newest of them as that of each subject.

    ``faults``: the next answers, in place of what it knows; ``always``: all answers. ``asked``: paths and credentials.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.schemas: list[Any] = []
        self.faults: list[Answer] = []
        self.always: Answer | None = None
        self.asked: list[tuple[str, str | None]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sent = self.headers.get("Authorization")
                registry.asked.append((self.path, sent and base64.b64decode(sent.split()[1]).decode()))
                answer = registry.faults.pop(0) if registry.faults else registry.always or registry.answer(self.path)
                if callable(answer):
                    answer(self)
                    return
                status, body = answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up in these tests
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.host = f"{host}:{self.server.server_port}"
        self.url = f"http://{self.host}"

    def answer(self, path: str) -> Answer:
        """What a sound registry answers: a schema, or an object that is the answer itself."""
        *_, last = path.partition("?")[0].split("/")
        at = len(self.schemas) if last == "latest" else int(last) if last.isdecimal() else 0
        if not 1 <= at <= len(self.schemas):
            return NOT_FOUND
        known = self.schemas[at - 1]
        return 200, known if "schema" in known else {"schema": json.dumps(known)}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def framed(number: int, value: bytes) -> bytes:
    """Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big") + value
