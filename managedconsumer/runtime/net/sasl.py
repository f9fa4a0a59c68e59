"""SASL mechanisms as pure exchanges: bytes from the broker in, bytes for the broker out.

PLAIN (RFC 4616), SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677) and OAUTHBEARER (RFC 7628), as Kafka speaks them.
A mechanism's ``first()`` gives the opening message; ``step(challenge)`` gives the next one, or None when the broker
has proved what it must and the exchange is over.  No text in here ever contains a password or token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from typing import Callable, Final, Mapping, Protocol

MIN_ITERATIONS: Final = 4096
"""RFC 7677's minimum, and Kafka's: fewer would make a stolen exchange cheap to crack."""
MAX_ITERATIONS: Final = 1_000_000
"""A hostile broker could ask for 2**31 rounds and keep us busy for minutes (GHSA-2jcm-hq8r-84wx)."""

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = ("PLAIN", *_HASHES, "OAUTHBEARER")
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*\Z")
_EXTENSION_KEY = re.compile(r"[A-Za-z]+\Z")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+\Z")


class SaslExchangeError(ValueError):
    """The exchange cannot go on: the broker refused, or cannot be trusted, or our own input is unusable."""


class Mechanism(Protocol):
    """One exchange; make a new object for each."""

    def first(self) -> bytes: ...

    def step(self, challenge: bytes) -> bytes | None: ...


class Plain:
    """User name and password in clear: only over TLS."""

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise SaslExchangeError("sasl_username and sasl_password must not contain a NUL character")
        self._message = b"\0".join((b"", username.encode(), password.encode()))

    def first(self) -> bytes:
        """Return the only message."""
        return self._message

    def step(self, challenge: bytes) -> bytes | None:  # the broker's answer says nothing
        """The broker's response ends the exchange."""
        return None


class Scram:
    """Salted challenge and response; the broker proves, too, that it knows the password."""

    def __init__(
        self, mechanism: str, username: str, password: str, nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24)
    ) -> None:
        """``nonce``: printable characters without a comma, unpredictable; a test gives its own."""
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce()
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """Return the first message: the user's name and our nonce."""
        return b"n,," + self._bare.encode()

    def step(self, challenge: bytes) -> bytes | None:
        """Respond to the salt with our proof, then check the broker's.  The first call is slow (PBKDF2)."""
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise SaslExchangeError("the broker's SCRAM message is not text") from None
        fields = _scram_fields(text)
        if "e" in fields:
            raise SaslExchangeError(f"the broker refused: {_printable(fields['e'])}")
        if self._server_signature is None:
            return self._prove(text, fields)
        self._verify(fields)
        return None

    def _prove(self, server_first: str, fields: Mapping[str, str]) -> bytes:
        if "m" in fields:
            raise SaslExchangeError("the broker demands a SCRAM extension that this client does not know")
        nonce = fields.get("r", "")
        prefix = nonce[: len(self._nonce)]
        if not hmac.compare_digest(prefix.encode(), self._nonce.encode()) or len(nonce) <= len(self._nonce):
            raise SaslExchangeError("the broker's nonce does not continue ours: somebody replays an old exchange")
        salt = _base64(fields.get("s", ""), "salt")
        iterations = _iterations(fields.get("i", ""))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        final = f"c=biws,r={nonce}"  # biws: "n,,", no channel binding
        signed = f"{self._bare},{server_first},{final}".encode()
        signature = self._hmac(stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, fields: Mapping[str, str]) -> None:
        claimed = _base64(fields.get("v", ""), "signature")
        if self._server_signature is None or not hmac.compare_digest(claimed, self._server_signature):
            raise SaslExchangeError(
                "the broker could not prove that it knows the password: it may be an impostor, or a proxy in between"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


class OAuthBearer:
    """A bearer token (and Kafka's extensions, KIP-342)."""

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if not _TOKEN.match(token):
            raise SaslExchangeError(
                "sasl_oauth_token gave something that is not a bearer token (RFC 6750, section 2.1)"
            )
        self._fields = [f"auth=Bearer {token}", *_extensions(extensions or {})]
        #: The broker's reason for refusing the token, if it has refused it.
        self.refusal: str | None = None

    def first(self) -> bytes:
        """The token and the extensions."""
        return ("n,,\1" + "".join(f"{field}\1" for field in self._fields) + "\1").encode()

    def step(self, challenge: bytes) -> bytes | None:
        """An empty response is success; else it has the reason, and the broker wants a last byte before it hangs up."""
        if not challenge:
            return None
        if self.refusal is None:
            self.refusal = _oauth_status(challenge)
            return b"\1"
        raise SaslExchangeError(f"the broker refused the token: {self.refusal}")


def _scram_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, separator, value = part.partition("=")
        if len(key) != 1 or not separator or key in fields:
            raise SaslExchangeError("the broker's SCRAM message is malformed")
        fields[key] = value
    return fields


def _iterations(text: str) -> int:
    # At most seven digits, so that a hostile broker cannot even make the conversion slow.
    if not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise SaslExchangeError(f"the broker's SCRAM iteration count {_printable(text)!r} is no reasonable number")
    count = int(text)
    if not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
        raise SaslExchangeError(
            f"the broker asks for {count} SCRAM iterations; only {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
        )
    return count


def _base64(text: str, what: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data:
        raise SaslExchangeError(f"the {what} in the broker's SCRAM message is missing or not base64")
    return data


def _extensions(extensions: Mapping[str, str]) -> list[str]:
    for key, value in extensions.items():
        if not _EXTENSION_KEY.match(key) or key == "auth" or not _EXTENSION_VALUE.match(value):
            raise SaslExchangeError(
                f"sasl_oauth_extensions: {_printable(key)!r} has a name or value that is not allowed"
            )
    return [f"{key}={value}" for key, value in extensions.items()]


def _oauth_status(challenge: bytes) -> str:
    try:
        answer = json.loads(challenge)
    except ValueError:  # a JSON or a Unicode error
        answer = None
    except RecursionError:
        answer = None
    status = answer.get("status") if isinstance(answer, dict) else None
    return _printable(status) if isinstance(status, str) and status else "no reason given"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:200])
