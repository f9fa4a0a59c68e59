"""The SASL mechanisms, byte for byte, and against brokers that lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time

import pytest

from managedconsumer.runtime.net import sasl
from managedconsumer.runtime.net.sasl import OAuthBearer, Plain, SaslExchangeError, Scram

# RFC 7677, section 3
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_exchange() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", lambda: CLIENT_NONCE)


def test_scram_sha_256_example_of_rfc_7677() -> None:
    scram = rfc_exchange()
    assert scram.first() == CLIENT_FIRST
    assert scram.step(SERVER_FIRST) == CLIENT_FINAL
    assert scram.step(SERVER_FINAL) is None


def server_final(name: str, password: str, first_bare: bytes, server_first: bytes, final: bytes) -> bytes:
    """What an honest server says, after checking the client's proof."""
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    without_proof, _, proof = final.partition(b",p=")
    signed = b",".join((first_bare, server_first, without_proof))
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    recovered = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert recovered == client_key
    return b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_with_awkward_names_and_random_nonces(mechanism: str) -> None:
    scram = Scram(mechanism, "a=b,c", "pässword, = and more")
    first = scram.first()
    assert first.startswith(b"n,,n=a=3Db=2Cc,r=")
    nonce = first.rpartition(b"r=")[2]
    assert first != Scram(mechanism, "a=b,c", "x").first()
    server_first = b"r=" + nonce + b"xyz,s=" + base64.b64encode(b"salt") + b",i=8192"
    final = scram.step(server_first)
    assert final is not None
    hash_name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    assert scram.step(server_final(hash_name, "pässword, = and more", first[3:], server_first, final)) is None


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"r=%s,s=W22Z,i=4095", "4095 SCRAM iterations"),
        (b"r=%s,s=W22Z,i=1000001", "1000001 SCRAM iterations"),
        (b"r=%s,s=W22Z,i=2147483647", "no reasonable number"),
        (b"r=%s,s=W22Z,i=-5", "no reasonable number"),
        (b"r=%s,s=W22Z,i=" + b"9" * 5000, "no reasonable number"),
        (b"r=%s,s=W22Z", "no reasonable number"),
        (b"r=%s,s=,i=4096", "salt"),
        (b"r=%s,i=4096", "salt"),
        (b"r=%s,s=***,i=4096", "salt"),
        (b"m=ext,r=%s,s=W22Z,i=4096", "extension"),
        (b"r=other,s=W22Z,i=4096", "nonce"),
        (b"r=" + CLIENT_NONCE.encode() + b",s=W22Z,i=4096", "nonce"),
        (b"s=W22Z,i=4096", "nonce"),
        (b"r=%s,r=%s,s=W22Z,i=4096", "malformed"),
        (b"", "malformed"),
        (b"garbage", "malformed"),
        (b"\xff\xfe", "not text"),
        (b"e=unknown-user", "unknown-user"),
    ],
)
def test_a_server_first_message_that_lies_is_refused_at_once(message: bytes, words: str) -> None:
    start = time.thread_time()
    with pytest.raises(SaslExchangeError, match=words):
        rfc_exchange().step(message.replace(b"%s", SERVER_NONCE.encode()))
    assert time.thread_time() - start < 1.0, "many rounds of hashing would take minutes"


@pytest.mark.parametrize("message", [b"v=AAAA", b"v=", b"v=***", b"x=1", b"v=" + base64.b64encode(bytes(32))])
def test_a_broker_that_does_not_know_the_password_is_found_out(message: bytes) -> None:
    scram = rfc_exchange()
    scram.step(SERVER_FIRST)
    with pytest.raises(SaslExchangeError, match=r"signature|prove"):
        scram.step(message)


def test_plain() -> None:
    plain = Plain("user", "päss")
    assert plain.first() == b"\0user\0p\xc3\xa4ss"
    assert plain.step(b"") is None
    with pytest.raises(SaslExchangeError, match="NUL") as caught:
        Plain("user", "sec\0ret")
    assert "sec" not in str(caught.value).replace("sasl_password", "")


def test_oauthbearer_says_token_and_extensions() -> None:
    bearer = OAuthBearer("abc.def", {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"})
    assert bearer.first() == b"n,,\1auth=Bearer abc.def\1logicalCluster=lkc-1\1identityPoolId=pool-1\1\1"
    assert bearer.step(b"") is None


def test_oauthbearer_answers_a_refusal_and_tells_why() -> None:
    bearer = OAuthBearer("abc")
    assert bearer.first() == b"n,,\1auth=Bearer abc\1\1"
    assert bearer.step(b'{"status":"invalid_token"}') == b"\1"
    assert bearer.refusal == "invalid_token"
    with pytest.raises(SaslExchangeError, match="invalid_token"):
        bearer.step(b"?")


@pytest.mark.parametrize("challenge", [b"[1]", b"nonsense", b"\xff", b'{"status":5}', b"[" * 100_000])
def test_oauthbearer_survives_a_strange_refusal(challenge: bytes) -> None:
    bearer = OAuthBearer("abc")
    assert bearer.step(challenge) == b"\1"
    assert bearer.refusal == "no reason given"


@pytest.mark.parametrize("token", ["", "two words", "evil\1auth=x", "ünicode", "abc\n"])
def test_a_token_that_is_none_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(SaslExchangeError, match="not a bearer token") as caught:
        OAuthBearer(token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize("extensions", [{"auth": "x"}, {"a b": "x"}, {"a": ""}, {"a": "x\1y"}, {"": "x"}])
def test_extensions_cannot_smuggle_fields(extensions: dict[str, str]) -> None:
    with pytest.raises(SaslExchangeError, match="sasl_oauth_extensions"):
        OAuthBearer("abc", extensions)


def test_mechanisms_listed() -> None:
    assert sasl.MECHANISMS == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
