"""JSON values by the compiled columns: the rows, bad rows and errors of Arrow's reader, whatever the bytes are."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managedconsumer.decoding.compiled import compiled
from managedconsumer.decoding.formats import TooLargeError, ValueFormat, by_halves
from managedconsumer.decoding.json_values import JsonDecoder, _column
from tests.decoding.test_framed import damaged
from tests.registries import Registry, framed

needs_build = pytest.mark.skipif(compiled() is None, reason="this process runs without compiled modules")

#: More by hand: ``JSON_EXAMPLES=5000 pytest tests/decoding/test_json_columns.py``.
EXAMPLES = int(os.environ.get("JSON_EXAMPLES", "10"))

NUMBERS = (
    "0 -0 -0.0 1 -1 127 128 -128 -129 32768 -2147483648 2147483648 1.0 1e3 1E+5 1. .5 1e 1e+ 0.1e1 1e400 -1e400 1e-400 "
    "9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 01 +1 - 9007199254740993 1e23 "
    "1e22 8.98846567431158e307 2.2250738585072011e-308 123456789012345678e-30 NaN Infinity -Infinity 0x1 "
    f"12345678901234567890 0.{'0' * 25}1 {'9' * 330} 1e0000001 7.0e-10 0.30000000000000004 0.{'0' * 60} 0e99"
).split(" ")
TIMES = (
    "2026-01-02T03:04:05Z|2026-01-02 03:04:05.5+01:30|2024-02-29T23:59:59.123456-23:59|2026-02-29T00:00:00Z|"
    "1900-02-29T00:00:00|2000-02-29T00:00:00|0001-01-01T00:00:00+23:59|9999-12-31T23:59:59.999999Z|2026-01-02|"
    "2026-01-02T03:04|2026-01-02T03:04:05.1234567Z|2026-01-02T03:04:05.Z|2026-01-02T24:00:00Z|2026-01-02T03:04:60Z|"
    "2026-13-02T03:04:05Z|2026-00-02T03:04:05|0000-01-02T03:04:05|-026-01-02T03:04:05|2026-01-02T03:04:05+24:00|"
    "2026-01-02T03:04:05+0130|2026-01-02T03:04:05+01|2026-01-02t03:04:05z||1969-12-31T23:59:59.9Z|"
    "2026-01-02T03:04:05 Z|2026-01-02T03:04:05.+01:00|2026/01/02T03:04:05Z|2026-01-02T03:04:05.123456"
).split("|")
TEXTS = [
    *r"\ud83d\ude00 \ud83d \ude00x \ud83d\u0041 \u0000 \x \ \u12 \"\\\/\b\f\n\r\t \u12g4 \ud83d\n \U0041 null".split(),
    *r"a user-17 123456\u00e9\uD83D\uDE0012345678".split(),
    *("", "with \\n an \\u00e9", "\u00e9\u20ac\U0001f600", "tab\there", "\x7f", "1234567\x01", "\\u 123", "x" * 40),
]
KINDS = ("string", "byte", "short", "integer", "long", "double", "boolean", "timestamp", "timestamp_ntz", "date")
NAMES = ("id", "user", "", "a", "b", "c", "\u00e9", "a much longer name than others")


def decoder_of(schema: Any, registry: Any = None) -> JsonDecoder:
    return JsonDecoder(ValueFormat("json", json.dumps(schema).encode(), registry=registry))


def struct(*fields: tuple[str, Any]) -> Any:
    """A schema in Spark's form, which has the most types."""
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields]}


ALL = struct(
    *((kind, kind) for kind in KINDS),
    ("inner", struct(("a", "long"))),
    ("list", {"type": "array", "elementType": "long"}),
)


def same(decoder: JsonDecoder, values: list[Any]) -> None:
    """Compare rows and errors with Arrow's, also of a part of the array."""
    raw = pa.array([b"{", *values, b"{}"], pa.binary())[1:-1]
    made, theirs = decoder.decode(raw), by_halves(decoder._array, decoder.type(), raw)
    made[0].validate(full=True)
    rows = zip(values, shown(*made), shown(*theirs), strict=True)
    assert [(value, row, wanted) for value, row, wanted in rows if row != wanted] == []


def shown(column: Any, bad: Mapping[int, str]) -> list[Any]:
    """All that is in each row: NaN, the sign of zero, and times that Python has not; and the error."""
    rows = column.cast(bare(column.type)).to_pylist()
    return [(repr(row), bad.get(number)) for number, row in enumerate(rows)]


