"""TLS and logins through librdkafka: our settings in its names, on Kafka 4.4."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from pyspark.sql.types import StringType, StructField, StructType

from managedconsumer import KafkaClient, SimpleConsumer
from managedconsumer.errors import ProduceFailureError
from managedconsumer.runtime.net.security import Security
from managedconsumer.spark.sink import Sink
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import write
from tests.broker.test_security import ALICE, LISTENERS, properties, token

pytestmark = pytest.mark.since("3.5")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "tls": ("TLS", {}),
    "another name": ("OTHERNAME", {"ssl_check_hostname": False}),
    "mutual": ("MUTUAL", {"ssl_certfile": "client.pem", "ssl_keyfile": "client-key.pem"}),
    "plain": ("TLSLOGIN", {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": ALICE}),
    "scram": ("TLSLOGIN", {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "alice", "sasl_password": ALICE}),
    "token": ("TLSLOGIN", {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": lambda: token(600)}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rdkafka-certificates")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[DevBroker]:
    made = properties(folder, trustme.CA())
    with DevBroker("4.4.0", properties=made, listeners=LISTENERS, scram_users={"alice": ALICE}) as broker:
        broker.create_topic("secured", 2)
        write(broker, "secured", 2, 50)
        yield broker


@pytest.mark.parametrize("greenlets", [False, pytest.param(True, marks=pytest.mark.gevent)])
@pytest.mark.parametrize("way", WAYS)
def test_messages_come(
    secure: DevBroker, folder: Path, way: str, greenlets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    listener, given = WAYS[way]
    files = {name: folder / value for name, value in given.items() if name in ("ssl_certfile", "ssl_keyfile")}
    security = Security(**{**given, **files}, security_protocol=LISTENERS[listener], ssl_cafile=folder / "ca.pem")
    client = KafkaClient(secure.bootstrap_for(listener), security=security, use_greenlets=greenlets)
    with client, SimpleConsumer(client.topics["secured"], client, consumer_timeout_ms=15_000, use_rdkafka=True) as one:
        seen = [one.consume() for _ in range(100)]
    assert None not in seen
    assert len({(message.partition_id, message.offset) for message in seen if message is not None}) == 100
    assert ALICE not in caplog.text


def provided() -> Any:
    """``module:function`` of an option."""
    return token(600)


@pytest.mark.parametrize(
    "login",
    [
        {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": ALICE},
        {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.provider": f"{__name__}:provided"},
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": "wrong-secret"},
    ],
    ids=lambda login: login["sasl.mechanism"],
)
def test_a_spark_task_writes_with_a_login_and_ends_at_once_with_a_wrong_one(
    secure: DevBroker, folder: Path, login: dict[str, str]
) -> None:
    settings = {"bootstrap.servers": secure.bootstrap_for("TLSLOGIN"), "security.protocol": "SASL_SSL", **login}
    settings["ssl.ca.location"] = str(folder / "ca.pem")
    options = {f"kafka.{name}": value for name, value in settings.items()}
    sink = Sink({**options, "topic": "written"}, StructType([StructField("value", StringType())]))
    rows = [pa.record_batch({"value": ["a"]})]
    if login.get("sasl.password") != "wrong-secret":
        assert sink.write(rows).records == 1
        return
    with pytest.raises(ProduceFailureError, match=r"cannot go on: .*Authentication failed") as told:
        sink.write(rows)
    assert "wrong-secret" not in str(told.value)
