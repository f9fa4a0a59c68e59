"""Who imports whom in the package: every way to import, in Python and in Cython.

Seen are imports at module level, in functions and under ``TYPE_CHECKING``, ``import_module("...")`` and
``__import__("...")``; in the accelerator ``import``, ``cimport`` and ``include``. An ``__init__`` may load its own
submodules by computed names, nothing else may.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from managedconsumer.garbage import no_collection

PACKAGE = Path(__file__).parent.parent / "managedconsumer"
PYTHON = sorted(PACKAGE.rglob("*.py"))
CYTHON = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".pyx", ".pxi", ".pxd"))

_CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\b\s*\(?([^#]*)|c?import\s+([\w.]+))")
# Most nodes of a tree, and nothing is in them.
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.arg)
_LOADERS = ("import_module", "__import__")


class Import(NamedTuple):
    """One import of a file."""

    line: int
    module: str  #: ``from a import b`` counts as ``a.b`` if that is a module
    kind: str  #: "module", "function", "type" (under TYPE_CHECKING), "name" (by a string)


def module_of(path: Path) -> str:
    """``coordinator.states`` for managedconsumer/coordinator/states.py; empty for the package itself.

    The parts of the accelerator (.pxi) are the module that includes them.
    """
    if path.suffix == ".pxi":
        return module_of(_including(path))
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _including(path: Path) -> Path:
    for other in CYTHON:
        if f'include "{path.name}"' in other.read_text(encoding="utf-8"):
            return _including(other) if other.suffix == ".pxi" else other
    raise AssertionError(f"{path} is included nowhere")


@cache
def tree_of(path: Path) -> ast.Module:
    """A Python file, parsed once in a run. A tree is many objects and no garbage: to look for some doubles the time."""
    with no_collection():
        return ast.parse(path.read_text(encoding="utf-8"))


@cache
def is_module(name: str) -> bool:
    """Whether ``name`` is a module, a package or a Cython header of ours."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    return (path / "__init__.py").exists() or any(path.with_suffix(end).exists() for end in (".py", ".pyx", ".pxd"))


@cache
def imports(path: Path) -> list[Import]:
    """Every import of a file."""
    text = path.read_text(encoding="utf-8")
    return _all_in_python(path, tree_of(path), text) if path.suffix == ".py" else imports_of(path, text)


def imports_of(path: Path, text: str) -> list[Import]:
    """Every import of ``text``, if ``path`` held it. Relative ones and computed names fail the test."""
    if path.suffix != ".py":
        return list(_in_cython(path, text))
    return _all_in_python(path, ast.parse(text), text)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement, also those in others. Most nodes are parts of expressions, which take long to walk."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, (ast.expr, *_LEAVES))]


def _all_in_python(path: Path, tree: ast.Module, text: str) -> list[Import]:
    # In an expression there is no import but one by name.
    skipped = _LEAVES if any(loader in text for loader in _LOADERS) else (*_LEAVES, ast.expr)
    return list(_in_python(path, tree, "module", skipped))


def _in_python(path: Path, node: ast.AST, kind: str, skipped: tuple[type[ast.AST], ...]) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(node.lineno, alias.name, kind)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
        yield from (Import(node.lineno, name, kind) for name in _from(node.module or "", [a.name for a in node.names]))
    elif isinstance(node, ast.Call) and _called(node.func) in _LOADERS:
        yield from _by_name(path, node)
    if isinstance(node, ast.If) and any(_called(part) == "TYPE_CHECKING" for part in ast.walk(node.test)):
        for child in node.body:
            yield from _in_python(path, child, "type", skipped)
        for child in node.orelse:
            yield from _in_python(path, child, kind, skipped)
        return
    inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and kind == "module"
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, skipped):
            yield from _in_python(path, child, "function" if inner else kind, skipped)


def _called(function: ast.AST) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")


def _by_name(path: Path, call: ast.Call) -> Iterator[Import]:
    name = call.args[0]
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        yield Import(call.lineno, name.value, "name")
        return
    assert path.name in ("__init__.py", "lazy.py") and _is_inner(name), (
        f"{path}:{call.lineno}: imports {ast.unparse(name)}, which nobody can look up"
    )


def _is_inner(name: ast.expr) -> bool:
    """``f"{__name__}.something"``: a module of the package itself (in ``lazy.py`` of the one that calls it)."""
    if not isinstance(name, ast.JoinedStr) or len(name.values) < 2:
        return False
    first, second = name.values[:2]
    own = isinstance(first, ast.FormattedValue) and getattr(first.value, "id", "") in ("__name__", "package")
    return own and isinstance(second, ast.Constant) and str(second.value).startswith(".")


def _from(module: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        inner = f"{module}.{name}"
        yield inner if is_module(inner) else module


def _in_cython(path: Path, text: str) -> Iterator[Import]:
    for number, line in enumerate(text.splitlines(), 1):
        found = _CYTHON_IMPORT.match(line)
        if not found:
            assert not re.search(r"\bimport_module\b|\b__import__\b", line), f"{path}:{number}: imports by name"
            continue
        module, names, whole = found.groups()
        kind = "function" if line[0] == " " else "module"
        if whole:
            yield Import(number, whole, kind)
            continue
        split = [name for part in names.split(",") if (name := part.split(" as ")[0].strip())]
        assert split or not (PACKAGE.parent / module.replace(".", "/")).is_dir(), (
            f"{path}:{number}: on one line, please"
        )
        yield from (Import(number, name, kind) for name in (_from(module, split) if split else [module]))


def graph() -> dict[str, dict[str, set[str]]]:
    """``{module: {imported module: kinds}}`` of the package's modules, without the package's front door."""
    return {module: dict(there) for module, there in _graph().items()}


@cache
def _graph() -> dict[str, dict[str, set[str]]]:
    arrows: dict[str, dict[str, set[str]]] = {}
    for path in [*PYTHON, *CYTHON]:
        here = module_of(path)
        if here in ("", "__main__"):
            continue
        there = arrows.setdefault(here, {})
        for found in imports(path):
            inner = found.module.removeprefix("managedconsumer.")
            if inner != found.module and is_module(found.module) and inner != here:
                there.setdefault(inner, set()).add(found.kind)
    return arrows


def circles(arrows: dict[str, dict[str, set[str]]]) -> list[list[str]]:
    """Groups of modules of which each imports, in some steps, each other (strongly connected; Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in arrows.get(module, {}):
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(members) > 1:
                found.append(sorted(members))

    for module in sorted(arrows):
        if module not in order:
            visit(module)
    return found
