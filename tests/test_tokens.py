"""Tokens of identity providers and clouds: what a token endpoint is sent and gives, and what is never shown."""

from __future__ import annotations

import base64
import json
import logging
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from managedconsumer import KafkaClient, ManagedBalancedConsumer, tokens
from managedconsumer.errors import ConfigurationError, MissingPackageError, NoBrokersAvailableError
from managedconsumer.testing import MemoryBroker
from managedconsumer.tokens import ClientCredentials, JwtBearer, SignedJwt, TokenEndpointError
from tests.endpoints import Endpoint

SECRET = "s3cret/&="


def unsigned(subject: str, seconds: float = 3600) -> str:
    """A token as Kafka's development validator takes it."""
    claims = {"sub": subject, "iat": time.time() - 10, "exp": time.time() + seconds}
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in ({"alg": "none"}, claims)
    ]
    return ".".join(parts) + "."


@pytest.fixture
def provider() -> Iterator[Endpoint]:
    made = Endpoint()
    made.always = (200, {"access_token": "t0ken", "expires_in": 3600, "token_type": "Bearer"})
    yield made
    made.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [1000.0]
    monkeypatch.setattr(time, "time", lambda: found[0])
    return found


def fields(provider: Endpoint) -> dict[str, str]:
    return {key: value for key, (value,) in parse_qs(provider.bodies[-1].decode()).items()}


def test_client_credentials(provider: Endpoint, now: list[float]) -> None:
    supply = ClientCredentials(provider.url, "me", SECRET, scope="kafka read", extra={"audience": "a&b"})
    assert supply() == ("t0ken", now[0] + 3600)
    assert fields(provider) == {"grant_type": "client_credentials", "scope": "kafka read", "audience": "a&b"}
    assert provider.asked == [("/", "me:s3cret%2F%26%3D")]


def test_a_token_is_used_for_four_fifths_of_its_life(provider: Endpoint, now: list[float]) -> None:
    supply = ClientCredentials(provider.url, "me", SECRET)
    first = supply()
    now[0] += 0.8 * 3600 - 1
    assert supply() == first
    assert len(provider.asked) == 1
    now[0] += 2
    assert supply() == ("t0ken", now[0] + 3600)
    assert len(provider.asked) == 2


def test_a_token_without_an_expiry_is_not_kept(provider: Endpoint) -> None:
    provider.always = (200, {"access_token": "t0ken"})
    supply = ClientCredentials(provider.url, "me", SECRET)
    assert [supply(), supply()] == [("t0ken", None)] * 2
    assert len(provider.asked) == 2


def test_a_signed_assertion_in_place_of_the_secret(provider: Endpoint) -> None:
    ClientCredentials(provider.url, "me", assertion=lambda: "a.b.c")()
    sent = fields(provider)
    assert sent.pop("client_assertion_type").endswith("client-assertion-type:jwt-bearer")
    assert sent == {"grant_type": "client_credentials", "client_id": "me", "client_assertion": "a.b.c"}
    assert provider.asked == [("/", None)]


def test_the_jwt_bearer_grant(provider: Endpoint) -> None:
    assert JwtBearer(provider.url, lambda: "a.b.c", scope="kafka")()[0] == "t0ken"
    sent = fields(provider)
    assert sent == {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "a.b.c", "scope": "kafka"}


def test_a_signed_jwt_is_what_a_provider_verifies() -> None:
    jwt = pytest.importorskip("jwt")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    sign = SignedJwt(pem, claims={"iss": "me", "sub": "me", "aud": "provider"}, headers={"kid": "7"}, lifetime=60)
    one, two = (jwt.decode(sign(), key.public_key(), ["RS256"], audience="provider") for _ in range(2))
    assert (one["iss"], one["sub"], one["exp"] - one["iat"]) == ("me", "me", 60)
    assert one["jti"] != two["jti"]
    assert jwt.get_unverified_header(sign())["kid"] == "7"
    assert "PRIVATE" not in repr(sign)


