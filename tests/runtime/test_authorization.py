"""A broker that knows us and does not let us: the text says who we are to it and which ACL to add."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.net import diagnose
from managedconsumer.runtime.net.security import Security
from managedconsumer.wire.protocol import schemas
from tests.runtime.peers import Peer, scripted

LOGIN: Any = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_password": "secret"}


TOKEN = Security(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token=str)
CERTIFICATE = Security(security_protocol="SSL", ssl_certfile="me.pem")


@pytest.mark.parametrize(
    ("security", "who", "principal"),
    [
        (Security(sasl_username="alice", **LOGIN), "user 'alice'", "User:alice"),
        (Security(), "an anonymous user (no SASL, no TLS certificate)", "User:ANONYMOUS"),
        (TOKEN, "the user of the token from sasl_oauth_token", "User:<subject of the token>"),
        (CERTIFICATE, "the user of our TLS certificate (or User:ANONYMOUS)", "User:<name in the certificate>"),
    ],
)
@pytest.mark.parametrize(
    "asked",
    [
        ("topic", "t", "the topic 't'", "READ and DESCRIBE", "--operation Read --operation Describe --topic t", 29),
        ("group", "g", "the group 'g'", "READ", "--operation Read --group g", 30),
        ("cluster", "", "the cluster", "DESCRIBE", "--operation Describe --cluster", 31),
    ],
)
def test_who_what_and_the_remedy(security: Security, who: str, principal: str, asked: tuple[Any, ...]) -> None:
    resource, name, what, operations, options, kind = asked
    error = diagnose.not_authorized("b:9092", security, resource, name)
    assert isinstance(error, err.ERROR_CODES[kind])
    text = str(error)
    assert text.startswith(f"{who} is not authorized for {what} on b:9092: {operations} on {what} must be allowed")
    assert f"kafka-acls.sh --add --allow-principal {principal} {options} (Kafka error {kind}" in text
    assert "secret" not in text


def refusing(peer: Peer) -> None:
    """A broker that lets nobody see a topic or a group."""
    peer.greet()
    while True:
        try:
            header, body = peer.read()
        except (EOFError, OSError):
            return
        if header.api is schemas.METADATA:
            names = [topic["name"] for topic in body["topics"] or ()]
            topics = [
                {"error_code": 29, "name": name, "topic_id": bytes(16), "is_internal": False, "partitions": []}
                for name in names
            ]
            host, port = peer.sock.getsockname()
            brokers = [{"node_id": 1, "host": host, "port": port, "rack": None}]
            answer = {"brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": topics}
        else:
            answer = {"coordinators": [{"key": "g", "node_id": -1, "host": "", "port": -1, "error_code": 30}]}
        peer.sock.sendall(peer.frame(header, answer))


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_topic_that_may_not_be_described(kind: Any) -> None:
    with scripted(refusing) as broker:
        with pytest.raises(err.TopicAuthorizationFailed) as caught:
            kind("sec", f"127.0.0.1:{broker.port}", "g")
        text = str(caught.value)
        assert text.startswith("an anonymous user (no SASL, no TLS certificate) is not authorized for the topic 'sec'")
        assert f"on 127.0.0.1:{broker.port}: READ and DESCRIBE" in text
        assert "--operation Describe --topic sec" in text


@pytest.mark.parametrize(
    ("ask", "kind", "said"),
    [
        (
            lambda client: client.topics["sec"],
            err.TopicAuthorizationFailed,
            r"'sec' is not accessible: .* let this user",
        ),
        (
            lambda client: client.cluster.runtime.find_coordinator("g"),
            err.GroupAuthorizationFailed,
            r"not authorized for the group 'g' .* --group g",
        ),
    ],
)
def test_what_a_client_may_not_see(ask: Any, kind: type[err.KafkaException], said: str) -> None:
    refused = pytest.raises(kind, match=said)
    with scripted(refusing) as broker, KafkaClient(f"127.0.0.1:{broker.port}") as client, refused:
        ask(client)
