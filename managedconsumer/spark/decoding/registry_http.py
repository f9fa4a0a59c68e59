"""One HTTP request with one deadline, a bound for the response, and no redirect to another host.

The response may come from a registry, from a load balancer in front of it, or from a wrong host.
"""

from __future__ import annotations

import io
import socket
import time
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Mapping
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

#: The most bytes of a response with its headers. (Confluent's registry accepts schemas of up to 1 MB.)
MOST_BYTES = 4 * 1024 * 1024


class ElsewhereError(OSError):
    """The response redirects to another host, port or scheme, which must not get user and password."""


def ask(url: str, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    """Return status and content. Raises OSError without a whole response in that time, or for one too large."""
    until = time.monotonic() + seconds
    opener = build_opener(_Timed(until), _SameOrigin)
    try:
        with opener.open(Request(url, headers=dict(headers)), timeout=seconds) as answer:  # noqa: S310 (checked)
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()
    except HTTPException as error:
        raise OSError(f"the answer is no HTTP ({type(error).__name__})") from None


class _SameOrigin(HTTPRedirectHandler):
    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        was, wanted = urlsplit(req.full_url), urlsplit(newurl)
        if (was.scheme, was.hostname, was.port) != (wanted.scheme, wanted.hostname, wanted.port):
            fp.close()
            raise ElsewhereError(f"{wanted.scheme}://{wanted.netloc.rsplit('@', 1)[-1]}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Timed(HTTPHandler, HTTPSHandler):
    def __init__(self, until: float) -> None:
        HTTPSHandler.__init__(self)
        self._until = until

    def http_open(self, req: Request) -> Any:
        return self.do_open(partial(_timed, HTTPConnection, self._until), req)

    def https_open(self, req: Request) -> Any:
        return self.do_open(partial(_timed, HTTPSConnection, self._until), req)


def _timed(kind: Any, until: float, *args: Any, **options: Any) -> Any:
    """Make a connection with a deadline for all of its calls, in place of a time-out for each."""

    def connect(address: tuple[str, int], *_: Any) -> socket.socket:
        trouble: OSError = OSError("the host has no address")
        for *_family, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            try:
                made = socket.create_connection((str(where[0]), address[1]), _left(until))
            except OSError as error:
                trouble = error
            else:
                made.settimeout(_left(until))  # also for TLS
                return made
        raise trouble

    made = kind(*args, **options)
    made._create_connection = connect  # the way that http.client has for it
    made.response_class = lambda sock, *more, **named: HTTPResponse(
        _Incoming(sock, until),  # type: ignore[arg-type]
        *more,
        **named,
    )
    return made


class _Incoming(io.RawIOBase):
    """The bytes that a socket receives, with deadline and bound; http.client makes a file of it."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until, self._room = sock, until, MOST_BYTES
        self._raw = sock.makefile("rb", buffering=0)  # so that the socket is closed with the last of both

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._until))
        found = self._raw.readinto(buffer) or 0
        self._room -= found
        if self._room < 0:
            raise OSError(f"the answer has more than {MOST_BYTES} bytes")
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for the answer is over")
    return left
