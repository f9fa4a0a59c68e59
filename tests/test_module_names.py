"""Names of our modules in strings: no import checks them, so a module that moves leaves them behind."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

from tests.imports import CYTHON, PACKAGE, PYTHON, is_module

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


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers. In an f-string ``{_PACKAGE}`` is our package's name."""
    return enumerate(text.replace("{_PACKAGE}", "managedconsumer").splitlines(), 1)


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
        for line, text in _lines(path.read_text(encoding="utf-8"))
        for name in _names(text)
        if name not in NO_MODULES and name.split(".")[-1] not in _ENDINGS and not _means_something(name)
    ]
    assert not dead


def test_the_check_finds_what_has_moved() -> None:
    text = 'A = f"{_PACKAGE}.runtime.handlers"; B = "managedconsumer.wire._lane_py.Lane"; C = "managedconsumer.errors"'
    found = {name for _, each in _lines(text) for name in _names(each)}
    assert sorted(name for name in found if not _means_something(name)) == [
        "managedconsumer.runtime.handlers",
        "managedconsumer.wire._lane_py.Lane",
    ]
