"""What somebody reads whose first line is wrong: what is wrong, and what to write; soon, and without our inside."""

from __future__ import annotations

import http.server
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import BalancedConsumer, KafkaClient, ManagedBalancedConsumer, SimpleConsumer, cli, read
from managedconsumer import errors as err
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.waiting.handlers import GEventHandler, ThreadingHandler
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.runtime.peers import Peer, scripted

#: As confluent-kafka takes them.
CONFLUENT = {"bootstrap.servers": "localhost:9092", "group.id": "g", "sasl.password": "hunter2"}


@pytest.mark.parametrize(
    ("made", "example"),
    [
        (ManagedBalancedConsumer, "ManagedBalancedConsumer('orders', 'localhost:9092', 'billing', ...)"),
        (BalancedConsumer, "BalancedConsumer('orders', 'localhost:9092', 'billing', ...)"),
        (SimpleConsumer, "SimpleConsumer('orders', 'localhost:9092', consumer_group='billing', ...)"),
        (KafkaClient, "KafkaClient('localhost:9092', ...)"),
    ],
)
def test_a_dict_of_options(made: Callable[..., Any], example: str) -> None:
    with pytest.raises(TypeError) as caught:
        made(CONFLUENT)
    assert f"takes no dict of options, as confluent-kafka's clients do: write {example}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_warning_of_a_base_names_the_users_line() -> None:
    with MemoryBroker({"orders": 1}) as broker, pytest.warns(DeprecationWarning, match="ZooKeeper") as warned:
        BalancedConsumer("orders", broker.bootstrap, "g", zookeeper_connect="z:2181").stop()
    assert warned[0].filename == __file__


broker = memory_broker({"orders": 1}, [b"a", b"b"])


@pytest.mark.parametrize(
    "words", [("topics", "ordres"), ("peek", "ordres"), ("reset", "g", "ordres", "--to", "latest")]
)
def test_a_topic_that_does_not_exist(
    words: tuple[str, ...], broker: MemoryBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "-b", broker.bootstrap]) == 1
    assert capsys.readouterr().err.startswith("managedconsumer: there is no topic 'ordres' that this user may see")
    with pytest.raises(err.UnknownTopicOrPartition, match="there is no topic 'ordres' that this user may see"):
        read("ordres", broker.bootstrap)


def test_reset_offsets_takes_the_names_of_both_ends(broker: MemoryBroker) -> None:
    with SimpleConsumer("orders", broker.bootstrap, consumer_timeout_ms=10_000) as consumer:
        consumer.reset_offsets({0: "latest"})
        assert consumer.position(0) == 2
        consumer.reset_offsets([(0, "earliest")])
        message = consumer.consume()
        assert message is not None
        assert message.value == b"a"


def starts(address: str) -> list[Callable[[], Any]]:
    return [
        lambda: KafkaClient(address),
        lambda: ManagedBalancedConsumer("orders", address, "g"),
        lambda: SimpleConsumer("orders", address),
        lambda: list(read("orders", address)),
    ]


@pytest.mark.parametrize("number", range(4))
def test_nothing_listens_there(number: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            err.NoBrokersAvailableError, match=r"Nothing listens there: is the broker running"
        ) as caught:
            starts(address)[number]()
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    # Python 3.13 marks the call below more lines than older ones do.
    assert len([line for line in lines if line.strip("~^ ")]) < 25
    assert not [line for line in lines if "exception was the direct cause" in line or "During handling" in line]


def test_what_the_users_own_function_raises_is_still_seen(broker: MemoryBroker) -> None:
    def token() -> str:
        raise LookupError("no vault")

    with MemoryBroker({"orders": 1}, users={"a": "b"}) as guarded, pytest.raises(err.KafkaException) as caught:
        KafkaClient(
            guarded.bootstrap, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", sasl_oauth_token=token
        )
    assert "sasl_oauth_token raised LookupError" in str(caught.value)


@pytest.fixture
def web() -> Iterator[str]:
    """A web server that waits for the end of a line, as many do: to Kafka's bytes it says nothing."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign, assignment]
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    serving.join()


def test_a_port_of_http_is_named_at_the_first_time_out(web: str) -> None:
    with pytest.raises(
        err.ProtocolMismatchError, match=r"answered in HTTP: this is no Kafka port. Check host and port"
    ):
        KafkaClient(web, socket_timeout_ms=300)


@pytest.mark.parametrize("handler", [ThreadingHandler, GEventHandler])
def test_a_port_that_stays_silent_is_a_time_out(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen broker, for one."""
    monkeypatch.setattr("managedconsumer.runtime.net.connection._TEXT_ANSWER_S", 0.1)
    if handler is GEventHandler:
        pytest.importorskip("gevent")

    def silent(peer: Peer) -> None:
        while peer.sock.recv(1000):
            pass

    said = r"did not finish connecting within 0\.2 s"
    with scripted(silent) as broker, pytest.raises(err.RequestTimedOut, match=said):
        Connection("127.0.0.1", broker.port, handler(), ConnectionSettings(connect_timeout_ms=200)).connect()


def test_a_session_that_the_broker_does_not_allow_is_said_at_the_start(broker: MemoryBroker) -> None:
    broker.fail_next("JoinGroup", err.InvalidSessionTimeout, times=None)
    with pytest.raises(err.InvalidSessionTimeout, match="6000 to 1800000 by default") as caught:
        consumer = ManagedBalancedConsumer(
            "orders",
            broker.bootstrap,
            "g",
            group_protocol="classic",
            session_timeout_ms=1000,
            heartbeat_interval_ms=300,
        )
        consumer.stop()
    assert "session_timeout_ms=1000" in str(caught.value)
