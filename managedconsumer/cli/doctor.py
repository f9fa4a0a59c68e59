"""``managedconsumer doctor``: find faults between here and the messages, and what a pykafka program has to change."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
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
        return _remarks(_sources([source]), as_json=as_json)
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
    sources = _sources(paths)
    changed: dict[Path, bytes] = {}
    for file, source in sources.items():
        with contextlib.suppress(SyntaxError, ValueError):  # look_at() says so
            made = fixed(source)
            if made != source:
                changed[file] = made
                _show.diff(str(file), source, made)
    for file, made in changed.items() if write else ():
        file.write_bytes(made)
    code = _remarks({**sources, **changed}, changed)
    _show.say(f"{len(changed)} files rewritten" if write else f"{len(changed)} files would change: --write writes them")
    return code


def _sources(paths: Iterable[Path]) -> dict[Path, bytes]:
    files = (file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))
    return {file: file.read_bytes() for file in files}


def _remarks(sources: Mapping[Path, bytes], moved: Collection[Path] = (), as_json: bool = False) -> int:
    """Print the remarks on the files. Those in ``moved`` have been rewritten."""
    commits = any(b"commit_offsets(" in source for source in sources.values())
    found: list[Remark] = []
    for file, source in sources.items():
        found += look_at(source.decode("utf-8", "replace"), str(file), commits=commits, moved=file in moved)
    changes = sum(each.level == "wrong" for each in found)
    if as_json:
        _show.print_json(found)
        return NO if changes else 0
    for each in found:
        _show.say(f"{each.path}:{each.line}: {_SIGNS[each.level].strip()}: {each.text}")
    programs = len({each.path for each in found})
    _show.say(
        f"{len(sources)} files, {programs} with pykafka: {changes} places have to change, {len(found) - changes} to "
        "look at"
    )
    return NO if changes else 0
