"""``managedconsumer reset GROUP TOPIC``: move the committed offsets of an idle group."""

from __future__ import annotations

import click

from managedconsumer.admin.admin import Admin
from managedconsumer.cli import _show
from managedconsumer.cli._connection import with_admin


@click.command("reset", short_help="Change where an idle group goes on.")
@click.argument("group")
@click.argument("topic")
@click.option("--to", metavar="WHERE", help="earliest, latest, an offset, an ISO 8601 time (UTC), or '2 hours ago'.")
@click.option("--shift", type=int, metavar="N", help="By N messages from the committed offsets; negative: backwards.")
@_show.partitions_option
@click.option("--execute", is_flag=True, help="Do it. Without this the plan is shown.")
@with_admin
@_show.json_option
def command(
    admin: Admin,
    group: str,
    topic: str,
    to: str | None,
    shift: int | None,
    partitions: tuple[int, ...],
    execute: bool,
    as_json: bool,
) -> None:
    """Change what a group has committed for a topic: shows the plan, and does it with --execute.

    A group that is in use is refused, with the names of its members. Past the end of a log is its end.
    """
    if (to is None) == (shift is None):
        raise click.UsageError("say where to go: either --to or --shift")
    found = admin.reset(group, topic, to, shift=shift, partitions=partitions or None, execute=execute)
    if as_json:
        _show.print_json(found)
        return
    rows = [(m.topic, m.partition, m.old, m.new, m.start, m.end) for m in found.moves]
    _show.table(("TOPIC", "PARTITION", "COMMITTED", "NEW", "FIRST", "NEXT"), rows, (1, 2, 3, 4, 5))
    _show.say("done" if execute else "nothing was changed: this is the plan; --execute does it")
