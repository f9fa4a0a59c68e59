"""The long tables of docs/reference, made of the code: ``python -m tests.doc_tables`` writes them anew.

Sphinx shows each ``.csv`` by a ``csv-table`` of its page; ``tests/test_docs.py`` compares the files with the code.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from managedconsumer.errors import ERROR_CODES
from managedconsumer.observe.catalogue import OF_CONSUMERS, OF_MEMBERS, OF_PARTITIONS, OF_RUNS, Measure
from tests.pages import DOCS

_REFERENCE = DOCS / "reference"


def _codes() -> list[list[str]]:
    rows = [["code", "class", "Kafka's name", "healed by"]]
    for number, error in sorted(ERROR_CODES.items()):
        remedy = "refresh" if error.refresh_metadata else "retry" if error.retriable else ""
        rows.append([str(number), f"``{error.__name__}``", error.kafka_name, remedy])
    return rows


def _metrics(measures: Iterable[Measure]) -> list[list[str]]:
    rows = [["Prometheus", "meaning", "kind", "unit", "OpenTelemetry"]]
    for each in measures:
        unit = "By (bytes)" if each.unit == "By" else each.unit
        otel = f"``{each.otel}``" + (f", {each.operation}" if each.operation else "")
        rows.append([f"``{each.name}``", each.text, each.kind, unit, otel])
    return rows


def tables() -> dict[str, str]:
    """The text of each file, by its name."""
    found = {
        "error_codes": _codes(),
        "metrics_consumer": _metrics(OF_CONSUMERS),
        "metrics_partition": _metrics(OF_PARTITIONS),
        "metrics_run": _metrics(OF_RUNS),
        "metrics_member": _metrics(OF_MEMBERS),
    }
    written = {}
    for name, rows in found.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        written[f"{name}.csv"] = text.getvalue()
    return written


def differing() -> list[str]:
    """The files that are not what the code says."""
    shown = tables()
    return [name for name, text in shown.items() if (_REFERENCE / name).read_text(encoding="utf-8") != text]


if __name__ == "__main__":
    for file, text in tables().items():
        (_REFERENCE / file).write_text(text, encoding="utf-8")
