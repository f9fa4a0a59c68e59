"""The names that users import stay where they are, with their signatures: ``tests/public_api.txt`` is the contract."""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from managedconsumer.observe.catalogue import MEASURES
from tests.public_api import OF_SPARK, PROGRAMS, PROMISED, SNAPSHOT, described, names_in

ROOT = Path(__file__).parent.parent
#: OpenTelemetry's names have dots, too.
OTEL = {each.otel for each in MEASURES.values()}
TEXTS = [*sorted((ROOT / "docs").rglob("*.rst")), ROOT / "README.rst", ROOT / "CHANGELOG.rst"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_IMPORT = re.compile(r"^[ >.]*(?:from (managedconsumer[\w.]*) import ([\w, ]+)|import (managedconsumer[\w.]*))", re.M)
_PATH = re.compile(r"\bmanagedconsumer(?:\.[A-Za-z_]\w*)+")
_FILES = (".py", ".rst", ".txt", ".sha256", ".toml")


def compare(promised: dict[str, list[str] | str]) -> None:
    lines = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    first, last = f"[{next(iter(promised))}]", f"[{list(promised)[-1]}]"
    end = next((n for n in range(lines.index(last) + 1, len(lines)) if lines[n].startswith("[")), len(lines))
    written = "\n".join(lines[lines.index(first) : end]).strip().splitlines()
    found = described(promised).strip().splitlines()
    changes = "\n".join(difflib.unified_diff(written, found, "promised", "found", lineterm="", n=2))
    assert not changes, f"{changes}\n\nIf this is meant: python -m tests.public_api, and a fragment in changes.d"


def test_the_public_names_are_what_was_promised() -> None:
    compare(PROMISED)


@pytest.mark.slow
def test_the_public_names_for_spark_are_what_was_promised() -> None:
    pytest.importorskip("pyspark.sql.datasource")
    compare(OF_SPARK)


def _imports_of(path: Path) -> Iterator[tuple[str, str | None]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("managedconsumer"):
                yield from ((str(node.module), alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names if alias.name.startswith("managedconsumer"))
        return
    for module, names, whole in _IMPORT.findall(text):
        if whole:
            yield whole, None
        for name in names.split(","):
            if name.strip():
                yield module, name.split(" as ")[0].strip()


@pytest.mark.parametrize("path", [*TEXTS, *EXAMPLES], ids=lambda path: path.name)
def test_what_docs_and_examples_import_is_promised(path: Path) -> None:
    promised = PROMISED | OF_SPARK
    for module, name in _imports_of(path):
        if name is None or f"{module}.{name}" in promised:
            assert module in promised, f"{path}: {module} is not in tests/public_api.py"
        elif module in OF_SPARK:
            assert name in importlib.import_module(module).__all__, name
        else:
            assert module in promised and name in names_in(module, promised[module]), f"{path}: {module}.{name}"


@pytest.mark.parametrize("path", [*TEXTS, *EXAMPLES], ids=lambda path: path.name)
def test_every_dotted_name_in_docs_and_examples_exists(path: Path) -> None:
    for name in sorted(set(_PATH.findall(path.read_text(encoding="utf-8")))):
        if name in OTEL:
            continue
        module, _, rest = name.partition(".")
        held: object = importlib.import_module(module)
        for part in rest.split("."):
            module = f"{module}.{part}"
            if "spark" in module or f".{part}" in _FILES:
                break
            try:
                held = importlib.import_module(module)
            except ImportError:
                held = getattr(held, part, None)
            assert held is not None, f"{path}: {name}"


@pytest.mark.parametrize("module", PROGRAMS)
def test_programs_start_by_their_names(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
