"""The house rules that a machine can check: who may import whom, who may wait, and how long a function may grow.

The rows and the reasons are in DESIGN.md. What counts as an import is in ``tests/imports.py``: also one in a function,
under ``TYPE_CHECKING``, by a string, or in the accelerator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from managedconsumer import ManagedBalancedConsumer
from tests.imports import CYTHON, PACKAGE, PYTHON, circles, graph, imports, imports_of, module_of, statements, tree_of

MAX_FUNCTION = 60

# Data flows down: a file imports from its own row and from the rows above it.
ROWS = [
    {
        "_version",
        "codes",
        "errors",
        "structs",
        "values",
        "clock",
        "config",
        "garbage",
        "lazy",
        "logs",
        "results",
        "offset_convention",
        "shown",
        "typed_options",
    },
    {"wire"},
    {"decoding"},
    {"coordinator"},
    {"subscription_state", "subscription_input", "partition_state"},
    {"fetch"},
    {"processing"},
    {"listeners"},
    {"runtime"},
    {"tokens", "typed_columns"},
    {"admin"},
    {"compat"},
    {"observe"},
    {"consumers"},
    {"simpleconsumer", "balancedconsumer", "managedbalancedconsumer"},
    {"stores"},
    {"spark"},
    {"testing"},
    {"cli"},
]
ROW = {room: number for number, rooms in enumerate(ROWS) for room in rooms}
# kafka-python's names for classes that live beside the consumers: these two modules only hand them on.
DOORS = {"coordinator.base", "coordinator.consumer"}

# Imports of a row below, each with its reason.
UPWARDS = {
    ("compat.registry", "managedbalancedconsumer"): "pykafka's Topic.get_balanced_consumer() makes a consumer",
    ("compat.registry", "simpleconsumer"): "pykafka's Topic.get_simple_consumer() makes a consumer",
}
# The one arrow of each circle that goes back, with the reason why it is there: the rest of the package has no circle.
BACKWARDS = {
    **UPWARDS,
    ("wire.protocol.api", "wire.protocol.schemas"): "the pickle of an Api is its name, which is looked up in the table",
    (
        "wire.records._message_py",
        "wire.records",
    ): "the pickle of a message fits both twins, so it names neither",
    ("wire.records._records", "wire.records"): "the pickle of a message, as above",
    ("wire.records.arrow", "wire.records"): "types only: the decoder hands its own chunks to arrow",
}
# What is imported for its types alone, outside the front doors (``__init__``), with the reason.
TYPES_ONLY = {
    ("balancedconsumer", "typed_options"): "only a type checker reads the options as types",
    ("compat.client", "typed_options"): "as above",
    ("compat.parts", "typed_options"): "as above",
    ("compat.reading", "typed_options"): "as above",
    ("consumers.api", "typed_options"): "as above",
    ("consumers.aio", "typed_columns"): "most consumers have no typed values",
    ("consumers.reading", "typed_columns"): "as above",
    ("compat.parts", "compat.registry"): "the consumers that it makes",
    ("balancedconsumer", "runtime.member"): "importing the class does not load the engine",
    ("compat.private", "runtime.engine.engine"): "as above",
    ("consumers.api", "runtime.waiting.handlers"): "as above",
    ("simpleconsumer", "typed_options"): "only a type checker reads the options as types",
    ("compat.client", "admin.values"): "most clients never ask for a group",
    ("runtime.engine.commits.committer", "runtime.engine.engine"): "the committer is given its engine",
    ("runtime.running.run", "runtime.engine.engine"): "a run is given its engine",
    ("runtime.running.calls", "runtime.waiting.handlers"): "importing the class does not load the engine",
    ("spark.claiming", "spark.claims.log"): "most queries have no claims",
    ("spark.options", "decoding.formats"): "most queries have no typed values",
}

PURE_ROWS = 7  # the first so many rows hold no socket, thread, lock, clock, queue, greenlet, loop or random source
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

# The same for the accelerator, whose locks and clocks would come from C.
IMPURE_C = ("cpython.pythread", "libc.time", "posix")

FILES = [*PYTHON, *CYTHON]


@pytest.fixture(autouse=True, scope="module")
def trees() -> Iterator[None]:
    """The trees of all files are half of the objects of the whole process: each collection goes through them."""
    yield
    tree_of.cache_clear()


def row_of(module: str) -> int:
    if module in DOORS:
        return ROW["consumers"]
    room = module.split(".")[0]
    assert room in ROW, f"managedconsumer/{room} has no row: give it one in DESIGN.md and in ROWS above"
    return ROW[room]


def test_the_package_was_found() -> None:
    assert len(FILES) > 20


def test_a_file_imports_only_from_rows_above_it() -> None:
    wrong = [problem for path in FILES for problem in imports_from_below(path)]
    assert not wrong, "\n".join(wrong)


def imports_from_below(path: Path) -> list[str]:
    module = module_of(path)
    if module in ("", "__main__"):
        return []  # the front doors lead everywhere
    own = row_of(module)
    return [
        f"{path}:{found.line}: {module} (row {own}) imports {found.module} (row {row_of(inner)})"
        for found in imports(path)
        if found.module.startswith("managedconsumer.")
        and row_of(inner := found.module.removeprefix("managedconsumer.")) > own
        and (module, inner) not in UPWARDS
    ]


HIDDEN = {
    "from managedconsumer.cli import demo": "module",
    "from managedconsumer import cli": "module",
    "def run():\n    from managedconsumer import cli": "function",
    "if TYPE_CHECKING:\n    import managedconsumer.cli": "type",
    "load = import_module('managedconsumer.cli').main": "name",
    "def run():\n    return importlib.import_module('managedconsumer.cli')": "name",
    "x = __import__('managedconsumer.cli')": "name",
}


@pytest.mark.parametrize(("text", "kind"), HIDDEN.items())
def test_no_import_is_hidden(text: str, kind: str) -> None:
    (found,) = imports_of(PACKAGE / "structs.py", text)
    assert found.module.startswith("managedconsumer.cli") and found.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "from managedconsumer.cli cimport demo",
        "cimport managedconsumer.cli",
        "from managedconsumer import cli",
        "    from managedconsumer.cli.demo import (",
        "import managedconsumer.cli",
    ],
)
def test_no_import_of_the_accelerator_is_hidden(text: str) -> None:
    (found,) = imports_of(PACKAGE / "wire" / "records" / "_records.pyx", text)
    assert found.module.startswith("managedconsumer.cli")


def test_computed_names_are_not_imported() -> None:
    with pytest.raises(AssertionError, match="nobody can look up"):
        imports_of(PACKAGE / "structs.py", "import_module('managedconsumer.' + 'cli')")


def test_no_module_imports_itself_in_a_circle() -> None:
    arrows = graph()
    for (here, there), reason in BACKWARDS.items():
        assert arrows[here].pop(there, None), f"{here} does not import {there} any more: {reason}"
    assert circles(arrows) == []


@pytest.mark.parametrize(("here", "there"), BACKWARDS)
def test_every_exception_is_needed(here: str, there: str) -> None:
    arrows = graph()
    for one, other in BACKWARDS.keys() - {(here, there)}:
        del arrows[one][other]
    assert any(here in circle for circle in circles(arrows)) or (here, there) in UPWARDS


def test_what_is_imported_for_types_alone_is_listed() -> None:
    doors = {module_of(path) for path in PYTHON if path.name == "__init__.py"}
    found = {
        (here, there)
        for here, others in graph().items()
        for there, kinds in others.items()
        if "type" in kinds and here not in doors and (here, there) not in BACKWARDS and "function" not in kinds
    }
    assert found == TYPES_ONLY.keys()


def test_pure_rooms_do_not_wait_and_only_some_rooms_may() -> None:
    wrong = [problem for path in FILES for problem in waits(path)]
    assert not wrong, "\n".join(wrong)


def waits(path: Path) -> list[str]:
    module = module_of(path)
    if module in ("", "__main__"):
        return []
    room = module.split(".")[0]
    pure = row_of(module) < PURE_ROWS
    if module == "clock":
        return []  # the one place that names the real clock, to be handed down as a default
    forbidden = IMPURE if pure else set() if room in WAITING_ROOMS else WAITING
    wrong = [
        f"{path}:{found.line}: imports {found.module}"
        for found in imports(path)
        if found.module.split(".")[0] in forbidden or (pure and found.module.startswith(IMPURE_C))
    ]
    if room not in WAITING_ROOMS and path in PYTHON:
        wrong += [f"{path}:{line}: sleeps" for line in sleeps(path)]
    return wrong


def sleeps(path: Path) -> Iterator[int]:
    if "sleep" not in path.read_text(encoding="utf-8"):
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "time" and any(a.name == "sleep" for a in node.names):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "sleep" and getattr(node.value, "id", None) == "time":
            yield node.lineno


def test_functions_stay_short() -> None:
    wrong = [problem for path in PYTHON for problem in too_long(path)]
    assert not wrong, "\n".join(wrong)


def too_long(path: Path) -> list[str]:
    # Counted after the signature: the forty options of a constructor are pykafka's contract, one a line.
    return [
        f"{path}:{node.lineno}: {node.name} has {node.end_lineno - node.body[0].lineno + 1} lines"
        for node in statements(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.body[0].lineno + 1 > MAX_FUNCTION
    ]


def test_a_consumer_is_put_together_from_at_most_four_parts() -> None:
    parts = [part.__name__ for part in ManagedBalancedConsumer.__mro__[1:-1]]
    assert len(parts) <= 4, f"no class is cut by inheritance to stay short: {parts}"


def test_every_module_says_what_it_is_for() -> None:
    for path in PYTHON:
        tree = tree_of(path)
        assert ast.get_docstring(tree), f"{path} has no docstring"
        if any(not isinstance(node, ast.Expr) for node in tree.body):
            futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
            assert futures or path.name in ("_version.py",), f"{path} lacks from __future__ import annotations"
