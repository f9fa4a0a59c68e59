"""Names of our modules in strings: no import checks them, so a module that moves leaves them behind."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.imports import CYTHON, PACKAGE, PYTHON, is_module, tree_of

#: A name of ours with dots, in a string, a docstring or a comment.
_NAME = re.compile(r"(?<![\w./-])managedconsumer((?:\.[A-Za-z_]\w*)+)(?![\w-]|\.[^\s\"'`)])")
#: Files, addresses and prefixes of names that are made of parts.
_ENDINGS = {"py", "md", "rst", "html", "json", "svg"}
#: Names that look like a module's and are something else, and what.
NO_MODULES = {
    "managedconsumer.acting": "a context variable",
    "managedconsumer.callback": "a thread",
    "managedconsumer.pauser": "a thread of the simulation",
    "managedconsumer.reader": "a thread of the simulation",
    "managedconsumer.signal": "a thread of the simulation",
}


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a file with their lines."""
    if path.suffix == ".py":
        yield from _in_tree(tree_of(path))
    else:
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def _in_tree(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """In an f-string ``{_PACKAGE}`` is our package's name."""
    inner: set[int] = set()
    for node in ast.walk(tree):  # an f-string comes before its parts
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
            yield node.lineno, "".join(_part(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    inner = getattr(part, "value", None)
    return "managedconsumer" if getattr(inner, "id", "") == "_PACKAGE" else "\N{REPLACEMENT CHARACTER}"


def _names(text: str) -> list[str]:
    return [f"managedconsumer{found}" for found in _NAME.findall(text)]


def _means_something(name: str) -> bool:
    """True for a module of ours, and for something in one of them."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if is_module(".".join(parts[:count])):
            if count == len(parts):
                return True
            try:
                found: object = importlib.import_module(".".join(parts[:count]))
            except ModuleNotFoundError as error:
                # Some optional packages are not on every Python; the run that has all of them looks at the rest.
                return not (error.name or "").startswith("managedconsumer")
            for attribute in parts[count:]:
                if not hasattr(found, attribute):
                    return attribute in getattr(found, "__annotations__", ())
                found = getattr(found, attribute)
            return True
    return False


def test_each_name_of_a_module_in_a_string_is_one() -> None:
    dead = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {name}"
        for path in (*PYTHON, *CYTHON)
        for line, text in _strings(path)
        for name in _names(text)
        if name not in NO_MODULES and name.split(".")[-1] not in _ENDINGS and not _means_something(name)
    ]
    assert not dead


def test_the_check_finds_what_has_moved() -> None:
    text = 'A = f"{_PACKAGE}.runtime.handlers"; B = "managedconsumer.wire._lane_py.Lane"; C = "managedconsumer.errors"'
    found = {name for _, each in _in_tree(ast.parse(text)) for name in _names(each)}
    assert sorted(name for name in found if not _means_something(name)) == [
        "managedconsumer.runtime.handlers",
        "managedconsumer.wire._lane_py.Lane",
    ]
