"""A schema registry (Confluent's, Karapace, Apicurio's compatible API): schemas by id and by subject."""

from __future__ import annotations

import base64
import json
import time
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from managedconsumer.errors import ConfigurationError

_TIMEOUT = 10.0
_ATTEMPTS = 4
#: How many bytes are in front of a value: a zero, and the id in four bytes.
PREFIX = 5
# For so long (seconds) a schema that the registry does not have is not asked for again: each bad row would ask.
_ABSENT_FOR, _MOST_ABSENT = 10.0, 1024
_absent: dict[tuple[str, int], float] = {}


def take_id(value: bytes) -> tuple[int, bytes]:
    """The schema's id and the rest of a value; ValueError if it does not begin with one."""
    number = number_in(value)
    if number is None:
        raise ValueError("the value does not begin with a schema's id")
    return number, value[PREFIX:]


def number_in(value: bytes | None) -> int | None:
    """The schema's id that the value begins with, if it does."""
    if value is None or len(value) < PREFIX or value[0] != 0:
        return None
    return int.from_bytes(value[1:PREFIX], "big")


@lru_cache(maxsize=1024)
def schema_of(registry: str, number: int) -> str:
    """The schema with an id, which never changes. ValueError: there is none. OSError: the registry does not answer."""
    absent = ValueError(f"the registry has no schema {number}")
    if time.monotonic() < _absent.get((registry, number), 0.0):
        raise absent
    answer = _get(registry, f"schemas/ids/{number}")
    if answer is None:
        if len(_absent) >= _MOST_ABSENT:
            _absent.clear()
        _absent[registry, number] = time.monotonic() + _ABSENT_FOR
        raise absent
    return _text(answer)


def newest_schema(registry: str, subject: str) -> str:
    """The newest schema of a subject. ConfigurationError: there is none, or it is not Avro."""
    try:
        answer = _get(registry, f"subjects/{quote(subject, safe='')}/versions/latest")
    except OSError as error:
        raise ConfigurationError(f"the registry {_shown(registry)} does not answer: {error}") from error
    if answer is None:
        raise ConfigurationError(f"the registry {_shown(registry)} has no subject {subject!r}: see value.subject")
    return _text(answer)


def _text(answer: Any) -> str:
    if answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
        raise ConfigurationError("the registry's schema is not Avro, or refers to others, which is not supported")
    return str(answer["schema"])


def _get(registry: str, path: str) -> Any:
    """None: not found."""
    # Each reader and worker of Spark imports this file; most have no registry, and urllib.request takes 25 ms of CPU.
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    parts = urlsplit(registry)
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"value.registry={_shown(registry)!r} must be an http or https URL")
    host = parts.netloc.rsplit("@", 1)[-1]
    request = Request(f"{parts.scheme}://{host}{parts.path}/{path}")  # noqa: S310 (checked above)
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json")
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(secret).decode()}")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
                return json.loads(answer.read())
        except HTTPError as error:
            if error.code == 404:
                return None
            if error.code < 500 or attempt == _ATTEMPTS:
                raise
        except OSError:
            if attempt == _ATTEMPTS:
                raise
        time.sleep(0.2 * attempt)
    return None


def _shown(registry: str) -> str:
    """Without user and password."""
    parts = urlsplit(registry)
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}"
