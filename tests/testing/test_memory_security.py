"""SASL and TLS of the broker in memory, with our consumers and another client."""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from tests.testing.memorykit import TOPIC, numbers, values

USERS = {"alice": "wonder=land,1"}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


def opened(broker: MemoryBroker, **security: Any) -> ManagedBalancedConsumer:
    client = KafkaClient(broker.bootstrap, **security)
    return ManagedBalancedConsumer(TOPIC, client, "billing", auto_offset_reset="earliest", consumer_timeout_ms=5000)


def login(mechanism: str, password: str = USERS["alice"]) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": "alice",
        "sasl_password": password,
    }


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def cafile(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


@pytest.fixture(scope="module")
def context(authority: trustme.CA) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(made)
    return made


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login(mechanism: str) -> None:
    with MemoryBroker({TOPIC: 2}, users=USERS, brokers=2) as broker:
        broker.produce(TOPIC, numbers(4))
        with opened(broker, **login(mechanism)) as consumer:
            assert values(consumer, 4) == numbers(4)
            consumer.commit_offsets()
        for wrong in (login(mechanism, "guessed"), {**login(mechanism), "sasl_username": "bob"}):
            with pytest.raises(err.SaslAuthenticationError):
                opened(broker, **wrong)


def test_nobody_gets_in_without(authority: trustme.CA) -> None:
    with MemoryBroker({TOPIC: 1}, users=USERS) as broker, pytest.raises(err.KafkaException, match="SASL"):
        opened(broker)


def test_tls_and_a_login_over_it(context: ssl.SSLContext, cafile: str) -> None:
    with MemoryBroker({TOPIC: 1}, users=USERS, ssl_context=context) as broker:
        big = [b"x" * 300_000 for _ in range(6)]
        broker.produce(TOPIC, big)
        secure = {**login("SCRAM-SHA-256"), "security_protocol": "SASL_SSL", "ssl_cafile": cafile}
        with opened(broker, **secure) as consumer:
            assert values(consumer, 6) == big
            consumer.commit_offsets()
        with pytest.raises(err.KafkaException, match="TLS"):
            opened(broker, **login("PLAIN"))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_another_client(context: ssl.SSLContext, cafile: str, mechanism: str) -> None:
    import confluent_kafka

    with MemoryBroker({TOPIC: 1}, users=USERS, ssl_context=context) as broker:
        options = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": cafile,
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": USERS["alice"],
        }
        producer = confluent_kafka.Producer(options)
        producer.produce(TOPIC, b"a", headers=[("h", b"1")])
        assert producer.flush(20) == 0
        (message,) = broker.messages(TOPIC)
        assert (message.value, message.headers) == (b"a", [("h", b"1")])


def unsigned(user: str, seconds: float) -> str:
    """A token without a signature."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 1, "exp": now + seconds})
    return "".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") + "." for part in parts)


def test_a_token() -> None:
    import confluent_kafka

    with MemoryBroker({TOPIC: 1}, users={"alice": ""}) as broker:
        by_token = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "enable.sasl.oauthbearer.unsecure.jwt": True,
                "sasl.oauthbearer.config": "principal=alice",
            }
        )
        producer.produce(TOPIC, b"a")
        assert producer.flush(20) == 0
        with opened(broker, **by_token, sasl_oauth_token=lambda: unsigned("alice", 60)) as consumer:
            assert values(consumer, 1) == [b"a"]
        for wrong in (unsigned("alice", -5), unsigned("bob", 60)):
            with pytest.raises(err.SaslAuthenticationError, match="invalid_token"):
                opened(broker, **by_token, sasl_oauth_token=lambda token=wrong: token)


def test_a_hang_up_before_the_first_answer_is_not_taken_for_a_wanted_login() -> None:
    """As a broker that goes away just then; a listener without logins refuses the look whether it wants one."""
    with MemoryBroker({TOPIC: 1}) as broker:
        broker.produce(TOPIC, numbers(1))
        dropped = broker.drop_next("Fetch")
        with opened(broker) as consumer:
            assert consumer.consume().value == numbers(1)[0]
        assert dropped.happened == 1
