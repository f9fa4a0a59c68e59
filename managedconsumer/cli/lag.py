"""``managedconsumer lag GROUP``: one number, for monitors and scripts."""

from __future__ import annotations

import click

from managedconsumer.admin.admin import Admin
from managedconsumer.cli import _show
from managedconsumer.cli._codes import NO
from managedconsumer.cli._connection import with_admin


@click.command("lag", short_help="How far a group is behind.")
@click.argument("group")
@click.option("--max", "most", type=click.IntRange(0), metavar="MESSAGES", help="Exit with 1 above this lag.")
@click.option("--max-seconds", type=click.FloatRange(0), metavar="SECONDS", help="Exit with 1 when further behind.")
@with_admin
@_show.json_option
def command(admin: Admin, group: str, most: int | None, max_seconds: float | None, as_json: bool) -> int:
    """How far a group is behind: messages by partition, and the age of the oldest one that is not committed.

    Exit codes: 0 within the bounds, 1 above one of them, 2 wrong usage, 3 Kafka cannot be reached.
    """
    found = admin.lag([group])[group]
    too_much = most is not None and found.lag > most
    too_old = max_seconds is not None and found.seconds is not None and found.seconds > max_seconds
    if as_json:
        partitions = [
            {"topic": p.topic, "partition": p.partition, "lag": p.lag, "seconds": p.seconds} for p in found.partitions
        ]
        _show.print_json({"group": group, "lag": found.lag, "seconds": found.seconds, "partitions": partitions})
    else:
        rows = [(p.topic, p.partition, p.lag, _show.seconds(p.seconds)) for p in found.partitions]
        total = ("total", "", found.lag, _show.seconds(found.seconds))
        _show.table(("TOPIC", "PARTITION", "LAG", "BEHIND"), [*rows, total], (1, 2))
    return NO if too_much or too_old else 0
