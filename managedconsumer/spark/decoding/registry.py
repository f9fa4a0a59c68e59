"""A schema registry (Confluent's, Karapace, Redpanda, Apicurio's compatible API): schemas by id and by subject.

A record is bad only if the registry itself says that it has no such schema, or has one of another format. Any other
response fails the task, which Spark repeats.
"""

from __future__ import annotations

import base64
import json
import time
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from managedconsumer.errors import ConfigurationError
from managedconsumer.values import NamedTuple

# The time-out of a request, from the look-up of the host to the last byte (seconds), and the number of attempts.
_TIMEOUT, _ATTEMPTS = 10.0, 4
#: The bytes in front of a value: a zero, and the id in four bytes.
PREFIX = 5
#: The registry's names of the formats.
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
# How long (seconds) not to ask again for a schema that the registry does not have, and how many of these to remember.
_ABSENT_FOR, _MOST_ABSENT = 10.0, 1024
_absent: dict[tuple[str, int], float] = {}
# "Subject not found", "Version not found", "Schema not found". A 404 without such a code is not from a registry.
_NOT_FOUND = (40401, 40402, 40403)
# Transient statuses, besides those of 500 and more. (200: with a body that is no schema.)
_PASSING = (200, 404, 408, 429)


class RegistryError(OSError):
    """The registry gave no valid response: the task fails, and no record is bad."""


class Schema(NamedTuple):
    """A schema of the registry. ``refers``: it refers to other schemas."""

    kind: str
    text: str
    refers: bool

    def of(self, kind: str) -> str:
        """Return the text; raises ValueError if it is of another format, or refers to others."""
        if self.kind != kind:
            raise ValueError(f"the registry's schema is {self.kind}, not {kind}")
        if self.refers:
            raise ValueError("the registry's schema refers to others, which is not supported")
        return self.text


def take_id(value: bytes) -> tuple[int, bytes]:
    """Return the schema's id and the rest of a value; raises ValueError if it does not begin with one."""
    number = number_in(value)
    if number is None:
        raise ValueError("the value does not begin with a schema's id")
    return number, value[PREFIX:]


def number_in(value: bytes | None) -> int | None:
    """Return the schema's id that the value begins with, or None."""
    if value is None or len(value) < PREFIX or value[0] != 0:
        return None
    return int.from_bytes(value[1:PREFIX], "big")


def schema_of(registry: str, number: int, kind: str = AVRO) -> str:
    """Return the schema with an id, as text; for Protobuf a serialized file in base64.

    Raises ValueError if there is none of that kind, RegistryError without a valid response.
    """
    return _known(registry, number, _form(kind)).of(kind)


@lru_cache(maxsize=256)
def _known(registry: str, number: int, form: str) -> Schema:
    """Return the schema with an id, which never changes."""
    absent = ValueError(f"the registry has no schema {number}")
    if time.monotonic() < _absent.get((registry, number), 0.0):
        raise absent
    answer = _get(registry, f"schemas/ids/{number}{form}")
    if answer is None:
        if len(_absent) >= _MOST_ABSENT:
            _absent.clear()
        _absent[registry, number] = time.monotonic() + _ABSENT_FOR
        raise absent
    return answer


def newest_schema(registry: str, subject: str, kind: str = AVRO) -> str:
    """Return the newest schema of a subject, like :func:`schema_of`. Raises ConfigurationError without one."""
    try:
        answer = _get(registry, f"subjects/{quote(subject, safe='')}/versions/latest{_form(kind)}")
        if answer is not None:
            return answer.of(kind)
    except (RegistryError, ValueError) as error:
        raise ConfigurationError(f"the subject {subject!r}: {error}") from error
    raise ConfigurationError(f"the registry {_shown(registry)} has no subject {subject!r}: see value.subject")


def _form(kind: str) -> str:
    """Return the query for the form: the text of a Protobuf schema would need a compiler."""
    return "?format=serialized" if kind == PROTOBUF else ""


def check_url(registry: str) -> SplitResult:
    """Parse a registry's URL; raises ConfigurationError if it is none."""
    try:
        parts = urlsplit(registry)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query:
            return parts
    except ValueError:  # a port that is no number, or brackets
        pass
    raise ConfigurationError(  # without the URL: any part of a wrong one may be the password
        "value.registry must be an http or https URL such as https://user:password@host:8081; in user and password, "
        "write %2F for /, %3A for :, %40 for @, %23 for #, %3F for ?"
    )


def _get(registry: str, path: str) -> Schema | None:
    """Ask the registry, again after transient errors. None: it says that it has no such schema."""
    # Each reader and worker of Spark imports this file. Most have no registry, and urllib.request takes 25 ms of CPU.
    from managedconsumer.runtime.net.https import ElsewhereError, ask

    parts = check_url(registry)
    headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
    where, why = _shown(registry), ""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            status, content = ask(f"{where}/{path}", headers, _TIMEOUT)
        except ElsewhereError as error:
            raise RegistryError(
                f"the registry {where} redirects to {error}, where user and password do not go: give the URL that it "
                "redirects to as value.registry"
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
            if status < 500 and status not in _PASSING:
                break
        if attempt < _ATTEMPTS:
            time.sleep(0.2 * attempt)
    hint = "; look at user and password in value.registry" if why in ("HTTP 401", "HTTP 403") else ""
    raise RegistryError(f"the registry {where} does not answer the question for {path.partition('?')[0]}: {why}{hint}")


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


def _shown(registry: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(registry)
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}"
