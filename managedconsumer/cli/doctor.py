"""``managedconsumer doctor``: find faults between here and the messages, and what a pykafka program has to change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import click

from managedconsumer.admin import doctor, judging
from managedconsumer.admin.pykafka_source import Remark, look_at
from managedconsumer.admin.values import Finding
from managedconsumer.cli import _show
from managedconsumer.cli._codes import NO
from managedconsumer.cli._connection import connection_options, prepared
from managedconsumer.errors import MissingPackageError
from managedconsumer.spark.advice import of_this_machine

_SIGNS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


@click.command("doctor", short_help="What is wrong between here and the messages.")
@click.argument("names", nargs=-1, metavar="[TOPIC [GROUP]] | PATH...")
@click.option(
    "--source",
    type=click.Path(exists=True, path_type=Path),
    help="A pykafka program, or a directory of them: what means something else here, by line. Asks no broker.",
)
@click.option("--fix", is_flag=True, help="Rewrite pykafka programs, the files and directories PATH. Shows a diff.")
@click.option("--write", is_flag=True, help="With --fix: write the files, too.")
@connection_options
@_show.json_option
def command(
    names: tuple[str, ...],
    source: Path | None,
    fix: bool,
    write: bool,
    bootstrap: str | None,
    config: Path | None,
    as_json: bool,
) -> int:
    """Look at names, connections, TLS, login, versions and advertised addresses; at a topic, and at a group.

    Exits with 1 when something is wrong.
    """
    if source is not None:
        return _source(source, as_json)
    if fix:
        return _fix([Path(name) for name in names], write)
    if write or len(names) > 2:
        raise click.UsageError("--write needs --fix" if write else f"one topic and one group, not {len(names)} names")
    topic, group = (*names, None, None)[:2]
    with prepared(bootstrap, config) as (admin, cluster):
        findings = _shown([*doctor.installation(), *of_this_machine()], as_json)
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


def _fix(paths: list[Path], write: bool) -> int:
    """Show what ``--fix`` changes and what is left to do, by the lines of the new files."""
    try:
        from managedconsumer.admin.pykafka_fix import fixed
    except ModuleNotFoundError:
        raise MissingPackageError("doctor --fix needs libcst: pip install 'managedconsumer[fix]'") from None
    missing = [str(path) for path in paths if not path.exists()]
    if missing or not paths:
        raise click.UsageError(f"there is no {', '.join(missing)}" if missing else "--fix needs files or directories")
    sources = {file: file.read_bytes() for path in paths for file in _files(path)}
    commits = any(b"commit_offsets(" in source for source in sources.values())
    found: list[Remark] = []
    changed: dict[Path, bytes] = {}
    for file, source in sources.items():
        with contextlib.suppress(SyntaxError, ValueError):  # look_at() says so
            made = fixed(source)
            if made != source:
                changed[file] = made
                _show.diff(str(file), source, made)
        text = changed.get(file, source).decode("utf-8", "replace")
        found += look_at(text, str(file), commits=commits, moved=file in changed)
    for file, made in changed.items() if write else ():
        file.write_bytes(made)
    _print_remarks(found, len(sources))
    _show.say(f"{len(changed)} files rewritten" if write else f"{len(changed)} files would change: --write writes them")
    return NO if any(each.level == "wrong" for each in found) else 0


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _source(path: Path, as_json: bool) -> int:
    files = _files(path)
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
