"""A client of schema registries (Confluent's, Karapace, Redpanda, Apicurio's compatible API). It only reads."""

from __future__ import annotations

import base64
import json
import time
from functools import lru_cache
from typing import Any, Callable, Mapping
from urllib.parse import SplitResult, quote, unquote, urlsplit

from managedconsumer.decoding.framing import AVRO, PROTOBUF, Schema
from managedconsumer.errors import ConfigurationError, RegistryError

# The attempts of a question, and how many schemas to keep.
_ATTEMPTS, _MOST_KNOWN = 4, 1024
# How long (seconds) not to ask again for a schema that the registry does not have, and how many of these to remember.
_ABSENT_FOR, _MOST_ABSENT = 10.0, 1024
# "Subject not found", "Version not found", "Schema not found". A 404 without such a code is not from a registry.
_NOT_FOUND = (40401, 40402, 40403)
# Transient statuses, besides those of 500 and more. (200: with a body that is no schema.)
_TRANSIENT = (200, 404, 408, 429)

#: User and password, a token, or a function that returns a token, or a token and the time of its end.
Auth = tuple[str, str] | str | Callable[[], Any]


class Registry:
    """A schema registry. Thread-safe; makes no request before it is used, and one for each schema.

    It keeps up to 1,024 schemas, and for ten seconds which ids the registry does not know. A question is asked four
    times within about a second if no valid response comes.

    :param url: ``https://host:8081``; user and password may be in it, quoted
    :param auth: ``(user, password)``, a bearer token, or a function without arguments that gives one, such as
        :class:`managedconsumer.tokens.ClientCredentials`
    :param tls: an ``ssl.SSLContext``, or the file (PEM) of the authorities to trust; None: the system's
    :param headers: further headers; Confluent Cloud wants ``target-sr-cluster`` beside a token
    :param timeout: seconds for a request, from the look-up of the host to the last byte
    :raises ConfigurationError: ``url`` is none
    """

    def __init__(
        self,
        url: str,
        *,
        auth: Auth | None = None,
        tls: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        parts = _parts(url.rstrip("/"))
        if auth is None and parts.username is not None:
            auth = (unquote(parts.username), unquote(parts.password or ""))
        self._where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._auth, self._tls, self._headers, self._timeout = auth, tls, dict(headers or {}), timeout
        self._context: Any = None
        self._absent: dict[int, float] = {}
        self._known = lru_cache(maxsize=_MOST_KNOWN)(self._look_up)

    def _given(self) -> tuple[Any, ...]:
        return self._where, self._auth, self._tls, self._headers, self._timeout

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registry) and self._given() == other._given()

    def __hash__(self) -> int:
        return hash(self._where)

    def __reduce__(self) -> Any:
        return _again, self._given()

    def __repr__(self) -> str:
        return f"<Registry {self._where}>"

    def schema(self, number: int, kind: str = AVRO) -> Schema:
        """Return the schema with an id; ``kind`` "PROTOBUF": as a serialized file in base64.

        Raises ValueError if there is none, RegistryError without a valid response.
        """
        return self._known(number, _form(kind))

    def newest(self, subject: str, kind: str = AVRO) -> str:
        """Return the newest schema of a subject, like :meth:`schema`. Raises ConfigurationError without one."""
        try:
            answer = self._get(f"subjects/{quote(subject, safe='')}/versions/latest{_form(kind)}")
            if answer is not None:
                return answer.of(kind)
        except (RegistryError, ValueError) as error:
            raise ConfigurationError(f"the subject {subject!r}: {error}") from error
        raise ConfigurationError(f"the registry {self._where} has no subject {subject!r}")

    def decoder(self, *, keys: bool = False) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Return a ``deserializer`` for Confluent's wire format, which decodes values, with ``keys`` keys, too.

        Each is decoded by its own writer's schema (Avro, JSON or Protobuf): records and messages are dicts, None stays
        None. What cannot be decoded raises, and the consumer's ``on_error`` decides. Needs the extra ``typed``.
        """
        from managedconsumer.decoding.dicts import reader_of

        read = reader_of(self)

        def decode(value: Any, key: Any) -> tuple[Any, Any]:
            return None if value is None else read(value), read(key) if keys and key is not None else key

        return decode

    def _look_up(self, number: int, form: str) -> Schema:
        """Ask for a schema, which never changes."""
        absent = ValueError(f"the registry has no schema {number}")
        if time.monotonic() < self._absent.get(number, 0.0):
            raise absent
        answer = self._get(f"schemas/ids/{number}{form}")
        if answer is None:
            if len(self._absent) >= _MOST_ABSENT:
                self._absent.clear()
            self._absent[number] = time.monotonic() + _ABSENT_FOR
            raise absent
        return answer

    def _get(self, path: str) -> Schema | None:
        """Ask the registry, again after transient errors. None: it says that it has no such schema."""
        # Importing urllib.request takes 25 ms of CPU.
        from managedconsumer.runtime.net.https import ElsewhereError, ask

        where, why, retriable = self._where, "", True
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                status, content = ask(f"{where}/{path}", self._sent(), self._timeout, None, self._trusted())
            except ElsewhereError as error:
                raise RegistryError(
                    f"the registry {where} redirects to {error}, where user and password do not go: give the URL that "
                    "it redirects to"
                ) from None
            except OSError as error:
                why = f"{type(error).__name__}: {error}"
            else:
                answer = _parsed(content)
                if status == 200 and (found := _schema(answer)) is not None:
                    return found
                if status == 404 and answer.get("error_code") in _NOT_FOUND:
                    return None
                why = "the answer is no schema as a registry gives it" if status == 200 else f"HTTP {status}"
                if status < 500 and status not in _TRANSIENT:
                    retriable = False
                    break
            if attempt < _ATTEMPTS:
                time.sleep(0.2 * attempt)
        hint = "; look at user and password, or the token, of this registry" if why in ("HTTP 401", "HTTP 403") else ""
        asked = path.partition("?")[0]
        raise RegistryError(f"the registry {where} does not answer the question for {asked}: {why}{hint}", retriable)

    def _sent(self) -> dict[str, str]:
        """Return the headers of a request. Raises OSError if no token is to be had."""
        sent, auth = {"Accept": "application/vnd.schemaregistry.v1+json", **self._headers}, self._auth
        if isinstance(auth, tuple) and not callable(auth):
            sent["Authorization"] = f"Basic {base64.b64encode(':'.join(auth).encode()).decode()}"
        elif auth is not None:
            token = auth() if callable(auth) else auth
            sent["Authorization"] = f"Bearer {token[0] if isinstance(token, tuple) else token}"
        return sent

    def _trusted(self) -> Any:
        if self._context is None and self._tls is not None:
            if isinstance(self._tls, str):
                import ssl

                self._context = ssl.create_default_context(cafile=self._tls)
            else:
                self._context = self._tls
        return self._context


def _again(url: str, auth: Any, tls: Any, headers: Mapping[str, str], timeout: float) -> Registry:
    return Registry(url, auth=auth, tls=tls, headers=headers, timeout=timeout)


def _form(kind: str) -> str:
    """Return the query for the form: the text of a Protobuf schema would need a compiler."""
    return "?format=serialized" if kind == PROTOBUF else ""


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query:
            return parts
    except ValueError:  # a port that is no number, or brackets
        pass
    raise ConfigurationError(  # without the URL: any part of a wrong one may be the password
        "the registry must be an http or https URL such as https://user:password@host:8081; in user and password, "
        "write %2F for /, %3A for :, %40 for @, %23 for #, %3F for ?"
    )


def _parsed(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; {} for anything else."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _schema(answer: dict[str, Any]) -> Schema | None:
    """Return the schema in a response; None: no registry gives such a response."""
    kind, text = answer.get("schemaType") or AVRO, answer.get("schema")
    if not isinstance(kind, str) or not isinstance(text, str):
        return None
    return Schema(kind, text, bool(answer.get("references")))
