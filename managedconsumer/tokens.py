"""OAuth tokens for ``sasl_oauth_token``: from an identity provider, from AWS, Azure or Google Cloud.

Each name here makes a function without arguments for the option ``sasl_oauth_token`` of ``KafkaClient``. A connection
calls it when it logs in, and again before the token expires (KIP-368). If the provider gives none, ``KafkaClient()``
raises an error whose text and cause say why; a running consumer tries again.

Sources: KIP-768 (client credentials), KIP-1139 (JWT bearer grant), KIP-1258 (signed client assertions), RFC 6749, 7523.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import uuid
from datetime import timezone
from typing import Any, Callable, Mapping
from urllib.parse import quote, urlencode, urlsplit

from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.runtime.net.https import ElsewhereError, ask

__all__ = ["ClientCredentials", "JwtBearer", "SignedJwt", "TokenEndpointError", "aws_msk", "azure", "google"]

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# The share of a token's lifetime in which new connections use it, as Java's client does.
_FRESH = 0.8
_MOST_TEXT = 300

#: A token, and when it expires (Unix time in seconds); None: it does not say so.
Token = tuple[str, float | None]


class TokenEndpointError(OSError):
    """The token endpoint gave no token. Its text has the provider's error, and no secret."""


class _Endpoint:
    """A token endpoint (RFC 6749, section 3.2), and the token that it gave last. Thread-safe."""

    def __init__(
        self,
        url: str,
        form: Mapping[str, str],
        scope: str | None,
        extra: Mapping[str, str],
        cafile: str | None,
        timeout: float,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            public = url.rpartition("@")[2]
            raise ConfigurationError(f"url must be that of a token endpoint, https://..., not {public!r}")
        if parts.username or parts.password:
            raise ConfigurationError("url must not have a user and a password: give client_id and client_secret")
        if timeout <= 0:
            raise ConfigurationError(f"timeout must be seconds above 0, not {timeout!r}")
        self._url, self._timeout = url, timeout
        self._form = {**form, **({"scope": scope} if scope else {}), **extra}
        self._context = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None
        self._last: tuple[Token, float] | None = None

    def token(self, headers: Mapping[str, str], more: Mapping[str, str]) -> Token:
        """The last token while it is fresh, else a new one."""
        now = time.time()
        if self._last is not None and now < self._last[1]:
            return self._last[0]
        given = self._request(headers, more)
        token, seconds = given.get("access_token"), given.get("expires_in")
        if not isinstance(token, str) or not token:
            raise TokenEndpointError(f"the response of {self._url} has no access_token")
        try:
            lifetime = None if seconds is None else float(seconds)
        except (TypeError, ValueError):
            raise TokenEndpointError(f"the response of {self._url} has an expires_in that is no number") from None
        found = (token, None if lifetime is None else now + lifetime)
        self._last = None if lifetime is None else (found, now + _FRESH * lifetime)
        return found

    def _request(self, headers: Mapping[str, str], more: Mapping[str, str]) -> dict[str, Any]:
        body = urlencode({**self._form, **more}).encode()
        sent = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json", **headers}
        try:
            status, content = ask(self._url, sent, self._timeout, body, self._context)
        except ElsewhereError as error:
            raise TokenEndpointError(f"{self._url} redirects to {error}: give the URL of the endpoint itself") from None
        except OSError as error:
            raise TokenEndpointError(f"no response of the token endpoint {self._url}: {error}") from error
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if status != 200 or not isinstance(found, dict):
            raise TokenEndpointError(f"{self._url} gave no token (HTTP status {status}{_said(found)})")
        return found


def _said(found: Any) -> str:
    """The provider's error (RFC 6749, section 5.2)."""
    if not isinstance(found, dict):
        return ", no JSON object"
    texts = [found[key] for key in ("error", "error_description") if isinstance(found.get(key), str)]
    return "".join(f", {text[:_MOST_TEXT]}" for text in texts)


class ClientCredentials:
    """Tokens by the grant ``client_credentials`` (RFC 6749, section 4.4; KIP-768): a service logs in as itself.

    Thread-safe. A token is used for new connections for four fifths of its lifetime.

    :param url: the provider's token endpoint
    :param client_secret: the client's secret; or give ``assertion``
    :param assertion: gives a signed JWT in place of the secret (KIP-1258), see :class:`SignedJwt`
    :param scope: the scopes to ask for, separated by spaces
    :param extra: further fields of the form, for example ``{"audience": "kafka"}``
    :param cafile: a file with the authorities to trust; None: the system's
    :param timeout: seconds for the whole request
    :raises ConfigurationError: neither or both of ``client_secret`` and ``assertion``, or a URL of another kind
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str | None = None,
        *,
        assertion: Callable[[], str] | None = None,
        scope: str | None = None,
        extra: Mapping[str, str] | None = None,
        cafile: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        if (client_secret is None) == (assertion is None):
            raise ConfigurationError("give either client_secret or assertion")
        self._id, self._secret, self._assertion = client_id, client_secret, assertion
        self._endpoint = _Endpoint(url, {"grant_type": "client_credentials"}, scope, extra or {}, cafile, timeout)

    def __call__(self) -> Token:
        """Return a token and its expiry. Raises TokenEndpointError, and what ``assertion`` raises."""
        if self._assertion is not None:
            proof = {"client_assertion_type": _CLIENT_ASSERTION, "client_assertion": self._assertion()}
            return self._endpoint.token({}, {"client_id": self._id, **proof})
        pair = f"{quote(self._id, safe='')}:{quote(self._secret or '', safe='')}"
        return self._endpoint.token({"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}, {})

    def __repr__(self) -> str:
        return f"<ClientCredentials of {self._id!r}>"


class JwtBearer:
    """Tokens by the JWT bearer grant (RFC 7523, section 2.1; KIP-1139): a signed JWT is exchanged for a token.

    Thread-safe. Parameters and errors as of :class:`ClientCredentials`.

    :param assertion: gives the signed JWT, see :class:`SignedJwt`; or reads a file that another program renews
    """

    def __init__(
        self,
        url: str,
        assertion: Callable[[], str],
        *,
        scope: str | None = None,
        extra: Mapping[str, str] | None = None,
        cafile: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._assertion = assertion
        self._endpoint = _Endpoint(url, {"grant_type": _JWT_BEARER}, scope, extra or {}, cafile, timeout)

    def __call__(self) -> Token:
        """Return a token and its expiry. Raises TokenEndpointError, and what ``assertion`` raises."""
        return self._endpoint.token({}, {"assertion": self._assertion()})


class SignedJwt:
    """A JWT that is signed anew with each call. Needs ``pip install 'managedconsumer[oauth]'`` (PyJWT). Thread-safe.

    :param key: the private key, PEM
    :param algorithm: of the signature, as in RFC 7518: ``"RS256"``, ``"ES256"``, ...
    :param claims: for example ``{"iss": "client", "sub": "client", "aud": "https://provider/token"}``
    :param headers: further fields of the header, for example ``{"kid": "1"}``
    :param lifetime: seconds until it expires
    """

    def __init__(
        self,
        key: str | bytes,
        algorithm: str = "RS256",
        *,
        claims: Mapping[str, Any],
        headers: Mapping[str, Any] | None = None,
        lifetime: float = 300.0,
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise MissingPackageError("SignedJwt needs PyJWT: pip install 'managedconsumer[oauth]'") from None
        self._encode = jwt.encode
        self._key, self._algorithm, self._lifetime = key, algorithm, lifetime
        self._claims, self._headers = dict(claims), dict(headers or {})

    def __call__(self) -> str:
        """Return the JWT, issued now, with an id of its own."""
        now = int(time.time())
        issued = {"iat": now, "exp": now + int(self._lifetime), "jti": uuid.uuid4().hex}
        encoded: str = self._encode({**issued, **self._claims}, self._key, self._algorithm, headers=self._headers)
        return encoded

    def __repr__(self) -> str:
        return f"<SignedJwt by {self._algorithm}>"


def aws_msk(region: str, *, profile: str | None = None, role_arn: str | None = None) -> Callable[[], Token]:
    """Tokens of AWS IAM for Amazon MSK. Needs ``pip install 'managedconsumer[msk]'`` (Amazon's signer).

    The credentials are those of the process (boto's order), of a ``profile``, or of a role.

    :param region: the cluster's, for example ``"eu-central-1"``
    :raises MissingPackageError: the package is missing
    :raises ConfigurationError: both ``profile`` and ``role_arn`` are given
    """
    if profile is not None and role_arn is not None:
        raise ConfigurationError("give either profile or role_arn")
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        raise MissingPackageError("aws_msk() needs Amazon's signer: pip install 'managedconsumer[msk]'") from None

    def token() -> Token:
        if role_arn is not None:
            text, expires_ms = MSKAuthTokenProvider.generate_auth_token_from_role_arn(region, role_arn)
        elif profile is not None:
            text, expires_ms = MSKAuthTokenProvider.generate_auth_token_from_profile(region, profile)
        else:
            text, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return text, expires_ms / 1000

    return token


def azure(namespace: str, credential: Any) -> Callable[[], Token]:
    """Tokens of Microsoft Entra for Azure Event Hubs.

    :param namespace: the host, for example ``"orders.servicebus.windows.net"``
    :param credential: of the package ``azure-identity``, for example ``DefaultAzureCredential()``
    """
    scope = f"https://{namespace.partition(':')[0]}/.default"

    def token() -> Token:
        given = credential.get_token(scope)
        return given.token, float(given.expires_on)

    return token


def google(credentials: Any, subject: str, refresh: Any) -> Callable[[], Token]:
    """Tokens for Google Cloud's Managed Service for Apache Kafka, in the form that its brokers take.

    :param credentials: of the package ``google-auth``: ``credentials, _ = google.auth.default(scopes=[...])``
    :param subject: the e-mail address of the account
    :param refresh: the package's transport, ``google.auth.transport.requests.Request()``
    """

    def token() -> Token:
        if not credentials.valid:
            credentials.refresh(refresh)
        # google-auth's time of expiry is UTC and does not say so.
        expires = credentials.expiry.replace(tzinfo=timezone.utc).timestamp()
        head = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
        claims = {"exp": expires, "iat": time.time(), "iss": "Google", "scope": "kafka", "sub": subject}
        parts = [json.dumps(head), json.dumps(claims), credentials.token]
        return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts), expires

    return token
