"""The tables of KIPs and of complaints: each row names a test that exists, on the brokers that it claims."""

from __future__ import annotations

import ast
import csv
import re
from functools import cache
from pathlib import Path

import pytest

from tests.pages import DOCS, ROOT

#: The fixtures that give a real broker, and its versions.
BROKERS = {"kafka": {"3.9", "4.4"}, "kafka44": {"4.4"}, "kafka44x3": {"4.4"}, "kafka39": {"3.9"}, "secure": {"4.4"}}
SHOWN = re.compile(r"Kafka (\d\.\d(?:, \d\.\d)*)|simulated: .+|not here(?: yet|: .+)|not a consumer's: .+")


def rows(name: str) -> list[list[str]]:
    with (DOCS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


KIPS, COMPLAINTS = rows("reference/kips.csv"), rows("explanation/complaints.csv")


@cache
def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file; those of a class as ``Class::name``."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                found[f"{node.name}::{each.name}" if isinstance(node, ast.ClassDef) else each.name] = each
    return found


def named_tests(cell: str) -> list[tuple[Path, str]]:
    """The file and the name of each test that a cell of a table means."""
    file, _, name = cell.strip("`").partition("::")
    path = ROOT / file
    names = [name] if name else [each for each in functions(path) if each.split("::")[-1].startswith("test_")]
    assert names, f"{file} has no test"
    return [(path, each) for each in names]


def versions(path: Path, name: str) -> set[str]:
    """The versions of Kafka that a test, or a fixture, runs on."""
    asked = functions(path)[name]
    found = set[str]()
    if any("same(" in ast.unparse(each) or "same_by_assignor(" in ast.unparse(each) for each in asked.decorator_list):
        return {"4.4"}  # tests.testing.sameworld: the same on a broker in memory and on Kafka
    if "DevBroker(" in ast.unparse(asked):
        found |= {text[:3] for text in re.findall(r"'(\d\.\d\.\d)'", ast.unparse(asked))}
    for argument in [each.arg for each in asked.args.args]:
        if argument == "dev_broker":
            found |= {text[:3] for text in re.findall(r"'(\d\.\d\.\d)'", ast.unparse(asked))}
        elif argument in BROKERS:
            found |= BROKERS[argument]
        else:
            found |= versions_of_fixture(path, name.rpartition("::")[0], argument)
    return found


def versions_of_fixture(path: Path, holder: str, name: str) -> set[str]:
    """The same of a fixture, in the test's class, in its file or beside it."""
    for place, wanted in [(path, f"{holder}::{name}"), (path, name), (path.parent / "conftest.py", name)]:
        if place.exists() and wanted in functions(place):
            return versions(place, wanted)
    return set()


def test_there_are_enough_and_none_is_there_twice() -> None:
    assert len(KIPS) >= 50
    assert len({(row[0], row[1]) for row in KIPS}) == len(KIPS)
    numbers = {number for row in KIPS for number in row[0].split(", ")}
    assert all(number.isdigit() for number in numbers)
    # What a broker can show is shown by one.
    assert sum(row[2].startswith("Kafka") for row in KIPS) >= 35


@pytest.mark.parametrize("row", KIPS, ids=[f"{row[0]}: {row[1][:20]}" for row in KIPS])
def test_a_row_names_a_test_on_the_brokers_that_it_claims(row: list[str]) -> None:
    _, _, shown, cell = row
    claim = SHOWN.fullmatch(shown)
    assert claim, shown
    if shown.startswith("not"):
        assert not cell
        return
    named = named_tests(cell)
    for path, name in named:
        assert name in functions(path), cell
    if claim[1]:
        assert set().union(*(versions(path, name) for path, name in named)) >= set(claim[1].split(", ")), cell


@pytest.mark.parametrize("row", COMPLAINTS, ids=[row[0][:30] for row in COMPLAINTS])
def test_a_complaint_has_a_link_and_a_test(row: list[str]) -> None:
    _, where, here, cell = row
    assert re.search(r"<https://github\.com/[\w-]+/[\w-]+/issues/\d+>`__", where) or "protocol" in where
    if cell == "none":
        assert here.startswith("not solved")
    else:
        assert all(name in functions(path) for path, name in named_tests(cell)), cell
