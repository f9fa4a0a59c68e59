"""A registry that is slow, wrong, hostile, or none at all: the task fails and says why; good records stay good."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.request import Request

import pyarrow as pa
import pytest

from managedconsumer.decoding.avro_values import AvroDecoder
from managedconsumer.decoding.formats import ValueFormat
from managedconsumer.errors import ConfigurationError, RegistryError
from managedconsumer.runtime.net import schema_registry as module
from managedconsumer.runtime.net.https import MOST_BYTES, ElsewhereError, _SameOrigin
from managedconsumer.runtime.net.schema_registry import Registry as Client
from managedconsumer.typed_columns import format_of
from tests.registries import Answer, Registry, framed

pytest.importorskip("fastavro")
OURS = {"type": "record", "name": "V", "fields": [{"name": "x", "type": "long"}]}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(module.time, "sleep", lambda _seconds: None)
    made = Registry()
    made.schemas = [OURS]
    yield made
    made.close()


def with_password(registry: Registry) -> str:
    return f"http://alice:s%2Fecret@{registry.host}"


def decoded(registry: Registry, *values: bytes) -> tuple[list[Any], dict[int, str]]:
    decoder = AvroDecoder(ValueFormat("avro", json.dumps(OURS).encode(), registry=Client(registry.url)))
    column, bad = decoder.decode(pa.array(values, pa.binary()))
    return column.to_pylist(), dict(bad)


NO_ANSWERS: dict[str, Answer] = {
    "a 404 of a load balancer": (404, b"no such route\n"),
    "a 404 of another API": (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
    "a maintenance page": (200, b"<html>back soon</html>"),
    "a list": (200, ["a list"]),
    "no schema in it": (200, {"no": "schema"}),
    "a schema that is no text": (200, {"schema": {"type": "long"}}),
    "nothing": (200, b""),
    "too many requests": (429, {}),
    "a broken server": (500, b"oops"),
    "deep JSON": (200, b"[" * 100_000),
    "no HTTP": lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n") and None,
    "a connection that breaks": lambda handler: handler.connection.close(),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_of_a_registry_fails_the_task(registry: Registry, name: str) -> None:
    registry.always = NO_ANSWERS[name]
    with pytest.raises(RegistryError, match="does not answer the question for schemas/ids/1"):
        decoded(registry, framed(1, b"\x02"))
    assert len(registry.asked) == 4


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_trouble_that_passes_costs_no_record(registry: Registry, name: str) -> None:
    registry.faults = [NO_ANSWERS[name]] * 3
    assert decoded(registry, framed(1, b"\x02"), framed(1, b"\x04")) == ([{"x": 1}, {"x": 2}], {})


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_what_the_registry_does_not_know_is_a_bad_row(registry: Registry, code: int) -> None:
    registry.faults = [(404, {"error_code": code, "message": "not found"})]
    rows, bad = decoded(registry, framed(9, b"\x02"), framed(1, b"\x04"))
    assert rows == [None, {"x": 2}]
    assert bad == {0: "ValueError: the registry has no schema 9"}


def test_schemas_of_another_format_are_asked_for_once(registry: Registry) -> None:
    registry.schemas = [OURS, {"schemaType": "JSON", "schema": "{}"}, {"schema": '"x"', "references": [{"name": "x"}]}]
    values = [framed(1, b"\x02")] + [framed(2, b"{}"), framed(3, b"")] * 20
    rows, bad = decoded(registry, *values)
    assert rows == [{"x": 1}, *[None] * 40]
    assert "is JSON, not AVRO" in bad[1]
    assert "refers to others" in bad[2]
    assert len(registry.asked) == 3


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_password_is_not_tried_again_and_not_shown(registry: Registry, status: int) -> None:
    registry.always = (status, {"error_code": 40101, "message": "no"})
    with pytest.raises(RegistryError, match="look at user and password") as caught:
        Client(with_password(registry)).schema(1)
    assert "ecret" not in str(caught.value)
    assert registry.asked == [("/schemas/ids/1", "alice:s/ecret")]


def redirect(to: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def test_user_and_password_do_not_go_to_another_host(registry: Registry) -> None:
    other = Registry("127.0.0.2")
    other.schemas = [OURS]
    registry.always = redirect(f"http://bob:pw@{other.host}/latest/meta-data")
    with pytest.raises(RegistryError, match=f"redirects to http://{other.host}") as caught:
        Client(with_password(registry)).schema(1)
    other.close()
    assert not other.asked
    assert not any(secret in str(caught.value) for secret in ("ecret", "pw"))


def test_a_redirect_within_the_registry_is_followed(registry: Registry) -> None:
    registry.faults = [redirect("/v2/schemas/ids/1")]
    assert json.loads(Client(with_password(registry)).schema(1).text) == OURS
    assert registry.asked[1] == ("/v2/schemas/ids/1", "alice:s/ecret")


@pytest.mark.parametrize("to", ["http://host/x", "https://host:8443/x", "https://other/x", "file:///etc/passwd"])
def test_no_redirect_leaves_the_origin(to: str) -> None:
    with pytest.raises(ElsewhereError):
        _SameOrigin().redirect_request(Request("https://host/schemas/ids/1"), io.BytesIO(), 302, "", {}, to)


def test_an_answer_has_a_bound(registry: Registry) -> None:
    sent = [0]

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while sent[0] < 100 * MOST_BYTES:
            sent[0] += handler.wfile.write(b" " * 65536)

    registry.always = endless
    with pytest.raises(RegistryError, match=f"more than {MOST_BYTES} bytes"):
        Client(registry.url).schema(1)
    assert sent[0] < 10 * 4 * MOST_BYTES  # what sockets hold besides, in four attempts


@pytest.mark.parametrize("where", ["headers", "body"])
def test_one_deadline_for_a_conversation(registry: Registry, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A byte now and then keeps no task waiting."""
    monkeypatch.undo()
    monkeypatch.setattr(module, "_ATTEMPTS", 1)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n" + (b"X: " if where == "headers" else b"\r\n"))
        for _ in range(200):  # or until the client hangs up
            handler.wfile.write(b" ")
            time.sleep(0.05)

    registry.always = drip
    begin = time.monotonic()
    with pytest.raises(RegistryError, match=r"the time for the answer is over|timed out"):
        Client(registry.url, timeout=0.3).schema(1)
    assert time.monotonic() - begin < 5


