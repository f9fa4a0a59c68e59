"""What connects to ``serve()``: an answer or an end within the deadline, and a probe is answered all the while."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import time
from unittest import mock

from managedconsumer.observe.endpoint import Endpoint
from managedconsumer.runtime import serving
from tests.fuzz.kit import Case, mutate

_PATIENCE = 0.1
#: How much longer a busy machine may take.
_SLACK = 20.0
_TARGETS = (
    *(b"/live", b"/ready", b"/metrics", b"/lag", b"/lag?replicas", b"/lag?replicas&lag_per_replica=1e-320", b"//["),
    *(b"/%00", b"/lag?" + b"a=b&" * 3000, b"http://x/lag", b"*", b"", b"/\xff\x1b[2J", b"/live HTTP/9.9 x"),
)
_HEADERS = (
    *(b"Host: localhost", b"Host: evil.example", b"Host: [::1", b"Host:", b"Content-Length: 99999999"),
    *(b"X: " + b"y" * 17000, b"Transfer-Encoding: chunked", b"Connection: keep-alive", b"\x00\x01", b":"),
    b"Expect: 100-continue",
)


class Requests:
    """Bytes on a connection: random, slow, huge, several requests at once, or none."""

    name = "requests"

    def case(self, rng: random.Random) -> Case:
        stream = b""
        for _ in range(rng.randint(0, 3)):
            method = rng.choice((b"GET", b"GET", b"HEAD", b"POST", b"PUT", b"\x16\x03\x01", b""))
            lines = [method + b" " + rng.choice(_TARGETS) + b" HTTP/1.1", *rng.choices(_HEADERS, k=rng.randint(0, 3))]
            stream += b"\r\n".join(lines) + rng.choice((b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n"))
        if rng.random() < 0.5:
            stream = mutate(stream, rng)
        if rng.random() < 0.05:
            stream += rng.randbytes(200_000)
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randint(0, 4)))
        parts = [stream[first:stop] for first, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        return {"parts": parts, "ends": rng.random() < 0.8, "idle": rng.choice((0, 0, 0, 0, 20))}

    def check(self, case: Case) -> None:
        errors: list[logging.LogRecord] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = errors.append  # type: ignore[method-assign]
        serving.log.addHandler(handler)
        try:
            with mock.patch.object(serving, "_PATIENCE", _PATIENCE), contextlib.ExitStack() as stack:
                endpoint = stack.enter_context(Endpoint([], "127.0.0.1", 0, 300.0))
                for _ in range(case["idle"]):
                    stack.enter_context(socket.create_connection(endpoint.address))
                answer = _said(endpoint, case["parts"], case["ends"])
                assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer[:100]
                assert answer.count(b"Connection: close") == (1 if answer else 0)
                probe = _said(endpoint, [b"GET /live HTTP/1.1\r\n\r\n"], ends=False)
                assert probe.startswith(b"HTTP/1.1 200 OK\r\n")
        finally:
            serving.log.removeHandler(handler)
        assert not errors, errors[0].getMessage()


def _said(endpoint: Endpoint, parts: list[bytes], ends: bool) -> bytes:
    """What comes back until the server ends the connection, which it does in time."""
    began = time.monotonic()
    found = b""
    with socket.create_connection(endpoint.address, _SLACK) as client, contextlib.suppress(ConnectionError):
        for part in parts:
            client.sendall(part)
        if ends:
            with contextlib.suppress(OSError):  # the server may have ended it already
                client.shutdown(socket.SHUT_WR)
        while more := client.recv(65536):
            found += more
    assert time.monotonic() - began < _PATIENCE + _SLACK
    return found
