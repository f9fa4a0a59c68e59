"""KafkaClient's bad input, read as a user reads it.  No broker is needed: there is none."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient
from managedconsumer import errors as err
from managedconsumer.compat.client import parse_source


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def silent_ports() -> Iterator[list[int]]:
    """Two listeners that accept and never say a word."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()


def test_nobody_there(closed_port: int) -> None:
    started = time.monotonic()
    with pytest.raises(err.NoBrokersAvailableError, match=rf"127\.0\.0\.1:{closed_port}.*refused"):
        KafkaClient(f"127.0.0.1:{closed_port}")
    assert time.monotonic() - started < 5


def test_silence_is_waited_for_no_longer_than_the_socket_timeout(
    silent_ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.connection._TEXT_ANSWER_S", 0.1)
    hosts = ",".join(f"127.0.0.1:{port}" for port in silent_ports)
    started = time.monotonic()
    with pytest.raises(err.KafkaException, match=r"127\.0\.0\.1"):
        KafkaClient(hosts, socket_timeout_ms=300)
    assert 0.25 < time.monotonic() - started < 3


@pytest.mark.parametrize("hosts", ["kafka1", "kafka1:", ":9092", "", "kafka1:nine", "kafka1:0", b"kafka1"])
def test_hosts_without_a_port_say_what_to_write(hosts: Any) -> None:
    with pytest.raises(err.ConfigurationError, match="host:port"):
        KafkaClient(hosts)


@pytest.mark.parametrize("hosts", [None, 9092, ["kafka1:9092"]])
def test_hosts_of_a_wrong_type(hosts: Any) -> None:
    with pytest.raises(TypeError, match="bootstrap servers must be a str"):
        KafkaClient(hosts)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"socket_timeout_ms": 0}, "socket_timeout_ms must be .* not 0"),
        ({"offsets_channel_socket_timeout_ms": -1}, "offsets_channel_socket_timeout_ms must be .* not -1"),
        ({"metadata_max_age_ms": 0}, "metadata_max_age_ms must be .* not 0"),
        ({"source_address": "here:port"}, "source_address must be .* not 'here:port'"),
        ({"security_protocol": "TLS"}, "security_protocol is 'TLS'"),
    ],
)
def test_numbers_and_words_out_of_range(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(err.ConfigurationError, match=text):
        KafkaClient("127.0.0.1:1", **arguments)


@pytest.mark.parametrize(
    "arguments", [{"socket_timeout_ms": "soon"}, {"client_id": 5}, {"ssl_config": 5}, {"security": 5}, {"no_such": 5}]
)
def test_wrong_types_name_the_argument(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(arguments))):
        KafkaClient("127.0.0.1:1", **arguments)


def test_zookeeper_instead_of_brokers_is_refused() -> None:
    with pytest.raises(err.ConfigurationError, match=r"zookeeper_hosts='zk:2181'.*hosts="):
        KafkaClient(zookeeper_hosts="zk:2181")


def test_zookeeper_beside_brokers_is_ignored_with_a_warning(closed_port: int) -> None:
    with (
        pytest.warns(DeprecationWarning, match="zookeeper_hosts is ignored") as caught,
        pytest.raises(err.NoBrokersAvailableError),
    ):
        KafkaClient(f"127.0.0.1:{closed_port}", zookeeper_hosts="zk:2181")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("version", ["0.9.0", "1.0.0", "2.8", "4.4.0", None])
def test_version_numbers_pass_in_silence(version: str | None, closed_port: int) -> None:
    with warnings.catch_warnings(), pytest.raises(err.NoBrokersAvailableError):
        warnings.simplefilter("error")
        KafkaClient(f"127.0.0.1:{closed_port}", broker_version=version)


@pytest.mark.parametrize("version", ["newest", 4.3, "4"])
def test_what_is_no_version_number_gets_a_warning(version: Any, closed_port: int) -> None:
    with pytest.warns(UserWarning, match="broker_version=.*ignored"), pytest.raises(err.NoBrokersAvailableError):
        KafkaClient(f"127.0.0.1:{closed_port}", broker_version=version)


def test_pykafkas_positional_order(closed_port: int) -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(err.NoBrokersAvailableError):
        KafkaClient(f"127.0.0.1:{closed_port}", "zk:2181", 1000, 1000, False, True, "", None, "0.9.0")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", None),
        (None, None),
        ("10.0.0.1", ("10.0.0.1", 0)),
        (b"10.0.0.1:70", ("10.0.0.1", 70)),
        ("[::1]", ("::1", 0)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_source_addresses(given: Any, expected: Any) -> None:
    assert parse_source(given) == expected
