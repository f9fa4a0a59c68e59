"""The house rules that a machine can check: who may import whom, who may wait, and how long a file may grow.

The rows and the reasons are in DESIGN.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "managedconsumer"
MAX_FILE = 400
MAX_FUNCTION = 60

# Data flows down: a file imports from its own row and from the rows above it.
ROWS = [
    {"_version", "_error_base", "_error_logs", "errors", "structs", "clock", "config", "offset_convention"},
    {"wire"},
    {"coordinator"},
    {"subscription_state", "subscription_input", "partition_state"},
    {"fetch"},
    {"listeners"},
    {"runtime"},
    {"compat"},
    {
        "aio",
        "balancedconsumer",
        "consumer_api",
        "consumer_coordinator",
        "consumer_life",
        "consumer_metrics",
        "consumer_reading",
        "coordinator_futures",
        "coordinator_metrics",
        "coordinator_workers",
        "group_coordinator",
        "group_life",
        "group_machine",
        "group_owner",
        "managedbalancedconsumer",
        "positioning",
        "post_rebalance",
        "session",
        "signals",
        "simpleconsumer",
    },
    {"observe"},
    {"spark"},
    {"testing"},
    {"cli"},
]
ROW = {room: number for number, rooms in enumerate(ROWS) for room in rooms}
# pykafka's topics make consumers, which look topics up: one of the two has to import the other inside a function.
UPWARD = {
    ("compat.registry", "simpleconsumer"),
    ("compat.registry", "managedbalancedconsumer"),
}
# kafka-python's names for classes that live beside the consumers: these two modules only hand them on.
DOORS = {"coordinator.base", "coordinator.consumer"}

PURE_ROWS = 5  # the first so many rows hold no socket, thread, lock, clock, queue, greenlet, loop or random source
IMPURE = {
    "_thread",
    "asyncio",
    "concurrent",
    "gevent",
    "greenlet",
    "multiprocessing",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}
# Outside these rooms nothing waits, locks or connects by itself: it asks the handler of runtime/.
WAITING_ROOMS = {"runtime", "spark", "testing", "cli"}
WAITING = {"_thread", "queue", "select", "selectors", "socket", "threading"}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """``coordinator.states`` for managedconsumer/coordinator/states.py; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def row_of(module: str) -> int:
    if module in DOORS:
        return ROW["managedbalancedconsumer"]
    room = module.split(".")[0]
    assert room in ROW, f"managedconsumer/{room} has no row: give it one in DESIGN.md and in ROWS above"
    return ROW[room]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever it stands; ``from a import b`` counts as ``a.b`` if that is a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield node.lineno, inner if is_module(inner) else module


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists() or path.with_suffix(".pyx").exists()


def test_the_package_was_found() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_rows_above_it(path: Path) -> None:
    module = module_of(path)
    if module in ("", "__main__"):
        return  # the front doors lead everywhere
    own = row_of(module)
    wrong = [
        f"{path}:{line}: {module} (row {own}) imports {name} (row {row_of(inner)})"
        for line, name in imports(path)
        if name.startswith("managedconsumer.")
        and (inner := name.removeprefix("managedconsumer."))
        and row_of(inner) > own
        and (module, inner) not in UPWARD
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_pure_rooms_do_not_wait_and_only_some_rooms_may(path: Path) -> None:
    module = module_of(path)
    if module in ("", "__main__"):
        return
    room = module.split(".")[0]
    pure = row_of(module) < PURE_ROWS
    if module == "clock":
        return  # the one place that names the real clock, to be handed down as a default
    forbidden = IMPURE if pure else set() if room in WAITING_ROOMS else WAITING
    wrong = [f"{path}:{line}: imports {name}" for line, name in imports(path) if name.split(".")[0] in forbidden]
    if room not in WAITING_ROOMS:
        wrong += [f"{path}:{line}: sleeps" for line in sleeps(path)]
    assert not wrong, "\n".join(wrong)


def sleeps(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "time" and any(a.name == "sleep" for a in node.names):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "sleep" and getattr(node.value, "id", None) == "time":
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= MAX_FILE, f"{path} has {lines} lines"
    # Counted after the signature: the forty options of a constructor are pykafka's contract, one a line.
    long = [
        f"{path}:{node.lineno}: {node.name} has {node.end_lineno - node.body[0].lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.body[0].lineno + 1 > MAX_FUNCTION
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path} has no docstring"
    if any(not isinstance(node, ast.Expr) for node in tree.body):
        futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
        assert futures or path.name in ("_version.py",), f"{path} lacks from __future__ import annotations"
