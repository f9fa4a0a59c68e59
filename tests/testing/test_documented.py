"""The examples of docs/howto/testing.rst run as they stand there."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from docutils import core, nodes

from managedconsumer.testing.kafka.producer import Producer, Record
from tests.pages import text_of

PAGE = text_of("testing.rst")


@cache
def examples() -> dict[str, str]:
    """The page's tests by name; each also has the imports that stand above it."""
    found, imports = {}, ""
    for block in core.publish_doctree(PAGE).findall(nodes.literal_block):
        text = block.astext()
        imports += "".join(f"{line}\n" for line in text.splitlines() if re.match("(from|import) ", line))
        for name in re.findall(r"def (test_\w+)", text):
            found[name] = f"{imports}\n{text}"
    return found


#: To parse the page takes long, so it is done when the first test runs.
NAMES = re.findall(r"^ +def (test_\w+)", PAGE, re.MULTILINE)


def write_invoice(bootstrap: str, number: int) -> None:
    """The user's code."""
    with Producer(bootstrap) as producer:
        producer.produce("invoices", [Record(b"invoice %d" % number, headers=[("trace", b"abc")])], partition=0)


def test_they_are_found() -> None:
    assert list(examples()) == NAMES
    assert len(NAMES) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_an_example(name: str) -> None:
    handled: list[Any] = []
    scope: dict[str, Any] = {"handle": handled.append, "write_invoice": write_invoice}
    exec(examples()[name], scope)
    scope[name]()
    assert name != "test_my_handler" or [message.value for message in handled] == [b"first"]
