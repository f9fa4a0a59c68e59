"""Reports about a consumer: progress as a table, health in sentences, and a notebook's view of both."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from managedconsumer.fetch.progress import PartitionProgress


class ProgressTable(dict[Any, PartitionProgress]):
    """The result of ``progress()``: a dict, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        names = ("partition", *PartitionProgress._fields)
        rows = [(_name(key), *map(_text, each)) for key, each in self.items()]
        return _table(names, rows)


class Health(dict[str, Any]):
    """The result of ``health()``: a dict of plain values, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return _table(("", ""), [(name, _text(value)) for name, value in self.items()])


def stuck(progress: Mapping[Any, PartitionProgress], after: float) -> list[str]:
    """Return a sentence for each partition with lag that has not moved for longer than ``after`` seconds."""
    return [
        f"partition {_name(key)} has not moved for {each.stuck_for:.0f} s: it is at offset {each.position}, "
        f"{each.lag} behind the end"
        for key, each in progress.items()
        if each.stuck_for > after
    ]


def unplaced(progress: Mapping[Any, PartitionProgress]) -> list[str]:
    """Return a sentence for each partition without a known position."""
    return [f"partition {_name(key)} has no position yet" for key, each in progress.items() if each.position is None]


def page_of(shown: str, health: Health, progress: ProgressTable) -> str:
    """Return the HTML of a consumer whose ``repr`` is ``shown``."""
    from html import escape  # only notebooks need it

    told = [*health["reasons"], *([health["trouble"]] if health["trouble"] else [])]
    state = "; ".join(told) or "live and ready"
    return f"<div><code>{escape(shown)}</code><p>{escape(state)}</p>{progress._repr_html_()}</div>"


def _name(key: Any) -> str:
    return str(key) if isinstance(key, int) else f"{key.topic}-{key.partition}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return "" if value is None else str(value)


def _table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    from html import escape  # only notebooks need it

    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
