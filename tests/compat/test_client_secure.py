"""KafkaClient over TLS and with a login, said in pykafka's words and ours."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from managedconsumer import KafkaClient
from managedconsumer import errors as err
from managedconsumer.compat.accept import accept_cluster
from managedconsumer.compat.tls import SslConfig
from managedconsumer.runtime.net.security import Security
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.test_security import keystore
from tests.interop.docskit import programs

PASSWORD = "open sesame"
LOGIN: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": PASSWORD}
LISTENERS = {"TLS": "SSL", "OTHERNAME": "SSL", "TLSLOGIN": "SASL_SSL"}


@pytest.fixture(scope="module")
def cafile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("client-certificates") / "ca.pem"


@pytest.fixture(scope="module")
def secure(cafile: Path) -> Iterator[DevBroker]:
    """The listener TLS is certified for 127.0.0.1, OTHERNAME is not."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(cafile))
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore(cafile.with_name("s.pem"), authority.issue_cert("localhost", "127.0.0.1")),
        "listener.name.othername.ssl.keystore.type": "PEM",
        "listener.name.othername.ssl.keystore.location": keystore(
            cafile.with_name("o.pem"), authority.issue_cert("other.test")
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.tlslogin.plain.sasl.jaas.config": f'{plain} required user_alice="{PASSWORD}";',
    }
    with DevBroker("4.4.0", properties=properties, listeners=LISTENERS) as broker:
        broker.create_topic("secured", 2)
        yield broker


def offsets(client: KafkaClient) -> list[list[int]]:
    with client:
        return [answer.offset for answer in client.topics["secured"].latest_available_offsets().values()]


@pytest.mark.broker
def test_tls(secure: DevBroker, cafile: Path) -> None:
    hosts = secure.bootstrap_for("TLS")
    context = ssl.create_default_context(cafile=cafile)
    for arguments in (
        {"ssl_config": SslConfig(str(cafile))},
        {"ssl_config": context},
        {"ssl_cafile": cafile},
        {"security": Security(security_protocol="SSL", ssl_cafile=cafile)},
    ):
        assert offsets(KafkaClient(hosts, **arguments)) == [[0], [0]]


@pytest.mark.broker
def test_a_certificate_for_another_host_is_refused(secure: DevBroker, cafile: Path) -> None:
    hosts = secure.bootstrap_for("OTHERNAME")
    with pytest.raises(err.TlsError, match=hosts):
        KafkaClient(hosts, ssl_config=SslConfig(str(cafile)))
    assert offsets(KafkaClient(hosts, ssl_config=SslConfig(str(cafile), check_hostname=False))) == [[0], [0]]


@pytest.mark.broker
def test_an_authority_that_is_not_trusted_is_refused(secure: DevBroker, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "stranger.pem"))
    with pytest.raises(err.TlsError, match=secure.bootstrap_for("TLS")):
        KafkaClient(secure.bootstrap_for("TLS"), ssl_config=SslConfig(str(tmp_path / "stranger.pem")))


@pytest.mark.broker
def test_a_tls_port_without_tls_says_so(secure: DevBroker) -> None:
    with pytest.raises(err.KafkaException, match=r"(?s)TLS"):
        KafkaClient(secure.bootstrap_for("TLS"), socket_timeout_ms=3000)


@pytest.mark.broker
def test_a_login_needs_no_more_than_itself(secure: DevBroker, cafile: Path) -> None:
    hosts = secure.bootstrap_for("TLSLOGIN")
    assert offsets(KafkaClient(hosts, ssl_cafile=cafile, **LOGIN)) == [[0], [0]]
    with pytest.raises(err.SaslAuthenticationError) as caught:
        KafkaClient(hosts, ssl_cafile=cafile, **{**LOGIN, "sasl_password": "wrong horse"})
    assert "wrong horse" not in str(caught.value)


@pytest.mark.broker
def test_consumers_get_the_same_security(secure: DevBroker, cafile: Path) -> None:
    with KafkaClient(secure.bootstrap_for("TLSLOGIN"), ssl_cafile=cafile, **LOGIN) as client:
        cluster = accept_cluster(client)
        assert cluster.refresh(["secured"]).partitions_for_topic("secured") == {0, 1}
        cluster.close()
        consumer = client.topics["secured"].get_simple_consumer(consumer_timeout_ms=10)
        assert consumer.consume() is None
        consumer.stop()


@pytest.mark.broker
def test_the_program_of_the_page(
    secure: DevBroker, cafile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/howto/security.rst, where the system trusts the provider's authority."""
    secure.create_topic("orders", 1)
    with Producer(secure.bootstrap) as producer:
        producer.produce("orders", [Record(b"first"), Record(b"second")])
    settings = {"KAFKA": secure.bootstrap_for("TLSLOGIN"), "KAFKA_USER": "alice", "KAFKA_PASSWORD": PASSWORD}
    for name, value in {**settings, "SSL_CERT_FILE": str(cafile)}.items():
        monkeypatch.setenv(name, value)
    (program,) = programs("security.rst", "A managed Kafka: TLS and login")
    exec(program, {})
    assert capsys.readouterr().out.splitlines() == ["0 0 b'first'", "0 1 b'second'"]


@pytest.mark.broker
def test_a_pykafka_cluster_with_tls(secure: DevBroker, cafile: Path) -> None:
    connection = pytest.importorskip("pykafka.connection")
    theirs = SimpleNamespace(
        _seed_hosts=secure.bootstrap_for("TLS"),
        _ssl_config=connection.SslConfig(str(cafile)),
        handler=SimpleNamespace(),
        brokers={},
    )
    cluster = accept_cluster(theirs)
    assert cluster.refresh(["secured"]).partitions_for_topic("secured") == {0, 1}
    cluster.close()