def bare(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, bare(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", bare(kind.value_type)))
    return {pa.date32(): pa.int32(), pa.timestamp("us"): pa.int64(), pa.timestamp("us", "UTC"): pa.int64()}.get(
        kind, kind
    )


def unusual(decoder: Any, values: list[Any]) -> int:
    """How many values the compiled columns leave to Arrow."""
    column = _column(decoder._compiled, pa, decoder.type())
    return len(decoder._compiled.decode(column, pa.array(values, pa.binary()))[1])


def each_in(texts: Iterable[str], *places: str) -> list[Any]:
    return [place.replace("?", text).encode() for text in texts for place in places]


NEW = '{"new":[{"y":[?]}],"long":5}'


def test_each_kind_of_number() -> None:
    single = (f'{{"{kind}": ? }}' for kind in ("byte", "short", "integer", "double"))
    same(decoder_of(ALL), each_in(NUMBERS, *single, '{"long":?,"byte":2}', '{"list":[1,?,null]}', NEW))


def test_each_word_for_each_kind() -> None:
    words = (
        "true",
        "false",
        "null",
        "True",
        "nul",
        "truex",
        "[]",
        "[1]",
        "{}",
        "[",
        "{",
        "",
        '"',
        "7 8",
        "[ ]",
        "[,]",
        "2",
    )
    names = ("string", "long", "double", "boolean", "timestamp", "inner", "list")
    same(decoder_of(ALL), each_in(words, *(f'{{"byte":1,"{name}":?}}' for name in names), NEW))


def test_each_kind_of_text() -> None:
    decoder = decoder_of(ALL)
    same(decoder, each_in(TEXTS, '{"string":"?"}', '{"?":"a"}', NEW.replace("?", '"?"'), '{"long":"?"}'))
    same(decoder, each_in(TIMES, '{"timestamp":"?"}', '{"timestamp_ntz":"?"}'))
    same(decoder, each_in([each[:10] for each in TIMES] + ["2026-01-02 "], '{"date":"?"}', '{"new":1,"date": "?"}'))


def test_each_form_of_an_object() -> None:
    values: list[Any] = [
        *(b"", b" ", b"{", b"}", b"{}", b"7", b"[]", b"null", b'""', b"{,}", b'{"long"}', b'{"long":}', b'{"long":1,}'),
        *(b'{"long":1}x', b'{"long":1}{"long":2}', b'{"long":1} \r\n\t', b' \n{ "long"\t: 1 ,\r"byte":2 }', b"\x0b{}"),
        *(b'{"long":1}\0', b'{"long":1 "byte":2}', b"{'long':1}", b'{"long":1,"long":1}', b'{"long":null,"long":1}'),
        *(b'{"new":1,"new":2}', b'{"inner":{"a":1,"a":2}}', b'{"inner":{"b":1,"b":2},"long":3}', b'{"\\u006cong":1}'),
        *(
            b"\xef\xbb\xbf{}",
            b'{"string":"\xff"}',
            b'{"\xff":1}',
            b'{"new":"\xed\xa0\x80"}',
            b'{"string":"\xc3"}',
            None,
        ),
        *(
            b'{"string":"\xc3","new":"\xa9"}',
            b'{"new":' + b"[" * 500 + b"]" * 500 + b"}",
            b'{"new":' + b"[" * 99,
            b'{"":1}',
        ),
        *(
            b'{"a":{"b":[1,{"c":"}"}]},"long":4}',
            b'{"new":[1,]}',
            b'{"new":{"a":1,}}',
            b'{"new":{1:1}}',
            b'{"new":[1}}',
        ),
    ]
    same(decoder_of(ALL), values)
    value = b'{"string":"text","long":12,"new":[{"a":"\\u00e9"},1.5e3,true],"list":[1,2],"inner":{"a":1}}'
    values = [part for at in range(len(value) + 1) for part in (value[:at], value[at:])]
    same(decoder_of(ALL), values)  # side by side in one buffer, where no value may go on in the next one
    assert len(decoder_of(ALL).decode(pa.array(values, pa.binary()))[1]) == len(values) - 2


@needs_build
def test_what_is_usual_needs_no_other_reader() -> None:
    values = [
        b'{"string": "text", "long": -12, "double": 0.1, "boolean": true, "timestamp": "2026-01-02T03:04:05.5+01:00"}',
        b'{"new":[{"a":"\\u00e9\\ud83d\\ude00"},1.5e3,true],"boolean":false,"long":9223372036854775807,"string":null}\n',
        '{"string":"\u00e9 and \\"","list":[1,null,2],"inner":{"a":1,"b":{}},"double":0.12345678901234567}'.encode(),
        b"{}",
    ]
    assert unusual(decoder_of(ALL), values) == 0
    same(decoder_of(ALL), values)


@needs_build
def test_types_that_only_arrow_reads() -> None:
    for kind in ("float", "decimal(5,2)"):
        decoder = decoder_of(struct(("a", "long"), ("b", kind)))
        assert decoder._compiled is None
        same(decoder, [b'{"a":1,"b":2}', b'{"a":1,"b":"2.50"}', b'{"a":1,"b":2.5}', b"{"])


def test_a_date_is_text() -> None:
    day = {"type": "string", "format": "date"}
    decoder = decoder_of({"type": "object", "properties": {"day": day, "list": {"type": "array", "items": day}}})
    values = [b'{"day":"2024-02-29","list":["1969-12-31",null]}', b'{"day":"2026-02-29"}', b'{"day":5}', b"{}"]
    made, bad = decoder.decode(pa.array(values, pa.binary()))
    assert made.to_pylist() == [
        {"day": dt.date(2024, 2, 29), "list": [dt.date(1969, 12, 31), None]},
        *(None, None, {"day": None, "list": None}),
    ]
    assert list(bad) == [1, 2]


def test_doubles_are_the_nearest_ones() -> None:
    rng = random.Random(7)
    numbers = [
        rng.choice((repr, "{:.17g}".format, "{:.20e}".format, "{:.6f}".format, "{:.40f}".format))(random_double(rng))
        for _ in range(2000)
    ]
    numbers += [f"{rng.getrandbits(rng.randrange(1, 64))}e{rng.randrange(-45, 45)}" for _ in range(2000)]
    decoder = decoder_of(struct(("x", "double")))
    made, bad = decoder.decode(pa.array([f'{{"x":{each}}}'.encode() for each in numbers], pa.binary()))
    assert not bad
    assert [row["x"] for row in made.to_pylist()] == [float(each) for each in numbers]


def random_double(rng: random.Random) -> float:
    return rng.choice((rng.random(), rng.random() * 1000, math.ldexp(rng.random() - 0.5, rng.randrange(-200, 200))))


def test_a_batch_that_becomes_too_large_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.decoding.formats.BATCH_BYTES", 2000)
    decoder = decoder_of({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}})
    value = b'{"a":[' + b"1," * 300 + b"1]}"
    with pytest.raises(TooLargeError):
        decoder.decode(pa.array([value] * 3, pa.binary()))
    assert decoder.decode(pa.array([value], pa.binary()))[0].to_pylist() == [{"a": [1] * 301}]


class Values:
    """Random schemas, and texts of values that are nearly right."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def schema(self, depth: int = 0) -> Any:
        names = self.rng.sample(NAMES, self.rng.randint(1, 5))
        return struct(*((name, self.kind(depth + 1)) for name in names))

    def kind(self, depth: int) -> Any:
        chosen = self.rng.randrange(10 if depth < 3 else 8)
        if chosen < 8:
            return self.rng.choice(KINDS)
        return self.schema(depth) if chosen == 8 else {"type": "array", "elementType": self.kind(depth + 1)}

    def space(self) -> str:
        return self.rng.choice(("", "", "", "", " ", "\n\t", " \r"))

    def text(self, kind: Any, depth: int = 0) -> str:
        rng = self.rng
        if rng.random() < 0.03 and depth < 4:
            kind = self.kind(depth)
        if rng.random() < 0.1:
            return "null"
        if isinstance(kind, dict) and kind["type"] == "struct":
            return self.of_object(kind, depth)
        if isinstance(kind, dict):
            items = [self.text(kind["elementType"], depth + 1) for _ in range(rng.randrange(4))]
            return f"[{self.space()}{f'{self.space()},{self.space()}'.join(items)}{self.space()}]"
        by_kind: dict[str, Callable[[], str]] = {
            "string": lambda: json.dumps(
                "".join(rng.choice('abc"\\\n\u00e9\U0001f600') for _ in range(rng.randrange(20)))
            ),
            "double": lambda: repr(random_double(rng)),
            "boolean": lambda: rng.choice(("true", "false")),
            "timestamp": lambda: f'"{rng.choice(TIMES[:8])}"',
            "date": lambda: f'"{rng.choice(TIMES[:8])[:10]}"',
        }
        if rng.random() < 0.02:
            return rng.choice((*NUMBERS, *(f'"{each}"' for each in TEXTS)))
        made = by_kind.get(kind.removesuffix("_ntz"), lambda: str(rng.randrange(-(2 ** rng.randrange(1, 9)), 100)))
        return made()

    def of_object(self, kind: Any, depth: int) -> str:
        rng, fields = self.rng, [(each["name"], each["type"]) for each in kind["fields"]]
        if rng.random() < 0.3:
            rng.shuffle(fields)
        fields = [each for each in fields if rng.random() < 0.9]
        if rng.random() < 0.3 and depth < 4:
            fields.insert(rng.randrange(len(fields) + 1), ("new", self.kind(depth)))
        if rng.random() < 0.01 and fields:
            fields.append(fields[0])
        items = [
            f"{self.space()}{json.dumps(name, ensure_ascii=False)}{self.space()}:{self.space()}"
            f"{self.text(each, depth + 1)}"
            for name, each in fields
        ]
        return f"{{{f'{self.space()},'.join(items)}{self.space()}}}"


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**32))
def test_as_arrow_reads_it(seed: int) -> None:
    """Random schemas and values, a third of them damaged, bare or with a registry's head."""
    rng = random.Random(seed)
    made = Values(rng)
    schema = made.schema()
    in_registry = rng.random() < 0.5
    values: list[Any] = [None]
    for _ in range(100):
        value = (made.space() + made.text(schema) + made.space()).encode()
        value = framed(rng.randrange(3), value) if in_registry else value
        values.append(damaged(value, rng) if rng.random() < 0.3 else value)
    same(decoder_of(schema, Registry if in_registry else None), values)
