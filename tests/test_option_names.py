"""Every option that a text of the package names exists: "raise X" helps nobody who cannot find an X."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import managedconsumer
from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.config import ConsumerOptions, GroupOptions
from managedconsumer.runtime.net.security import Security
from managedconsumer.stores import KafkaStore
from tests.imports import tree_of

PACKAGE = Path(managedconsumer.__file__).parent
#: What an option's name ends or begins with.
LIKE_AN_OPTION = re.compile(
    r"\b(?:ssl|sasl)_[a-z_]+\b|\b[a-z]+(?:_[a-z]+)*_(?:ms|bytes|messages|retries|protocol|timeout|interval|reset|enable)\b"
)
#: Rooms with options of their own: the coordinator package's configs, Spark's, the commands', the wire's fields.
OTHER_ROOMS = {"wire"}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """What is written for people: every piece of text with a blank in it that is no docstring."""
    if not LIKE_AN_OPTION.search(path.read_text(encoding="utf-8")):
        return  # to parse it takes long
    tree = tree_of(path)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if " " in node.value:
            yield node.lineno, node.value


def real_options() -> set[str]:
    """All that a user can set, and the arguments of a consumer's methods."""
    names = {*ConsumerOptions._fields, *GroupOptions._fields, *Security._fields}
    calls = [KafkaClient, ManagedBalancedConsumer, SimpleConsumer, KafkaStore]
    methods = [method for kind in calls for _, method in inspect.getmembers(kind, inspect.isfunction)]
    for call in [*calls, *methods]:
        names.update(inspect.signature(call).parameters)
    return names


@pytest.mark.slow
def test_texts_name_options_that_exist() -> None:
    real, found, wrong = real_options(), set(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in OTHER_ROOMS:
            continue
        for line, text in texts(path):
            for name in LIKE_AN_OPTION.findall(text):
                found.add(name)
                if name not in real:
                    wrong.append(f"{path.relative_to(PACKAGE)}:{line}: {name}")
    assert {"socket_timeout_ms", "ssl_cafile", "auto_offset_reset", "rebalance_timeout_ms"} <= found  # it does look
    assert not wrong, "\n".join(wrong)
