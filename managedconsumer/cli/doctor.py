"""``managedconsumer doctor``: find faults between here and the messages, and what a pykafka program has to change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from managedconsumer.admin import doctor, judging
from managedconsumer.admin.pykafka_source import Remark, look_at
from managedconsumer.admin.values import Finding
from managedconsumer.cli import _show
from managedconsumer.cli._codes import NO
from managedconsumer.cli._connection import connection_options, prepared

_SIGNS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


@click.command("doctor", short_help="What is wrong between here and the messages.")
@click.argument("topic", required=False)
@click.argument("group", required=False)
@click.option(
    "--source",
    type=click.Path(exists=True, path_type=Path),
    help="A pykafka program, or a directory of them: what means something else here, by line. Asks no broker.",
)
@connection_options
@_show.json_option
def command(
    topic: str | None, group: str | None, source: Path | None, bootstrap: str | None, config: Path | None, as_json: bool
) -> int:
    """Look at names, connections, TLS, login, versions and advertised addresses; at a topic, and at a group.

    Exits with 1 when something is wrong.
    """
    if source is not None:
        return _source(source, as_json)
    with prepared(bootstrap, config) as (admin, cluster):
        findings = _shown([*doctor.installation()], as_json)
        for each in doctor.examine(cluster, admin, topic, group):
            findings += _shown([each], as_json)
    if as_json:
        _show.print_json(findings)
    return NO if judging.worst(findings) == "wrong" else 0


def _shown(findings: list[Finding], as_json: bool) -> list[Finding]:
    """Print each at once, as some checks take a time-out."""
    for each in findings if not as_json else ():
        _show.say(f"{_SIGNS[each.level]}  {each.subject}: {each.text}")
        if each.remedy:
            _show.say(f"       -> {each.remedy}")
    return findings


def _source(path: Path, as_json: bool) -> int:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    sources = {str(file): file.read_text(encoding="utf-8", errors="replace") for file in files}
    commits = any("commit_offsets(" in source for source in sources.values())
    found: list[Remark] = []
    for name, source in sources.items():
        found += look_at(source, name, commits=commits)
    if as_json:
        _show.print_json(found)
    else:
        _print_remarks(found, len(files))
    return NO if any(each.level == "wrong" for each in found) else 0


def _print_remarks(found: Iterable[Remark], files: int) -> None:
    remarks = list(found)
    for each in remarks:
        _show.say(f"{each.path}:{each.line}: {_SIGNS[each.level].strip()}: {each.text}")
    programs = len({each.path for each in remarks})
    changes = sum(each.level == "wrong" for each in remarks)
    _show.say(
        f"{files} files, {programs} with pykafka: {changes} places have to change, {len(remarks) - changes} to look at"
    )
