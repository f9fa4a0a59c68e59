"""Counts how large and how tangled the project is: ``python -m tests.house`` prints it, one figure a line.

A room is a folder of managedconsumer/ with its files, or a file beside the folders; an arrow says that files of one
room import from another; floors are the longest way down along the arrows, where rooms in one circle share a floor.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.imports import CYTHON, PACKAGE, PYTHON, circles, graph

ROOT = PACKAGE.parent
SOURCES = (".py", ".pyx", ".pxi", ".pxd", ".h")
_SILENCED = re.compile(r"# noqa\b|# type: ignore\b")


def lines(paths: Iterable[Path]) -> int:
    """The lines of all files together, empty ones included."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def files(folder: str, *suffixes: str) -> list[Path]:
    """The files of one of the project's folders; not what the compiler makes."""
    return [
        path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes and "_build" not in path.parts
    ]


def top(module: str) -> str:
    """The room in the first row of folders."""
    return module.partition(".")[0]


def folder(module: str) -> str:
    """The innermost folder that holds the module, or the module itself at the top."""
    path = PACKAGE.joinpath(*module.split("."))
    return module if path.is_dir() or "." not in module else module.rpartition(".")[0]


def arrows(room: Callable[[str], str], *, types: bool = False) -> dict[str, dict[str, set[str]]]:
    """The rooms, and from which others each imports; with ``types`` also what only type checkers import."""
    found: dict[str, dict[str, set[str]]] = {}
    for module, imported in graph().items():
        here = found.setdefault(room(module), {})
        for other, kinds in imported.items():
            there = room(other)
            found.setdefault(there, {})
            if there != room(module) and (types or kinds != {"type"}):
                here.setdefault(there, set()).update(kinds)
    return found


def floors(rooms: dict[str, dict[str, set[str]]]) -> int:
    """How many rooms the longest way down passes, where each circle counts as one."""
    circle = {name: tuple(members) for members in circles(rooms) for name in members}
    depths: dict[tuple[str, ...], int] = {}

    def depth(name: str) -> int:
        members = circle.get(name, (name,))
        if members not in depths:
            below = {other for member in members for other in rooms[member]} - set(members)
            depths[members] = 1 + max(map(depth, below), default=0)
        return depths[members]

    return max(map(depth, rooms))


def figures() -> dict[str, int]:
    """What the project counts, by name."""
    package = files("managedconsumer", *SOURCES)
    found = {
        "lines of managedconsumer/": lines(package),
        "lines of tests/": lines(files("tests", ".py")),
        "lines of DESIGN.md": lines([ROOT / "DESIGN.md"]),
        "lines of docs/*.rst": lines(files("docs", ".rst")),
        "lines of CHANGELOG.rst": lines([ROOT / "CHANGELOG.rst"]),
        "files of managedconsumer/": len(package),
        "noqa and type: ignore in managedconsumer/": sum(
            len(_SILENCED.findall(path.read_text(encoding="utf-8"))) for path in (*PYTHON, *CYTHON)
        ),
    }
    for name, room in (("top rooms", top), ("rooms", folder)):
        rooms = arrows(room)
        found[name] = len(rooms)
        found[f"floors of {name}"] = floors(rooms)
        found[f"arrows between {name}"] = sum(map(len, rooms.values()))
        found[f"circles of {name}"] = len(circles(rooms))
    found["circles of files"] = len(circles(arrows(str)))
    return found


def main() -> None:
    """Print all figures."""
    counted = figures()
    width = max(map(len, counted))
    sys.stdout.writelines(f"{name:{width}} {count:>7,}\n" for name, count in counted.items())


if __name__ == "__main__":
    main()
