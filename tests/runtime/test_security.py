"""Security settings: mistakes are found when they are made, secrets are never shown."""

from __future__ import annotations

import functools
import logging
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.security import Security

SECRET = "correct-horse"


TLS: dict[str, Any] = {"security_protocol": "SSL"}
PLAIN: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
BEARER: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"security_protocol": "TLS"}, "security_protocol is 'TLS'; allowed are PLAINTEXT, SSL"),
        ({"security_protocol": None}, "security_protocol is None"),
        ({"ssl_cafile": "x"}, "ssl_cafile is given, but security_protocol='PLAINTEXT' does not use TLS"),
        ({"sasl_password": SECRET}, "sasl_password is given, but security_protocol='PLAINTEXT' does not use SASL"),
        ({**TLS, "sasl_mechanism": "PLAIN"}, "does not use SASL"),
        ({**TLS, "ssl_context": "x"}, "ssl_context must be an ssl.SSLContext, not str"),
        ({**TLS, "ssl_cafile": b"x"}, "ssl_cafile must be a string, not bytes"),
        ({**TLS, "ssl_keyfile": "x"}, "ssl_keyfile is given without ssl_certfile"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism is None; allowed are PLAIN"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism is 'GSSAPI'"),
        ({**PLAIN, "sasl_username": "u"}, "sasl_password is missing"),
        ({**PLAIN, "sasl_username": "", "sasl_password": SECRET}, "sasl_username must be a string, not empty"),
        ({**PLAIN, "sasl_username": "u", "sasl_password": b"x"}, "sasl_password must be a string"),
        (BEARER, "sasl_oauth_token is missing"),
        ({**BEARER, "sasl_oauth_token": SECRET}, "must be a function"),
        (
            {**BEARER, "sasl_oauth_token": str, "sasl_password": SECRET},
            "sasl_password is given, but sasl_mechanism='OAUTHBEARER' has no use",
        ),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Security(**arguments)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_repr_masks_every_secret() -> None:
    certificate = {"ssl_certfile": "cert.pem", "ssl_password": SECRET}
    login = Security(**PLAIN, sasl_username="alice", sasl_password=SECRET, **certificate)
    bearer = Security(**BEARER, sasl_oauth_token=functools.partial(str, SECRET))
    assert SECRET not in repr(login) + str(login) + f"{bearer!r}"
    assert "alice" in repr(login)
    assert repr(Security()) == "Security()"


def test_frozen_and_usable_as_a_key() -> None:
    with pytest.raises(AttributeError):
        Security().security_protocol = "SSL"  # type: ignore[misc]
    assert {Security(): 1}[Security()] == 1


def test_defaults_of_tls_are_strict(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    security = Security(security_protocol="SSL", ssl_cafile=tmp_path / "ca.pem")
    context = security.tls_context()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert security.tls_context() is context
    assert pickle.loads(pickle.dumps(security)) == security


def test_turning_the_host_name_check_off_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        context = Security(security_protocol="SSL", ssl_check_hostname=False).tls_context()
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert "host names are not checked" in caplog.text


def test_an_own_context_is_used_as_it_is() -> None:
    mine = ssl.create_default_context()
    assert Security(security_protocol="SSL", ssl_context=mine).tls_context() is mine
    with pytest.raises(ConfigurationError, match="beside ssl_context"):
        Security(security_protocol="SSL", ssl_context=mine, ssl_cafile="x")


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """A client certificate with an encrypted key."""
    issued = trustme.CA().issue_cert("client.test")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(SECRET.encode()),
        )
    )
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    return {"ssl_certfile": str(tmp_path / "cert.pem"), "ssl_keyfile": str(tmp_path / "key.pem")}


def test_an_encrypted_key_is_opened_or_explained(own: dict[str, str]) -> None:
    Security(security_protocol="SSL", ssl_password=SECRET, **own).tls_context()
    with pytest.raises(ConfigurationError, match="encrypted and ssl_password is wrong") as caught:
        Security(security_protocol="SSL", ssl_password=SECRET + "x", **own).tls_context()
    assert SECRET not in str(caught.value)
    # No question on the terminal:
    with pytest.raises(ConfigurationError, match="encrypted and ssl_password is missing"):
        Security(security_protocol="SSL", **own).tls_context()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"ssl_cafile": "none.pem"}, "No such file"),
        ({"ssl_cafile": "junk.pem"}, "PEM certificates"),
        ({"ssl_certfile": "none.pem"}, r"ssl_certfile .*none\.pem"),
        ({"ssl_certfile": "cert.pem", "ssl_keyfile": "junk.pem"}, r"ssl_keyfile .*junk\.pem"),
    ],
)
@pytest.mark.usefixtures("own")
def test_files_that_cannot_be_used_are_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    given: dict[str, Any] = {name: tmp_path / file for name, file in files.items()}
    with pytest.raises(ConfigurationError, match=said):
        Security(**TLS, **given).tls_context()
