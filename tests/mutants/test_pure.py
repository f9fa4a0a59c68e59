"""The set-up of the mutation score: which files are changed, and how the table counts. The run itself is by hand."""

from __future__ import annotations

import configparser

import pytest

from tests.mutants.pure import ROOT, SUITES, settings, sources, table


def test_the_pure_rooms_are_changed_and_their_drivers_are_not() -> None:
    found = [name for suite in SUITES for name in sources(suite)]
    assert len(found) == len(set(found)) > 35, "each file belongs to one suite"
    assert all((ROOT / name).is_file() for name in found)
    for name in (
        "coordinator/membership.py",
        "coordinator/assignors/range.py",
        "coordinator/protocol.py",
        "fetch/plan.py",
        "offset_convention.py",
        "processing/work.py",
        "stores/claims.py",
    ):
        assert f"managedconsumer/{name}" in found
    assert "managedconsumer/coordinator/base.py" not in found
    assert list(sources("protocol")) == ["managedconsumer/coordinator/protocol.py"]


@pytest.mark.parametrize("suite", SUITES)
def test_mutmut_reads_the_settings(suite: str) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(settings(suite))
    assert parser["mutmut"]["source_paths"].split() == list(sources(suite))
    assert parser["mutmut"]["pytest_add_cli_args_test_selection"].split() == list(SUITES[suite].tests)
    assert all((ROOT / name).exists() for name in SUITES[suite].tests)


def test_the_table_counts_time_outs_as_found_and_what_no_test_runs_as_missed() -> None:
    ends = {
        "managedconsumer.a.x_f__mutmut_1": "killed",
        "managedconsumer.a.x_f__mutmut_2": "timeout",
        "managedconsumer.a.x_f__mutmut_3": "survived",
        "managedconsumer.b.x_g__mutmut_1": "no tests",
        "managedconsumer.b.x_g__mutmut_2": "not checked",
    }
    rows = [line.split() for line in table(ends).splitlines()]
    assert rows[1:] == [
        ["a", "1", "1", "1", "0", "0", "66.7", "%"],
        ["b", "0", "0", "0", "1", "1", "0.0", "%"],
        ["all", "1", "1", "1", "1", "1", "40.0", "%"],
    ]
