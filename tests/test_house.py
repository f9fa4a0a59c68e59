"""``python -m tests.house`` counts what is there."""

from __future__ import annotations

import pytest

from tests import house


@pytest.mark.slow
def test_it_prints_a_figure_for_each_thing_that_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    house.main()
    shown = {name.strip(): int(count.replace(",", "")) for name, count in _rows(capsys.readouterr().out)}
    assert shown["lines of managedconsumer/"] > 30_000
    assert shown["lines of DESIGN.md"] == len((house.ROOT / "DESIGN.md").read_text(encoding="utf-8").splitlines())
    assert shown["top rooms"] < shown["rooms"] < shown["files of managedconsumer/"]
    assert shown["arrows between top rooms"] >= shown["top rooms"] - 1


def _rows(text: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for line in text.splitlines() for row in [line.rsplit(maxsplit=1)]]


def test_floors_are_the_longest_way_down_and_a_circle_is_one_floor() -> None:
    assert house.floors({"a": {}, "b": {}}) == 1
    assert house.floors({"a": {"b": {"module"}, "c": {"module"}}, "b": {"c": {"module"}}, "c": {}}) == 3
    assert house.floors({"a": {"b": {"module"}}, "b": {"a": {"module"}, "c": {"module"}}, "c": {}}) == 2


def test_what_only_type_checkers_import_is_no_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"wire.a": {"fetch.b": {"type"}, "wire.c": {"module"}}, "fetch.b": {"wire.a": {"function"}}, "wire.c": {}}
    monkeypatch.setattr(house, "graph", lambda: held)
    assert house.arrows(house.top) == {"wire": {}, "fetch": {"wire": {"function"}}}
    assert house.arrows(house.top, types=True)["wire"] == {"fetch": {"type"}}
