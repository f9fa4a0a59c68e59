"""``managedconsumer timeline``: the rebalances and the partitions' owners, from the files of recorders."""

from __future__ import annotations

from pathlib import Path

import click

from managedconsumer.cli import _show
from managedconsumer.observe import drawing
from managedconsumer.observe.flight import lines_of
from managedconsumer.observe.recorder import Recorder
from managedconsumer.observe.timeline import Timeline


@click.command("timeline", short_help="Who had which partition when, and why it moved.")
@click.argument("files", type=click.Path(exists=True, dir_okay=False, path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A page (.html) or picture (.svg)."
)
@click.option("--group", help="Which one, where the files are of several.")
@_show.json_option
def command(files: tuple[Path, ...], output: Path | None, group: str | None, as_json: bool) -> None:
    """The rebalances of a group: when, how long, why; and how long nobody read each partition.

    The files are those of consumers with history=PATH, also of processes that were killed, or JSON lines as a Recorder
    writes them (to_json_lines()); of one process or of several.
    """
    if output is not None and output.suffix not in (".html", ".svg"):
        raise click.BadParameter(f"{output} ends in neither .html nor .svg", param_hint="--output")
    recorder = Recorder()
    for file in files:
        try:
            recorder.read(lines_of(file.read_bytes()))
        except ValueError as error:
            raise click.BadParameter(f"{file}: {error}", param_hint="FILES") from None
    try:
        found = recorder.timeline(group)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if output is not None:
        output.write_text(drawing.svg(found) if output.suffix == ".svg" else drawing.page(found), encoding="utf-8")
        _show.say(f"{output}: {len(found.rounds)} rebalances of {len(found.members)} members")
    elif as_json:
        _show.print_json(found)
    else:
        _print(found)


def _print(found: Timeline) -> None:
    rows = [
        (drawing.clock(each.start), drawing.took(each), each.generation, drawing.causes(each)) for each in found.rounds
    ]
    _show.table(("BEGAN", "TOOK", "GENERATION", "WHY"), rows, (1, 2))
    _show.say()
    shown = [
        (f"{tp.topic}-{tp.partition}", len(each), drawing.duration(max(each, default=0.0)), drawing.duration(sum(each)))
        for tp, each in found.unread().items()
    ]
    _show.table(("NOBODY READ", "TIMES", "LONGEST", "IN ALL"), shown, (1, 2, 3))
