"""What the tests of this room share."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator

import pytest

from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler
from tests.runtime.silent_proxy import TOPIC, SilentProxyBroker

Connect = Callable[..., Connection]


@pytest.fixture(params=[ThreadingHandler, pytest.param(GEventHandler, marks=pytest.mark.gevent)])
def handler(request: pytest.FixtureRequest) -> Handler:
    made: Handler = request.param()
    return made


@pytest.fixture
def new_connection(handler: Handler) -> Iterator[Connect]:
    """Makes connections (not connected yet) that are closed at the end of the test."""
    made: list[Connection] = []

    def make(port: int, host: str = "127.0.0.1", **settings: Any) -> Connection:
        made.append(Connection(host, port, handler, ConnectionSettings(**settings)))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


class Stopwatch:
    def __init__(self) -> None:
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
def broker() -> Iterator[SilentProxyBroker]:
    """A broker behind a proxy that can fall silent. (A file with another kind of broker has its own fixture.)"""
    broker = SilentProxyBroker({TOPIC: 2})
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def cluster(broker: SilentProxyBroker, handler: Handler, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of ``broker``, with its metadata; requests end after the test file's ``TIMEOUT`` (ms)."""
    settings = ConnectionSettings(request_timeout_ms=request.module.TIMEOUT)
    cluster = Cluster([("127.0.0.1", broker._port)], handler, settings)
    cluster.refresh()
    yield cluster
    cluster.close()
