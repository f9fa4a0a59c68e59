"""JSON values from a hostile producer, and a registry that answers anything: good rows stay good, and nothing hangs."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any
from unittest import mock

import pyarrow as pa

from managedconsumer.decoding.avro_values import AvroDecoder
from managedconsumer.decoding.formats import ValueFormat, by_halves
from managedconsumer.decoding.json_values import JsonDecoder
from managedconsumer.errors import RegistryError
from managedconsumer.runtime.net import https, schema_registry
from tests.fuzz.avro import SCHEMA
from tests.fuzz.kit import Case, mutate

_FIELDS: dict[str, Any] = {
    "text": {"type": "string"},
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "yes": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    "in": {"type": "object", "properties": {"text": {"type": "string"}}},
}
_PIECES = (b'{"n": 1}', b'{"new": [', b'{"text": "', b'"}', b"}", b"]", b", ", b"\n", b"{", b'"\xff"')
_PIECES += (b"\\ud800", b"\0", b"{}")


class JsonValues:
    """A batch of values: sound, damaged, and cut where the next one goes on."""

    name = "json"

    def __init__(self) -> None:
        schema = {"type": "object", "properties": _FIELDS}
        self.decoder = JsonDecoder(ValueFormat("json", json.dumps(schema).encode()))

    def _sound(self, rng: random.Random) -> bytes:
        text = "".join(rng.choice('ab\u00e9\U0001f600"{}[]\n') for _ in range(rng.randrange(6)))
        value = {
            "text": text,
            "n": rng.randrange(-(2**63), 2**63),
            "x": rng.random(),
            "yes": rng.choice((True, None)),
            "list": [{"n": n} for n in range(rng.randrange(3))],
            "in": rng.choice(({"text": text}, None)),
            "new": rng.choice((text, [1, {"y": text}])),
        }
        chosen = rng.sample(sorted(value), rng.randrange(len(value)))
        return json.dumps({name: value[name] for name in chosen}, ensure_ascii=rng.random() < 0.5).encode()

    def case(self, rng: random.Random) -> Case:
        values = []
        for _ in range(rng.randint(1, 4)):
            value, kind = self._sound(rng), rng.randrange(4)
            if kind == 0:
                values.append(mutate(value, rng, 3))
            elif kind == 1:
                at = rng.randrange(len(value) + 1)
                values += [value[:at], value[at:] + self._sound(rng)]
            elif kind == 2:
                values.append(b"".join(rng.choice(_PIECES) for _ in range(rng.randrange(7))))
            else:
                values.append(value)
        return {"values": values}

    def check(self, case: Case) -> None:
        values = case["values"]
        column, bad = self.decoder.decode(pa.array(values, pa.binary()))
        column.validate(full=True)
        for row, value in enumerate(values):
            alone, why = by_halves(self.decoder._array, column.type, pa.array([value], pa.binary()))  # Arrow's reader
            assert repr(column[row].as_py()) == repr(alone[0].as_py()), value
            assert bad.get(row) == why.get(0), value
            if not why:
                assert isinstance(json.loads(value.decode()), dict), value


class Registries:
    """What a registry answers, damaged as HTTP, as JSON and as a schema; and values by it, damaged, too."""

    name = "registry"
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.schema = json.dumps(SCHEMA)

    def case(self, rng: random.Random) -> Case:
        schema = self.schema.encode()
        kind = rng.randrange(4)
        if kind == 0:
            schema = mutate(schema, rng, 3)
        elif kind == 1:
            words = ("null", "int", "string", "array", "record", "decimal", '"V"', '"I"')
            words += ('"size": 3', '"precision": 38')
            text = self.schema.replace(
                rng.choice(words), rng.choice((*words, "V", "I", "-1", "[]", "{}")), rng.randrange(1, 4)
            )
            schema = text.encode()
        answer: Any = {"schema": schema.decode("utf-8", "replace"), "schemaType": rng.choice(("AVRO", "JSON", None, 7))}
        if rng.random() < 0.7:
            answer.pop("schemaType")
        if rng.random() < 0.1:
            answer = rng.choice(([answer], None, 7, {"error_code": rng.choice((40403, 404, "40403"))}))
        body = json.dumps(answer).encode()
        if rng.random() < 0.2:
            body = mutate(body, rng, 2)
        status = rng.choice((200, 200, 200, 200, 404, 500, 401))
        return {"status": status, "body": body, "values": [rng.randbytes(rng.randrange(40)) for _ in range(3)]}

    def check(self, case: Case) -> None:
        number = next(self._numbers)
        head = b"\0" + number.to_bytes(4, "big")
        raw = pa.array([head + value for value in case["values"]], pa.binary())
        text = json.dumps({**SCHEMA, "fields": [SCHEMA["fields"][1]]})
        decoder: Any = AvroDecoder(
            ValueFormat("avro", text.encode(), registry=schema_registry.Registry("http://user:word@host"))
        )
        answer = (case["status"], case["body"])
        with mock.patch.object(https, "ask", return_value=answer), mock.patch.object(schema_registry.time, "sleep"):
            try:
                column, bad = decoder.decode(raw)
            except RegistryError as error:
                assert "word" not in str(error).replace("password", "")
                assert case["status"] != 200 or not _is_an_answer(case["body"])
                return
        column.validate(full=True)
        assert len(column) == len(raw)
        assert all(column[row].as_py() is None for row in bad)


def _is_an_answer(body: bytes) -> bool:
    try:
        found = json.loads(body)
    except ValueError:
        return False
    kinds = isinstance(found, dict) and (found.get("schemaType") or "", found.get("schema"))
    return bool(kinds) and all(isinstance(each, str) for each in kinds)
