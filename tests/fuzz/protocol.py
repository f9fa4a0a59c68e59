"""Frames, headers, message bodies and SASL answers from a hostile broker: a typed error or a value, in bounds."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

from managedconsumer.errors import FrameError, MalformedResponseError
from managedconsumer.runtime.net.sasl import OAuthBearer, SaslExchangeError, Scram
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.framing import FrameReader, parse_request_header, parse_response_header
from managedconsumer.wire.protocol.table import Field
from managedconsumer.wire.protocol.versions import decode_api_versions
from managedconsumer.wire.records import compression
from managedconsumer.wire.records.beginning import decode_beginning
from managedconsumer.wire.records.compression import DecompressionError
from tests.fuzz.kit import ABSURD, Case, mutate

_EVERY = [
    (api, version, direction)
    for api in schemas.APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    for direction in ("request", "response")
]
_BY_NAME = {api.name: api for api in schemas.APIS.values()}
_MEMORY_PER_BYTE = 400  # a decoded struct of one byte is a dict with every field of the table
_MAX_FRAME = 1 << 16


class Frames:
    """The stream of a connection, in pieces of any size."""

    name = "frames"

    def case(self, rng: random.Random) -> Case:
        frames = [rng.randbytes(rng.choice((4, 5, 60, 3000))) for _ in range(rng.randint(1, 5))]
        stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        if rng.random() < 0.7:
            stream = mutate(stream, rng, 3)
        if rng.random() < 0.2:
            stream = rng.choice((b"HTTP/1.1 400 Bad", b"\x15\x03\x03\x00\x02\x02\x28", b"SSH-2.0-x")) + stream
        return {"stream": stream, "pieces": [rng.randint(1, 200) for _ in range(40)]}

    def check(self, case: Case) -> None:
        """However the bytes are cut, the frames are the same, and an error stays an error."""
        stories = []
        for pieces in ([len(case["stream"])], case["pieces"]):
            reader, got, rest, error = FrameReader(_MAX_FRAME), [], case["stream"], ""
            sizes = iter(pieces)
            while rest and not error:
                size = next(sizes, 1000)
                try:
                    got += [bytes(frame) for frame in reader.feed(rest[:size])]
                except FrameError as problem:
                    error = str(problem)
                rest = rest[size:]
            stories.append((got if not error else None, error))
            assert all(len(frame) <= _MAX_FRAME for frame in got)
        assert stories[0] == stories[1], stories


class Schemas:
    """Bodies of every API, version and direction."""

    name = "schemas"

    def case(self, rng: random.Random) -> Case:
        api, version, direction = rng.choice(_EVERY)
        body = _body(api.fields(direction), version, rng)
        try:
            data = (api.encode if direction == "request" else api.encode_response)(version, body)
        except ValueError:  # a value that this version cannot carry
            data = rng.randbytes(rng.randint(0, 60))
        if rng.random() < 0.8:
            data = mutate(data, rng)
        return {"api": api.name, "version": version, "direction": direction, "data": data}

    def check(self, case: Case) -> None:
        """Decoding gives a dict or MalformedResponseError, and takes memory in proportion to the bytes."""
        api, data = _BY_NAME[case["api"]], case["data"]
        decode = api.decode if case["direction"] == "response" else api.decode_request
        tracing = len(data) > 2000
        if tracing:
            tracemalloc.start()
        try:
            decode_beginning(api, case["version"], data)
            decode(case["version"], data)
        except MalformedResponseError as error:
            assert api.name in str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1] if tracing else 0
            if tracing:
                tracemalloc.stop()
        assert peak <= _MEMORY_PER_BYTE * len(data) + 100_000, f"{peak} bytes for {len(data)}"
        self._headers(api, case["version"], data)

    @staticmethod
    def _headers(api: Api, version: int, data: bytes) -> None:
        for parse in (
            lambda: parse_request_header(data),
            lambda: parse_response_header(api, version, data),
            lambda: decode_api_versions(3, data),
        ):
            try:
                parse()
            except MalformedResponseError:
                pass


class Sasl:
    """What a broker, or an impostor, answers in an exchange."""

    name = "sasl"
    _NONCE = "ourNonce"

    def case(self, rng: random.Random) -> Case:
        good = f"r={self._NONCE}{rng.choice(('x', 'theirs', ''))},s=c2FsdA==,i={rng.choice((4096, 4096, 1, 10**7))}"
        first = good.encode() if rng.random() < 0.4 else mutate(good.encode(), rng)
        final = rng.choice((b"v=c2ln", b"e=other-error", b"", rng.randbytes(20), mutate(b"v=c2lnbmF0dXJl", rng)))
        status = rng.choice((b"", b'{"status":"invalid_token"}', rng.randbytes(30), b"[" * 5000, b'{"status":5}'))
        return {"first": first, "final": final, "token": status, "hash": rng.choice(("SCRAM-SHA-256", "SCRAM-SHA-512"))}

    def check(self, case: Case) -> None:
        """A broker that cannot prove the password gets SaslExchangeError, without a secret in its text."""
        scram = Scram(case["hash"], "us,er", "s3cret-password", lambda: self._NONCE)
        scram.first()
        try:
            scram.step(case["first"])
            over = scram.step(case["final"])
            raise AssertionError(f"an impostor was believed: {over!r}")
        except SaslExchangeError as error:
            assert "s3cret" not in str(error)
        bearer = OAuthBearer("s3cret-token", {})
        bearer.first()
        try:
            if bearer.step(case["token"]) is not None:
                bearer.step(case["token"] or b"x")
                raise AssertionError("a refused token was accepted")
        except SaslExchangeError as error:
            assert "s3cret" not in str(error)


class Codecs:
    """Compressed payloads: what comes out is bounded, whatever goes in."""

    name = "codecs"
    _MOST = 1 << 16

    def case(self, rng: random.Random) -> Case:
        codec = rng.randint(1, 4)
        plain = rng.choice((b"", b"a" * 50_000, rng.randbytes(300), b"ab" * 400, b"\0" * 1_000_000))
        data = compression.compress(codec, plain)
        return {"codec": codec, "data": mutate(data, rng) if rng.random() < 0.85 else data}

    def check(self, case: Case) -> None:
        """Bytes up to the bound, or DecompressionError."""
        try:
            out = compression.decompress(case["codec"], case["data"], self._MOST)
        except DecompressionError:
            return
        assert len(out) <= self._MOST, len(out)


def _body(fields: tuple[Field, ...], version: int, rng: random.Random) -> dict[str, Any]:
    return {field.name: _value(field, version, rng) for field in fields if version in field.versions}


def _value(field: Field, version: int, rng: random.Random) -> Any:
    if field.nullable(version) and rng.random() < 0.2:
        return None
    if field.array:
        return [_single(field, version, rng) for _ in range(rng.choice((0, 1, 2, 3, 20)))]
    return _single(field, version, rng)


def _single(field: Field, version: int, rng: random.Random) -> Any:
    if field.kind == "struct":
        return _body(field.fields, version, rng)
    if field.kind == "string":
        return rng.choice(("", "topic", "g" * 200, "\u00e4\u20ac"))
    if field.kind in ("bytes", "records"):
        return rng.choice((b"", rng.choice(ABSURD), rng.randbytes(rng.randint(1, 80))))
    if field.kind == "uuid":
        return rng.randbytes(16)
    if field.kind == "bool":
        return rng.random() < 0.5
    if field.kind == "float64":
        return rng.random()
    bits = {"int8": 8, "int16": 16, "uint16": 17, "int32": 32, "int64": 64}[field.kind]
    low = 0 if field.kind == "uint16" else -(1 << bits - 1)
    return rng.choice((0, 1, low, (1 << bits - 1) - 1, rng.randint(low, (1 << bits - 1) - 1)))
