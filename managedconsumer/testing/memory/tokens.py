"""OAUTHBEARER (RFC 7628) with unsigned tokens, as Kafka's development validator takes them. Pure.

Source: Kafka's ``OAuthBearerSaslServer`` and ``OAuthBearerUnsecuredValidatorCallbackHandler``.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

#: The answer to a client that was refused; it then sends :data:`GIVE_UP`.
REFUSED = '{"status":"invalid_token"}'
GIVE_UP = "\x01"
MISSING = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
_FIRST = r"n,(a=(?P<authzid>[^,]*))?,\x01(?P<pairs>.*)\x01"


class WrongTokenError(Exception):
    """The client has sent something else than a bearer token."""


def subject(text: str, now: float) -> str | None:
    """Whose token a client's first message has; None: the token is not good (any more).

    ``now``: seconds since 1970. Raises ValueError for a message without one, WrongTokenError for one of another kind.
    """
    found = re.fullmatch(_FIRST, text, re.DOTALL)
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair) if found else {}
    kind, _, token = pairs.get("auth", "").partition(" ")
    if not kind:
        raise ValueError("a first message without a token")
    if kind.lower() != "bearer":
        raise WrongTokenError
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
