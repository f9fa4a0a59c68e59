"""The broker's side of SASL: PLAIN (RFC 4616), SCRAM (RFC 5802, 7677), and OAUTHBEARER (RFC 7628) with unsigned tokens.

Sources: Kafka's ``OAuthBearerSaslServer`` and ``OAuthBearerUnsecuredValidatorCallbackHandler``. The clock, the salt and
the nonce are the system's. Passwords are kept as they are: this broker is for tests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from typing import Any, Mapping

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, AUTHENTICATION_FAILED = 33, 34, 58
_ITERATIONS = 4096
#: The response to a client that was refused; it then sends ``_GIVE_UP``.
_REFUSED = '{"status":"invalid_token"}'
_GIVE_UP = "\x01"
_MISSING = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
_FIRST = r"n,(a=(?P<authzid>[^,]*))?,\x01(?P<pairs>.*)\x01"


class _RefusedError(Exception):
    """The login is refused; with a text, the client gets the text."""


class Login:
    """The login of one connection; ``done`` when it has succeeded."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._mechanism: str | None = None
        self._scram: _Scram | None = None
        self.done = not users

    def handshake(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """SaslHandshake. A listener without logins refuses it."""
        if not self._users:
            return {"error_code": ILLEGAL_STATE, "mechanisms": []}
        code = 0 if body["mechanism"] in MECHANISMS else UNSUPPORTED_MECHANISM
        self._mechanism, self._scram = (None if code else body["mechanism"]), None
        return {"error_code": code, "mechanisms": list(MECHANISMS)}

    def authenticate(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """SaslAuthenticate: one message of the exchange. None: close the connection, as Kafka does."""
        if self._mechanism is None:
            return {"error_code": ILLEGAL_STATE, "error_message": "SaslHandshake comes first", "auth_bytes": b""}
        try:
            said = self._step(bytes(body["auth_bytes"]).decode())
        except _WrongTokenError:
            return None
        except (_RefusedError, LookupError, ValueError) as error:
            text = f"Authentication failed: invalid credentials with SASL mechanism {self._mechanism}"
            text = str(error) if isinstance(error, _RefusedError) and error.args else text
            return {"error_code": AUTHENTICATION_FAILED, "error_message": text, "auth_bytes": b""}
        return {"error_code": 0, "error_message": "", "auth_bytes": said.encode()}

    def _step(self, text: str) -> str:
        if self._mechanism == "PLAIN":
            _, user, password = text.split("\0")
            if not hmac.compare_digest(self._users.get(user, "").encode(), password.encode()) or not password:
                raise _RefusedError
            self.done = True
            return ""
        if self._mechanism == "OAUTHBEARER":
            if text == _GIVE_UP:
                raise _RefusedError(_REFUSED)
            try:
                self.done = _subject(text, time.time()) in self._users
            except ValueError:
                raise _RefusedError(_MISSING) from None
            return "" if self.done else _REFUSED
        if self._scram is None:
            self._scram = _Scram(_HASHES[self._mechanism or ""], self._users)
            return self._scram.first(text)
        said = self._scram.final(text)
        self.done = True
        return said


class _Scram:
    """The server's two messages."""

    def __init__(self, digest: str, users: Mapping[str, str]) -> None:
        self._digest, self._users = digest, users
        self._salt, self._salted = secrets.token_bytes(16), b""
        self._signed = self._nonce = ""

    def first(self, text: str) -> str:
        """Return the salt of a known user."""
        bare = text.split(",", 2)[2]  # behind "n,,"
        fields = _fields(bare)
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if user not in self._users:
            raise _RefusedError
        self._nonce = fields["r"] + secrets.token_urlsafe(18)
        self._salted = hashlib.pbkdf2_hmac(self._digest, self._users[user].encode(), self._salt, _ITERATIONS)
        said = f"r={self._nonce},s={base64.b64encode(self._salt).decode()},i={_ITERATIONS}"
        self._signed = f"{bare},{said}"
        return said

    def final(self, text: str) -> str:
        """Check the client's proof, and return the broker's."""
        without, _, proof = text.rpartition(",p=")
        if _fields(without).get("r") != self._nonce:
            raise _RefusedError
        signed = f"{self._signed},{without}".encode()
        key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._digest, key).digest(), signed)
        expected = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        if not hmac.compare_digest(base64.b64decode(proof), expected):
            raise _RefusedError
        return f"v={base64.b64encode(self._hmac(self._hmac(self._salted, b'Server Key'), signed)).decode()}"

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._digest).digest()


def _fields(text: str) -> dict[str, str]:
    fields = dict(part.split("=", 1) for part in text.split(","))
    if "r" not in fields:
        raise ValueError("a SCRAM message without a nonce")
    return fields


class _WrongTokenError(Exception):
    """The client has not sent a bearer token."""


def _subject(text: str, now: float) -> str | None:
    """Return the user of the token in a client's first message; None: the token is invalid or has expired.

    ``now``: seconds since 1970. Raises ValueError for a message without one, _WrongTokenError for one of another kind.
    """
    found = re.fullmatch(_FIRST, text, re.DOTALL)
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair) if found else {}
    kind, _, token = pairs.get("auth", "").partition(" ")
    if not kind:
        raise ValueError("a first message without a token")
    if kind.lower() != "bearer":
        raise _WrongTokenError
    try:
        head, claims, signature = token.strip().split(".")
        about, said = _decoded(head), _decoded(claims)
        good = not signature and about.get("alg") == "none" and float(said["exp"]) > now >= float(said.get("iat", 0))
        name = said["sub"]
    except (KeyError, TypeError, ValueError):
        return None
    return name if good and isinstance(name, str) and name else None


def _decoded(part: str) -> dict[str, Any]:
    found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    if not isinstance(found, dict):
        raise ValueError("a token's part is no object")
    return found
