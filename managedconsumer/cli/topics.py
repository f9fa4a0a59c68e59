"""``managedconsumer topics``: topics, and the offsets that their logs have."""

from __future__ import annotations

import click

from managedconsumer.admin.admin import Admin
from managedconsumer.cli import _show
from managedconsumer.cli._connection import with_admin


@click.command("topics", short_help="Topics and their offsets.")
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@with_admin
@_show.json_option
def command(admin: Admin, names: tuple[str, ...], as_json: bool) -> None:
    """Topics; with a name, its partitions: leader, first and last offset, newest timestamp.

    FIRST is the offset of the oldest message, NEXT that of the next one to be written.
    """
    found = admin.topics(names or None)
    if as_json:
        _show.print_json(found)
    elif names:
        rows = [
            (topic.name, part.partition, part.leader, part.start, part.end, _show.moment(part.newest))
            for topic in found
            for part in topic.partitions
        ]
        _show.table(("TOPIC", "PARTITION", "LEADER", "FIRST", "NEXT", "NEWEST"), rows, (1, 2, 3, 4))
    else:
        totals = [
            (
                topic.name,
                len(topic.partitions),
                sum(part.end - part.start for part in topic.partitions),
                _show.moment(max((part.newest for part in topic.partitions if part.newest is not None), default=None)),
            )
            for topic in found
        ]
        _show.table(("TOPIC", "PARTITIONS", "OFFSETS", "NEWEST"), totals, (1, 2))
