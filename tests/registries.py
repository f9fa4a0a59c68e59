"""A schema registry over HTTP, for tests: what it answers is what the test says."""

from __future__ import annotations

import json
from typing import Any, Callable

import pytest

from managedconsumer.decoding.framing import AVRO, Schema
from managedconsumer.runtime.net import schema_registry
from tests.endpoints import Answer as Answer
from tests.endpoints import Endpoint

NOT_FOUND: Answer = (404, {"error_code": 40403, "message": "Schema not found"})


class Registry(Endpoint):
    """Knows ``schemas`` by id from 1 on, and the newest of them as that of each subject."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.schemas: list[Any] = []
        super().__init__(host)

    def answer(self, path: str) -> Answer:
        """What a sound registry answers: a schema, or an object that is the answer itself."""
        *_, last = path.partition("?")[0].split("/")
        at = len(self.schemas) if last == "latest" else int(last) if last.isdecimal() else 0
        if not 1 <= at <= len(self.schemas):
            return NOT_FOUND
        known = self.schemas[at - 1]
        return 200, known if "schema" in known else {"schema": json.dumps(known)}


def framed(number: int, value: bytes) -> bytes:
    """Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big") + value


def has_avro(text_of: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All registries have the Avro schemas of ``text_of``, without any request."""
    monkeypatch.setattr(
        schema_registry.Registry, "schema", lambda _self, number, _kind: Schema(AVRO, text_of(number), False)
    )
