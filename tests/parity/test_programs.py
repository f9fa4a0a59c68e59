"""Programs after pykafka's usage guide print the same lines here, but for those that docs/howto/pykafka.rst lists.

Each program in ``programs/`` runs with pykafka 2.8 on Kafka 3.9, and with our consumers by a changed import and by
``patch_pykafka()``, on 3.9 and on 4.3. A line that differs has to be a row of the table "Programs, line by line" with
both values; a row whose lines do not differ any more has to go.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from docutils import core, nodes

from managedconsumer.testing import DevBroker
from tests.broker.consumerkit import fill
from tests.pages import page, text_of

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"
NAMES = ["balanced", "callbacks", "green", "last_messages", "life", "monkey", "names", "simple"]
SECTION = "Programs, line by line"
#: How many programs run side by side: they wait most of the time.
AT_ONCE = 4

Lines = dict[str, str]
Table = dict[tuple[str, str], tuple[str, str]]


def run(program: str, mode: str, broker: DevBroker, group: str) -> Lines:
    """What a program prints: the facts by their names."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAMS / f"{program}.py"), mode, broker.bootstrap, "parity", group],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
    )
    assert done.returncode == 0, f"{program} {mode}: {done.stderr[-3000:]}"
    facts = [line.split(": ", 1) for line in done.stdout.splitlines()]
    lines = dict(facts)
    assert len(lines) == len(facts), f"{program} says a thing twice"
    return lines


def listed() -> Table:
    """The table of docs/howto/pykafka.rst: ``{(program, what): (pykafka's value, ours)}``."""
    document = core.publish_doctree(text_of("pykafka.rst"), source_path=str(page("pykafka.rst")))
    (section,) = [s for s in document.findall(nodes.section) if s[0].astext() == SECTION]
    body = next(iter(section.findall(nodes.tbody)))  # the first table of the section
    table: Table = {}
    for row in body.findall(nodes.row):
        where, theirs, ours, why = [entry.astext() for entry in row.findall(nodes.entry)]
        program, what = where.split(": ", 1)
        assert program in NAMES
        assert why, f"{where}: the table says no reason"
        assert (program, what) not in table
        table[program, what] = (theirs, ours)
    return table


def differences(program: str, theirs: Lines, ours: Lines) -> Table:
    """The lines that differ. An exception that pykafka's ``except`` clauses catch, too, is no difference."""
    assert theirs.keys() == ours.keys()
    return {(program, what): (value, ours[what]) for what, value in theirs.items() if not _as_good(value, ours[what])}


def _as_good(theirs: str, ours: str) -> bool:
    if theirs.startswith("raises ") and ours.startswith("raises "):
        wanted = set(theirs.split()[1:]) - {"Exception"}
        return wanted <= set(ours.split()[1:])
    return theirs == ours


@pytest.fixture(scope="module")
def started(kafka39: DevBroker, kafka44: DevBroker) -> Iterator[Callable[[str], list[Future[Lines]]]]:
    """All runs of a program: pykafka's, then ours. All programs are started when the first is asked for."""
    for broker in (kafka39, kafka44):
        broker.create_topic("parity", 2)
        fill(broker, "parity", 20, 0)
        fill(broker, "parity", 5, 1)
    modes = [("pykafka", kafka39)] + [(mode, broker) for mode in ("import", "patch") for broker in (kafka39, kafka44)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {
            program: [
                pool.submit(run, program, mode, broker, f"{program}-{mode}-{number}-{os.getpid()}")
                for number, (mode, broker) in enumerate(modes)
            ]
            for program in NAMES
        }
        yield runs.__getitem__
    for broker in (kafka39, kafka44):
        broker.delete_topic("parity")


@pytest.mark.parametrize("program", NAMES)
def test_the_lines_that_differ_are_those_that_the_documentation_lists(
    program: str, started: Callable[[str], list[Future[Lines]]]
) -> None:
    theirs, *ours = [done.result() for done in started(program)]
    known = {where: values for where, values in listed().items() if where[0] == program}
    assert len(theirs) >= 5
    for lines in ours:
        assert differences(program, theirs, lines) == known


def test_every_program_is_run() -> None:
    assert sorted(path.stem for path in PROGRAMS.glob("*.py")) == sorted([*NAMES, "kit"])