SECRET = "pass/word"
WRONG_URLS = [
    f"http://alice:{SECRET}@host:8081",
    "ftp://alice:word@host",
    "host:8081",
    "http://",
    "http://[::1",
    "http://alice:word@host:port",
    "http://host?token=word",
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_a_wrong_url_is_told_where_the_query_is_written(url: str) -> None:
    options = {"format": "avro", "schema": json.dumps(OURS), "registry": url}
    with pytest.raises(ConfigurationError, match="registry: the registry must be an http or https URL") as caught:
        format_of("value.", options, ("views",))
    assert "word" not in str(caught.value).replace("user:password@host", "").replace("in user and password", "")


def test_the_newest_schema(registry: Registry) -> None:
    assert json.loads(Client(registry.url).newest("views-value")) == OURS
    registry.always = (404, {"error_code": 40401, "message": "Subject not found"})
    with pytest.raises(ConfigurationError, match=r"has no subject 'views-value'"):
        Client(registry.url).newest("views-value")
    registry.always = (200, {"schemaType": "JSON", "schema": "{}"})
    with pytest.raises(ConfigurationError, match="is JSON, not AVRO"):
        Client(registry.url).newest("views-value")
    registry.always = (503, b"")
    with pytest.raises(ConfigurationError, match="HTTP 503"):
        Client(registry.url).newest("views-value")
