"""The three ways to say how connections are secured."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.compat.tls import SslConfig, choose_security, security_of
from managedconsumer.runtime.net.security import Security


def test_nothing_means_plaintext() -> None:
    assert choose_security(None, None, {}) == Security()


def test_pykafkas_config_object() -> None:
    config = SslConfig("ca.pem", "me.pem", "me.key", b"secret")
    security = choose_security(config, None, {})
    assert security.security_protocol == "SSL"
    assert (security.ssl_cafile, security.ssl_certfile, security.ssl_keyfile) == ("ca.pem", "me.pem", "me.key")
    assert security.ssl_password == "secret"
    assert security.ssl_check_hostname
    assert "secret" not in repr(config) + repr(security)


def test_the_hosts_name_is_checked_unless_turned_off() -> None:
    assert security_of(SslConfig("ca.pem")).ssl_check_hostname
    assert not security_of(SslConfig("ca.pem", check_hostname=False)).ssl_check_hostname
    theirs = SimpleNamespace(cafile="ca.pem", certfile=None, keyfile=None, password=None, _wrap_socket=None)
    assert security_of(theirs).ssl_check_hostname
    theirs.check_hostname = False
    assert not security_of(theirs).ssl_check_hostname


def test_a_context_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    assert security_of(context).ssl_context is context


def test_a_replaced_wrapping_function_is_not_forgotten_silently(caplog: pytest.LogCaptureFixture) -> None:
    theirs = SimpleNamespace(cafile="ca.pem", certfile=None, keyfile=None, password=None)
    theirs._wrap_socket = ssl.create_default_context().wrap_socket  # what pykafka itself puts there
    security_of(theirs)
    assert not caplog.records
    theirs._wrap_socket = lambda sock: sock
    security_of(theirs)
    assert "_wrap_socket is not used" in caplog.text


def test_pykafkas_own_config() -> None:
    connection = pytest.importorskip("pykafka.connection")
    security = security_of(connection.SslConfig("ca.pem"))
    assert (security.security_protocol, security.ssl_cafile, security.ssl_password) == ("SSL", "ca.pem", None)


def test_fields_as_keywords() -> None:
    login: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}
    # A password alone must not go out in clear because a word was forgotten.
    assert choose_security(None, None, login).security_protocol == "SASL_SSL"
    plain = choose_security(None, None, {**login, "security_protocol": "SASL_PLAINTEXT"})
    assert plain.security_protocol == "SASL_PLAINTEXT"
    assert choose_security(None, None, {"ssl_cafile": "ca.pem"}).security_protocol == "SSL"


def test_a_security_is_taken_as_it_is() -> None:
    security = Security(security_protocol="SSL", ssl_cafile="ca.pem")
    assert choose_security(None, security, {}) is security


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((SslConfig("ca.pem"), Security(), {}), "ssl_config and security"),
        ((SslConfig("ca.pem"), None, {"sasl_mechanism": "PLAIN"}), "ssl_config and sasl_mechanism"),
        ((None, Security(), {"ssl_cafile": "x"}), "security and ssl_cafile"),
    ],
)
def test_saying_it_twice_is_refused(given: Any, text: str) -> None:
    with pytest.raises(err.ConfigurationError, match=f"set twice, by {text}"):
        choose_security(*given)


def test_unknown_and_wrong_things() -> None:
    with pytest.raises(TypeError, match="'ssl_ca': did you mean ssl_cafile"):
        choose_security(None, None, {"ssl_ca": "x"})
    with pytest.raises(TypeError, match=r"security must be .*Security, not dict"):
        choose_security(None, {"security_protocol": "SSL"}, {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"ssl_config must be an SslConfig .*, not str"):
        choose_security("ca.pem", None, {})
