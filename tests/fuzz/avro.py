"""Avro values from a hostile producer: sound columns, each bad value its row alone, and the same as by fastavro."""

from __future__ import annotations

import io
import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from managedconsumer.decoding.avro_values import AvroDecoder
from managedconsumer.decoding.formats import ValueFormat
from tests.fuzz.kit import Case, mutate

SCHEMA = {
    "type": "record",
    "name": "V",
    "fields": [
        {"name": "truth", "type": ["null", "boolean"]},
        {"name": "int", "type": "int"},
        {"name": "long", "type": ["long", "null"]},
        {"name": "float", "type": "float"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "bytes", "type": "bytes"},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["A", "BC"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38}},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {
            "name": "list",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "I",
                    "fields": [{"name": "x", "type": ["null", "double"]}, {"name": "y", "type": "string"}],
                },
            },
        },
        {"name": "map", "type": ["null", {"type": "map", "values": {"type": "array", "items": "long"}}]},
    ],
}


class AvroValues:
    """A batch of values, most of them damaged."""

    name = "avro"

    def __init__(self) -> None:
        self.decoder: Any = AvroDecoder(ValueFormat("avro", json.dumps(SCHEMA).encode()))

    def _sound(self, rng: random.Random) -> bytes:
        def text() -> str:
            return "".join(rng.choice("ab\u00e9\u20ac\U0001f600") for _ in range(rng.randrange(12)))

        value = {
            "truth": rng.choice((None, True, False)),
            "int": rng.randrange(-(2**31), 2**31),
            "long": rng.choice((None, rng.randrange(-(2**63), 2**63))),
            "float": rng.random(),
            "text": rng.choice((None, text())),
            "bytes": rng.randbytes(rng.randrange(30)),
            "fixed": rng.randbytes(3),
            "enum": rng.choice(("A", "BC")),
            "day": rng.randrange(-719162, 2932897),
            "at": rng.randrange(-(10**13), 10**14),
            "price": Decimal(rng.randrange(-(10**38) + 1, 10**38)),
            "nothing": [None] * rng.randrange(4),
            "list": [{"x": rng.choice((None, 0.5)), "y": text()} for _ in range(rng.randrange(4))],
            "map": rng.choice((None, {text(): [1, 2], "k": []})),
        }
        out = io.BytesIO()
        self.decoder._fastavro.schemaless_writer(out, self.decoder._schema, value)
        return out.getvalue()

    def case(self, rng: random.Random) -> Case:
        sound = [self._sound(rng) for _ in range(rng.randint(1, 6))]
        return {"values": [mutate(value, rng, 3) if rng.random() < 0.7 else value for value in sound]}

    def check(self, case: Case) -> None:
        raw = pa.array(case["values"], pa.binary())
        column, bad = self.decoder.decode(raw)
        column.validate(full=True)
        for row, value in enumerate(case["values"]):
            if row in bad:
                assert column[row].as_py() is None
                continue
            found, theirs = column[row].as_py(), self.decoder._array(pa.array([value], pa.binary()))[0].as_py()
            # A map that names a key twice: fastavro makes a dict of it.
            found["map"] = found["map"] and list(dict(found["map"]).items())
            assert repr(found) == repr(theirs), value
