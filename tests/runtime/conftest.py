"""What the tests of this room share."""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import Any, Callable, Iterator

import pytest

from managedconsumer import errors
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler
from managedconsumer.wire.protocol import schemas
from tests.conftest import Ended
from tests.runtime.peers import HEARTBEAT, Script, ScriptedBroker, scripted
from tests.runtime.silent_proxy import TOPIC, SilentProxyBroker

Connect = Callable[..., Connection]


@pytest.fixture(params=[ThreadingHandler, pytest.param(GEventHandler, marks=pytest.mark.gevent)])
def handler(request: pytest.FixtureRequest) -> Handler:
    made: Handler = request.param()
    return made


@pytest.fixture
def new_connection(handler: Handler, ended: Ended) -> Connect:
    """Makes connections (not connected yet) that are closed at the end of the test."""

    def make(port: int, host: str = "127.0.0.1", **settings: Any) -> Connection:
        return ended(Connection(host, port, handler, ConnectionSettings(**settings)))

    return make


class Dial:
    """Makes connections to scripted brokers, one broker for each, which end with the test."""

    def __init__(self, connect: Connect, brokers: contextlib.ExitStack) -> None:
        self._connect, self._brokers = connect, brokers
        #: The one that the last connection leads to.
        self.broker: ScriptedBroker

    def __call__(
        self, script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", **settings: Any
    ) -> Connection:
        """Not connected yet."""
        self.broker = self._brokers.enter_context(scripted(script, tls))
        return self._connect(self.broker.port, host, **settings)

    def connected(self, *given: Any, **settings: Any) -> Connection:
        made = self(*given, **settings)
        made.connect()
        return made


@pytest.fixture
def dial(new_connection: Connect) -> Iterator[Dial]:
    with contextlib.ExitStack() as brokers:
        yield Dial(new_connection, brokers)


def fails(connection: Connection, kind: type[errors.KafkaException], within: float = 5.0) -> errors.KafkaException:
    """Connect and send one request: the error comes in time and names the address; the connection is closed."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        connection.connect()
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
    assert time.monotonic() - began < within
    assert connection.address in str(caught.value)
    assert not connection.connected
    return caught.value


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