def redirects(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(307)
    handler.send_header("Location", "http://elsewhere.test/")
    handler.end_headers()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            (401, {"error": "invalid_client", "error_description": "unknown client"}),
            "401, invalid_client, unknown client",
        ),
        ((500, b"oops"), "500, no JSON object"),
        ((200, []), "200, no JSON object"),
        ((200, {"expires_in": 5}), "has no access_token"),
        ((200, {"access_token": "t", "expires_in": "soon"}), "expires_in that is no number"),
        (redirects, "redirects to http://elsewhere.test"),
    ],
)
def test_an_endpoint_that_gives_no_token(provider: Endpoint, answer: Any, text: str) -> None:
    provider.always = answer
    with pytest.raises(TokenEndpointError, match=text) as caught:
        ClientCredentials(provider.url, "me", SECRET)()
    assert "s3cret" not in str(caught.value)


def test_an_endpoint_that_is_not_there(provider: Endpoint) -> None:
    provider.close()
    with pytest.raises(TokenEndpointError, match=f"no response of the token endpoint {provider.url}"):
        ClientCredentials(provider.url, "me", SECRET)()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"url": "file:///etc/passwd", "client_secret": SECRET}, "https://"),
        ({"url": "https://user:s3cret@host/", "client_secret": SECRET}, "client_id and client_secret"),
        ({"url": "https://host/"}, "either client_secret or assertion"),
        ({"url": "https://host/", "client_secret": SECRET, "assertion": str}, "either client_secret or assertion"),
        ({"url": "https://host/", "client_secret": SECRET, "timeout": 0}, "seconds above 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        ClientCredentials(client_id="me", **arguments)
    assert "s3cret" not in str(caught.value)


def test_a_consumer_logs_in_and_shows_no_secret(provider: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    supply = ClientCredentials(provider.url, "me", SECRET)
    login: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    with MemoryBroker({"orders": 1}, users={"alice": "x"}) as broker:
        provider.always = (401, {"error": "invalid_client"})
        with pytest.raises(NoBrokersAvailableError, match="sasl_oauth_token raised TokenEndpointError") as caught:
            KafkaClient(broker.bootstrap, sasl_oauth_token=supply, **login)
        provider.always = (200, {"access_token": unsigned("alice"), "expires_in": 3600})
        broker.produce("orders", [b"1"])
        asked = len(provider.asked)
        with (
            KafkaClient(broker.bootstrap, sasl_oauth_token=supply, **login) as client,
            ManagedBalancedConsumer("orders", client, "g", auto_offset_reset="earliest") as consumer,
        ):
            message = consumer.consume()
            assert message is not None
            assert message.value == b"1"
        assert len(provider.asked) == asked + 1, "all connections use one token"
    assert "s3cret" not in caplog.text + repr(supply) + str(caught.value)
    assert unsigned("alice")[:40] not in caplog.text


def test_amazons_signer(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = SimpleNamespace(
        generate_auth_token=lambda region: (f"of {region}", 5000),
        generate_auth_token_from_profile=lambda region, profile: (f"{profile} of {region}", 6000),
        generate_auth_token_from_role_arn=lambda region, role: (f"{role} of {region}", 7000),
    )
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)
    assert tokens.aws_msk("eu-central-1")() == ("of eu-central-1", 5.0)
    assert tokens.aws_msk("eu", profile="p")() == ("p of eu", 6.0)
    assert tokens.aws_msk("eu", role_arn="r")() == ("r of eu", 7.0)
    with pytest.raises(ConfigurationError, match="either profile or role_arn"):
        tokens.aws_msk("eu", profile="p", role_arn="r")
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(MissingPackageError, match=r"managedconsumer\[msk\]"):
        tokens.aws_msk("eu")


def test_azures_credential() -> None:
    scopes: list[str] = []

    def get_token(scope: str) -> Any:
        scopes.append(scope)
        return SimpleNamespace(token="t", expires_on=7)

    supply = tokens.azure("orders.servicebus.windows.net:9093", SimpleNamespace(get_token=get_token))
    assert supply() == ("t", 7.0)
    assert scopes == ["https://orders.servicebus.windows.net/.default"]


def test_googles_credentials() -> None:
    class Credentials:
        valid, token, expiry = False, None, None

        def refresh(self, transport: Any) -> None:
            assert transport == "transport"
            self.valid, self.token = True, "access"
            self.expiry = datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(seconds=100)

    text, expires = tokens.google(Credentials(), "me@project.test", "transport")()
    head, claims, access = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split("."))
    assert json.loads(head) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    said = json.loads(claims)
    assert (said["iss"], said["scope"], said["sub"]) == ("Google", "kafka", "me@project.test")
    assert said["exp"] == expires
    assert expires == pytest.approx(time.time() + 100, abs=30)
    assert access == b"access"
